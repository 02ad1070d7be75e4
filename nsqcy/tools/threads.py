"""Calls that wait, made beside the event loop.

Unlike asyncio's own threads these do not keep the process: a read of a terminal or a write to a
full pipe may never end, and a tool that is told to stop has to.
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
    """At most `maximum` calls at a time, in the order in which they were asked for."""

    def __init__(self, maximum: int = 1) -> None:
        self._maximum = maximum
        self._running = 0
        self._wanted = 0  # calls that have not ended
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """What `function` returns or raises."""
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
            with suppress(RuntimeError):  # the loop is no more: nobody wants to know
                self._loop.call_soon_threadsafe(_settle, future, result, failure)
            del future, function, arguments, result, failure


def _settle(future: asyncio.Future[Any], result: Any, failure: BaseException | None) -> None:
    if future.done():  # whoever asked was cancelled
        return
    if failure is None:
        future.set_result(result)
    else:
        future.set_exception(failure)
