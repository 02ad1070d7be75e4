"""Accepts connections and passes each connection to a worker.

Owns the watchers for the listening sockets and the choice of worker. Independent of processes: a
worker is a target that is up or down, has a load, and may or may not accept sockets. Clients wait
in the backlog while no target accepts sockets. They also wait while this process has only its
reserve of descriptors left, because workers must accept earlier sockets first. A worker without
descriptors gets sockets only if all others have none left either; then, or when this process has no
reserve, accepting pauses, longer each time.
"""

import errno
import os
import resource
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import gevent

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.net.listeners import Listener, show
from nsqcy.process import ancillary
from nsqcy.process.handoff import Accepted
from nsqcy.util import descriptors

PAUSE = 0.1  # seconds until the next attempt
MAX_PAUSE = 1.0  # seconds, after several consecutive attempts without descriptors or memory
LOG_INTERVAL = 60.0  # seconds between two log lines about pauses
_BATCH = 64  # maximum connections accepted from one listener per turn
_TRANSIENT = {
    errno.ECONNABORTED,
    errno.EINTR,
    errno.ENETDOWN,
    errno.EPROTO,
    errno.ENOPROTOOPT,
    errno.EHOSTDOWN,
    errno.ENONET,
    errno.EHOSTUNREACH,
    errno.EOPNOTSUPP,
    errno.ENETUNREACH,
    errno.EPERM,
}
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Target(Protocol):
    """The acceptor's view of a worker."""

    def lagging(self) -> bool:
        """Return whether the worker's heartbeat is late. If so, it is used only if all other
        targets are full."""

    def full(self) -> bool:
        """Return whether the worker has just refused a socket, because it has no descriptors left.
        If so, it is used only if all other targets are full."""

    def load(self) -> int:
        """Return the number of the worker's connections, including those being passed to it. The
        consumers that it serves through other workers count as well."""

    def send(self, item: Accepted) -> bool:
        """Pass a socket; return False if the target accepts none now."""


class Stalled(Protocol):
    """Serves some connections while all targets are lagging."""

    def take(
        self, item: Accepted, workers: Sequence[int], give: Callable[[list[Accepted]], None]
    ) -> bool:
        """Return True if the connection was taken: it is served here, or passed to `give` later."""


class PauseLog:
    """Logs pauses in accepting, and full workers, each at most once per LOG_INTERVAL."""

    def __init__(self, log: Lines) -> None:
        self._log = log
        self._logged: dict[str, float] = {}

    def say(self, title: str, error: str) -> None:
        if self._is_due("pause"):
            events.accept_paused(self._log, listener=title, error=error)

    def say_full(self, full: int, workers: int) -> None:
        if self._is_due("full"):
            limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            events.workers_full(self._log, full=full, workers=workers, limit=limit)

    def _is_due(self, what: str) -> bool:
        now = time.monotonic()
        if now - self._logged.get(what, -LOG_INTERVAL) < LOG_INTERVAL:
            return False
        self._logged[what] = now
        return True


class Acceptor:
    """Accepts connections on all listeners while there are targets. Call `resume` when a target
    accepts sockets again."""

    def __init__(
        self,
        listeners: list[Listener],
        log: Lines,
        failed: Callable[[str], None],
        stalled: Stalled | None = None,
    ) -> None:
        loop = gevent.get_hub().loop
        self._log = log
        self._failed = failed
        self._stalled = stalled
        self._listeners = listeners
        self._watchers = [loop.io(each.sock.fileno(), 1) for each in listeners]
        # a new timer for each wait: libev does not restart a timer with its original duration
        self._timer: Any = None
        self._targets: dict[int, Target] = {}
        self._turn = 0
        self._held: deque[Accepted] = deque()  # accepted, not yet passed to a target
        self._in_reserve: Accepted | None = None  # has a reserved descriptor, perhaps still open
        self._pause_log = PauseLog(log)
        self._paused = False
        self._pause_length = PAUSE
        self._pause_ended = 0.0
        self._rests = False
        self.pauses = 0  # since the start
        self.closed = False

    def add(self, worker: int, target: Target) -> None:
        """Add a target that is up."""
        self._targets[worker] = target
        self.resume()

    def remove(self, worker: int) -> None:
        """Remove a target that is down or must receive no more sockets."""
        self._targets.pop(worker, None)

    def give(self, items: list[Accepted]) -> None:
        """Pass on accepted sockets that their worker did not accept."""
        if self.closed:
            for item in items:
                item.sock.close()
            return
        self._held.extend(items)
        self.resume()

    def refused(self, item: Accepted) -> None:
        """Pass on a socket that a worker has refused, because it has reached its open-files limit;
        retry it after a pause if all workers have."""
        self._held.append(item)
        if self._rests:
            return
        full = sum(target.full() for target in self._targets.values())
        if full < len(self._targets):
            self._pause_log.say_full(full, len(self._targets))
            self.resume()
            return
        self._pause(item.kind.upper(), f"{os.strerror(errno.EMFILE)} in a worker")

    def resume(self) -> None:
        """Continue accepting, unless paused for another reason."""
        if self.closed or self._paused or self._rests or not self._hand_out_held():
            return
        if self._uses_reserve():
            self._wait_for_room()
        elif self._targets:
            for listener, watcher in zip(self._listeners, self._watchers, strict=True):
                if not watcher.active:
                    watcher.start(self._acceptable, listener)

    def rest(self) -> None:
        """Accept and pass on nothing until `end_rest`: clients wait in the backlog."""
        self._rests = True
        self._stop_watching()
        self._stop_timer()

    def end_rest(self) -> None:
        """Continue to accept."""
        self._rests = self._paused = False
        self.resume()

    def dump(self, keep: ancillary.Keep) -> dict[str, Any]:
        """Return the state of an acceptor that rests, except for its listeners."""
        return {"held": [item.dump(keep) for item in self._held], "pauses": self.pauses}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of an acceptor, which rests until `end_rest`."""
        self._rests = True
        self._held.extend(Accepted.restore(item) for item in dumped["held"])
        self.pauses = dumped["pauses"]

    def close(self) -> None:
        """Stop listening, and close the connections that no worker has accepted."""
        if self.closed:
            return
        self.closed = True
        for listener, watcher in zip(self._listeners, self._watchers, strict=True):
            watcher.stop()
            watcher.close()
            events.closing(self._log, listener=listener.title, address=listener.text)
            listener.close()
        self._stop_timer()
        for item in self._held:
            item.sock.close()
        self._held.clear()

    def _acceptable(self, listener: Listener) -> None:
        try:
            for _ in range(_BATCH):
                self._accept(listener)
                if self._held or self._uses_reserve():
                    self._wait_for_room()
                    return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._accept_failed(listener, error)

    def _accept(self, listener: Listener) -> None:
        sock, peer = listener.sock.accept()
        local = listener.text if listener.path else _local(sock, listener)
        item = Accepted(sock, listener.kind, show(peer), local)
        if descriptors.is_reserved(sock.fileno()):
            self._in_reserve = item
        if not self._is_stalled(item) and not self._hand_over(item):
            self._held.append(item)

    def _uses_reserve(self) -> bool:
        """Return whether this process still has a socket with a reserved descriptor. No second one
        is accepted, because a worker that dies must be replaced with the rest of the reserve."""
        return self._in_reserve is not None and self._in_reserve.sock.fileno() >= 0

    def _is_stalled(self, item: Accepted) -> bool:
        """Return whether this process serves the connection, because no worker would now."""
        if self._stalled is None or not self._targets:
            return False
        if not all(target.lagging() for target in self._targets.values()):
            return False
        return self._stalled.take(item, sorted(self._targets), self.give)

    def _accept_failed(self, listener: Listener, error: OSError) -> None:
        if error.errno in _TRANSIENT:
            return
        if error.errno in EXHAUSTED:
            self._pause(listener.title, error.strerror or "")
            return
        self._failed(f"{listener.title}: accept: {error.strerror}")

    def _hand_over(self, item: Accepted) -> bool:
        """Offer a socket to the targets, least loaded first."""
        self._turn += 1
        targets = list(self._targets.values())

        def rank(place: int) -> tuple[bool, bool, int, int]:
            target = targets[place]
            turn = (place - self._turn) % len(targets)
            return target.full(), target.lagging(), target.load(), turn

        return any(targets[place].send(item) for place in sorted(range(len(targets)), key=rank))

    def _hand_out_held(self) -> bool:
        while self._held:
            if not self._hand_over(self._held[0]):
                self._wait_for_room()
                return False
            self._held.popleft()
        return True

    def _wait_for_room(self) -> None:
        """Stop accepting until `resume`. A timer retries after PAUSE in case nothing calls it."""
        self._stop_watching()
        if self._timer is None:
            self._start_timer(PAUSE)

    def _stop_watching(self) -> None:
        for watcher in self._watchers:
            watcher.stop()

    def _pause(self, title: str, error: str) -> None:
        if self.closed or self._paused or self._rests:
            return
        now = time.monotonic()
        again = now - self._pause_ended < MAX_PAUSE
        self._pause_length = min(2 * self._pause_length, MAX_PAUSE) if again else PAUSE
        self._paused = True
        self.pauses += 1
        self._stop_watching()
        self._stop_timer()
        self._start_timer(self._pause_length)
        self._pause_log.say(title, error)

    def _pause_over(self) -> None:
        self._stop_timer()
        if self._paused:
            self._paused = False
            self._pause_ended = time.monotonic()
        self.resume()

    def _start_timer(self, seconds: float) -> None:
        self._timer = gevent.get_hub().loop.timer(seconds)
        self._timer.start(self._pause_over)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer.close()
            self._timer = None


def _local(sock: socket.socket, listener: Listener) -> str:
    try:
        return show(sock.getsockname())
    except OSError:
        return listener.text
