"""The master's side of the worker processes: a handle for each worker, and calls to all workers.

Owns the control channels. Independent of the meaning of the calls and of the workers' lifecycle.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import gevent
from gevent.event import Event

from nsqcy.logging.types import Lines
from nsqcy.nsqd.master.launcher import Born
from nsqcy.nsqd.master.replacement import Replacement
from nsqcy.nsqd.process_calls import Call, Result
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.ancillary import Keep
from nsqcy.process.control import CallTimeout, Channel, ChannelClosed, RemoteError, Request
from nsqcy.process.handoff import Accepted, Sender
from nsqcy.process.heartbeat import Slots

LAGGING = 2_000_000_000
FAR_CONSUMER = 2
"""Maximum load of a consumer on another worker, in connections: the owner of its topic chooses,
encodes and finishes its messages, and receives what other workers' producers publish. Measured with
one hot topic: 1 with two workers, whose clients are half of all clients, and 2 with four."""
FULL = 1.0  # seconds for which other workers get the sockets, after a worker has refused one


class Phase:
    """Phase of this nsqd's lifecycle."""

    def __init__(self) -> None:
        self.started = False  # it serves clients
        self.ending = False


class Requests(Protocol):
    """Answers workers' requests."""

    def called(self, index: int, request: Request) -> Any: ...
    def notified(self, index: int, request: Request) -> None: ...


class WorkerHandle:
    """One worker process: its channels and its state.

    Handles its control channel's requests, and is a target for the acceptor.
    """

    def __init__(
        self,
        born: Born,
        slots: Slots,
        acceptor: Acceptor,
        requests: Requests,
        hung_up: Callable[["WorkerHandle"], None],
    ) -> None:
        self.index = born.worker
        self.pid = born.pid
        self.up = Event()
        self.settled = Event()  # it has loaded its topics, or it has exited
        self.gone = Event()  # it has exited
        self.knows_peers = False  # whether it knows the other workers that are up
        self.ready = False  # whether it is up itself
        self.channel = Channel(born.control, self)
        self.sender = Sender(born.handoff, acceptor.resume, self._refused)
        self._acceptor = acceptor
        self._full_until = 0.0  # monotonic clock
        self._requests = requests
        self._hung_up = hung_up
        self._slots = slots
        self._beat = 0
        self._recent = 0  # change since the last heartbeat with a connection count
        self.channel.start()

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {
            "worker": self.index,
            "pid": self.pid,
            "is_up": self.up.is_set(),
            "is_settled": self.settled.is_set(),
            "knows_peers": self.knows_peers,
            "is_ready": self.ready,
            "control": self.channel.dump(keep),
            "handoff": self.sender.dump(keep),
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of this worker's handle in the previous version."""
        for event, name in ((self.up, "is_up"), (self.settled, "is_settled")):
            if dumped[name]:
                event.set()
        self.knows_peers, self.ready = dumped["knows_peers"], dumped["is_ready"]
        self.channel.restore(dumped["control"])
        self.sender.restore(dumped["handoff"])

    def lagging(self) -> bool:
        return time.monotonic_ns() - self._slots.view(self.index).beat > LAGGING

    def full(self) -> bool:
        return time.monotonic() < self._full_until

    def load(self) -> int:
        slot = self._slots.view(self.index)
        if slot.beat != self._beat:
            self._beat = slot.beat
            self._recent = self.sender.pending
        far = min(self._slots.workers, 2 * FAR_CONSUMER) * slot.far_consumers // 2
        return slot.connections + self._recent + far

    def send(self, item: Accepted) -> bool:
        if not self.sender.send(item):
            return False
        self._recent += 1
        return True

    def _refused(self, item: Accepted) -> None:
        self._full_until = time.monotonic() + FULL
        self._acceptor.refused(item)

    def migrated(self, change: int) -> None:
        """Count the sessions that have arrived from other workers or left for them, without waiting
        for a heartbeat."""
        self._recent += change

    def called(self, request: Request) -> Any:
        return self._requests.called(self.index, request)

    def notified(self, request: Request) -> None:
        self._requests.notified(self.index, request)

    def hung_up(self, reason: str) -> None:
        self._hung_up(self)

    def ask(self, call: Call[Any, Result]) -> Result | Exception:
        """Return the result, or the error. The caller keeps its descriptors."""
        try:
            return call.duplicate().send(self.channel)
        except (CallTimeout, ChannelClosed, OSError, RemoteError) as error:
            return error


class Workers:
    """The handles of the running workers."""

    def __init__(self, log: Lines) -> None:
        self._handles: dict[int, WorkerHandle] = {}
        self._log = log
        self.unsaved: dict[int, dict[str, int]] = {}
        """Number of messages that exiting workers could not save, by worker and topic."""
        self.replacements: dict[int, Replacement] = {}
        """Replacements in progress, by worker."""

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(list(self._handles.values()))

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, index: int | None) -> WorkerHandle | None:
        """Return a worker's handle; None if the worker is not running."""
        return None if index is None else self._handles.get(index)

    def add(self, handle: WorkerHandle) -> None:
        self._handles[handle.index] = handle

    def remove(self, index: int) -> WorkerHandle | None:
        return self._handles.pop(index, None)

    def on_up(self, index: int) -> None:
        """Handle the boot of a worker."""
        handle = self.get(index)
        if handle is not None:
            handle.up.set()

    def notify(self, call: Call[Any, None]) -> None:
        """Notify every worker."""
        for handle in self:
            call.notify(handle.channel)

    def gather(self, call: Call[Any, Result]) -> dict[int, Result | Exception]:
        """Call all workers at the same time; return a result or an error for each worker."""
        return _gather(call, self)

    def gather_ready(self, call: Call[Any, Result]) -> dict[int, Result | Exception]:
        """Call the workers that have loaded their topics."""
        return _gather(call, (handle for handle in self if handle.ready))

    def ask_ready(self, call: Call[Any, Result]) -> dict[int, Result]:
        """Like `gather_ready`, but omit the workers that do not answer in time.

        Raises RemoteError or OSError if a worker answered with an error, or if the call could not
        be sent: an answer without its share would look complete.
        """
        found = {}
        for index, result in self.gather_ready(call).items():
            if not isinstance(result, Exception):
                found[index] = result
            elif not isinstance(result, CallTimeout | ChannelClosed):
                name = type(call).__name__
                self._log.error(f"worker {index}: {name}: {result}", worker=index)
                raise result
        return found


def _gather(
    call: Call[Any, Result], handles: Iterable[WorkerHandle]
) -> dict[int, Result | Exception]:
    asked = {
        handle.index: gevent.spawn(handle.ask, call)
        for handle in sorted(handles, key=lambda handle: handle.index)
    }
    gevent.joinall(list(asked.values()))
    return {index: greenlet.value for index, greenlet in asked.items()}
