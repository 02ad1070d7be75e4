"""Log lines about failing writes, and the limit on their number."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.write_failures import LINES, PERIOD, REPEAT, WriteFailures
from support.worker_core import RESPONSE, SECOND, Core

OK = (RESPONSE, b"OK")
RECOVERED = "TOPIC(t): writes succeed again; publishes to t are accepted"
Make = Callable[..., Core]


class Log:
    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []

    def error(self, text: str, /, **fields: object) -> None:
        self.lines.append((text, fields))

    info = warn = error


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def failures(log: Log) -> WriteFailures:
    return WriteFailures(log)


def test_files_of_another_process_are_no_failure(failures: WriteFailures, log: Log) -> None:
    assert not failures.failed(0, "orders", "write", "/data/orders.topic/1.seg", errno.ESTALE)
    assert log.lines == []


def test_a_line_names_what_failed_why_and_what_to_do(failures: WriteFailures, log: Log) -> None:
    assert failures.failed(0, "orders", "write", "/data/orders.topic/1.seg", errno.ENOSPC)
    assert log.lines == [
        (
            "TOPIC(orders): cannot write /data/orders.topic/1.seg: no space left on device:"
            " free disk space or enlarge the file system; publishes to orders that must be written"
            " are refused until a write succeeds",
            {
                "event": "write_failed",
                "topic": "orders",
                "path": "/data/orders.topic/1.seg",
                "error": "no space left on device",
            },
        )
    ]
    failures.recovered("orders")
    assert log.lines[1:] == [
        (
            "TOPIC(orders): writes succeed again; publishes to orders are accepted",
            {"event": "write_recovered", "topic": "orders"},
        )
    ]


@pytest.mark.parametrize(
    "error, advice",
    [
        (errno.EDQUOT, "disk quota exceeded: free disk space or raise the quota"),
        (errno.EROFS, "read-only file system: remount the file system read-write"),
        (errno.EIO, "input/output error: check the disk and the kernel log"),
        (errno.EACCES, "permission denied: check the owner and mode of the data path"),
        (errno.EMFILE, "too many open files: raise the limit on open files"),
        (
            errno.ENOENT,
            "no such file or directory: check the data path",
        ),
    ],
)
def test_advice(failures: WriteFailures, log: Log, error: int, advice: str) -> None:
    failures.failed(0, "t", "open", "x.seg", error)
    assert log.lines[0][0].partition(";")[0] == f"TOPIC(t): cannot open x.seg: {advice}"


def test_a_failure_that_persists_is_repeated_rarely(failures: WriteFailures, log: Log) -> None:
    first = 5 * SECOND
    told = [
        failures.failed(now, "t", "write", "x.seg", errno.EIO)
        for now in (first, first + 1, first + PERIOD, first + REPEAT - 1, first + REPEAT)
    ]
    assert told == [True, False, False, False, True]
    assert len(log.lines) == 2


def test_writes_that_fail_and_succeed_in_turn(failures: WriteFailures, log: Log) -> None:
    told = []
    for now in (0, PERIOD - 1, PERIOD, 2 * PERIOD):
        told.append(failures.failed(now, "t", "write", "x.seg", errno.EIO))
        if told[-1]:
            failures.recovered("t")
    assert told == [True, False, True, True]
    assert len(log.lines) == 6


def test_a_worker_has_so_many_lines_a_period(failures: WriteFailures, log: Log) -> None:
    for now in (0, 1, PERIOD - 1):
        for number in range(100):
            failures.failed(now, f"t{number}", "write", "x.seg", errno.EIO)
    assert len(log.lines) == LINES
    assert failures.failed(PERIOD, "t99", "write", "x.seg", errno.EIO)


# Log lines of a worker


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(durability: str = "memory", **options: Any) -> Core:
        policies = Policies(TopicPolicy(durability=durability))
        path = made[-1].copied() if made else tmp_path / "data"
        path.mkdir(exist_ok=True)
        made.append(Core(path, policies=policies, **options))
        return made[-1]

    yield make
    for core in made:
        core.io.clear_faults()
        core.close()


def lines(core: Core, text: str) -> list[str]:
    return [line for line in core.log.lines if text in line]


@pytest.mark.parametrize(
    "durability, call, error, verb, text",
    [
        ("os", "pwrite", errno.ENOSPC, "write", "no space left on device"),
        ("os", "pwrite", errno.EDQUOT, "write", "disk quota exceeded"),
        ("os", "pwrite", errno.EIO, "write", "input/output error"),
        ("os", "open", errno.EROFS, "open", "read-only file system"),
        ("fsync", "fdatasync", errno.EIO, "sync", "input/output error"),
    ],
)
def test_a_failed_write_is_logged_and_so_is_its_end(
    make: Make, durability: str, call: str, error: int, verb: str, text: str
) -> None:
    core = make(durability)
    core.create("t").channel("c")
    core.settle()
    core.io.fault(call, 1, error, times=1 << 30)
    for _ in range(20):
        kind, _ = core.client().publish("t", b"refused")
        assert kind != OK
    (line,) = lines(core, "cannot ")
    assert line.startswith(f"TOPIC(t): cannot {verb} {core.path}/t.topic/")
    assert f": {text}: " in line
    core.io.clear_faults()
    assert lines(core, "succeed again") == []
    assert core.client().publish("t", b"taken") == OK
    core.advance(3 * SECOND)
    assert lines(core, "succeed again") == [RECOVERED]


def test_memory_that_overflows_onto_a_full_disk(make: Make) -> None:
    core = make(mem_queue_size=1)
    core.create("t").channel("c")
    core.io.fault("pwrite", 1, errno.ENOSPC, times=1 << 30)
    for _ in range(3):
        core.client().publish("t", b"x")
    assert len(lines(core, "cannot write")) == 1


@pytest.mark.parametrize("call, verb", [("fsync", "sync"), ("rename", "rename")])
def test_a_journal_that_cannot_be_written(make: Make, call: str, verb: str) -> None:
    core = make("os")
    consumer = core.client().subscribe("t", "c", 1)
    assert core.client().publish("t", b"x") == OK
    core.advance(3 * SECOND)
    (message,) = consumer.messages()
    core.io.fault(call, 1, errno.EIO, times=1 << 30)
    consumer.finish(message.id)
    core.advance(3 * SECOND)
    (line,) = lines(core, "cannot ")
    assert line.startswith(f"TOPIC(t): cannot {verb} {core.path}/t.topic/journal: input/output")
    core.io.clear_faults()
    core.advance(3 * SECOND)
    assert core.client().publish("t", b"y") == OK
    assert lines(core, "succeed again") == [RECOVERED]


def test_a_background_sync_that_fails(make: Make) -> None:
    core = make("os")
    core.create("t").channel("c")
    assert core.client().publish("t", b"x") == OK
    core.io.fault("fdatasync", 1, errno.EIO)
    core.advance(3 * SECOND)
    assert len(lines(core, "cannot sync")) == 1


def test_reads_that_fail_are_no_failed_writes(make: Make) -> None:
    core = make(mem_queue_size=0)
    core.create("t").channel("c")
    assert core.client().publish("t", b"x") == OK
    core.advance(3 * SECOND)
    again = make(mem_queue_size=0)
    again.load_all()
    again.io.fault("pread", 1, errno.EIO, times=1 << 30)
    again.client().subscribe("t", "c", 5)
    again.settle()
    assert lines(again, "cannot read") and not lines(again, "publishes to")
