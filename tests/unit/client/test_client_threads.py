"""Threads of the asyncio client: their number, and a thread that cannot start."""

import asyncio
import threading

import pytest

from nsqcy.client.aio_threads import Threads


def test_a_thread_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def call() -> int:
        threads = Threads(2)
        with monkeypatch.context() as broken:
            broken.setattr(threading.Thread, "start", fail)
            with pytest.raises(OSError, match="cannot start a thread"):
                await threads.call(int, 1)
        return await threads.call(int, 2)

    assert asyncio.run(call()) == 2


def test_no_more_threads_than_the_maximum() -> None:
    running: list[int] = []
    most = 0
    release = threading.Event()

    def work() -> None:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        release.wait(10)
        running.pop()

    async def call() -> None:
        threads = Threads(2)
        calls = [asyncio.ensure_future(threads.call(work)) for _ in range(5)]
        while len(running) < 2:
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*calls)

    asyncio.run(call())
    assert most == 2
