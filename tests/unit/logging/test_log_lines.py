"""The format of log lines."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from nsqcy.logging.logger import DEBUG, FATAL, INFO, LEVELS, WARN, Log

MOMENT = 1_795_166_311_522_853_999  # 2026-11-20 09:18:31.522853 UTC


class Pipe:
    def __init__(self) -> None:
        self.reader, self.fd = os.pipe()

    def text(self) -> str:
        return os.read(self.reader, 1 << 16).decode()


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    os.close(pipe.reader)
    os.close(pipe.fd)


@pytest.fixture
def two_hours_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "XYZ-2")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def log_to(pipe: Pipe, level: int = INFO, format: str = "text") -> Log:
    return Log("[nsqd] ", level, format, pipe.fd, clock=lambda: MOMENT)


@pytest.mark.usefixtures("two_hours_east")
def test_a_line_is_nsqds_in_local_time(pipe: Pipe) -> None:
    log_to(pipe).info("TCP: listening on 127.0.0.1:4150", topic="unseen")
    assert pipe.text() == (
        "[nsqd] 2026/11/20 11:18:31.522853 INFO: TCP: listening on 127.0.0.1:4150\n"
    )


def test_the_names_of_the_levels(pipe: Pipe) -> None:
    log = log_to(pipe, DEBUG)
    for name in LEVELS:
        getattr(log, name)("x")
    titles = re.findall(r"\d{6} ([A-Z]+): x\n", pipe.text())
    assert titles == ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]


@pytest.mark.parametrize("level", LEVELS.values())
def test_below_its_level_a_log_is_silent(pipe: Pipe, level: int) -> None:
    log = log_to(pipe, level)
    for name in LEVELS:
        getattr(log, name)(name)
    said = re.findall(r": (\w+)\n", pipe.text())
    assert said == list(LEVELS)[level - 1 :]


@pytest.mark.case("CFG-13")
def test_the_level_changes_at_run_time(pipe: Pipe) -> None:
    log = log_to(pipe)
    log.debug("one")
    log.level = WARN
    log.info("two")
    log.level = DEBUG
    log.debug("three")
    assert pipe.text().endswith("DEBUG: three\n")
    log.level = FATAL
    log.error("four")
    log.fatal("five")
    assert pipe.text().endswith("FATAL: five\n")


def test_the_stamp_follows_the_clock(pipe: Pipe) -> None:
    moments = iter([MOMENT, MOMENT + 1000, MOMENT + 1_000_000_000])
    log = Log("", INFO, "text", pipe.fd, clock=lambda: next(moments))
    for _ in range(3):
        log.info("x")
    stamps = [line.split()[1] for line in pipe.text().splitlines()]
    assert [stamp[-9:] for stamp in stamps] == ["31.522853", "31.522854", "32.522853"]


def test_nobody_forges_a_line(pipe: Pipe) -> None:
    log_to(pipe).info("a\n[nsqd] FATAL: b\r\nc \udcff")
    line = pipe.text()
    assert line.count("\n") == 1
    assert "\r" not in line
    assert line.endswith("INFO: a\\n[nsqd] FATAL: b\\r\\nc \\udcff\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("\x00\t\x7f", "\\x00\\t\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("\u2028 \u202e \ufeff", "\\u2028 \\u202e \\ufeff"),
        ("é 語 \U0001f600 \\x1b", "é 語 \U0001f600 \\x1b"),
    ],
)
def test_control_characters_do_not_reach_a_terminal(pipe: Pipe, text: str, shown: str) -> None:
    log_to(pipe).warn(text)
    assert pipe.text().endswith(f"WARNING: {shown}\n")


def test_json_lines(pipe: Pipe) -> None:
    log = log_to(pipe, format="json")
    log.warn("a\nb é \udcff", topic="t", count=3, level="mine", path=os)
    line = pipe.text()
    assert line.count("\n") == 1
    record = json.loads(line)
    assert list(record)[:3] == ["time", "level", "msg"]
    assert record["time"] == "2026-11-20T09:18:31.522853Z"
    assert record["level"] == "warn"
    assert record["msg"] == "a\nb é \udcff"
    assert (record["topic"], record["count"]) == ("t", 3)
    assert record["path"] == str(os)


def test_json_lines_say_what_they_are_about_and_who_says_it(pipe: Pipe) -> None:
    log = Log("", INFO, "json", pipe.fd, context={"daemon": "nsqd", "worker": 1})
    log.info("x")
    log.info("x", event="worker_up", worker=2)
    plain, named = map(json.loads, pipe.text().splitlines())
    assert plain.items() >= {"event": "message", "daemon": "nsqd", "worker": 1}.items()
    assert named.items() >= {"event": "worker_up", "daemon": "nsqd", "worker": 2}.items()


def test_what_json_cannot_say_still_gives_a_line(pipe: Pipe) -> None:
    loop: list[object] = []
    loop.append(loop)
    log_to(pipe, format="json").info("x", ratio=float("nan"), loop=loop)
    assert json.loads(pipe.text())["ratio"] == "nan"


def test_a_closed_sink_costs_the_line_only() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        Log("", INFO, "text", writer).info("x")
    finally:
        os.close(writer)


def test_lines_of_many_threads_stay_whole(pipe: Pipe) -> None:
    log = Log("", INFO, "text", pipe.fd)

    def chatter(word: str) -> None:
        for _ in range(50):
            log.info(word * 20)

    threads = [threading.Thread(target=chatter, args=(word,)) for word in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = pipe.text().splitlines()
    assert len(lines) == 200
    assert all(re.search(r"INFO: (\w)\1{19}$", line) for line in lines)


def test_it_imports_next_to_nothing() -> None:
    """The module is imported before gevent at every startup, so its imports delay the first
    accept."""
    heavy = {"logging", "json", "re", "enum", "typing", "dataclasses", "inspect", "traceback"}
    program = "import sys, nsqcy.logging.logger; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", program], check=True, capture_output=True, text=True
    )
    assert "nsqcy.logging.logger" in loaded.stdout.split()
    assert not heavy & set(loaded.stdout.split())
