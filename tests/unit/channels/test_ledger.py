"""A channel's ledger: it accounts for every message that the channel received."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.worker_core import Client, Core, mpub

Make = Callable[..., Core]
SECOND = 1_000_000_000
HOUR = 3_600_000  # milliseconds
SMALL_FILES = {"max_bytes_per_file": 4096, "sync_every": 2500, "sync_timeout": 2 * SECOND}
RECORD_HEADER = 40


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        made.append(Core(tmp_path, **settings))
        return made[-1]

    yield make
    made[-1].close()


def restarted(make: Make, core: Core, **channels: bool) -> Core:
    core.save()
    fresh = make(now=9 * SECOND, wall=core.wall)
    fresh.shard.load_topic(b"t", False, channels)
    fresh.settle()
    return fresh


def publish(core: Core, topic: str, count: int) -> None:
    core.client().ask(mpub(topic, [b"%d" % number for number in range(count)]))
    core.settle()


def ledger(core: Core, topic: str = "t", channel: str = "c") -> dict[str, Any]:
    """Return the ledger, which must balance; zeros are left out."""
    found = core.topic(topic).channels[channel].ledger()
    flat = {**found, **found["dropped"]}
    del flat["dropped"]
    assert all(number >= 0 for number in flat.values())
    assert flat["received"] == sum(flat.values()) - flat["received"]
    return {key: number for key, number in flat.items() if number}


def bodies(client: Client) -> list[bytes]:
    client.core.settle()
    return [message.body for message in client.messages()]


def test_a_message_is_in_one_place_at_a_time(make: Make) -> None:
    core = make()
    consumer = core.client().subscribe("t", "c", 4)
    publish(core, "t", 6)
    one, two, three, _ = consumer.messages()
    assert ledger(core) == {"received": 6, "queued": 2, "in_flight": 4}
    consumer.ready(0)
    consumer.finish(one.id)
    consumer.requeue(two.id)
    consumer.requeue(three.id, 5000)
    core.settle()
    expected = {"received": 6, "finished": 1, "queued": 3, "in_flight": 1, "deferred": 1}
    assert ledger(core) == expected
    core.topic("t").channels["c"].empty()
    assert ledger(core) == {"received": 6, "finished": 1, "emptied": 5}
    publish(core, "t", 2)
    assert ledger(core) == {"received": 8, "finished": 1, "emptied": 5, "queued": 2}


def test_messages_dropped_by_the_topic_do_not_count_as_received(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    publish(core, "t", 2)
    core.topic("t").pause(True)
    publish(core, "t", 3)
    core.topic("t").empty()
    core.topic("t").pause(False)
    publish(core, "t", 1)
    assert ledger(core) == {"received": 3, "queued": 3}
    consumer = core.client().subscribe("t", "c", 9)
    assert len(bodies(consumer)) == 3
    assert ledger(core) == {"received": 3, "in_flight": 3}


def test_overflow_of_an_ephemeral_channel(make: Make) -> None:
    core = make(mem_queue_size=2)
    consumer = core.client().subscribe("t", "c#ephemeral", 1)
    publish(core, "t", 5)
    assert ledger(core, "t", "c#ephemeral") == {
        "received": 5,
        "queued": 2,
        "in_flight": 1,
        "overflow": 2,
    }
    (one,) = consumer.messages()
    consumer.requeue(one.id)
    core.settle()
    shown = ledger(core, "t", "c#ephemeral")
    assert shown["received"] == 5 and shown["overflow"] in (2, 3)


def test_messages_left_out_of_a_sample(make: Make) -> None:
    core = make()
    core.client(sample_rate=1).subscribe("t", "c", 2500)
    publish(core, "t", 200)
    shown = ledger(core)
    assert shown["received"] == 200 and shown["sampled"] > 100


def test_a_restart_requeues_unfinished_messages(make: Make) -> None:
    core = make()
    consumer = core.client().subscribe("t", "c", 3)
    publish(core, "t", 6)
    one, two, _ = consumer.messages()
    consumer.finish(one.id)
    consumer.requeue(two.id, 60_000)
    core.settle()
    core = restarted(make, core, c=False)
    assert ledger(core) == {"received": 5, "queued": 4, "deferred": 1}
    assert core.counters("t", "c")["message_count"] == 0
    publish(core, "t", 1)
    assert ledger(core) == {"received": 6, "queued": 5, "deferred": 1}


def damage(core: Core, *numbers: bytes) -> None:
    """Change a byte in the body of each of these messages on disk."""
    (segment,) = (core.path / "t.topic").glob("*.seg")
    data = bytearray(segment.read_bytes())
    for number in numbers:
        data[data.index(b"body " + number)] ^= 1
    segment.write_bytes(data)


def test_damaged_records(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    core.client().ask(mpub("t", [b"body %02d" % number for number in range(9)]))
    core.settle()
    core.save()
    damage(core, b"00", b"04", b"08")
    core = make(now=9 * SECOND, wall=core.wall)
    core.shard.load_topic(b"t", False, {"c": False})
    assert ledger(core) == {"received": 9, "queued": 9}
    consumer = core.client().subscribe("t", "c", 9)
    assert len(bodies(consumer)) == 6
    assert ledger(core) == {"received": 9, "in_flight": 6, "damaged": 3}


def without_a_file(make: Make, file: int, delayed: set[int]) -> Core:
    """Start with fourteen messages, some of them delayed; one file is missing."""
    core = make(log_options=SMALL_FILES)
    core.create("t").channel("c")
    client = core.client()
    for number in range(14):
        client.publish("t", b"%02d" % number + bytes(1000), delay=HOUR * (number in delayed))
    core.settle()
    core.save()
    sorted((core.path / "t.topic").glob("*.seg"))[file].unlink()
    return started(make, core)


def started(make: Make, core: Core) -> Core:
    core = make(now=9 * SECOND, wall=core.wall, log_options=SMALL_FILES)
    core.shard.load_topic(b"t", False, {"c": False})
    core.settle()
    return core


def consume(core: Core, maximum: int) -> int:
    """Consume messages one by one; return their number. The ledger must balance at each step."""
    client = core.client().subscribe("t", "c", 1)
    count = 0
    while count < maximum:
        core.settle()
        ledger(core)
        messages = client.messages()
        if not messages:
            break
        client.finish(messages[0].id)
        count += 1
    client.ready(0)
    core.settle()
    return count


@pytest.mark.parametrize("delayed", [{0}, {0, 4, 5}, {1, 5, 6, 13}])
@pytest.mark.parametrize("file", [0, 1, 2, -1])
@pytest.mark.parametrize("before", [0, 2, 5, 20])
def test_no_start_redelivers_messages_missing_from_disk(
    make: Make, file: int, before: int, delayed: set[int]
) -> None:
    """No other message is dropped instead, at this startup or later ones."""
    core = without_a_file(make, file, delayed)
    consume(core, before)
    core.save()
    core = started(make, core)
    count = consume(core, 20)
    shown = ledger(core)
    assert shown.get("finished", 0) == count and "queued" not in shown
    core.save()
    assert ledger(started(make, core)).get("damaged", 0) == 0


def test_emptied_messages_count_as_received(make: Make) -> None:
    """Messages removed by emptying a channel count as received, even if there were more than nsqd
    could know at startup."""
    core = without_a_file(make, 0, {0, 1})
    assert consume(core, 10) == 10
    core.topic("t").channels["c"].empty()
    assert ledger(core)["finished"] == 10


@pytest.mark.parametrize("file", [0, 1, -1])
def test_messages_missing_from_disk_are_reported_once(make: Make, file: int) -> None:
    core = without_a_file(make, file, {0, 4, 13})
    whole, parts = core.log.lines
    assert "are not on disk: " in whole and "channel c had handed out are not on disk: " in parts
    for _ in range(2):
        core.save()
        core = started(make, core)
        assert core.log.lines == []
    core.save()
    (core.path / "t.topic").joinpath("00000000000000000010.seg").unlink()
    core = started(make, core)
    assert "1 records from 10 to 10 are not on disk: " in core.log.lines[0]


def test_damaged_lengths_where_a_channel_stands(make: Make) -> None:
    """The block had left memory; the damage changes the apparent positions of later records."""
    core = make(budget=200_000, mem_queue_size=10)
    topic = core.create("t")
    slow, quick = topic.channel("slow"), topic.channel("quick")
    for first in range(0, 600, 20):
        batch = [b"body %03d" % number + bytes(1000) for number in range(first, first + 20)]
        core.client().ask(mpub("t", batch))
    consumer = core.client().subscribe("t", slow.name, 5)
    core.settle()
    assert len(consumer.messages()) == 5
    other = core.client().subscribe("t", quick.name, 1)
    for _ in range(600):
        core.settle()
        other.finish(other.messages()[0].id)
    core.settle()
    segment = min((core.path / "t.topic").glob("*.seg"))
    data = bytearray(segment.read_bytes())
    for number in range(2, 8):
        data[data.index(b"body %03d" % number) - RECORD_HEADER] ^= 8
    with segment.open("r+b") as file:
        file.write(data)
    consumer.ready(1000)
    core.settle()
    got = [int(message.body[5:8]) for message in consumer.messages()]
    assert got == [*range(8, 600)]
    assert ledger(core, channel="slow") == {"received": 600, "in_flight": 597, "damaged": 3}


def test_damaged_lengths_of_messages_in_flight(make: Make) -> None:
    """nsqd no longer knows whether records start at the messages' positions."""
    core = make()
    consumer = core.client().subscribe("t", "c", 9)
    core.client().ask(mpub("t", [b"body %02d" % number + bytes(100) for number in range(9)]))
    core.settle()
    assert len(consumer.messages()) == 9
    core.save()
    (segment,) = (core.path / "t.topic").glob("*.seg")
    data = bytearray(segment.read_bytes())
    for number in (b"02", b"03", b"04", b"07", b"08"):
        data[data.index(b"body " + number) - RECORD_HEADER] ^= 8
    segment.write_bytes(data)
    core = make(now=9 * SECOND, wall=core.wall)
    core.shard.load_topic(b"t", False, {"c": False})
    consumer = core.client().subscribe("t", "c", 9)
    core.settle()
    assert [message.body[5:7] for message in consumer.messages()] == [b"00", b"01", b"05", b"06"]
    assert ledger(core) == {"received": 9, "in_flight": 4, "damaged": 5}


@pytest.mark.slow
def test_a_compaction_copies_nothing_that_is_not_where_it_was(make: Make) -> None:
    """The neighbours of the remaining messages have damaged lengths."""
    small = {"mem_queue_size": 0, "log_options": {"max_bytes_per_file": 500_000}}
    core = make(**small)
    consumer = core.client().subscribe("t", "c", 2500)
    for first in range(0, 2400, 400):
        whole = [b"body %04d" % number + bytes(1000) for number in range(first, first + 400)]
        core.client().ask(mpub("t", whole))
    core.settle()
    found = consumer.messages()
    assert len(found) == 2400
    for number, message in enumerate(found):
        if number % 100 < 4:
            consumer.requeue(message.id, 3600_000)
        else:
            consumer.finish(message.id)
    core.settle()
    core.save()
    for segment in (core.path / "t.topic").glob("*.seg"):
        data = bytearray(segment.read_bytes())
        for number in range(2400):
            at = data.find(b"body %04d" % number)
            if number in (1, 2) and at >= 0:
                data[at - RECORD_HEADER] ^= 8
        segment.write_bytes(data)
    core = make(now=9 * SECOND, wall=core.wall, **small)
    core.shard.load_topic(b"t", False, {"c": False})
    for _ in range(20):
        core.advance(SECOND)
    assert core.topic("t").log_bytes < 1_000_000
    consumer = core.client().subscribe("t", "c", 2500)
    core.advance(3700 * SECOND)
    numbers = [int(message.body[5:9] or b"-1") for message in consumer.messages()]
    deferred = [number for number in range(2400) if number % 100 < 4]
    assert sorted(numbers) == [number for number in deferred if number not in (1, 2)]


def test_damage_before_the_cursor_costs_the_channel_nothing(make: Make) -> None:
    core = make()
    consumer = core.client().subscribe("t", "c", 4)
    core.topic("t").channel("late")
    core.client().ask(mpub("t", [b"body %02d" % number for number in range(9)]))
    core.settle()
    for message in consumer.messages():
        consumer.finish(message.id)
    consumer.ready(0)
    core.settle()
    left = ledger(core)["queued"]
    core.save()
    damage(core, b"01", b"02")
    core = make(now=9 * SECOND, wall=core.wall)
    core.shard.load_topic(b"t", False, {"c": False, "late": False})
    consumer = core.client().subscribe("t", "c", 9)
    assert len(bodies(consumer)) == left == ledger(core)["in_flight"]
    assert ledger(core) == {"received": left, "in_flight": left}
