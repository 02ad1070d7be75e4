"""Tiles: large figures at the top of a page, and tiles that describe a node's health. Pure."""

from typing import NamedTuple

from nsqcy.cluster.problems import DISK_ERROR
from nsqcy.nsqadmin.cluster.health import NodeHealth, Worker
from nsqcy.nsqadmin.html.formatting import number, plural, share, size, span
from nsqcy.nsqadmin.html.node_signs import FULL
from nsqcy.nsqadmin.html.tables import Columns, Table, table


class Tile(NamedTuple):
    """A figure. path: segments of the path to its details. detail: text below the figure. spark: a
    path. is_bad: whether it is a warning or an error; is_error: whether it is an error."""

    title: str
    value: str
    path: tuple[str, ...] = ()
    sort: str = ""
    detail: str = ""
    spark: str = ""
    is_bad: bool = False
    is_error: bool = False


def of_health(health: NodeHealth) -> list[Tile]:
    workers, up = len(health.workers), health.workers_up
    connections = sum(each.connections for each in health.workers)
    messages = f"{size(health.memory)} of {size(health.memory_limit)} for messages"
    return [
        Tile(
            "Workers",
            f"{up} of {workers} up" if up < workers else f"{up} up",
            detail=plural(health.restarts, "restart") if health.restarts else "",
            is_bad=up < workers,
        ),
        Tile("CPU", share(health.cpu), detail="of one core"),
        Tile("Memory", size(health.resident), detail=messages),
        Tile(
            "Disk",
            f"{share(health.disk_used)} used",
            detail=f"{size(health.disk_free)} of {size(health.disk_size)} free",
            is_bad=health.disk_used >= FULL,
            is_error=1 - health.disk_used < DISK_ERROR,
        ),
        Tile("Uptime", span(health.uptime), detail=f"nsqcy {health.version}"),
        Tile("Connections", number(connections)),
    ]


_WORKER_COLUMNS: Columns[Worker] = [
    ("Worker", lambda row: str(row.number)),
    ("State", lambda row: float(row.is_up)),
    ("CPU", lambda row: row.cpu),
    ("Memory", lambda row: row.resident),
    ("Messages In Memory", lambda row: row.memory),
    ("Connections", lambda row: row.connections),
    ("Restarts", lambda row: row.restarts),
]


def workers(health: NodeHealth) -> Table[Worker]:
    return table("Workers", _WORKER_COLUMNS, health.workers)
