"""The load of the benchmark's scenarios with keys, and the tables of brokers with groups."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("Cython")

from loadtest.bench import daemon, grouped, keyed_load, load, speed
from loadtest.bench.daemon import Daemon
from loadtest.bench.scenarios import keys, tenants

SIZE = 64


@pytest.fixture(scope="module")
def groups() -> Any:
    """Return the contestants, imported late because their inner loops may have to be compiled."""
    from loadtest.bench.peers import groups

    return groups


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Daemon]:
    with daemon.private(1) as one:
        yield one


def test_headers_precede_the_body() -> None:
    assert keyed_load.headers(a=b"v") == b"\0\5\1a\0\1v"
    assert keyed_load.keyed(b"k", b"body") == b"\0\7\3key\0\1kbody"


def test_a_backlog_has_as_many_messages_of_each_key(nsqd: Daemon) -> None:
    settings = speed.Settings(size=SIZE)
    keys.prepare(nsqd, "filled", {"in_flight_per_key": 1})
    keyed_load.fill(settings, nsqd, "filled", 4000, keys=400)
    with load.consumer(nsqd.tcp, "filled", "bench", 2500) as sock:
        for _ in range(400):
            assert load.frame(sock)[26:] == settings.body
        sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            load.frame(sock)


def test_each_command_has_its_own_number(nsqd: Daemon) -> None:
    nsqd.web.create("numbered", "bench")
    one = load.mpub("numbered", [keyed_load.headers(a=b"v") + keyed_load.UNIQUE] * 2)
    with load.Team(1) as team:
        team.add(keyed_load.unique, nsqd.tcp, one, 14, 5, 3)
        speed.measure("", nsqd, team)
    with load.consumer(nsqd.tcp, "numbered", "bench", 100) as sock:
        found = [load.frame(sock)[26:] for _ in range(10)]
    assert found == [b"%08x" % (14 + number // 2) for number in range(10)]


def test_consumers_report_how_long_messages_waited(nsqd: Daemon, groups: Any) -> None:
    one = groups.Keyed(groups.URGENT)
    one.prepare(nsqd, "waiting", groups.URGENT)
    settings = speed.Settings(size=SIZE, scale=0.01)
    places = [(1, groups.URGENCY)]
    tenants.fill(one, nsqd, "waiting", groups.URGENT, [(0, 0)], 2000, SIZE)
    result = tenants.waiting(settings, one, nsqd, "waiting", groups.URGENT, places, 50, 2000)
    assert result.messages > 100
    assert result.figures["p99_us"] > 0
    assert 0 < result.figures["busy"] <= 1


@pytest.mark.parametrize("work", ["flood", "order", "urgent"])
def test_nsqd_is_measured_first_with_its_rule(
    groups: Any, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "contestants", lambda work: [groups.Keyed(work)])
    settings = speed.Settings(size=SIZE, scale=0.01)
    run = {"flood": tenants.flooded, "order": tenants.ordered, "urgent": tenants.urgent}[work]
    (result,) = tenants.each(settings, work, run)
    assert result.scenario.startswith(f"{work}: nsqcy, `")
    assert "not measured" not in result.note
    assert result.figures["ratio"] == 1


def test_a_contestant_that_fails_has_a_row_that_says_why(
    groups: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> speed.Result:
        raise RuntimeError("first\nno room")

    monkeypatch.setattr(groups, "contestants", lambda work: [groups.Keyed(work)])
    (result,) = tenants.each(speed.Settings(), "order", fail)
    assert result.note.endswith("not measured: no room")
    assert "| no room" not in grouped.section([speed.row("tenants", [result])])
    assert "not measured: no room" in grouped.section([speed.row("tenants", [result])])


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_redis_messages_are_finished_once_however_they_arrive(
    groups: Any, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups.load, "plain", lambda address: None)
    consumer = groups.RedisScripts().consumer(("127.0.0.1", 1), "q", groups.ORDER, 2, 0)
    data = b"*2\r\n$2\r\nk1\r\n$5\r\na\r\nb\r\r\n$-1\r\n*2\r\n$1\r\nk\r\n$0\r\n\r\n"
    sent, messages, rest = b"", 0, b""
    for start in range(0, len(data), size):
        rest += data[start : start + size]
        taken = consumer.take(memoryview(rest))
        sent += taken.send
        messages += taken.messages
        rest = rest[taken.used :]
    assert (messages, rest) == (2, b"")
    assert [sent.count(word) for word in (b"$2\r\nk1\r\n", b"$0\r\n\r\n", b"$1\r\nk\r\n")] == [
        1
    ] * 3
    assert sent.count(b"EVALSHA") == 3


def test_parts_that_fail_stop_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(settings: speed.Settings) -> Iterator[speed.Result]:
        raise RuntimeError("no room")
        yield

    def working(settings: speed.Settings) -> Iterator[speed.Result]:
        yield speed.Result("row", 1, 1.0, 0.0, 0.0)

    parts: list[Callable[[speed.Settings], Iterator[speed.Result]]] = [failing, working]
    monkeypatch.setattr(keys, "PARTS", parts)
    found = speed.run(
        speed.Settings(repeat=1), {"keys": speed.Scenario(keys.keys, "")}, lambda text: None
    )
    assert [row["scenario"] for row in found.rows] == ["row"]
    assert found.failed == [{"what": "keys", "why": "failing: no room"}]


def test_the_end_of_work_is_noticed(nsqd: Daemon) -> None:
    began = time.monotonic()
    assert keys.calm_after(nsqd, began) <= time.monotonic() - began


def test_a_first_message_is_awaited(nsqd: Daemon) -> None:
    nsqd.web.create("first", "bench")
    nsqd.web.pub("first", b"x")
    keyed_load.first_message(nsqd.tcp, "first")
