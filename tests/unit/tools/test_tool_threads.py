"""Calls in threads next to the event loop, the client's log lines, progress."""

import asyncio
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from nsqcy.tools.client_lines import ClientLines
from nsqcy.tools.progress import Progress, bytes_left
from nsqcy.tools.threads import Threads


def test_calls_are_made_in_their_order() -> None:
    async def work() -> list[int]:
        threads = Threads()
        done: list[int] = []
        await asyncio.gather(*(threads.call(done.append, number) for number in range(50)))
        return done

    assert asyncio.run(work()) == list(range(50))


def test_results_and_failures() -> None:
    async def work() -> None:
        threads = Threads(2)
        assert await threads.call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            await threads.call(divmod, 7, 0)
        assert await threads.call(divmod, 7, 2) == (3, 1)

    asyncio.run(work())


def test_so_many_at_a_time() -> None:
    maximum = 3
    here = threading.Barrier(maximum + 1)
    running = 0
    peak = 0
    lock = threading.Lock()

    def call(meet: bool) -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        if meet:
            here.wait(10)
        with lock:
            running -= 1

    async def work() -> None:
        threads = Threads(maximum)
        calls = [
            asyncio.ensure_future(threads.call(call, number < maximum)) for number in range(20)
        ]
        await asyncio.to_thread(here.wait, 10)  # `maximum` of them run concurrently
        await asyncio.gather(*calls)

    asyncio.run(work())
    assert peak == maximum


def test_a_call_that_never_ends_does_not_keep_the_process() -> None:
    code = """
import asyncio, threading
from nsqcy.tools.progress import Progress, bytes_left
from nsqcy.tools.threads import Threads

async def work():
    waiting = asyncio.ensure_future(Threads().call(threading.Event().wait))
    await asyncio.sleep(0)
    waiting.cancel()

asyncio.run(work())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_clients_lines(capfd: pytest.CaptureFixture[str]) -> None:
    lines = ClientLines()
    for name in ("t/a", "t/b"):
        lines.introduce(name)
    log = logging.getLogger("nsqcy.client")
    lines.attach()
    try:
        log.warning("[%s] msg %s attempted %d times, giving up", "t/b", "0" * 16, 6)
        log.error("[%s] two\nlines", "t/a")
        log.info("[%s] somebody else", "t/c")
        try:
            raise ValueError("why")
        except ValueError as error:
            log.error("[%s] failed", "t/a", exc_info=error)
    finally:
        lines.detach()
    log.warning("nobody listens")
    _, said = capfd.readouterr()
    date = len("2026/11/20 11:18:31 ")
    assert [line[date:] for line in said.splitlines()] == [
        "WRN    2 [t/b] msg 0000000000000000 attempted 6 times, giving up",
        r"ERR    1 [t/a] two\nlines",
        "ERR    1 [t/a] failed: ValueError('why')",
    ]


class FakeBar:
    def __init__(self) -> None:
        self.said: list[object] = []

    def set_postfix_str(self, text: str, refresh: bool) -> None:
        self.said.append(text)

    def update(self, count: int) -> None:
        self.said.append(count)

    def close(self) -> None:
        self.said.append("closed")


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_is_for_terminals(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bar = FakeBar()
    monkeypatch.setattr("os.isatty", lambda fd: terminal and fd == 2)
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=lambda **options: bar))
    shown = Progress(100)
    shown.add(40, 3)
    shown.add(60, 2)
    shown.close()
    told = ["3 messages", 40, "5 messages", 60, "closed"]
    assert bar.said == (told if terminal else [])


def test_progress_without_tqdm(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("os.isatty", lambda fd: True)
    monkeypatch.setitem(sys.modules, "tqdm", None)
    shown = Progress(None)
    shown.add(1, 1)
    shown.close()
    assert capfd.readouterr() == ("", "")


def test_bytes_left(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 100)
    with file.open("rb", buffering=0) as opened:
        opened.read(30)
        assert bytes_left(opened.fileno()) == 70
    reader, writer = os.pipe()
    assert bytes_left(reader) is None
    os.close(reader)
    os.close(writer)
