"""Edge cases of the core: block boundaries, holes, full disks, budgets, and former bugs."""

import errno
import gc
import random
import shutil
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.base.core import Percentiles
from nsqcy.config.policies import Policies
from reference import quantile as reference
from support.worker_core import ERROR, MILLISECOND, MOMENT, RESPONSE, SECOND, Client, Core, mpub

SMALL_FILES = {"max_bytes_per_file": 60_000, "sync_every": 2500, "sync_timeout": 2 * SECOND}
OK = (RESPONSE, b"OK")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    """Factory of cores; each core is closed, and must release everything."""
    made: list[Core] = []

    def make(path: Path = tmp_path, **settings: Any) -> Core:
        made.append(Core(path, **settings))
        return made[-1]

    yield make
    for core in made:
        if core.io is not None and core.io.outstanding == 0 and core.shard.topics:
            core.close()


def restarted(make: Any, core: Core, *channels: str, **settings: Any) -> Core:
    core.save()
    core.shard.topics.clear()
    fresh: Core = make(now=9 * SECOND, wall=core.wall, **settings)
    fresh.shard.load_topic(b"t", False, dict.fromkeys(channels, False))
    fresh.settle()
    return fresh


def after_a_crash(make: Any, core: Core, *channels: str, **settings: Any) -> Core:
    """Return a new worker on the disk state that a kill of this worker would leave."""
    path = core.path.with_name(f"{core.path.name}-crashed")
    shutil.copytree(core.path, path)
    fresh: Core = make(path, now=9 * SECOND, wall=core.wall, **settings)
    fresh.shard.load_topic(b"t", False, dict.fromkeys(channels, False))
    fresh.settle()
    return fresh


def bodies(client: Client) -> list[bytes]:
    client.core.settle()
    return [message.body for message in client.messages()]


def pub(body: bytes) -> bytes:
    return b"PUB t\n" + len(body).to_bytes(4, "big") + body


# -- the reader that is furthest behind --


def test_the_last_reader_is_found_without_a_search_in_each_turn(make):
    core = make()
    topic = core.create("t")
    for number in range(20):
        topic.channel(f"idle{number}")
    producer = core.client()
    for number in range(10):
        producer.ask(pub(b"%d" % number))
    reader = core.client().subscribe("t", "busy", 1)
    topic.seek("busy", 3)
    core.settle()
    searches = topic.searches
    for _ in range(8):
        for message in reader.messages():
            reader.finish(message.id)
            core.settle()
    assert topic.searches == searches
    assert topic.log_facts()["channels"]["busy"] == 11
    assert topic.unsaved() == 10


def test_the_last_reader_after_any_moves(make):
    core = make()
    topic = core.create("t")
    producer = core.client()
    rng = random.Random(42)
    readers: dict[str, Client] = {}
    published = 0
    for step in range(600):
        kind = rng.choice(("publish", "publish", "read", "read", "read", "seek", "add", "drop"))
        name = rng.choice([*readers]) if readers else ""
        if kind == "publish":
            producer.ask(pub(b"x" * rng.choice((10, 3000))))
            published += 1
        elif kind == "add" and len(readers) < 8:
            readers[f"c{step}"] = core.client().subscribe("t", f"c{step}", 0)
        elif kind == "drop" and len(readers) > 1:
            topic.delete_channel(name)
            del readers[name]
        elif kind == "read" and name:
            readers[name].ready(rng.choice((1, 5)))
            core.settle()
            for message in readers[name].messages():
                readers[name].finish(message.id)
            readers[name].ready(0)
        elif kind == "seek" and name:
            topic.seek(name, rng.randrange(published + 2))
        core.settle()
        first = min([published + 1, *topic.log_facts()["channels"].values()]) if readers else 1
        assert topic.unsaved() == published + 1 - first, (step, kind)


# -- a new topic that waits for its channels --


def test_every_channel_of_a_held_topic_gets_everything(make):
    core = make(hold_new=60 * SECOND)
    producer = core.client()
    early = core.client()
    assert producer.ask(pub(b"first")) == (RESPONSE, b"OK")
    early.subscribe("t", "early", 10)
    assert producer.publish("t", b"later", 2000) == (RESPONSE, b"OK")
    assert producer.ask(pub(b"second")) == (RESPONSE, b"OK")
    assert bodies(early) == []
    topic = core.topic("t")
    assert topic.held and not topic.paused
    assert (topic.counters()["depth"], topic.counters()["paused"]) == (3, False)
    topic.channel("seeded")
    topic.end_hold()
    assert not topic.held and topic.counters()["depth"] == 0
    assert bodies(early) == [b"first", b"second"]
    assert bodies(core.client().subscribe("t", "seeded", 10)) == [b"first", b"second"]
    core.advance(2 * SECOND)
    assert bodies(early) == [b"later"]
    topic.channel("too late")
    assert core.counters("t", "too late")["depth"] == 0


def test_a_hold_ends_by_itself(make):
    core = make(hold_new=5 * SECOND)
    client = core.client().subscribe("t", "c", 10)
    core.client().ask(pub(b"x"))
    core.advance(4 * SECOND)
    assert bodies(client) == [] and core.topic("t").held
    core.advance(2 * SECOND)
    assert bodies(client) == [b"x"] and not core.topic("t").held


def test_a_paused_topic_stays_paused_when_its_hold_ends(make):
    core = make(hold_new=5 * SECOND)
    client = core.client().subscribe("t", "c", 10)
    core.client().ask(pub(b"x"))
    core.topic("t").pause(True)
    core.topic("t").end_hold()
    assert bodies(client) == []
    core.topic("t").pause(False)
    assert bodies(client) == [b"x"]


def test_a_hold_does_not_outlive_its_process(make):
    core = make(hold_new=60 * SECOND)
    core.client().ask(pub(b"x"))
    core.topic("t").channel("c")
    core = restarted(make, core, "c", hold_new=60 * SECOND)
    assert not core.topic("t").held
    assert bodies(core.client().subscribe("t", "c", 10)) == [b"x"]


# -- a new topic that nsqlookupds do not list yet --


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
def test_publishes_to_a_new_topic_are_answered_once_it_is_announced(make, durability):
    policies = Policies(sections=[("t", {"durability": durability})])
    core = make(hold_new=60 * SECOND, announce_new=True, policies=policies)
    producer, other = core.client(), core.client()
    assert producer.ask(pub(b"first"), mpub("t", [b"second", b"third"])) is None
    assert other.ask(pub(b"fourth")) is None
    core.io.drain_now()
    assert (producer.ask(), other.ask()) == (None, None)
    consumer = core.client().subscribe("t", "c", 10)
    core.topic("t").end_hold()
    assert bodies(consumer) == [b"first", b"second", b"third", b"fourth"]  # only the answers wait
    core.topic("t").announced()
    assert [producer.ask(), producer.ask(), other.ask()] == [OK] * 3
    assert producer.ask(pub(b"fifth")) == OK


def test_publishes_to_a_topic_that_is_never_announced_are_answered_with_the_end_of_its_hold(make):
    core = make(hold_new=5 * SECOND, announce_new=True)
    producer = core.client()
    assert producer.ask(pub(b"x")) is None
    core.advance(6 * SECOND)
    assert producer.ask() == OK


def test_a_new_topic_that_is_deleted_has_accepted_its_publishes(make):
    core = make(hold_new=60 * SECOND, announce_new=True)
    producer = core.client()
    assert producer.ask(pub(b"x")) is None
    core.shard.delete_topic(b"t", lambda _: None)
    assert producer.ask() == OK
    core.settle()
    core.io.drain_now()


def test_an_error_is_not_the_answer_to_publishes_that_were_accepted(make):
    core = make(hold_new=60 * SECOND, announce_new=True, mem_queue_size=1)
    producer = core.client()
    assert producer.ask(pub(b"in memory")) is None
    core.io.fault("pwrite", 1, errno.ENOSPC, times=1000)
    assert producer.ask(mpub("t", [b"to", b"disk"])) == OK
    assert producer.ask()[0] == ERROR


# -- the queue and the cursor --


def test_a_requeued_message_does_not_wait_behind_delayed_ones(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 1)
    producer = core.client()
    producer.publish("t", b"one")
    core.settle()
    (one,) = consumer.messages()
    producer.publish("t", b"later", 60_000)
    consumer.requeue(one.id)
    assert bodies(consumer) == [b"one"]


def test_a_requeued_message_does_not_wait_behind_a_hole(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 1)
    producer = core.client()
    producer.publish("t", b"one")
    core.settle()
    (one,) = consumer.messages()
    core.topic("t").pause(True)
    producer.publish("t", b"dropped")
    core.topic("t").empty()
    consumer.requeue(one.id)
    assert bodies(consumer) == [b"one"]


def test_an_ephemeral_channel_without_a_queue_delivers_what_it_can(make):
    core = make(mem_queue_size=0)
    consumer = core.client().subscribe("t#ephemeral", "c#ephemeral", 2)
    core.client().ask(mpub("t#ephemeral", [b"%d" % i for i in range(5)]))
    assert bodies(consumer) == [b"0", b"1"]
    assert core.counters("t#ephemeral", "c#ephemeral")["depth"] == 0
    assert core.topic("t#ephemeral").channels["c#ephemeral"].dropped_count == 3


def test_a_requeued_message_comes_behind_what_was_published_before(make):
    for channel in ("c", "c#ephemeral"):
        core = make()
        consumer = core.client().subscribe("t", channel, 1)
        producer = core.client()
        producer.publish("t", b"one")
        core.settle()
        (one,) = consumer.messages()
        producer.send(pub(b"two"))
        consumer.requeue(one.id)
        producer.send(pub(b"three"))
        consumer.ready(3)
        assert bodies(consumer) == [b"two", b"one", b"three"], channel


def test_an_ephemeral_channel_drops_the_newest_and_delivers_the_oldest(make):
    core = make(mem_queue_size=1)
    consumer = core.client().subscribe("t", "c#ephemeral", 2)
    producer = core.client()
    producer.send(*(pub(b"%d" % i) for i in range(1, 6)))
    assert bodies(consumer) == [b"1", b"2"]
    assert core.counters("t", "c#ephemeral")["depth"] == 1
    assert core.topic("t").channels["c#ephemeral"].dropped_count == 2
    consumer.ready(5)
    assert bodies(consumer) == [b"3"]


def test_a_full_ephemeral_channel_beyond_the_budget(make):
    """When the channel has room again, it reads the next messages, so other blocks leave memory."""
    core = make(mem_queue_size=3, budget=300_000)
    consumer = core.client().subscribe("t", "c#ephemeral", 2500)
    sizes = [1_000_000, 2, 2, 2, 200_000, 1_000_000, 2]
    sent = [b"%d" % number + b"." * (size - 1) for number, size in enumerate(sizes)]
    core.client().ask(mpub("t", sent))
    found = bodies(consumer)
    ledger = core.topic("t").channels["c#ephemeral"].ledger()
    assert found == [body for body in sent if body in found]
    assert ledger["in_flight"] == len(found)
    assert ledger["dropped"] == dict.fromkeys(ledger["dropped"], 0) | {"overflow": 7 - len(found)}


def test_a_channel_steps_over_what_was_dropped_from_a_paused_topic(make):
    core = make()
    consumer = core.client().subscribe("t", "c")
    producer = core.client()
    expected = []
    for i in range(3):
        producer.publish("t", b"kept %d" % i)
        expected.append(b"kept %d" % i)
        core.topic("t").pause(True)
        producer.publish("t", b"dropped")
        producer.publish("t", b"dropped, delayed", 500)
        core.settle()
        core.topic("t").empty()
        core.topic("t").pause(False)
    producer.publish("t", b"last")
    core.settle()
    assert core.counters("t", "c")["depth"] == 4
    consumer.ready(10)
    assert bodies(consumer) == [*expected, b"last"]
    core.advance(SECOND)
    assert core.counters("t", "c")["deferred_count"] == 0


@pytest.mark.parametrize("size", [1, 4_000, 4_048, 4_056, 16_384, 196_608, 262_144, 1 << 20])
def test_records_at_the_ends_of_blocks(make, size):
    core = make()
    consumer = core.client().subscribe("t", "c")
    producer = core.client()
    sent = [bytes([i]) * (size - i % 3) if size > 2 else bytes([i + 1]) for i in range(12)]
    for body in sent:
        producer.publish("t", body)
    core.settle()
    consumer.ready(100)
    got = []
    for _ in range(12):
        core.settle()
        for message in consumer.messages():
            consumer.finish(message.id)
            got.append(message.body)
    assert got == sent
    core.advance(60 * SECOND)
    assert core.live()["entries"] == 0


def test_an_idle_topic_holds_no_block_and_goes_on(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 1)
    producer = core.client()
    for i in range(3):
        producer.publish("t", b"%d" % i)
        core.settle()
        (message,) = consumer.messages()
        assert message.body == b"%d" % i
        consumer.finish(message.id)
        core.advance(20 * SECOND)
        assert core.pool.blocks == 0
    other = core.client().subscribe("t", "other", 1)
    producer.publish("t", b"both")
    assert bodies(consumer) == [b"both"] == bodies(other)


# -- many at once --


def test_more_is_due_than_fits_into_one_turn(make):
    core = make()
    consumer = core.client(msg_timeout=1000).subscribe("t", "c")
    producer = core.client()
    core.topic("t").pause(True)
    for i in range(9000):
        producer.send(b"DPUB t 1000\n" + (4).to_bytes(4, "big") + b"%04d" % i)
    core.settle()
    assert core.counters("t")["depth"] == 9000
    core.topic("t").pause(False)
    core.settle()
    assert core.counters("t", "c")["deferred_count"] == 9000
    core.advance(1000 * MILLISECOND + MOMENT)
    assert core.counters("t", "c")["depth"] == 9000
    consumer.ready(2500)
    core.settle()
    assert len(consumer.messages()) == 2500
    consumer.ready(0)
    core.advance(2 * SECOND)
    assert core.counters("t", "c")["timeout_count"] == 2500
    assert core.counters("t", "c")["depth"] == 9000


def test_messages_in_flight_are_found_in_any_order(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    chance = random.Random(1)
    for _ in range(3):
        assert producer.ask(mpub("t", [b"x"] * 2500)) == OK
        core.settle()
        ids = [message.id for message in consumer.messages()]
        assert len(ids) == 2500
        chance.shuffle(ids)
        for id in ids:
            consumer.finish(id)
            assert consumer.answer() is None
        consumer.finish(ids[0])
        assert consumer.answer() == (ERROR, b"E_FIN_FAILED FIN %s failed ID not in flight" % ids[0])
    assert core.live()["entries"] == 0


def test_fins_that_come_together_are_one_after_the_other(make):
    """FINs have the same effect for any split of the input, and with any commands in between."""
    core = make()
    other = core.client().subscribe("t", "c", 1)
    producer = core.client()
    producer.publish("t", b"held by another")
    core.settle()
    (theirs,) = other.messages()
    consumer = core.client().subscribe("t", "c", 5)
    unknown = b"0123456789abcdef"
    cut, length = 0, 1
    while cut < length:
        producer.ask(mpub("t", [b"x"] * 5))
        core.settle()
        ids = [message.id for message in consumer.messages()]
        lines = (
            b"FIN %b\nFIN %b\nFIN %b\r\nFIN %b\n" % (*ids[:3], unknown)
            + (b"PUB u\n\0\0\0\1x" + b"FIN %b\nFIN %b\n" % (ids[3], theirs.id))
            + b"FIN %b\nFIN %b\n" % (theirs.id.swapcase(), ids[4])
        )
        length = len(lines)
        # Both parts are in one buffer: nsqd must not read beyond the end of a part.
        consumer.transport.feed(memoryview(lines)[:cut])
        consumer.transport.feed(memoryview(lines)[cut:])
        core.settle()
        assert [consumer.answer() for _ in range(5)] == [
            (ERROR, b"E_FIN_FAILED FIN %b failed ID not in flight" % unknown),
            OK,
            (ERROR, b"E_FIN_FAILED FIN %b failed client does not own message" % theirs.id),
            (ERROR, b"E_FIN_FAILED FIN %b failed ID not in flight" % theirs.id.swapcase()),
            None,
        ]
        cut += 1
        assert consumer.session.counters()["finish_count"] == 5 * cut
    assert core.counters("t", "c")["in_flight_count"] == 1
    assert core.live()["entries"] == 1


def test_fins_make_room_for_as_many_messages(make):
    core = make()
    consumers = [core.client().subscribe("t", "c", 3) for _ in range(2)]
    core.client().ask(mpub("t", [b"x"] * 20))
    core.settle()
    ids = [[message.id for message in consumer.messages()] for consumer in consumers]
    assert [len(each) for each in ids] == [3, 3]
    consumers[1].send(*(b"FIN %b\n" % id for id in ids[1]))
    consumers[0].send(*(b"FIN %b\n" % id for id in ids[0][:2]))
    core.settle()
    assert [len(consumer.messages()) for consumer in consumers] == [2, 3]
    consumers[0].ready(2)
    consumers[0].finish(ids[0][2])
    core.settle()
    assert consumers[0].messages() == []


def test_fins_of_who_does_not_read(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 2500)
    consumer.transport.full = 0
    core.client().ask(mpub("t", [b"x" * 1000] * 300))
    core.settle()
    ids = [message.id for message in consumer.messages()]
    assert 100 < len(ids) < 200
    consumer.send(*(b"FIN %b\n" % id for id in ids))
    core.settle()
    assert consumer.messages() == []
    consumer.transport.full = None
    core.settle()
    assert len(consumer.messages()) == 300 - len(ids)


def test_consumers_take_turns_whatever_their_ready_counts_did(make):
    core = make()
    consumers = [core.client().subscribe("t", "c") for _ in range(3)]
    for counts in ((1, 0, 5), (0, 0, 0), (5, 5, 0), (100, 100, 100)):
        for consumer, count in zip(consumers, counts, strict=True):
            consumer.ready(count)
    consumers[1].ready(0)
    consumers[1].ready(100)
    core.client().ask(mpub("t", [b"x"] * 30))
    core.settle()
    assert [len(consumer.messages()) for consumer in consumers] == [10, 10, 10]


def test_a_touch_beyond_the_limit_ends_before_other_deadlines(make):
    core = make(max_msg_timeout=6 * SECOND)
    consumer = core.client(msg_timeout=4000).subscribe("t", "c", 1)
    producer = core.client()
    producer.publish("t", b"touched")
    core.settle()
    (touched,) = consumer.messages()
    core.advance(3 * SECOND)
    consumer.touch(touched.id)  # extends the timeout to 6 s, not 7 s
    producer.publish("t", b"other")
    consumer.ready(2)
    core.settle()
    (other,) = consumer.messages()  # until 7 s
    consumer.touch(touched.id)
    consumer.ready(0)
    core.advance(3 * SECOND - MILLISECOND)
    assert core.counters("t", "c")["timeout_count"] == 0
    core.advance(MILLISECOND)
    assert core.counters("t", "c")["timeout_count"] == 1
    consumer.finish(other.id)
    assert consumer.answer() is None


def test_a_large_body_on_its_way_survives_its_channel(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 1)
    consumer.transport.full = 100
    core.client().publish("t", b"x" * (1 << 20))
    core.settle()
    core.topic("t").channels["c"].empty()
    core.shard.delete_topic(b"t")
    core.settle()
    consumer.transport.full = None
    core.settle()
    assert [len(message.body) for message in consumer.messages()] == [1 << 20]
    assert consumer.closed
    assert core.live()["blocks"] == 0


# -- full disks --


def test_a_pipeline_is_answered_up_to_the_write_that_failed(make):
    core = make(mem_queue_size=0)
    consumer = core.client().subscribe("t", "c", 10)
    producer = core.client()
    for i in range(3):
        producer.publish("t", b"%d" % i)
    core.io.fault("pwrite", 1, errno.ENOSPC, 1)
    producer.send(pub(b"refused"), pub(b"refused too"), pub(b"never run"))
    core.settle()
    producer.look()
    kind, text = producer.heard[0]
    assert kind == ERROR and text.startswith(b"E_PUB_FAILED PUB failed write ")
    assert len(producer.heard) == 1 and producer.closed
    assert bodies(consumer) == [b"0", b"1", b"2"]
    assert core.counters("t")["message_count"] == 3
    assert core.counters("t")["message_bytes"] == 3
    assert core.client().publish("t", b"4") == OK
    assert bodies(consumer) == [b"4"]


@pytest.mark.parametrize("nth", range(1, 13))
@pytest.mark.parametrize("settings", [{"mem_queue_size": 0}, {"budget": 150_000}])
def test_only_accepted_messages_exist_after_a_full_disk(make, settings, nth):
    settings = {**settings, "log_options": SMALL_FILES}
    core = make(**settings)
    core.create("t").channel("c")
    core.io.fault("pwrite", nth, errno.ENOSPC, 1)
    accepted = set()
    for first in range(0, 36, 9):
        sent = [b"%02d" % number * 9_000 for number in range(first, first + 9)]
        producer = core.client()
        producer.send(*(pub(body) for body in sent))
        core.settle()
        producer.look()
        answers = [frame == OK for frame in producer.heard]
        accepted |= {body for body, good in zip(sent, answers, strict=False) if good}
    core.io.clear_faults()
    core = restarted(make, core, "c", **settings)
    consumer = core.client().subscribe("t", "c", 2500)
    got = bodies(consumer)
    assert len(got) == len(accepted)
    assert set(got) == accepted


NO_ROOM = (ERROR, b"E_PUB_FAILED PUB failed no room")


def test_only_publishes_that_need_the_disk_are_rejected(make):
    core = make(mem_queue_size=2, policies=Policies(sections=[("t", {"durability": "os"})]))
    core.shard.set_refusal("no room")
    assert core.client().publish("t", b"x") == NO_ROOM
    assert core.counters("t")["message_count"] == 0
    for topic in ("m", "e#ephemeral"):
        assert core.client().publish(topic, b"1") == OK
        assert core.client().publish(topic, b"2") == OK
    assert core.client().publish("m", b"3") == NO_ROOM
    assert core.client().publish("e#ephemeral", b"3") == OK
    core.shard.set_refusal(None)
    assert core.client().publish("m", b"3") == OK
    assert core.client().publish("t", b"x") == OK


def test_a_refused_topic_that_is_consumed_takes_more(make):
    core = make(mem_queue_size=2)
    consumer = core.client().subscribe("t", "c", 0)
    for number in range(4):
        assert core.client().publish("t", b"%d" % number) == OK
    core.shard.set_refusal("no room")
    assert core.client().publish("t", b"x") == NO_ROOM
    consumer.ready(9)
    core.settle()
    for message in consumer.messages():
        consumer.finish(message.id)
    core.client().publish("t", b"x")
    core.settle()
    assert core.client().publish("t", b"4") == OK
    assert bodies(consumer)[-1] == b"4"


def test_a_failed_write_leaves_no_empty_block_behind(make):
    core = make(mem_queue_size=3, budget=300_000)
    core.client().publish("t", b"x" * 17_000, 1)
    core.topic("t").empty()
    core.io.fault("pwrite", 1, errno.ENOSPC, 1)
    answer = core.client().ask(mpub("t", [b"x" * 1_000_000, b"y"]))
    assert answer is not None and answer[0] == ERROR
    core.io.clear_faults()
    core.settle()
    assert core.client().publish("t", b"z") == OK
    core.settle()
    assert core.counters("t")["depth"] == 1


def test_what_cannot_be_read_for_a_while_is_delivered_then(make) -> None:
    """For example, descriptors have run out: the file exists, so its content is not dropped."""
    core = make(mem_queue_size=0)
    core.create("t").channel("c")
    publisher = core.client()
    for n in range(3):
        assert publisher.publish("t", b"%d" % n) == (RESPONSE, b"OK")
    again = restarted(make, core, "c")
    again.io.fault("open", 1, errno.EMFILE, times=1000)
    consumer = again.client().subscribe("t", "c", 10)
    again.settle()
    assert consumer.messages() == []
    (line,) = again.log.lines
    path = f"{again.path}/t.topic/00000000000000000001.seg"
    assert line.startswith(f"TOPIC(t): cannot read {path}: too many open files: ")
    again.advance(SECOND // 10)
    assert consumer.messages() == [] and len(again.log.lines) == 1
    again.io.clear_faults()
    again.advance(SECOND)
    assert [each.body for each in consumer.messages()] == [b"0", b"1", b"2"]


def test_what_is_written_message_by_message_leaves_memory(make):
    core = make(mem_queue_size=0, budget=0)
    core.create("t").channel("c")
    producer = core.client()
    for _ in range(200):
        assert producer.publish("t", b"." * 15_000) == OK
        core.settle()
    assert core.pool.resident_bytes <= 2 * 262144


# -- stragglers, restarts --


def test_the_few_messages_left_of_many_blocks_are_kept_apart(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 2500)
    core.client().ask(mpub("t", [b"%03d" % i + b"." * 20_000 for i in range(200)]))
    core.settle()
    messages = consumer.messages()
    assert len(messages) == 200
    for i, message in enumerate(messages):
        if i % 20:
            consumer.finish(message.id)
        else:
            # The first message is redelivered last.
            consumer.requeue(message.id, 100_000 - 1000 * (i // 20))
    core.settle()
    before = core.pool.resident_bytes
    core.advance(2 * SECOND)
    assert core.pool.resident_bytes < before / 4
    core = restarted(make, core, "c")
    consumer = core.client().subscribe("t", "c", 2500)
    core.advance(200 * SECOND)
    got = consumer.messages()
    assert [message.body[:3] for message in got] == [b"%03d" % i for i in range(180, -1, -20)]
    assert {message.attempts for message in got} == {2}


def test_a_delayed_message_that_was_not_on_disk_yet_when_the_journal_was_written(make):
    core = make(mem_queue_size=0)
    core.client().subscribe("t", "c")
    producer = core.client()
    producer.publish("t", b"first")
    producer.publish("t", b"second", 5000)
    core.settle()
    # The journal is due, and is written at the beginning of the turn.
    core.scheduler.now = core.now = core.now + 3 * SECOND
    core.scheduler.wall = core.wall = core.wall + 3 * SECOND
    assert producer.publish("t", b"third", 5000) == OK
    core = after_a_crash(make, core, "c", mem_queue_size=0)
    consumer = core.client().subscribe("t", "c", 10)
    assert bodies(consumer) == [b"first"]
    core.advance(2 * SECOND)
    assert bodies(consumer) == [b"second"]
    core.advance(3 * SECOND)
    assert bodies(consumer) == [b"third"]


def test_a_delayed_message_and_then_a_channel_since_the_journal_was_written(make):
    core = make(mem_queue_size=0)
    core.client().subscribe("t", "old")
    producer = core.client()
    producer.publish("t", b"first")
    core.advance(3 * SECOND)
    assert producer.publish("t", b"later", 5000) == OK
    core.topic("t").channel("new")
    assert producer.publish("t", b"both") == OK
    core = after_a_crash(make, core, "old", "new", mem_queue_size=0)
    old = core.client().subscribe("t", "old", 10)
    new = core.client().subscribe("t", "new", 10)
    assert (bodies(old), bodies(new)) == ([b"first", b"both"], [b"both"])
    core.advance(5 * SECOND)
    assert (bodies(old), bodies(new)) == ([b"later"], [])


@pytest.mark.parametrize("done", ["finished", "requeued", "emptied"])
def test_the_journal_follows_consumers_also_when_nobody_publishes(make, done):
    core = make(mem_queue_size=0)
    consumer = core.client().subscribe("t", "c", 3)
    core.client().ask(mpub("t", [b"one", b"two", b"three", b"four"]))
    core.advance(5 * SECOND)
    for message in consumer.messages():
        if done == "finished" and message.body != b"three":
            consumer.finish(message.id)
        elif done == "requeued":
            consumer.requeue(message.id, 60_000)
    if done == "emptied":
        core.topic("t").empty_channel("c")
    core.advance(5 * SECOND)
    core = after_a_crash(make, core, "c", mem_queue_size=0)
    left = {"finished": [b"four", b"three"], "requeued": [b"four"], "emptied": []}
    assert sorted(bodies(core.client().subscribe("t", "c", 10))) == left[done]


def test_a_core_that_is_dropped_is_collected(tmp_path):
    core = Core(tmp_path, mem_queue_size=3)
    consumer = core.client(msg_timeout=1000).subscribe("t", "c", 5)
    producer = core.client()
    for size in (10, 20_000, 300_000, 10):
        producer.publish("t", b"x" * size)
        producer.publish("t", b"x" * size, 1000)
    core.settle()
    for message in consumer.messages():
        consumer.requeue(message.id, 1000)
    consumer.transport.full = 10
    core.settle()
    gone = weakref.ref(core)
    del core, consumer, producer
    gc.collect()
    assert gone() is None


# -- the time from publish to finish --


def latencies(core: Core, channel: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = core.counters("t", channel)["e2e_processing_latency"]
    return found


def test_a_latency_is_from_publish_to_finish(make):
    core = make(percentiles=Percentiles((1, 0.5), 600 * SECOND))
    consumer = core.client(msg_timeout=1000).subscribe("t", "c", 1)
    core.client().publish("t", b"x")
    for again in (lambda id: consumer.requeue(id), lambda id: core.advance(SECOND)):
        core.advance(7 * MILLISECOND)
        (message,) = consumer.messages()
        again(message.id)
        core.settle()
        assert latencies(core, "c")["count"] == 0
    (message,) = consumer.messages()
    core.advance(7 * MILLISECOND)
    consumer.send(b"FIN ", message.id, b"\r\n")
    took = SECOND + 21 * MILLISECOND
    expected = reference.summary([took], (1, 0.5))
    assert latencies(core, "c") == latencies(core) == expected
    consumer.finish(message.id)  # the message is no longer in flight
    assert latencies(core)["count"] == 1


def test_latencies_of_a_topic_are_those_of_its_channels(make):
    core = make(percentiles=Percentiles((1, 0.5), 600 * SECOND))
    core.create("t")
    assert latencies(core) == {"count": 0, "percentiles": None}
    one = core.client().subscribe("t", "one", 9)
    other = core.client().subscribe("t", "other", 9)
    core.client().publish("t", b"x")
    core.settle()
    for consumer in (one, other):
        core.advance(SECOND)
        for message in consumer.messages():
            consumer.finish(message.id)
    assert latencies(core, "one") == reference.summary([SECOND], (1, 0.5))
    assert latencies(core, "other") == reference.summary([2 * SECOND], (1, 0.5))
    assert latencies(core) == reference.summary([SECOND, 2 * SECOND], (1, 0.5))
    core.topic("t").delete_channel("other")
    assert latencies(core) == reference.summary([SECOND], (1, 0.5))


def test_no_latencies_unless_wanted(make):
    core = make()
    consumer = core.client().subscribe("t", "c", 1)
    core.client().publish("t", b"x")
    core.settle()
    consumer.finish(consumer.messages()[0].id)
    assert core.topic("t").channels["c"].latency is None
    assert latencies(core, "c") == latencies(core) == {"count": 0, "percentiles": None}


def test_no_latency_is_negative(make):
    core = make(percentiles=Percentiles((1,), 600 * SECOND))
    consumer = core.client().subscribe("t", "c", 1)
    core.client().publish("t", b"x")
    core.wall -= 3600 * SECOND
    core.advance(1)
    consumer.finish(consumer.messages()[0].id)
    assert latencies(core) == reference.summary([0], (1,))


@pytest.mark.parametrize("restart", [False, True], ids=["same life", "next life"])
def test_latencies_of_what_is_on_disk_only(make, restart):
    settings = {"mem_queue_size": 0, "budget": 0, "log_options": SMALL_FILES}
    settings["percentiles"] = Percentiles((1, 0.5), 600 * SECOND)
    core = make(**settings)
    core.create("t").channel("c")
    producer = core.client()
    for _ in range(200):
        assert producer.publish("t", b"." * 15_000) == OK
        core.advance(SECOND)
    if restart:
        core = restarted(make, core, "c", **settings)
    consumer = core.client().subscribe("t", "c", 2500)
    core.advance(SECOND)
    held = consumer.messages()
    assert len(held) == 200
    assert core.pool.resident_bytes < 200 * 15_000 // 2
    expected = []
    for message in held:
        consumer.finish(message.id)
        expected.append(core.wall - message.timestamp)
    core.settle()
    assert latencies(core) == reference.summary(expected, (1, 0.5))


def test_latencies_of_survivors(make):
    core = make(percentiles=Percentiles((1, 0.5), 600 * SECOND))
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    held = []
    for _ in range(100):
        producer.ask(mpub("t", [b"." * 20_000] * 9))
        core.advance(10 * MILLISECOND)
        messages = consumer.messages()
        held += messages[:1]
        for message in messages[1:]:
            consumer.finish(message.id)
    before = core.pool.resident_bytes
    core.advance(2 * SECOND)
    assert core.pool.resident_bytes < before // 2, "nothing was compacted"
    for message in held[::2]:
        consumer.requeue(message.id)
    core.settle()
    held[::2] = consumer.messages()
    expected = [10 * MILLISECOND] * 800
    for message in held:
        consumer.finish(message.id)
        expected.append(core.wall - message.timestamp)
    found = latencies(core)
    assert found["count"] == 900
    assert [each["value"] for each in found["percentiles"]] == [max(expected), 10 * MILLISECOND]


def test_an_idle_channel_forgets_its_latencies(make):
    core = make(percentiles=Percentiles((1,), 600 * SECOND))
    consumer = core.client().subscribe("t", "c", 1)
    core.client().publish("t", b"x")
    core.settle()
    consumer.finish(consumer.messages()[0].id)
    latency = core.topic("t").channels["c"].latency
    assert latency.memory_bytes > 0
    core.advance(300 * SECOND)
    assert latency.memory_bytes > 0 and latencies(core)["count"] == 1
    core.advance(300 * SECOND)
    assert latency.memory_bytes == 0
    assert latencies(core) == {"count": 0, "percentiles": [{"quantile": 1, "value": 0}]}
