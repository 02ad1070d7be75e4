"""Messages to a worker from the master and other workers, except the topic verbs.

A message is one class: its fields are the sent data, and `run` is the worker's action. Process
messages concern the worker's lifecycle, engine messages its clients and topics. The master imports
this module, so it imports no part of a worker.
"""

from typing import Any, ClassVar, Protocol

from nsqcy.config.policies import Version
from nsqcy.nsqd.process_calls import Call, Result
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.process.control import Answer

CHANGE_LIMIT = 5.0  # maximum seconds for a worker to apply a change
SHARE_LIMIT = 5.0  # maximum seconds for a worker to return its share of /stats or /metrics
REMAINS_LIMIT = 5.0  # time limit for counting the remaining messages, in seconds
INSPECT_LIMIT = 20.0  # maximum seconds for a worker to return its debug report
HEALTH_LIMIT = 2.0  # maximum seconds for a worker to report its health; clients are waiting
PEER_HEALTH_LIMIT = 5.0  # maximum seconds for a worker to report its health through the master
ADOPT_LIMIT = 5.0  # maximum seconds for a worker to adopt a session
WIND_DOWN_LIMIT = (
    5.0  # maximum seconds to end connections of producers; the worker's own limit is shorter
)


# Process messages


class Process(Protocol):
    """`worker.main.Worker`."""

    def load(
        self, topics: list[dict[str, Any]], table: dict[str, int], peers: dict[int, int]
    ) -> None: ...
    def placed(self, topic: str, worker: int) -> None: ...
    def peer_up(self, worker: int, generation: int) -> None: ...
    def peer_down(self, worker: int) -> None: ...
    def change_option(self, name: str, value: Any) -> None: ...
    def wind_down(self) -> None: ...
    def stop(self) -> None: ...
    def take_over(self, context: dict[str, Any], topics: list[dict[str, Any]]) -> None: ...
    def hand_over_to(self, fd: int) -> None: ...


class ProcessMessage(Call[Process, Result]):
    """A message about the worker's lifecycle."""


class Load(ProcessMessage[None]):
    """Load topics, and begin to accept connections. See `worker.main.Engine.load`."""

    timeout: ClassVar[None] = None
    topics: list[dict[str, Any]]
    table: dict[str, int]
    peers: dict[int, int]

    def run(self, target: Process) -> None:
        target.load(self.topics, self.table, self.peers)


class Placed(ProcessMessage[None]):
    """A topic has been placed on a worker."""

    topic: str
    worker: int

    def run(self, target: Process) -> None:
        target.placed(self.topic, self.worker)


class PeerUp(ProcessMessage[None]):
    """Another worker is up, with fresh rings of this generation."""

    worker: int
    generation: int

    def run(self, target: Process) -> None:
        target.peer_up(self.worker, self.generation)


class PeerDown(ProcessMessage[None]):
    """Another worker crashed. When the call returns, this worker no longer uses its rings."""

    timeout: ClassVar[None] = None
    worker: int

    def run(self, target: Process) -> None:
        target.peer_down(self.worker)


class OptionChanged(ProcessMessage[None]):
    """An option has a new value."""

    timeout: ClassVar[float] = CHANGE_LIMIT
    name: str
    value: Any

    def run(self, target: Process) -> None:
        target.change_option(self.name, self.value)


class WindDown(ProcessMessage[None]):
    """Accept no more connections, and end the connections of producers once their publishes are
    answered."""

    timeout: ClassVar[float] = WIND_DOWN_LIMIT

    def run(self, target: Process) -> None:
        target.wind_down()


class Stop(ProcessMessage[None]):
    """Save everything and exit."""

    timeout: ClassVar[None] = None

    def run(self, target: Process) -> None:
        target.stop()


class TakeOver(ProcessMessage[None]):
    """Take over once the predecessor has handed over. The context is newer than in the boot data.
    `topics`, as in `Load`, are for a successor that must save them without the master."""

    context: dict[str, Any]
    topics: list[dict[str, Any]]

    def run(self, target: Process) -> None:
        target.take_over(self.context, self.topics)


class HandOverTo(ProcessMessage[None]):
    """Hand everything over to the successor at the other end of the socket in `fds`, and exit.
    Without success, report `Kept`, and serve on."""

    fds: tuple[int, ...]

    def run(self, target: Process) -> None:
        target.hand_over_to(self.fds[0])


# Engine messages


class Engine(Protocol):
    """`worker.engine.Engine`."""

    def adopt_session(
        self, fd: int, state: dict[str, Any], unread: bytes, unsent: bytes
    ) -> None: ...
    def renew_tls(self, material: dict[str, Any]) -> None: ...
    def renew_users(self, text: str) -> None: ...
    def announced(self, topic: str) -> None: ...
    def end_hold(self, topic: str, channels: list[str]) -> None: ...
    def policies_changed(self, changed: dict[str, dict[str, Any]], version: Version) -> None: ...
    def take_recalled_policies(self) -> dict[str, dict[str, Any]]: ...
    def refuse_publishes(self, reason: str | None) -> None: ...
    def set_draining(self, draining: bool) -> None: ...
    def share(self, query: Query, buffer: int) -> Answer: ...
    def metrics(self, buffer: int, compress: bool) -> dict[str, Any]: ...
    def remains(self) -> Any: ...
    def inspect(self, what: str) -> bytes: ...
    def health(self) -> dict[str, Any]: ...
    def copies(self) -> dict[str, Any] | None: ...
    def figures(self) -> dict[str, Any]: ...
    def hand_over(self, on: bool) -> int: ...


class EngineMessage(Call[Engine, Result]):
    """A message about the worker's clients and topics."""


class AdoptSession(EngineMessage[None]):
    """Adopt another worker's session: its state, its socket, and in `blob` the bytes that it has
    not parsed (`unread` bytes), and the bytes that it has not sent."""

    timeout: ClassVar[float] = ADOPT_LIMIT
    state: dict[str, Any]
    unread: int
    blob: bytes
    fds: tuple[int, ...]

    def run(self, target: Engine) -> None:
        unread, unsent = self.blob[: self.unread], self.blob[self.unread :]
        target.adopt_session(self.fds[0], self.state, unread, unsent)


class RenewTls(EngineMessage[None]):
    """The certificate files have been reloaded. material: see `nsqcy.nsqd.tls`."""

    material: dict[str, Any]

    def run(self, target: Engine) -> None:
        target.renew_tls(self.material)


class RenewUsers(EngineMessage[None]):
    """The users file has been reloaded and is valid."""

    text: str

    def run(self, target: Engine) -> None:
        target.renew_users(self.text)


class Announced(EngineMessage[None]):
    """nsqlookupds list a new topic: answer the publishes that were waiting for the nsqlookupds."""

    topic: str

    def run(self, target: Engine) -> None:
        target.announced(self.topic)


class EndHold(EngineMessage[None]):
    """Create the channels that nsqlookupds list for a new topic."""

    topic: str
    channels: list[str]

    def run(self, target: Engine) -> None:
        target.end_hold(self.topic, self.channels)


class PoliciesChanged(EngineMessage[None]):
    """changed: all policies that are set, by topic or `topic/channel`; version: the version of the
    file that contains them."""

    timeout: ClassVar[float] = CHANGE_LIMIT
    changed: dict[str, dict[str, Any]]
    version: Version

    def run(self, target: Engine) -> None:
        target.policies_changed(self.changed, Version(*self.version))


class TakeRecalledPolicies(EngineMessage[dict[str, dict[str, Any]]]):
    """Return the policies that are in the journals of the worker's topics but missing from the
    saved policies, by topic or `topic/channel`. Each policy is returned once."""

    timeout: ClassVar[float] = CHANGE_LIMIT

    def run(self, target: Engine) -> dict[str, dict[str, Any]]:
        return target.take_recalled_policies()


class RefusePublishes(EngineMessage[None]):
    """Reject publishes for this reason, or accept them again (None)."""

    reason: str | None

    def run(self, target: Engine) -> None:
        target.refuse_publishes(self.reason)


class SetDraining(EngineMessage[None]):
    """Reject publishes because nsqd is draining, or accept them again."""

    timeout: ClassVar[float] = CHANGE_LIMIT
    draining: bool

    def run(self, target: Engine) -> None:
        target.set_draining(self.draining)


class HandOver(EngineMessage[int]):
    """Hand the groups of copied topics over to other nodes, or keep the remaining ones. Return the
    number of groups that still have to be handed over."""

    timeout: ClassVar[float] = CHANGE_LIMIT
    on: bool

    def run(self, target: Engine) -> int:
        return target.hand_over(self.on)


class GetShare(EngineMessage[Answer]):
    """Write the worker's share of /stats to the shared buffer in `fds`."""

    timeout: ClassVar[float] = SHARE_LIMIT
    returns = "answer"
    query: Query
    fds: tuple[int, ...]

    def run(self, target: Engine) -> Answer:
        return target.share(self.query, self.fds[0])


class WriteMetrics(EngineMessage[dict[str, Any]]):
    """Write the worker's share of /metrics to the shared buffer in `fds`."""

    timeout: ClassVar[float] = SHARE_LIMIT
    compress: bool
    fds: tuple[int, ...]

    def run(self, target: Engine) -> dict[str, Any]:
        return target.metrics(self.fds[0], self.compress)


class GetRemains(EngineMessage[Any]):
    """Return the messages that consumers of the worker's topics have not finished, as the fields of
    a `Remains`."""

    timeout: ClassVar[float] = REMAINS_LIMIT

    def run(self, target: Engine) -> Any:
        return target.remains()


class GetCopies(EngineMessage[dict[str, Any] | None]):
    """Return the worker's groups of copies; None if copies are disabled."""

    timeout: ClassVar[float] = SHARE_LIMIT

    def run(self, target: Engine) -> dict[str, Any] | None:
        return target.copies()


class GetFigures(EngineMessage[dict[str, Any]]):
    """Return the worker's own figures for /node."""

    timeout: ClassVar[float] = HEALTH_LIMIT

    def run(self, target: Engine) -> dict[str, Any]:
        return target.figures()


class InspectWorker(EngineMessage[bytes]):
    """Return the worker's `debug.tell` report about `what`."""

    timeout: ClassVar[float] = INSPECT_LIMIT
    returns = "blob"
    what: str

    def run(self, target: Engine) -> bytes:
        return target.inspect(self.what)


class GetHealth(EngineMessage[dict[str, Any]]):
    """Return the outcome of the worker's latest write to a log, and the time of that write."""

    timeout: ClassVar[float] = HEALTH_LIMIT

    def run(self, target: Engine) -> dict[str, Any]:
        return target.health()


class GetPeerHealth(GetHealth):
    """Return the outcome of another worker's latest write to a log, and the time of that write."""

    timeout: ClassVar[float] = PEER_HEALTH_LIMIT
