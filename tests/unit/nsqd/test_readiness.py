"""Reasons why nsqd is not ready: workers, logs, and a disk that is checked in a thread."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import gevent
import pytest

from nsqcy.nsqd.master.disk_guard import DiskGuard, free_bytes
from nsqcy.nsqd.master.readiness import REMEMBERED, reasons
from support.worker_core import Log

NOW = 1_700_000_000_000_000_000
WELL = {"health": "OK", "health_at": 0, "reads": None}


def ill(age: int) -> dict[str, object]:
    text = "NOK - write x: no space left on device"
    return {"health": text, "health_at": NOW - age, "reads": None}


def test_there_is_a_line_for_each_reason() -> None:
    assert reasons(2, {0: WELL, 1: WELL}, None, NOW) == []
    assert reasons(4, {0: WELL, 2: None, 3: ill(0)}, "fewer than 5 bytes are free", NOW) == [
        "fewer than 5 bytes are free",
        "worker 1 is being restarted",
        "worker 2 does not answer",
        "worker 3: write x: no space left on device",
    ]


def test_a_failed_write_is_no_reason_for_ever() -> None:
    """Otherwise, a balancer that waits until nsqd is ready would never send it clients again."""
    assert reasons(1, {0: ill(REMEMBERED - 1)}, None, NOW)
    assert reasons(1, {0: ill(REMEMBERED)}, None, NOW) == []
    assert reasons(1, {0: ill(-REMEMBERED)}, None, NOW) == []  # the clock was set back


def test_a_write_of_another_worker_says_that_the_disk_is_well_again() -> None:
    assert reasons(2, {0: ill(5), 1: WELL | {"health_at": NOW - 4}}, None, NOW) == []
    assert reasons(2, {0: ill(5), 1: WELL | {"health_at": NOW - 6}}, None, NOW)


def test_a_topic_that_cannot_be_read_is_a_reason_until_it_can_be() -> None:
    text = (
        "topic t has been unreadable since 2026-01-01T00:00:00Z: read x: input/output error (EIO)"
    )
    told = {0: WELL | {"reads": text}, 1: WELL | {"health_at": NOW}}
    assert reasons(2, told, None, NOW) == [f"worker 0: {text}"]


def guard(free: Callable[[str], int], told: list[str | None], log: Log | None = None) -> DiskGuard:
    return DiskGuard("/data", 1000, told.append, log or Log(), free)


def test_only_changes_are_told() -> None:
    told: list[str | None] = []
    log = Log()
    room = iter([1000, 999, 0, 1000, 5000])
    watched = guard(lambda path: next(room), told, log)
    refusal = "fewer than 1000 bytes are free on disk"
    for expected in (None, refusal, refusal, None, None):
        watched.look()
        assert watched.refusal == expected
    assert told == [refusal, None]
    assert len(log.lines) == 2 and log.lines[0].endswith(refusal)


def test_a_disk_that_cannot_be_asked_is_not_written_to() -> None:
    told: list[str | None] = []

    def fail(path: str) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    guard(fail, told).look()
    assert told == ["cannot determine the free disk space: input/output error"]


def test_a_hanging_disk_does_not_block_others() -> None:
    told: list[str | None] = []
    asked, answer = gevent.get_hub().loop.async_(), threading.Event()
    heard = gevent.event.Event()
    asked.start(heard.set)

    def hang(path: str) -> int:
        asked.send()
        answer.wait(30)
        return 0

    watched = guard(hang, told)
    starting = gevent.spawn(watched.start)
    assert heard.wait(30)
    assert told == [] and not starting.ready()
    answer.set()
    starting.join(30)
    assert len(told) == 1
    watched.stop()
    asked.close()


@pytest.mark.parametrize("path", ["", "."])
def test_the_room_of_the_current_folder(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert free_bytes(path) > 0
