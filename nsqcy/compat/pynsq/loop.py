"""The event loop that all readers and writers of a program run on, and its shutdown."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class _Runs(Protocol):
    async def start(self) -> None: ...
    async def close(self, *, graceful: bool = True) -> None: ...


_started: list[_Runs] = []


def current_loop() -> asyncio.AbstractEventLoop:
    """Return this thread's loop, running or not: the loop that tornado's IOLoop.current() wraps."""
    try:
        return asyncio.get_event_loop()
    except RuntimeError:  # there is no current loop
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop


def begin(loop: asyncio.AbstractEventLoop, what: _Runs, prepare: Callable[[], None]) -> None:
    """Start the object once the loop is running."""

    def start() -> None:
        prepare()
        _started.append(what)
        spawn(loop, what.start())

    loop.call_soon(start)


def spawn(loop: asyncio.AbstractEventLoop, work: Any) -> "asyncio.Task[Any]":
    """Create a task that is kept until it is done."""
    task: asyncio.Task[Any] = loop.create_task(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


_tasks: set["asyncio.Task[Any]"] = set()


def run() -> None:
    """Run all readers and writers until SIGTERM or SIGINT, or until the loop is stopped; then close
    them."""
    loop = current_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, loop.stop)
    try:
        loop.run_forever()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        loop.run_until_complete(_close_all())


async def _close_all() -> None:
    ends: list[Awaitable[None]] = [each.close(graceful=False) for each in _started]
    _started.clear()
    await asyncio.gather(*ends)
