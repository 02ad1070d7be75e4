"""Threads for the blocking calls of the asyncio client: HTTP requests and name resolution.

The client does not use the event loop's default executor: the program may have filled it, or shut
it down.
"""

import asyncio
import contextvars
import os
import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

MAX_REQUESTS = 32  # maximum concurrent requests of one NsqdAdmin


class Threads:
    """Runs at most `maximum` calls concurrently, in the order in which they are requested.

    The threads do not keep the process alive. Each ends as soon as there is no call for it.
    """

    def __init__(self, maximum: int) -> None:
        self._maximum = maximum
        self._begin()

    def _begin(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._running = 0
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    async def call(self, function: Callable[..., T], /, *args: Any, **options: Any) -> T:
        """Call the function in a thread; return its result or raise its exception. Raises OSError
        if no thread can start."""
        if self._process != os.getpid():  # only the parent has the threads
            self._begin()
        context = contextvars.copy_context()
        future: Future[T] = Future()
        self._calls.append((future, partial(context.run, function, *args, **options)))
        self._start_thread()
        return await asyncio.wrap_future(future)

    def _start_thread(self) -> None:
        with self._lock:
            if self._running >= self._maximum:
                return
            self._running += 1
        try:
            threading.Thread(target=self._run, name="nsqcy call", daemon=True).start()
        except RuntimeError as error:
            with self._lock:
                self._running -= 1
                if self._running:  # a running thread handles the call
                    return
                self._calls.clear()
            raise OSError(f"cannot start a thread: {error}") from None

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._running -= 1
                    return
                future, function = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                _settle(future, function)
            del future, function


def _settle(future: Future[Any], function: Callable[[], Any]) -> None:
    try:
        result = function()
    except BaseException as error:
        settle: Callable[[], object] = partial(future.set_exception, error)
    else:
        settle = partial(future.set_result, result)
    with suppress(BaseException):  # the event loop is closed, or the program's logging fails
        settle()


Resolved = list[tuple[Any, ...]]  # as from getaddrinfo()


async def resolve(threads: Threads, host: str, port: int) -> Resolved:
    """Return the socket addresses of a host, which may be a name. Raises OSError and ValueError."""
    find = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        return find(flags=socket.AI_NUMERICHOST)
    except OSError:  # not an IP address
        return await threads.call(find)


async def connect(
    threads: Threads, host: str, port: int, source: tuple[str, int] | None
) -> socket.socket:
    """Return a socket that is connected to the first address of a host that accepts. source: the
    host and port to connect from. Raises OSError and ValueError."""
    targets = await resolve(threads, host, port)
    sources = await resolve(threads, *source) if source is not None else []
    failure = OSError("the host has no address")
    for family, kind, protocol, _, target in targets:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            if source is not None:
                sock.bind(_of_family(family, sources))
            await asyncio.get_running_loop().sock_connect(sock, target)
        except OSError as error:
            failure = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise failure


def _of_family(family: int, sources: Resolved) -> Any:
    for each, _, _, _, source in sources:
        if each == family:
            return source
    raise OSError("local_address and the nsqd's address are of different address families")
