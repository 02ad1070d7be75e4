"""Admin verbs that apply to all of nsqd. Each verb runs in the master.

A verb is one class: its fields are parsed from the HTTP request, and `run` is the master's action.
Workers import this module, so it imports no part of the master.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from nsqcy.nsqd.process_calls import Call, Result
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.process_messages.to_worker import GetCopies, GetFigures
from nsqcy.options.option import Value
from nsqcy.process.control import Answer

if TYPE_CHECKING:
    from nsqcy.nsqd.master.diagnosis import Diagnosis
    from nsqcy.nsqd.master.drain_effects import DrainControl
    from nsqcy.nsqd.master.live_options import LiveOptions
    from nsqcy.nsqd.master.policy_changes import PolicyStore
    from nsqcy.nsqd.master.topic_registry import TopicRegistry
    from nsqcy.nsqd.master.upgrade import Upgrade
    from nsqcy.nsqd.master.worker_memory import MemoryOfWorkers
    from nsqcy.nsqd.master.workers import Workers
    from nsqcy.nsqd.stats.metrics_shares import Metrics
    from nsqcy.nsqd.stats.stats_page import StatsPages

SAVE_TIMEOUT = 30.0  # seconds: the master writes and syncs a file before it answers
ALL_TIMEOUT = 30.0  # seconds: the master calls nsqlookupds and all workers
GATHER_TIMEOUT = 15.0  # seconds for a round of calls in progress, and the next round


class MasterSide(NamedTuple):
    """The parts of the master that verbs and reports use."""

    workers: "Workers"
    memory: "MemoryOfWorkers"
    topics: "TopicRegistry"
    stats: "StatsPages"
    metrics: "Metrics"
    policies: "PolicyStore"
    options: "LiveOptions"
    drain: "DrainControl"
    diagnosis: "Diagnosis"
    reload: Callable[[], bool]
    upgrade: "Upgrade"


class MasterVerb(Call[MasterSide, Result]):
    """A verb that applies to all of nsqd."""


class SetPolicy(MasterVerb[None]):
    """Set values for a topic or `topic/channel`, or unset all of them (None)."""

    timeout: ClassVar[float] = SAVE_TIMEOUT
    name: str
    values: dict[str, Any] | None

    def run(self, target: MasterSide) -> None:
        target.policies.set(self.name, self.values)


class ForgetPolicies(MasterVerb[None]):
    """Drop the policies of a deleted topic and its channels, or of one channel."""

    timeout: ClassVar[float] = SAVE_TIMEOUT
    topic: str
    channel: str = ""

    def run(self, target: MasterSide) -> None:
        target.policies.forget(self.topic, self.channel)


class ChangeOption(MasterVerb[None]):
    """Set an option. Every process has the new value when this call returns."""

    timeout: ClassVar[float] = 10.0
    name: str
    value: Value

    def run(self, target: MasterSide) -> None:
        value = list(self.value) if isinstance(self.value, tuple) else self.value
        target.options.change(self.name, value)


class SetDrain(MasterVerb[dict[str, Any]]):
    """Start draining, with a limit in seconds, or stop draining. Return the state."""

    timeout: ClassVar[float] = ALL_TIMEOUT
    on: bool
    limit: float | None
    hand_over: bool = False

    def run(self, target: MasterSide) -> dict[str, Any]:
        return target.drain.set(self.on, self.limit, self.hand_over)


class GetDrain(MasterVerb[dict[str, Any]]):
    """Return the /config/drain object."""

    timeout: ClassVar[float] = ALL_TIMEOUT

    def run(self, target: MasterSide) -> dict[str, Any]:
        return target.drain.state()


class Reload(MasterVerb[bool]):
    """Reload the configuration, as SIGHUP does; return False if it is invalid and therefore
    unchanged."""

    timeout: ClassVar[float] = ALL_TIMEOUT

    def run(self, target: MasterSide) -> bool:
        return target.reload()


class BeginUpgrade(MasterVerb[dict[str, Any]]):
    """Start an upgrade in place; return the /upgrade object. python: the interpreter of the next
    version; "": the one that runs nsqd"""

    timeout: ClassVar[float] = 10.0
    python: str

    def run(self, target: MasterSide) -> dict[str, Any]:
        target.upgrade.begin(self.python)
        return target.upgrade.state()


class GetUpgrade(MasterVerb[dict[str, Any]]):
    """Return the /upgrade object."""

    timeout: ClassVar[float] = 10.0

    def run(self, target: MasterSide) -> dict[str, Any]:
        return target.upgrade.state()


class GetAllCopies(MasterVerb[dict[str, Any]]):
    """Return the /copies object."""

    timeout: ClassVar[float] = GATHER_TIMEOUT

    def run(self, target: MasterSide) -> dict[str, Any]:
        found = target.workers.ask_ready(GetCopies())
        workers = [{"worker": index, **each} for index, each in sorted(found.items()) if each]
        return {"workers": workers}


class GetNode(MasterVerb[dict[str, Any]]):
    """Return the /node object."""

    timeout: ClassVar[float] = GATHER_TIMEOUT

    def run(self, target: MasterSide) -> dict[str, Any]:
        figures = target.workers.ask_ready(GetFigures())
        return target.metrics.node(figures)


class GetStats(MasterVerb[Answer]):
    """Return the /stats page's plan, with its buffer."""

    timeout: ClassVar[float] = GATHER_TIMEOUT
    returns = "answer"
    query: Query

    def run(self, target: MasterSide) -> Answer:
        return target.stats.page(self.query)


class GetMetrics(MasterVerb[Answer]):
    """Return the plan of the /metrics page, the descriptor of the page's buffer, the content type,
    and whether the page is compressed."""

    timeout: ClassVar[float] = GATHER_TIMEOUT
    returns = "answer"
    accept: str
    accept_encoding: str

    def run(self, target: MasterSide) -> Answer:
        return target.metrics.page(self.accept, self.accept_encoding)


class Inspect(MasterVerb[bytes]):
    """Return the `debug.tell` reports about `what` from all processes."""

    timeout: ClassVar[float] = 30.0
    returns = "blob"
    what: str

    def run(self, target: MasterSide) -> bytes:
        return target.diagnosis.inspect(self.what).encode(errors="replace")


class GetReasons(MasterVerb[list[str]]):
    """Return why nsqd is not ready for clients, one reason per line; empty if it is ready."""

    timeout: ClassVar[float] = 5.0

    def run(self, target: MasterSide) -> list[str]:
        return target.diagnosis.reasons()


class Live(MasterVerb[None]):
    """Return nothing; the answer shows that the master's event loop runs."""

    timeout: ClassVar[float] = 2.0

    def run(self, target: MasterSide) -> None:
        pass
