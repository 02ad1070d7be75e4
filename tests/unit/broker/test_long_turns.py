"""The work in a turn is bounded for any amount of pending work: the tests count the work and never
time it."""

import json
import struct
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.worker_core import MILLISECOND, MOMENT, RESPONSE, SECOND, Client, Core, mpub

A_TURN = 4096  # maximum records delivered or skipped, due messages or visited entries
TOPICS_A_TURN = 256
TOPICS_AT_ONCE = 64  # created
OUTPUT_ENOUGH = 131072  # a consumer with this number of unsent bytes gets no more messages


@pytest.fixture
def make() -> Iterator[Callable[..., Core]]:
    cores: list[Core] = []

    def new(path: Path | None = None, **settings: Any) -> Core:
        cores.append(Core(path, **settings))
        return cores[-1]

    yield new
    for core in cores:
        core.close()


def turn(core: Core) -> bool:
    """Run one turn; return whether it left work for the next one."""
    return core.manager.run_turn(core.now, core.wall) <= core.now


def turns(core: Core) -> int:
    """Run turns until nothing is left to do at this moment; return their number."""
    count = 1
    while turn(core):
        count += 1
    return count


def move_clock(core: Core, ns: int) -> None:
    core.now += ns
    core.wall += ns


def dpub(topic: str, body: bytes, delay: int) -> bytes:
    """delay: ms"""
    return b"DPUB %s %d\n" % (topic.encode(), delay) + struct.pack(">i", len(body)) + body


def channels(core: Core, count: int) -> list[Client]:
    return [core.client().subscribe("t", f"c{number}") for number in range(count)]


def total(core: Core, what: str) -> int:
    topic = core.topic("t")
    assert topic is not None
    return sum(channel.counters()[what] for channel in topic.channels.values())


def test_stepping_over_deferred_messages(make: Callable[..., Core]) -> None:
    core = make()
    count = 5 * A_TURN
    consumer = channels(core, 1)[0]
    producer = core.client()
    producer.send(dpub("t", b".", 1000) * count)
    producer.send(mpub("t", [b"at once"]))
    core.settle()
    consumer.ready(10)
    assert turns(core) > count // A_TURN
    assert [message.body for message in consumer.messages()] == [b"at once"]


def test_deliveries_of_all_channels_together(make: Callable[..., Core]) -> None:
    core = make()
    consumers = channels(core, 10)
    core.client().ask(mpub("t", [b"."] * 1000))
    for consumer in consumers:
        consumer.ready(1000)
    taken = [0]
    while turn(core):
        taken.append(total(core, "in_flight_count"))
        assert taken[-1] - taken[-2] <= A_TURN
    assert total(core, "in_flight_count") == 10_000
    assert taken[1] > 0
    assert [len(consumer.messages()) for consumer in consumers] == [1000] * 10


def test_a_consumer_is_sent_what_its_output_takes(make: Callable[..., Core]) -> None:
    """The consumer receives the rest once that output has been sent."""
    core = make()
    consumer = channels(core, 1)[0]
    core.client().ask(mpub("t", [bytes(1000)] * 1000))
    consumer.ready(1000)
    sent = []
    left = True
    while left:
        left = turn(core)
        sent.append(len(consumer.messages()))
    frame = 34 + 1000
    assert sum(sent) == 1000
    assert OUTPUT_ENOUGH <= max(sent) * frame < OUTPUT_ENOUGH + frame


def test_no_channel_is_left_behind(make: Callable[..., Core]) -> None:
    """Channels that a turn did not reach come first in the next one."""
    core = make()
    consumers = channels(core, 4)
    for number in range(4):
        core.client().ask(mpub("t", [b"%d" % number] * 2500))
    for consumer in consumers:
        consumer.ready(2500)
    turn(core)
    turn(core)
    assert total(core, "in_flight_count") == 2 * A_TURN
    turns(core)
    topic = core.topic("t")
    assert topic is not None
    found = [channel.counters()["in_flight_count"] for channel in topic.channels.values()]
    assert found == [2500] * 4


def test_what_is_due_in_all_channels_together(make: Callable[..., Core]) -> None:
    core = make()
    channels(core, 10)
    producer = core.client()
    producer.send(dpub("t", b".", 1000) * 1000)
    core.settle()
    move_clock(core, 1000 * MILLISECOND + MOMENT)
    left = [total(core, "deferred_count")]
    assert left == [10_000]
    while turn(core):
        left.append(total(core, "deferred_count"))
        assert left[-2] - left[-1] <= A_TURN
    assert total(core, "deferred_count") == 0 and total(core, "depth") == 10_000
    assert left[1] < 10_000


def test_the_second_is_over_for_many_topics(make: Callable[..., Core]) -> None:
    core = make()
    count = 5 * TOPICS_A_TURN
    for number in range(count):
        core.create(f"t{number}")
    core.settle()
    move_clock(core, SECOND)
    assert turns(core) >= count // TOPICS_A_TURN
    # Channels deleted in the meantime are not notified.
    move_clock(core, SECOND)
    turn(core)
    for number in range(count):
        core.shard.delete_topic(b"t%d" % number)
    turns(core)


def test_checkpoints_of_many_topics(make: Callable[..., Core], tmp_path: Path) -> None:
    core = make(tmp_path, log_options={"sync_timeout": SECOND // 10})
    count = 5 * TOPICS_A_TURN
    for number in range(count):
        core.create(f"t{number}")
    core.settle()
    move_clock(core, SECOND // 10)
    assert turns(core) >= count // TOPICS_A_TURN
    move_clock(core, SECOND // 10)
    turn(core)
    for number in range(count):
        core.shard.delete_topic(b"t%d" % number)
    turns(core)


def test_a_compaction_takes_many_turns(make: Callable[..., Core]) -> None:
    """A turn visits a limited number of entries, and copies at most a mebibyte and a block."""
    core = make()
    count, kept = 12_000, 2_400
    body = b"." * 1000
    consumer = core.client().subscribe("t", "c", 2500)
    others = channels(core, 1)
    producer = core.client()
    delays = [3600_000 if number % (count // kept) == 0 else 1000 for number in range(count)]
    producer.send(b"".join(dpub("t", body, delay) for delay in delays))
    core.settle()
    for _ in range(2):
        core.advance(SECOND // 2 + MOMENT)
        while held := consumer.messages():
            for message in held:
                consumer.finish(message.id)
            core.settle()
    others[0].send(b"CLS\n")
    topic = core.topic("t")
    assert topic is not None
    topic.delete_channel("c0")
    core.settle()
    before = core.pool.resident_bytes
    assert before > count * 1000 and total(core, "deferred_count") == kept
    move_clock(core, SECOND)
    copied = []
    held_bytes = before
    while turn(core):
        copied.append(core.pool.resident_bytes - held_bytes)
        held_bytes = core.pool.resident_bytes
    # Each entry is visited twice, and 256 bytes count as one entry.
    assert len(copied) >= (2 * kept + kept * 1000 // 256) // A_TURN
    assert max(copied) <= 1024 * 1024 + 262144
    assert kept * 1000 < core.pool.resident_bytes < 2 * kept * 1000 < before // 2


@pytest.mark.slow
@pytest.mark.parametrize("mem_queue_size", [1_000_000, 100], ids=["memory", "disk"])
def test_messages_come_and_go_during_compactions(
    tmp_path: Path, make: Callable[..., Core], mem_queue_size: int
) -> None:
    """Two channels share records. Between the turns of a compaction, messages become due and are
    delivered, requeued and finished as they would be without it."""
    core = make(tmp_path, mem_queue_size=mem_queue_size)
    count, seconds, step = 24_000, 20, 10 * MILLISECOND
    topic = core.create("t")
    for number in range(2):
        topic.channel(f"c{number}")
    producer = core.client()
    numbers = [number * 7919 % count for number in range(count)]
    for start in range(0, count, 1000):
        some = numbers[start : start + 1000]
        bodies = [b"%0200d" % number for number in some]
        delays = [1000 + 1000 * seconds * number // count for number in some]
        producer.send(b"".join(map(dpub, ["t"] * 1000, bodies, delays)))
        core.settle()
    consumers = [core.client().subscribe("t", f"c{number}", 2500) for number in range(2)]
    before = core.pool.resident_bytes
    minimum = before
    found: list[list[bytes]] = [[], []]
    for _ in range((seconds + 2) * SECOND // step):
        move_clock(core, step)
        turn(core)
        if core.io is not None:
            core.io.drain_now()
        for consumer, bodies in zip(consumers, found, strict=True):
            for message in consumer.messages():
                if message.attempts == 1 and int(message.body) % 5 == 0:
                    consumer.requeue(message.id, 200 * (int(message.body) % 2))
                    continue
                consumer.finish(message.id)
                bodies.append(message.body)
        if total(core, "deferred_count") > count // 50:
            minimum = min(minimum, core.pool.resident_bytes)
    assert minimum < before // 2, "nothing was compacted"
    expected = sorted(b"%0200d" % number for number in range(count))
    assert [sorted(bodies) for bodies in found] == [expected] * 2


def test_memory_is_given_back_bit_by_bit(make: Callable[..., Core]) -> None:
    core = make(mem_queue_size=1_000_000)
    body = b"." * 190_000
    producer = core.client()
    for _ in range(80):
        producer.ask(mpub("t", [body] * 4))
    maximum = core.pool.arenas
    core.shard.delete_topic(b"t")
    found = [maximum]
    for _ in range(15):
        core.advance(SECOND)
        found.append(core.pool.arenas)
    assert maximum >= 40 and found[-1] == 0
    assert max(before - after for before, after in pairwise(found)) <= 32


def test_a_full_channel_is_emptied(make: Callable[..., Core]) -> None:
    """The channel has deferred, in-flight and queued messages, and then has room for the same
    number again."""
    core = make()
    consumer = core.client().subscribe("t", "c", 100)
    producer = core.client()
    for _ in range(2):
        producer.send(dpub("t", b".", 60_000) * 2000 + mpub("t", [b"."] * 300))
        core.settle()
        assert len(consumer.messages()) == 100
        assert total(core, "deferred_count") == 2000 and total(core, "depth") == 200
        topic = core.topic("t")
        assert topic is not None
        topic.channels["c"].empty()
        core.settle()
        assert not any(total(core, what) for what in ("deferred_count", "depth", "in_flight_count"))
        assert core.pool.entries == 0
    core.advance(120 * SECOND)
    assert consumer.messages() == []


def test_a_reader_of_the_log_leaves_the_turns_to_consumers(
    make: Callable[..., Core], tmp_path: Path
) -> None:
    records = 4 * A_TURN
    core = make(tmp_path, policies=Policies(TopicPolicy(retention_time=3600 * SECOND)))
    reader = core.client(topic_log=True)
    reader.ask(mpub("t", [b"."] * records))
    core.advance(SECOND)  # now the batch is on disk
    answer = reader.ask(b"LOG_META t\n")
    assert answer is not None
    log_id = json.loads(answer[1])["log_id"]
    consumer = core.client().subscribe("t", "c")

    def turns_of_a_read(each_turn: Callable[[], None]) -> int:
        reader.send(f"LOG_FETCH t {log_id} 1 {records + 1} 8388608 id,body\n".encode())
        count = 0
        while (answer := reader.answer()) is None:
            each_turn()
            turn(core)
            count += 1
        assert answer[0] == RESPONSE
        return count

    def deliver() -> None:
        for message in consumer.messages():
            consumer.finish(message.id)

    alone = turns_of_a_read(lambda: None)
    consumer.ready(1)
    beside = turns_of_a_read(deliver)
    assert alone > records // A_TURN
    assert beside > 4 * alone


def test_new_topics(make: Callable[..., Core]) -> None:
    """Publishes to more new topics than a turn creates are answered in order, over several
    turns."""
    core = make()
    clients = [core.client() for _ in range(2)]
    core.settle()
    count = 5 * TOPICS_AT_ONCE
    for of, client in enumerate(clients):
        client.send(*(b"PUB t%d.%d\n\0\0\0\1x" % (of, number) for number in range(count)))
    created = [len(core.manager.shard.topics)]
    while turn(core):
        created.append(len(core.manager.shard.topics))
    assert created[0] == TOPICS_AT_ONCE
    assert max(after - before for before, after in pairwise(created)) <= TOPICS_AT_ONCE
    assert len(core.manager.shard.topics) == 2 * count
    for client in clients:
        client.look()
        assert client.heard == [(RESPONSE, b"OK")] * count


def test_a_deleted_channel_wakes_no_other_channel(make: Callable[..., Core]) -> None:
    """Deleting thousands of channels, one by one, takes a time in proportion to their number."""
    core = make()
    consumers = channels(core, 10)
    producer = core.client()
    assert producer.publish("t", b"one") == (RESPONSE, b"OK")
    core.settle()
    topic = core.topic("t")
    assert topic is not None
    topic.delete_channel("c0")
    core.shard.settle()
    assert [channel.dirty for channel in topic.channels.values()] == [False] * 9
    assert producer.publish("t", b"two") == (RESPONSE, b"OK")
    for consumer in consumers[1:]:
        consumer.ready(5)
    core.settle()
    for consumer in consumers[1:]:
        assert [message.body for message in consumer.messages()] == [b"one", b"two"]


def test_a_deletion_and_a_publish_in_one_turn(make: Callable[..., Core]) -> None:
    core = make()
    consumer = channels(core, 2)[1]
    consumer.ready(5)
    core.settle()
    topic = core.topic("t")
    assert topic is not None
    for order in ("before", "after"):
        if order == "after":
            core.client().send(mpub("t", [b"after"]))
        topic.delete_channel("c0")
        if order == "before":
            core.client().send(mpub("t", [b"before"]))
        core.settle()
        assert [message.body for message in consumer.messages()] == [order.encode()]
        topic.channel("c0")
        core.settle()


def test_a_new_channel_wakes_no_other_channel(make: Callable[..., Core]) -> None:
    """Creating thousands of channels, one by one, takes a time in proportion to their number."""
    core = make()
    consumers = channels(core, 10)
    core.settle()
    topic = core.topic("t")
    assert topic is not None
    topic.channel("new")
    core.shard.settle()
    dirty = {name: channel.dirty for name, channel in topic.channels.items()}
    assert dirty == dict.fromkeys([f"c{number}" for number in range(10)], False) | {"new": True}
    assert core.client().publish("t", b"one") == (RESPONSE, b"OK")
    for consumer in consumers:
        consumer.ready(5)
    core.settle()
    for consumer in consumers:
        assert [message.body for message in consumer.messages()] == [b"one"]


def test_a_new_channel_and_a_publish_in_one_turn(make: Callable[..., Core]) -> None:
    """The new channel receives later messages, and the other one receives all of them."""
    core = make()
    (consumer,) = channels(core, 1)
    consumer.ready(5)
    core.settle()
    topic = core.topic("t")
    assert topic is not None
    core.client().send(mpub("t", [b"before"]))
    new = topic.channel("new")
    core.client().send(mpub("t", [b"after"]))
    core.settle()
    assert [message.body for message in consumer.messages()] == [b"before", b"after"]
    assert new.counters()["depth"] == 1
