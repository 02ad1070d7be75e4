"""The health of nsqds: processes, memory, CPU and disk, from their responses to /node.

Pure: callers pass the time. An nsqd without /node (NSQ's, or an older version) has no health.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from nsqcy.cluster.node_answer import state_of
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.cluster.rate_meter import RateMeter


class Worker(NamedTuple):
    """One worker. memory and memory_limit: bytes of messages. cpu: cores in use."""

    number: int
    is_up: bool
    restarts: int
    connections: int = 0
    is_failing: bool = False  # whether writes to the disk fail
    memory: int = 0
    memory_limit: int = 0
    resident: int = 0
    cpu: float = 0.0
    other_version: str = ""  # the worker's version, if it is not the node's


class NodeHealth(NamedTuple):
    """An nsqd. resident: bytes of all processes. cpu: cores in use by all processes. lookupds:
    whether all topics are registered with each of them."""

    node: str
    version: str
    uptime: float  # seconds
    disk_size: int
    disk_free: int
    resident: int
    cpu: float
    workers: tuple[Worker, ...]
    refusing: tuple[str, ...]
    lookupds: Mapping[str, bool]
    certificate_days: float | None = None  # days until the nsqd's TLS certificate expires

    @property
    def disk_used(self) -> float:
        """The used share of the disk, from 0 to 1."""
        return 1 - self.disk_free / self.disk_size if self.disk_size else 0.0

    @property
    def memory(self) -> int:
        return sum(each.memory for each in self.workers)

    @property
    def memory_limit(self) -> int:
        return sum(each.memory_limit for each in self.workers)

    @property
    def workers_up(self) -> int:
        return sum(each.is_up for each in self.workers)

    @property
    def restarts(self) -> int:
        return sum(each.restarts for each in self.workers)


def of_nodes(answers: Iterable[NodeAnswer], meter: RateMeter, now: float) -> dict[str, NodeHealth]:
    """Return the health by node, without the nodes that do not report it. now: seconds since the
    epoch."""
    return {each.node: _of_node(each, meter, now) for each in answers if each.is_done}


def _of_node(answer: NodeAnswer, meter: RateMeter, now: float) -> NodeHealth:
    value = answer.value
    uptime = max(0.0, now - value["start_time"])

    def cores(name: str, process: Mapping[str, Any]) -> float:
        return meter.rate((answer.node, name), now, uptime, process.get("cpu", 0.0))

    version = value["nsqcy"]
    workers = tuple(
        _worker(each, cores(str(each["worker"]), each), version) for each in value["workers"]
    )
    master = value["master"]
    return NodeHealth(
        answer.node,
        version,
        uptime,
        value["disk"]["size"],
        value["disk"]["free"],
        master["resident"] + sum(each.resident for each in workers),
        cores("master", master) + sum(each.cpu for each in workers),
        workers,
        tuple(value["refusing_publishes"]),
        value["lookupds"],
        state_of(answer.node, value, now).certificate_days,
    )


def _worker(value: Mapping[str, Any], cpu: float, version: str) -> Worker:
    its_version = value.get("nsqcy", version)
    return Worker(
        value["worker"],
        value["up"],
        value["restarts"],
        value.get("tcp", 0),
        bool(value.get("failing")),
        value.get("memory", 0),
        value.get("memory_limit", 0),
        value.get("resident", 0),
        cpu if value["up"] else 0.0,
        its_version if its_version != version else "",
    )
