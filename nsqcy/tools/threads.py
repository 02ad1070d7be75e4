"""Threads for blocking calls made by the event loop.

Unlike asyncio's own threads, these do not keep the process alive. A read from a terminal or a write
to a full pipe may never return, and the tool must still be able to stop.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
_Call = tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class Threads:
    """Runs at most `maximum` calls concurrently, in the order in which they are requested."""

    def __init__(self, maximum: int = 1) -> None:
        self._maximum = maximum
        self._running = 0
        self._wanted = 0  # unfinished calls
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run `function` in a thread; return its result or raise its exception."""
        future: asyncio.Future[T] = self._loop.create_future()
        self._wanted += 1
        if self._running < min(self._wanted, self._maximum):
            self._running += 1
            threading.Thread(target=self._run, daemon=True).start()
        self._calls.put((future, function, arguments))
        try:
            return await future
        finally:
            self._wanted -= 1

    def _run(self) -> None:
        while True:
            future, function, arguments = self._calls.get()
            result: Any = None
            failure: BaseException | None = None
            try:
                result = function(*arguments)
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop is closed: the result is not needed
                self._loop.call_soon_threadsafe(_settle, future, result, failure)
            del future, function, arguments, result, failure


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():  # the caller was cancelled
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
