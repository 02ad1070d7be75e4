"""The master's side of the worker processes: a handle for each, and calls to all of them.

Owns the control channels. Knows neither what the calls mean nor when a worker starts or ends.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import gevent
from gevent.event import Event

from nsqcy.logging.types import Lines
from nsqcy.nsqd.master.launcher import Born
from nsqcy.process.acceptor import Acceptor
from nsqcy.process.control import Answer, CallTimeout, Channel, ChannelClosed, RemoteError, Request
from nsqcy.process.handoff import Accepted, Sender
from nsqcy.process.heartbeat import Slots

LAGGING = 2_000_000_000


class Phase:
    """How far the life of this nsqd has come."""

    def __init__(self) -> None:
        self.started = False  # it serves clients
        self.ending = False


class Requests(Protocol):
    """Who answers workers."""

    def called(self, index: int, request: Request) -> Any: ...
    def notified(self, index: int, request: Request) -> None: ...


class WorkerHandle:
    """One worker process: its channels, and how far it has come.

    It is the handler of its control channel and the acceptor's target.
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
        self.knows_peers = False  # it has been told which others are up
        self.ready = False  # and is one of them
        self.channel = Channel(born.control, self)
        self.sender = Sender(born.handoff, acceptor.resume, acceptor.retry_later)
        self._requests = requests
        self._hung_up = hung_up
        self._slots = slots
        self._beat = 0
        self._recent = 0  # handed over since the beat that last told the connections
        self.channel.start()

    def lagging(self) -> bool:
        return time.monotonic_ns() - self._slots.view(self.index).beat > LAGGING

    def load(self) -> int:
        slot = self._slots.view(self.index)
        if slot.beat != self._beat:
            self._beat = slot.beat
            self._recent = self.sender.pending
        return slot.connections + self._recent

    def send(self, item: Accepted) -> bool:
        if not self.sender.send(item):
            return False
        self._recent += 1
        return True

    def called(self, request: Request) -> Any:
        return self._requests.called(self.index, request)

    def notified(self, request: Request) -> None:
        if request.method == "up" and request.to is None:
            self.up.set()
        else:
            self._requests.notified(self.index, request)

    def hung_up(self, reason: str) -> None:
        self._hung_up(self)

    def ask(
        self, method: str, timeout: float | None, args: dict[str, Any], fds: Sequence[int] = ()
    ) -> Answer | Exception:
        """The answer, or what went wrong."""
        try:
            return self.channel.call(method, timeout, fds=fds, **args)
        except (CallTimeout, ChannelClosed, RemoteError) as error:
            return error


class Workers:
    """The handles of the workers that are alive."""

    def __init__(self, log: Lines) -> None:
        self._handles: dict[int, WorkerHandle] = {}
        self._log = log

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(list(self._handles.values()))

    def __len__(self) -> int:
        return len(self._handles)

    def get(self, index: int | None) -> WorkerHandle | None:
        """The handle of a worker; None if it is not alive."""
        return None if index is None else self._handles.get(index)

    def add(self, handle: WorkerHandle) -> None:
        self._handles[handle.index] = handle

    def remove(self, index: int) -> WorkerHandle | None:
        return self._handles.pop(index, None)

    def notify(self, method: str, /, *, blob: bytes = b"", **args: Any) -> None:
        """Notify every worker."""
        for handle in self:
            handle.channel.notify(method, blob=blob, **args)

    def gather(self, method: str, timeout: float, /, **args: Any) -> dict[int, Answer | Exception]:
        """Ask every worker at once; an answer or what went wrong, by worker."""
        asked = {
            index: gevent.spawn(handle.ask, method, timeout, args)
            for index, handle in sorted(self._handles.items())
        }
        gevent.joinall(list(asked.values()))
        return {index: greenlet.value for index, greenlet in asked.items()}

    def gather_ready(
        self, method: str, timeout: float, fds: Sequence[int] = (), /, **args: Any
    ) -> dict[int, Answer | Exception]:
        """Ask the workers that have loaded their topics. Each gets duplicates of the
        descriptors."""
        asked = {
            index: gevent.spawn(handle.ask, method, timeout, args, [os.dup(fd) for fd in fds])
            for index, handle in sorted(self._handles.items())
            if handle.ready
        }
        gevent.joinall(list(asked.values()))
        return {index: greenlet.value for index, greenlet in asked.items()}

    def ask_ready(
        self, method: str, timeout: float, fds: Sequence[int] = (), /, **args: Any
    ) -> dict[int, Answer]:
        """As `gather_ready`, without those that do not answer in time."""
        answers = self.gather_ready(method, timeout, fds, **args)
        for index, answer in answers.items():
            if isinstance(answer, RemoteError):  # a bug there
                self._log.error(f"worker {index}: {method}: {answer}", worker=index)
        return {index: each for index, each in answers.items() if isinstance(each, Answer)}
