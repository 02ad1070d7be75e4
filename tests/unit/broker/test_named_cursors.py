"""LOG_CURSOR: named cursors in a topic's log, the records that they keep, and for how long."""

import errno
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nsqcy.broker import named_cursors
from nsqcy.broker.named_cursors import NamedCursors, TooManyCursors
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.storage.journal import NamedCursor
from support.worker_core import ERROR, RESPONSE, SECOND, Client, Core

OK = (RESPONSE, b"OK")
HOUR = 3600 * SECOND
WEEK = 168 * HOUR
BIG = 100_000  # size of a body; two of them fill a block
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(path: Path = tmp_path, hold: int = 10 << 30, **more: Any) -> Core:
        clock = {key: more.pop(key) for key in ("now", "wall", "log_options") if key in more}
        policy = TopicPolicy(**{"durability": "os", **more})
        core = Core(path, policies=Policies(policy), **clock)
        core.shard.host.log_hold_max_bytes = hold
        made.append(core)
        core.load_all()
        return core

    yield make
    for core in made:
        core.close()


def killed(make: Make, core: Core, **more: Any) -> Core:
    return make(core.copied(), now=core.now, wall=core.wall, **more)


def restarted(make: Make, core: Core, **more: Any) -> Core:
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    return make(core.path, now=core.now, wall=core.wall, **more)


def reader(core: Core) -> Client:
    return core.client(topic_log=True)


def log_id(core: Core) -> str:
    return core.topic("t").log_facts()["log_id"]


def put(core: Core, name: str, seq: int) -> Any:
    answer = reader(core).ask(f"LOG_CURSOR t {log_id(core)} {name} {seq}\n".encode())
    return read(answer)


def ask(core: Core, name: str) -> Any:
    return read(reader(core).ask(f"LOG_CURSOR t - {name} -\n".encode()))


def delete(core: Core, name: str) -> Any:
    return read(reader(core).ask(f"LOG_CURSOR t - {name} delete\n".encode()))


def read(answer: tuple[int, bytes] | None) -> Any:
    assert answer is not None
    kind, text = answer
    return text.decode() if kind == ERROR else json.loads(text)["seq"]


def fill(core: Core, count: int, size: int = BIG) -> None:
    client = core.client()
    for _ in range(count):
        assert client.publish("t", bytes(size)) == OK


def consume(core: Core) -> None:
    """Consume everything, and process the consequences."""
    client = core.client().subscribe("t", "c", 2500)
    while True:
        core.settle()
        some = client.messages()
        if not some:
            break
        for each in some:
            client.finish(each.id)
    client.transport.end()
    core.advance(SECOND)
    core.advance(SECOND)


def first_seq(core: Core) -> int:
    return core.topic("t").first_seq


def test_set_ask_delete(make: Make) -> None:
    core = make()
    fill(core, 3, 10)
    id = log_id(core)
    client = reader(core)
    said = client.ask(f"LOG_CURSOR t {id} spark 2\n".encode())
    assert said == (RESPONSE, f'{{"name":"spark","log_id":"{id}","seq":2}}'.encode())
    assert client.ask(b"LOG_CURSOR t - spark -\n") == said
    assert put(core, "spark", 4) == ask(core, "spark") == 4
    assert put(core, "other", 1) == 1
    assert client.ask(b"LOG_CURSOR t - spark delete\n") == (
        RESPONSE,
        f'{{"name":"spark","log_id":"{id}","seq":4}}'.encode(),
    )
    assert ask(core, "spark") == delete(core, "spark") == "E_LOG_NO_CURSOR"
    assert ask(core, "other") == 1
    assert not client.closed


@pytest.mark.parametrize(
    ("rest", "error"),
    [
        ("{id} c 5", "E_LOG_RANGE 4"),
        ("{other} c 1", "E_LOG_ID {id}"),
        ("{id}0 c 1", "E_LOG_ID {id}"),
        ("x c 1", "E_LOG_ID {id}"),
        ("- c -", "E_LOG_NO_CURSOR"),
        ("- c delete", "E_LOG_NO_CURSOR"),
    ],
)
def test_what_cannot_be_done_ends_nothing(make: Make, rest: str, error: str) -> None:
    core = make()
    fill(core, 3, 10)
    id = log_id(core)
    client = reader(core)
    line = "LOG_CURSOR t " + rest.format(id=id, other="0" * 32) + "\n"
    assert client.ask(line.encode()) == (ERROR, error.format(id=id).encode())
    assert client.publish("t", b"x") == OK
    assert "cursors" not in core.counters("t")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("LOG_CURSOR t - c", "E_INVALID LOG_CURSOR insufficient number of parameters"),
        ("LOG_CURSOR t - c 5", "E_INVALID LOG_CURSOR without a log_id is followed by - or delete"),
        ("LOG_CURSOR t 00 c x", "E_INVALID LOG_CURSOR could not parse sequence number x"),
        (
            "LOG_CURSOR t 00 c 18446744073709551616",
            "E_INVALID LOG_CURSOR could not parse sequence number 18446744073709551616",
        ),
        ("LOG_CURSOR t 00 c/ 1", 'E_INVALID LOG_CURSOR name "c/" is not valid'),
    ],
)
def test_what_cannot_be_understood(make: Make, line: str, error: str) -> None:
    core = make()
    fill(core, 1, 10)
    client = reader(core)
    assert client.ask(line.encode() + b"\n") == (ERROR, error.encode())
    core.settle()
    assert client.closed


def test_a_topic_without_a_log(make: Make) -> None:
    core = make()
    core.create("t#ephemeral")
    for topic in (b"t#ephemeral", b"nobody"):
        client = reader(core)
        client.send(b"LOG_CURSOR ", topic, b" - c -\n")
        core.settle()
        core.advance(SECOND)
        assert client.answer() == (ERROR, b"E_LOG_NO_TOPIC")


def test_a_topic_has_so_many(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_cursors, "MAX_CURSORS", 2)
    core = make()
    fill(core, 1, 10)
    assert put(core, "a", 1) == put(core, "b", 1) == 1
    assert put(core, "c", 1).startswith("E_LOG_CURSORS ")
    assert put(core, "b", 2) == 2
    assert delete(core, "a") == 1
    assert put(core, "c", 1) == 1


@pytest.mark.parametrize("retention", [{}, {"retention_time": 60 * SECOND}])
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_it_holds_what_is_behind_it(make: Make, durability: str, retention: dict) -> None:
    core = make(durability=durability, **retention)
    core.create("t").channel("c")
    fill(core, 10)
    assert put(core, "a", 1) == 1
    core.advance(SECOND)
    assert put(core, "b", 5) == 5
    consume(core)
    core.advance(HOUR)
    core.advance(SECOND)
    assert first_seq(core) == 1
    put(core, "a", 7)
    core.advance(SECOND)
    assert 4 <= first_seq(core) <= 5
    delete(core, "b")
    core.advance(SECOND)
    assert 6 <= first_seq(core) <= 7
    fill(core, 10)
    consume(core)
    assert 6 <= first_seq(core) <= 7
    assert put(core, "a", 2) == f"E_LOG_GONE {first_seq(core)}"
    delete(core, "a")
    consume(core)
    core.advance(HOUR)
    core.advance(SECOND)
    assert first_seq(core) >= 19
    assert core.topic("t").log_bytes <= 2 * BIG + 1000


def test_history_is_there_for_a_new_channel(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    fill(core, 10)
    put(core, "a", 3)
    consume(core)
    topic = core.topic("t")
    topic.channel("late")
    assert topic.seek("late", 3) == 3
    client = core.client().subscribe("t", "late", 100)
    core.settle()
    core.settle()
    assert len(client.messages()) == 8


@pytest.mark.parametrize("ended", [restarted, killed])
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_it_is_there_after_a_restart(
    make: Make, durability: str, ended: Callable[..., Core]
) -> None:
    core = make(durability=durability)
    core.create("t").channel("c")
    fill(core, 10)
    put(core, "a", 1)
    consume(core)
    put(core, "a", 5)
    put(core, "b", 6)
    delete(core, "b")
    core = ended(make, core, durability=durability)
    consume(core)
    core.advance(SECOND)
    assert 4 <= first_seq(core) <= 5
    assert ask(core, "a") == 5
    assert ask(core, "b") == "E_LOG_NO_CURSOR"
    core = restarted(make, core, durability=durability)
    assert ask(core, "a") == 5
    assert 4 <= first_seq(core) <= 5


def test_a_cursor_of_a_topic_that_was_never_on_disk(make: Make) -> None:
    """The cursor does not refer to any records yet, but nsqd starts writing the log."""
    core = make(durability="memory")
    core.create("t").channel("c")
    fill(core, 3, 10)
    assert put(core, "a", 4) == "E_LOG_RANGE 1"
    assert put(core, "a", 1) == 1
    consume(core)
    core = killed(make, core, durability="memory")
    assert ask(core, "a") == 1
    assert first_seq(core) == 1 and core.topic("t").next_seq == 4


def test_it_is_answered_when_the_journal_has_it(make: Make) -> None:
    core = make(durability="os")
    fill(core, 1, 10)
    core.settle()
    core.io.hold("pwrite")
    client = reader(core)
    client.send(f"LOG_CURSOR t {log_id(core)} a 1\nLOG_CURSOR t - a -\n".encode())
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    core.io.poll_now()
    assert client.answer() is None
    core.io.release()
    core.settle()
    assert client.answer() == client.answer() != None  # noqa: E711


def test_a_journal_that_cannot_be_written(make: Make) -> None:
    core = make(durability="os")
    fill(core, 1, 10)
    core.settle()
    core.io.fault("pwrite", 1, errno.ENOSPC)
    client = reader(core)
    said = client.ask(f"LOG_CURSOR t {log_id(core)} a 1\n".encode())
    assert said == (
        ERROR,
        b"E_LOG_FAILED no space left on device",
    )
    assert not client.closed
    assert put(core, "a", 1) == 1
    assert ask(killed(make, core, durability="os"), "a") == 1


@pytest.mark.parametrize("retention", [{}, {"retention_bytes": 4 * BIG}])
def test_it_holds_so_many_bytes(make: Make, retention: dict) -> None:
    core = make(hold=10 * BIG, **retention)
    core.create("t").channel("c")
    fill(core, 2)
    put(core, "slow", 1)
    put(core, "slower", 2)
    for n in range(1, 60):
        fill(core, 1)
        consume(core)
        if n % 5 == 0:
            put(core, "fast", n)
        held = core.topic("t").log_bytes - retention.get("retention_bytes", 0)
        assert held <= 10 * BIG + 8 * BIG
    assert first_seq(core) > 40
    gone = f"E_LOG_GONE {first_seq(core)}"
    assert ask(core, "slow") == ask(core, "slower") == gone
    assert ask(core, "fast") == 55
    shown = {each["name"]: each for each in core.counters("t")["cursors"]}
    assert shown["slow"]["overrun"] and not shown["fast"]["overrun"]
    told = [line for line in core.log.lines if "named cursors are overrun" in line]
    assert {"slow", "slower"} == {
        name for line in told for name in line.rsplit(": ", 1)[1].split(", ")
    }
    assert put(core, "slow", 60) == 60
    core = restarted(make, core, hold=10 * BIG, **retention)
    assert ask(core, "slower").startswith("E_LOG_GONE ")
    assert ask(core, "fast") == 55


def test_it_expires_without_use(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    fill(core, 10)
    for name in ("asked", "set", "silent"):
        put(core, name, 1)
    consume(core)
    core.advance(WEEK - HOUR)
    assert ask(core, "asked") == 1
    assert put(core, "set", 4) == 4
    core.advance(HOUR - 10 * SECOND)
    assert [each["name"] for each in core.counters("t")["cursors"]] == ["asked", "set", "silent"]
    core.advance(20 * SECOND)
    assert ask(core, "silent") == "E_LOG_NO_CURSOR"
    assert first_seq(core) == 1
    core = restarted(make, core)
    assert ask(core, "silent") == "E_LOG_NO_CURSOR"
    core.advance(WEEK + SECOND)
    core.advance(SECOND)
    assert "cursors" not in core.counters("t")
    core = restarted(make, core)
    assert core.files() == []


def test_what_is_shown(make: Make) -> None:
    core = make()
    fill(core, 10, 10)
    assert "cursors" not in core.counters("t")
    put(core, "b", 4)
    core.advance(90 * SECOND)
    put(core, "a", 11)
    shown = [
        {"name": "a", "log_id": log_id(core), "seq": 11, "lag": 0, "age": 0, "overrun": False},
        {"name": "b", "log_id": log_id(core), "seq": 4, "lag": 7, "age": 90, "overrun": False},
    ]
    assert core.counters("t")["cursors"] == core.topic("t").log_facts()["cursors"] == shown


def test_it_stays_with_the_log_that_a_crash_has_ended(make: Make) -> None:
    core = make(durability="memory")
    core.create("t").channel("c")
    fill(core, 4)
    put(core, "a", 1)
    core.advance(SECOND)
    assert put(core, "a", 5) == 5
    fill(core, 6)
    before = log_id(core)
    core = killed(make, core, durability="memory")
    assert log_id(core) != before
    assert core.topic("t").next_seq == 5
    client = reader(core)
    said = f'{{"name":"a","log_id":"{before}","seq":5}}'.encode()
    assert client.ask(b"LOG_CURSOR t - a -\n") == (RESPONSE, said)
    assert client.ask(f"LOG_CURSOR t {before} a 6\n".encode()) == (ERROR, b"E_LOG_RANGE 5")
    assert client.ask(f"LOG_CURSOR t {before} b 2\n".encode())[0] == RESPONSE
    assert put(core, "a", 5) == 5


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(make: Make, seed: int) -> None:
    """Whatever happens, all records after a cursor exist, unless the cursor was overrun."""
    chance = Random(seed)
    policy: dict[str, Any] = chance.choice(
        [{}, {"retention_bytes": 5 * BIG}, {"retention_time": 5 * SECOND}]
    )
    policy["hold"] = chance.choice([0, 8 * BIG, 1 << 30])
    policy["durability"] = chance.choice(["os", "fsync"])
    core = make(**policy)
    core.create("t").channel("c")
    fill(core, 1)
    model: dict[str, int] = {}
    for _ in range(60):
        action = chance.random()
        name = chance.choice("abc")
        if action < 0.3:
            fill(core, chance.randint(1, 3), chance.choice([10, BIG]))
        elif action < 0.45:
            consume(core)
        elif action < 0.65:
            seq = chance.randint(1, core.topic("t").log_facts()["next_seq"])
            first = first_seq(core)
            said = put(core, name, seq)
            if seq < first:
                assert said == f"E_LOG_GONE {first}"
            else:
                assert said == seq
                model[name] = seq
        elif action < 0.75:
            assert delete(core, name) == model.pop(name, "E_LOG_NO_CURSOR")
        elif action < 0.9:
            core.advance(chance.choice([1, 3, 10]) * SECOND)
        else:
            core = restarted(make, core, **policy)
        if policy["hold"] > BIG * 1000:
            assert all(seq >= first_seq(core) for seq in model.values())
        for each, seq in model.items():
            first = first_seq(core)
            assert ask(core, each) == (seq if seq >= first else f"E_LOG_GONE {first}")
            assert seq <= core.topic("t").log_facts()["next_seq"]


# ---- the table alone ----


def cursor(name: str, seq: int = 1, used: int = 0, log_id: bytes = bytes(16)) -> NamedCursor:
    return NamedCursor(name, log_id, seq, used)


def test_what_is_held() -> None:
    table = NamedCursors([cursor("a", 5), cursor("b", 9)])
    assert [table.held(first) for first in (1, 5, 6, 9, 10)] == [5, 5, 9, 9, None]
    assert table.overrun(6) == ["a"]
    assert table.overrun(6) == []
    assert table.held(1) == 9
    assert [each["overrun"] for each in table.facts(1, 10, 0)] == [True, False]
    table.set(cursor("a", 6))
    assert table.held(1) == 6


def test_the_end_of_an_incarnation() -> None:
    table = NamedCursors([cursor("a", 5), cursor("b", 9), cursor("c", 9, log_id=b"n" * 16)])
    table.end_at(b"n" * 16, 7)
    assert [one.seq for one in table.state()] == [5, 7, 9]


def test_the_order_of_use() -> None:
    table = NamedCursors([cursor("a", used=1), cursor("b", used=2)])
    table.use("a", 3)
    assert table.use("nobody", 3) is None
    assert [one.name for one in table.expire(3)] == ["b"]
    assert [one.name for one in table.expire(3)] == []
    assert [one.name for one in table.expire(4)] == ["a"]
    with pytest.raises(TooManyCursors):
        for n in range(named_cursors.MAX_CURSORS + 1):
            table.set(cursor(str(n)))
