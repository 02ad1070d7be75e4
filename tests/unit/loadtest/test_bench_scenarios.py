"""The parts of `make bench` scenarios: the load, the floor, and the arithmetic."""

import json
import os
import re
import select
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from loadtest.bench import __main__ as command_line
from loadtest.bench import floor, load, procfs, speed
from loadtest.bench.copied import KINDS
from loadtest.bench.daemon import Daemon
from loadtest.bench.encoded_socket import LAYERS, EncodedSocket
from loadtest.bench.peers import servers
from loadtest.bench.scenarios import SCENARIOS, UNRECORDED, copies
from nsqcy.testing.certificates import make

SIZE = 200
BODY = b"x" * SIZE


@pytest.fixture(scope="module")
def ground() -> Iterator[Daemon]:
    with floor.running(SIZE) as one:
        yield one


def test_the_floor_answers_every_publish(ground: Daemon) -> None:
    command = load.mpub("topic", [BODY] * 50)
    with load.Team(2) as team:
        team.add(load.pipelined, ground.tcp, command, 50, 40, 8)
        team.add(load.waiting, ground.tcp, [load.pub("topic", BODY)], 1, 500, 5)
        result, _ = speed.measure("both", ground, team)
    assert result.messages == 40 * 50 + 500
    assert result.daemon_cpu > 0


@pytest.mark.parametrize("step", [1, 3, 1000])
def test_the_floor_takes_commands_in_any_pieces(ground: Daemon, step: int) -> None:
    sock = load.producer(ground.tcp)
    data = load.pub("topic", BODY) + b"NOP\n" + load.mpub("topic", [BODY] * 3)
    for start in range(0, len(data), step):
        sock.sendall(data[start : start + step])
    load.expect(sock, load.OK * 2)
    sock.close()


def test_the_floor_sends_no_more_than_rdy_allows(ground: Daemon) -> None:
    sock = load.consumer(ground.tcp, "topic", "channel", 3)
    frame = 8 + 26 + SIZE
    received = load.exactly(sock, 3 * frame)
    sock.settimeout(0.05)
    with pytest.raises(TimeoutError):
        sock.recv(1)
    sock.settimeout(None)
    sock.sendall(b"FIN %b\n" % received[18:34])
    assert len(load.exactly(sock, frame)) == frame
    sock.close()


def test_the_floor_over_tls_does_the_same(tmp_path: Path) -> None:
    found = make("localhost").save(tmp_path)
    with floor.running(SIZE, (found.certificate, found.key)) as one, load.Team(3) as team:
        producer, consumer = (partial(each, way="tls") for each in (load.producer, load.consumer))
        command = load.mpub("topic", [BODY] * 50)
        team.add(partial(load.pipelined, open=producer), one.tcp, command, 50, 40, 8)
        publish = [load.pub("topic", BODY)]
        team.add(partial(load.waiting, open=producer), one.tcp, publish, 1, 500, 5)
        finish = partial(load.finishing, open=consumer)
        team.add(finish, one.tcp, "topic", 2500, 50_000, slice(2, 3), 0)
        result, _ = speed.measure("all", one, team)
    assert result.messages >= 40 * 50 + 500 + 50_000


@pytest.mark.parametrize("many", [False, True], ids=["one", "crowd"])
def test_consumers_have_as_many_as_they_were_to(ground: Daemon, many: bool) -> None:
    with load.Team(2) as team:
        for _ in range(2):
            if many:
                places = [("topic", "channel")] * 3
                team.add(load.crowd, ground.tcp, places, 5, 5000, slice(0, 2), 0)
            else:
                team.add(load.finishing, ground.tcp, "topic", 100, 5000, slice(0, 2), 0)
        result, reports = speed.measure("taken", ground, team)
    assert result.messages == sum(report["messages"] for report in reports) >= 5000


@pytest.mark.parametrize("many", [False, True], ids=["one", "crowd"])
def test_messages_behind_a_heartbeat_are_seen(many: bool) -> None:
    """After the message, no data may arrive for a long time."""
    message = b"".join((b"\0\0\0\x1f", b"\0\0\0\2", bytes(10), b"0123456789abcdef", b"x"))
    with socket.create_server(("127.0.0.1", 0)) as server, load.Team(1) as team:
        slots = slice(0, 1)
        if many:
            team.add(load.crowd, server.getsockname(), [("t", "c")], 1, 3, slots, 0)
        else:
            team.add(load.finishing, server.getsockname(), "t", 1, 3, slots, 0)
        sock, _ = server.accept()
        sock.sendall(load.OK)
        team.ready()
        team.go()
        sock.sendall(message + load.HEARTBEAT + message + load.HEARTBEAT + message)
        (report,) = team.reports()
        assert report["messages"] == 3
        sock.close()


def test_paced_messages_say_when_they_were_due() -> None:
    """A message that could not be sent in time still carries its due time."""
    with socket.create_server(("127.0.0.1", 0)) as server, load.Team(1) as team:
        team.add(load.paced, server.getsockname(), "topic", SIZE, 1000, 20)
        sock, _ = server.accept()
        sock.sendall(load.OK * 21)
        identify = sock.recv(4096)
        while not identify.endswith(b"}"):
            identify += sock.recv(4096)
        team.ready()
        (report,) = team.run()
        one = len(load.pub("topic", BODY))
        data = load.exactly(sock, 20 * one)
        sock.close()
    stamps = [load.STAMPS.unpack_from(data, n * one + one - SIZE) for n in range(20)]
    assert [due - stamps[0][0] for due, _ in stamps] == [n * 1_000_000 for n in range(20)]
    assert report["late"] == [sent - due for due, sent in stamps]
    assert min(report["late"]) >= 0


@pytest.mark.parametrize("kind", LAYERS)
def test_an_encoded_socket_and_the_layer_understand_each_other(kind: str) -> None:
    ours, theirs = socket.socketpair()
    wrapped, layer = EncodedSocket(ours, LAYERS[kind]()), LAYERS[kind]()
    wrapped.sendall(b"FIN\n" * 50_000)
    said = b""
    theirs.setblocking(False)
    while len(said) < 200_000:
        layer.feed(theirs.recv(65536))
        while piece := layer.read():
            said += piece
    assert said == b"FIN\n" * 50_000
    layer.write(b"answer")
    theirs.setblocking(True)
    theirs.sendall(layer.take())
    room = bytearray(10)
    assert wrapped.recv_into(memoryview(room)) == 6 and room[:6] == b"answer"
    wrapped.close()
    theirs.close()


def test_the_other_end_of_a_connection_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert procfs.listener(port) == os.getpid()
        ours = socket.create_connection(("127.0.0.1", port))
        theirs, _ = server.accept()
        assert procfs.holder([os.getpid()], ours.getsockname()[1]) == os.getpid()
        theirs.close()
        ours.close()
    assert procfs.holder([os.getpid()], port) == 0


def result(scenario: str, cpu: float, **fields: object) -> speed.Result:
    return speed.Result(scenario, 100, 1.0, cpu, 1.0, **fields)  # type: ignore[arg-type]


def test_a_row_has_medians_and_multiples_are_those_of_one_round() -> None:
    runs = [result("a", cpu, floor_cpu=ground) for cpu, ground in ((3, 1), (1, 1), (2, 4))]
    runs.append(result("b", 7))
    rows = speed.rows("name", runs)
    assert [(each["name"], each["scenario"], each["rounds"]) for each in rows] == [
        ("name", "a", 3),
        ("name", "b", 1),
    ]
    # The ratios of the rounds are 3, 1 and 0.5. The result is their median, not 2 / 1, the ratio of
    # the medians.
    assert [(each["daemon_us"], each["floors"]) for each in rows] == [(20_000, 1), (70_000, 0)]


def test_what_else_was_measured_is_of_the_median_run_by_it() -> None:
    runs = [
        result("a", cpu, figures={"p99_us": late, "p50_us": cpu}, order="p99_us", note=f"{late} us")
        for cpu, late in ((1, 30), (2, 10), (3, 20))
    ]
    (row,) = speed.rows("", runs)
    assert (row["figures"], row["note"]) == ({"p99_us": 20, "p50_us": 3}, "20 us")
    assert row["daemon_us"] == 20_000


# -- rounds and failures


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(speed.time, "monotonic", lambda: now[0])
    return now


def test_no_round_but_the_first_begins_that_would_end_too_late(clock: list[float]) -> None:
    def rounds(deadline: float) -> int:
        clock[0] = 0.0
        done = 0
        for _ in speed.Settings(repeat=9, deadline=deadline).rounds():
            done += 1
            clock[0] += 10
        return done

    assert [rounds(each) for each in (-1.0, 35.0, 40.0, float("inf"))] == [1, 3, 4, 9]


def test_what_one_scenario_leaves_over_others_have(clock: list[float]) -> None:
    deadlines = []

    def runs(settings: speed.Settings) -> Iterator[speed.Result]:
        deadlines.append(settings.deadline - clock[0])
        clock[0] += 5
        yield result("row", 1)

    chosen = {f"s{n}": speed.Scenario(runs, "", seconds=n) for n in (10, 20, 30)}
    speed.run(speed.Settings(), chosen, lambda text: None, end=60.0)
    assert deadlines == pytest.approx([10, 55 * 20 / 50, 50])


def test_a_failing_scenario_is_reported_and_stops_no_other() -> None:
    def fails(settings: speed.Settings) -> Iterator[speed.Result]:
        yield result("half", 1)
        raise RuntimeError("Traceback\n  of a member\nOSError: gone\n")

    def works(settings: speed.Settings) -> Iterator[speed.Result]:
        yield result("whole", 1)

    chosen = {"bad": speed.Scenario(fails, ""), "good": speed.Scenario(works, "")}
    said: list[str] = []
    found = speed.run(speed.Settings(), chosen, said.append)
    assert [row["scenario"] for row in found.rows] == ["half", "whole"]
    assert found.failed == [{"what": "bad", "why": "OSError: gone"}]
    assert any("of a member" in line for line in said)


def test_a_load_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def hanging(team: load.Team, index: int) -> None:
        select.select([], [], [])

    monkeypatch.setattr(load, "PATIENCE", 0.05)
    with load.Team(1) as team:
        team.add(hanging)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="nothing was heard"):
            team.ready()


@pytest.mark.parametrize(
    "ours, theirs", [("RECEIVE_SIZE", "RECEIVE_SIZE"), ("SENT_ENOUGH", "OUTPUT_ENOUGH")]
)
def test_the_floor_takes_and_sends_as_much_at_once_as_nsqd(ours: str, theirs: str) -> None:
    def value(text: str, name: str) -> str:
        found = re.search(rf"\b{name} = (\d+)", text)
        assert found
        return found[1]

    protocol = Path(floor.__file__).parents[2] / "cext" / "nsqcy" / "protocol"
    sessions = "".join(path.read_text() for path in sorted(protocol.glob("*.pxd")))
    assert value(floor.SOURCE.read_text(), ours) == value(sessions, theirs)


@pytest.mark.slow
@pytest.mark.skipif(not servers.program("etcd"), reason="etcd is not installed")
def test_copies_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("Cython")
    monkeypatch.setattr(copies, "replicated", list)
    monkeypatch.setattr(copies, "TURNS", 1)
    rows = speed.rows("copies", list(copies.copies(speed.Settings(scale=0.001, repeat=1))))
    by_title = {row["scenario"]: row for row in rows}
    for kind in KINDS:
        for title in ("MPUB x200, 2 conn, ", "PUB, wait for OK, 50 conn, "):
            row = by_title[title + kind.title]
            assert (row["messages"], row["durability"]) == (800, kind.durability)
            assert (row["figures"]["ratio"] == 1) == (kind.copies == 1)
    taken_over = rows[-1]
    assert taken_over["messages"] >= 800
    assert 0 < taken_over["figures"]["first_s"] <= taken_over["figures"]["last_s"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["misbehaving", "polled"])
def test_latency_beside_others_is_compared_with_latency_alone(name: str) -> None:
    results = list(UNRECORDED[name].runs(speed.Settings(scale=0.01, repeat=1)))
    by_title = {each.scenario: each for each in results}
    assert "latency alone, 1 worker" in by_title and len(by_title) == len(results)
    beside = [each for title, each in by_title.items() if title.startswith("latency beside")]
    assert beside and all("worse_us" in each.figures for each in beside)
    assert all(each.messages for each in results)
    assert not [each.note for each in results if "failed" in each.note]


def test_lookups_are_measured_beside_other_work() -> None:
    results = list(UNRECORDED["lookups"].runs(speed.Settings(scale=0.002, repeat=1)))
    registered, *lookups = results
    assert (registered.messages, registered.figures["bytes"] > 0) == (200, True)
    assert len({each.scenario for each in lookups}) == len(lookups) == 4
    assert all(each.messages == 100 and each.figures["p99_us"] > 0 for each in lookups)


def test_idle_connections_arrive_and_are_counted() -> None:
    (result,) = UNRECORDED["many_idle"].runs(speed.Settings(scale=0.0005))
    assert result.messages == 100
    assert result.figures.keys() == {"bytes", "kernel_bytes", "beat_us"}
    assert result.note.endswith("; 0 lost")


def test_percentiles() -> None:
    found = speed.percentiles([n * 1000 for n in range(1001)])
    assert found == {"p50": 500, "p99": 990, "p999": 999}
    assert speed.percentiles([]) == {"p50": 0, "p99": 0, "p999": 0}


def test_figures_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = partial(result, "made up")
    scenario = speed.Scenario(lambda settings: iter([ran(cpu=2.0)]), "made up")
    monkeypatch.setitem(SCENARIOS, "pipe", scenario)
    assert command_line.main(["--only=pipe", f"--json={tmp_path / 'out.json'}"]) == 0
    (row,) = json.loads((tmp_path / "out.json").read_text())["rows"]
    assert row["name"] == "pipe" and row["daemon_us"] == 20_000 and row["durability"] == "memory"
