"""The readers of a topic's log, on its page: named cursors, how far they are and how far behind.

Pure: a function of what was gathered. NSQ's nsqds have none.
"""

from nsqcy.cluster.stats import CursorStats, TopicStats
from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin import figures
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.tables import table

_COLUMNS = ("Reader", "NSQd Host", "Lag", "Position", "Heard Of")
_OVERRUN = "Some of what it was to hold is gone"


def readers_table(frame: Frame, stats: TopicStats) -> Markup:
    """A row for each reader on each node; nothing where there is none."""
    found = [(cursor, node.node) for node in stats.nodes for cursor in node.cursors]
    if not found:
        return join()
    found.sort(key=lambda each: (each[0].name, each[1]))
    rows = [_row(frame, cursor, node) for cursor, node in found]
    return table("Readers of the Log", _COLUMNS, rows)


def _row(frame: Frame, cursor: CursorStats, node: str) -> list[Child]:
    overrun = tag("span", "overrun", class_="label", title=_OVERRUN) if cursor.overrun else join()
    return [
        join(cursor.name, " ", overrun),
        tag("a", node, href=frame.link("nodes", node)),
        figures.number(cursor.lag),
        tag("span", figures.number(cursor.seq), title=f"log {cursor.log_id}"),
        f"{figures.duration(cursor.age * SECOND)} ago",
    ]
