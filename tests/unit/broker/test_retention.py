"""Retention and replay: what a log keeps, and channels that start or continue within it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import EPOCH, RESPONSE, SECOND, Core

OK = (RESPONSE, b"OK")
HOUR = 3600 * SECOND
Make = Callable[..., Core]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(
        path: Path = tmp_path, wall: int = EPOCH, now: int = 1000 * SECOND, **policy: int
    ) -> Core:
        core = Core(path, wall=wall, now=now, policies=Policies(TopicPolicy(**policy)))
        made.append(core)
        return core

    yield make
    for core in made:
        core.close()


def start_again(make: Make, core: Core, **policy: int) -> Core:
    core.save()
    core.close = lambda: None  # type: ignore[method-assign]
    again = make(wall=core.wall, now=core.now, **policy)
    again.shard.load_topic(b"t", False, {})
    again.settle()
    return again


def fill(core: Core, count: int = 100, size: int = 10, first: int = 0) -> None:
    client = core.client()
    for n in range(first, first + count):
        assert client.publish("t", b"%0*d" % (size, n)) == OK


def drain(core: Core, channel: str) -> list[int]:
    """Finish all messages in a channel, and return their numbers."""
    consumer = core.client().subscribe("t", channel, 2500)
    found = []
    while True:
        core.settle()
        some = consumer.messages()
        for each in some:
            found.append(int(each.body[-6:]))
            consumer.finish(each.id)
        if not some:
            break
    consumer.transport.end()
    core.settle()
    return found


def begin(core: Core, channel: str, seq: int) -> int:
    topic = core.topic("t")
    topic.channel(channel)
    return topic.seek(channel, seq)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_a_new_channel_gets_history_and_then_what_comes(
    make: Make, durability: str, restarted: bool
) -> None:
    core = make(durability=durability, retention_time=HOUR)
    core.create("t").channel("c")
    fill(core)
    assert drain(core, "c") == list(range(100))
    core.advance(2 * SECOND)
    if restarted:
        core = start_again(make, core, durability=durability, retention_time=HOUR)
    assert begin(core, "earliest", 0) == 1
    assert begin(core, "middle", 41) == 41
    assert begin(core, "latest", 10**9) == 101
    assert core.counters("t", "earliest")["depth"] == 100
    fill(core, 10, first=100)
    assert drain(core, "earliest") == list(range(110))
    assert drain(core, "middle") == list(range(40, 110))
    assert drain(core, "latest") == list(range(100, 110))
    assert drain(core, "c") == list(range(100, 110))


def test_without_retention_what_is_finished_is_gone(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    fill(core, 100, size=10_000)
    assert drain(core, "c") == list(range(100))
    assert begin(core, "earliest", 0) > 70


@pytest.mark.parametrize("cold", [False, True])
def test_a_time_is_found(make: Make, cold: bool) -> None:
    core = make(retention_time=HOUR)
    core.create("t").channel("c")
    for part in range(10):
        fill(core, 100, size=1000, first=100 * part)
        core.advance(10 * SECOND)
    drain(core, "c")
    if cold:
        core.advance(SECOND)
    topic = core.topic("t")

    def seq_at(time: int) -> int:
        found = topic.seq_at(time)
        while found is None:
            core.settle()
            found = topic.seq_at(time)
        return found

    assert seq_at(0) == seq_at(EPOCH) == 1
    assert [seq_at(EPOCH + part * 10 * SECOND) for part in range(10)] == list(range(1, 1000, 100))
    assert [seq_at(EPOCH + part * 10 * SECOND - 1) for part in range(1, 5)] == [101, 201, 301, 401]
    assert seq_at(EPOCH + 2 * HOUR) == 1001


def test_what_is_too_old_goes(make: Make) -> None:
    core = make(retention_time=60 * SECOND)
    core.create("t").channel("c")
    for part in range(10):
        fill(core, 100, size=10_000, first=100 * part)
        drain(core, "c")
        core.advance(10 * SECOND)
    topic = core.topic("t")
    assert 200 < topic.first_seq < 500
    held = topic.log_bytes
    assert 5 * 10**6 < held < 8 * 10**6
    core.advance(100 * SECOND)
    core.advance(SECOND)
    assert topic.log_bytes < 10**6 and core.pool.resident_bytes < 10**6


def test_what_is_too_much_goes(make: Make) -> None:
    core = make(retention_bytes=3_000_000)
    core.create("t").channel("c")
    for part in range(10):
        fill(core, 100, size=10_000, first=100 * part)
        drain(core, "c")
        core.advance(2 * SECOND)
    assert 2_000_000 < core.topic("t").log_bytes < 4_000_000
    first = core.topic("t").first_seq
    begin(core, "d", 0)
    assert drain(core, "d") == list(range(first - 1, 1000))


def test_a_channel_that_is_behind_is_not_hurried(make: Make) -> None:
    core = make(retention_bytes=100_000)
    core.create("t").channel("c")
    fill(core, 200, size=10_000)
    core.advance(5 * SECOND)
    core.advance(5 * SECOND)
    assert drain(core, "c") == list(range(200))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("policy", [{"retention_bytes": 3_000_000}, {"retention_time": HOUR}])
def test_retention_holds_for_a_topic_without_a_channel(
    make: Make, policy: dict[str, int], restarted: bool
) -> None:
    """Messages expire without a channel; the topic's first channel gets those within retention."""
    core = make(**policy)
    for part in range(10):
        fill(core, 100, size=10_000, first=100 * part)
        core.advance(HOUR // 3)
        core.advance(2 * SECOND)
    if restarted:
        core = start_again(make, core, **policy)
    topic = core.topic("t")
    assert 2_000_000 < topic.log_bytes < 5_000_000
    counters = core.counters("t")
    assert counters["message_count"] == (0 if restarted else 1000)
    depth = counters["depth"]
    assert 200 <= depth <= 500
    if not restarted:
        assert topic.ledger()["expired"] == 1000 - depth
    topic.channel("c")
    assert drain(core, "c") == list(range(1000 - depth, 1000))


def test_a_named_cursor_alone_drops_no_messages_that_wait_for_a_channel(make: Make) -> None:
    core = make()
    core.create("t")
    done: list[str | None] = []
    topic = core.topic("t")
    topic.set_cursor("lake", bytes(16), topic.first_seq, done.append)
    fill(core, 200, size=10_000)
    core.advance(2 * HOUR)
    core.advance(2 * SECOND)
    assert core.counters("t")["depth"] == 200


def test_what_is_retained_is_not_in_memory(make: Make) -> None:
    core = make(retention_time=HOUR)
    core.create("t").channel("c")
    fill(core, 500, size=10_000)
    drain(core, "c")
    core.advance(2 * SECOND)
    core.advance(2 * SECOND)
    assert core.topic("t").log_bytes > 5_000_000 and core.pool.resident_bytes < 1_000_000
    begin(core, "d", 0)
    assert drain(core, "d") == list(range(500))
    core.advance(2 * SECOND)
    assert core.pool.resident_bytes < 1_000_000


def test_delays_are_over_when_history_is_read(make: Make) -> None:
    core = make(durability="os", retention_time=HOUR)
    core.create("t").channel("c")
    assert core.client().publish("t", b"0") == OK
    assert core.client().publish("t", b"1", delay=60_000) == OK
    assert core.client().publish("t", b"2") == OK
    begin(core, "d", 0)
    assert core.counters("t", "d")["depth"] == 3
    assert drain(core, "d") == [0, 1, 2]
    begin(core, "e", 0)
    assert drain(core, "c") == [0, 2]
    core = start_again(make, core, durability="os", retention_time=HOUR)
    assert drain(core, "e") == [0, 1, 2]
    core.advance(61 * SECOND)
    assert drain(core, "c") == [1]


def test_seeking_drops_what_the_channel_holds(make: Make) -> None:
    core = make(retention_time=HOUR)
    core.create("t").channel("c")
    fill(core)
    consumer = core.client().subscribe("t", "c", 10)
    core.settle()
    some = consumer.messages()
    consumer.requeue(some[0].id, 60_000)
    consumer.requeue(some[1].id)
    assert core.topic("t").seek("c", 91) == 91
    core.settle()
    consumer.finish(some[2].id)
    core.settle()
    _, text = consumer.answer()
    assert text.startswith(b"E_FIN_FAILED")
    counters = core.counters("t", "c")
    assert counters["depth"] + counters["in_flight_count"] == 10
    ledger = core.topic("t").channels["c"].ledger()
    assert ledger["dropped"]["emptied"] == 100 and ledger["received"] == 110
    core.topic("t").seek("c", 0)
    consumer.transport.end()
    core.settle()
    core.advance(61 * SECOND)
    assert sorted(drain(core, "c")) == list(range(100))


def test_a_place_in_the_log_survives_a_restart(make: Make) -> None:
    core = make(retention_time=HOUR)
    core.create("t").channel("c")
    fill(core)
    drain(core, "c")
    begin(core, "d", 31)
    core = start_again(make, core, retention_time=HOUR)
    assert drain(core, "d") == list(range(30, 100))


def test_retention_ends_with_its_policy(make: Make) -> None:
    core = make(retention_time=HOUR)
    core.create("t").channel("c")
    fill(core, 500, size=1000)
    drain(core, "c")
    core = start_again(make, core)
    core.advance(3 * SECOND)
    assert core.topic("t").log_bytes < 300_000
