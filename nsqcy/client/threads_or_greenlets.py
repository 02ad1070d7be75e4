"""Threads or greenlets for the blocking client.

Hides the difference between the two. Names are looked up on use, so threads are greenlets if gevent
has patched `threading`.
"""

import selectors
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Literal, Protocol

from nsqcy.client.mailbox import PublishFuture, thread_gate
from nsqcy.util.self_connect import refuse_itself

Kind = Literal["auto", "threads", "gevent"]
Source = tuple[str, int] | None


class Future(Protocol):
    """Common interface of concurrent.futures.Future and gevent's AsyncResult."""

    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> bytes: ...
    def set_result(self, result: bytes, /) -> object: ...
    def set_exception(self, exception: BaseException, /) -> object: ...


class Gate(Protocol):
    """A gate for one waiter; it is opened once, from anywhere."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Wait until the gate is open."""

    def release(self) -> object:
        """Open it."""


class Runtime(Protocol):
    """Runs functions concurrently, and waits for them."""

    def spawn(self, name: str, work: Callable[..., object], *args: object) -> None:
        """Run a function concurrently; it does not keep the program alive."""

    def call(self, work: Callable[[], Any]) -> Any:
        """Call a function that blocks its thread. Only for spawned threads or greenlets."""

    def connect(self, host: str, port: int, timeout: float, source: Source) -> socket.socket:
        """Return a connected non-blocking socket. Only for spawned threads or greenlets. Raises
        OSError."""

    def selector(self) -> selectors.BaseSelector: ...

    def future(self) -> Future: ...

    def gate(self) -> Gate:
        """Return a closed gate, which a single waiter passes with acquire()."""

    def current(self) -> object:
        """Return the identity of the current thread or greenlet."""

    def can_wait(self) -> bool:
        """Return whether the current thread or greenlet may wait at all."""


class ThreadRuntime:
    """Operating system threads, or gevent's replacement."""

    def spawn(self, name: str, work: Callable[..., object], *args: object) -> None:
        threading.Thread(target=work, args=args, name=name, daemon=True).start()

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def connect(self, host: str, port: int, timeout: float, source: Source) -> socket.socket:
        return _quick(socket.create_connection((host, port), timeout, source))

    def selector(self) -> selectors.BaseSelector:
        return selectors.DefaultSelector()

    def future(self) -> Future:
        return PublishFuture()

    def gate(self) -> Gate:
        return thread_gate()

    def current(self) -> object:
        return threading.get_ident()

    def can_wait(self) -> bool:
        return True


class GeventRuntime:
    """Greenlets on the hub of the thread that starts a consumer or producer. Needs no patching."""

    def __init__(self) -> None:
        import gevent.event
        import gevent.lock
        import gevent.monkey
        import gevent.selectors
        import gevent.socket

        self._gevent = gevent

    def spawn(self, name: str, work: Callable[..., object], *args: object) -> None:
        self._gevent.spawn(work, *args).name = name

    def call(self, work: Callable[[], Any]) -> Any:
        if _is_patched():
            return work()  # the caller waits as a greenlet
        return self._gevent.get_hub().threadpool.apply(work)

    def connect(self, host: str, port: int, timeout: float, source: Source) -> socket.socket:
        return _quick(self._gevent.socket.create_connection((host, port), timeout, source))

    def selector(self) -> selectors.BaseSelector:
        selector: selectors.BaseSelector = self._gevent.selectors.GeventSelector()
        return selector

    def future(self) -> Future:
        future: Future = self._gevent.event.AsyncResult()
        return future

    def gate(self) -> Gate:
        gate: Gate = self._gevent.lock.Semaphore(0)
        return gate

    def current(self) -> object:
        current: object = self._gevent.getcurrent()
        return current

    def can_wait(self) -> bool:
        return self._gevent.getcurrent() is not self._gevent.get_hub()


def runtime_of(kind: Kind) -> Runtime:
    """Select a runtime. `auto`: gevent if it has patched the standard library, otherwise threads.
    Raises ValueError."""
    if kind == "auto":
        kind = "gevent" if _is_patched() else "threads"
    if kind == "gevent":
        return GeventRuntime()
    if kind == "threads":
        return ThreadRuntime()
    raise ValueError(f"runtime cannot be {kind!r} (allowed: auto, threads, gevent)")


def _is_patched() -> bool:
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and all(map(monkey.is_module_patched, ("socket", "threading")))


def _quick(connected: socket.socket) -> socket.socket:
    refuse_itself(connected)
    connected.setblocking(False)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected
