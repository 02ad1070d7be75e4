"""Due messages that are not in memory are read record by record; a block is read only if a large
part of it is needed."""

import errno
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies, TopicPolicy
from support.header_client import HeaderClient
from support.worker_core import MILLISECOND, MOMENT, RESPONSE, SECOND, Client, Core

Make = Callable[..., Core]
OS = Policies(TopicPolicy("os"))
BLOCK = 256 << 10
FIRST = 10_000  # ms until the first message is due


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(**settings: Any) -> Core:
        path = tmp_path / str(len(made))
        path.mkdir(exist_ok=True)
        longest = 3600 * SECOND
        made.append(
            Core(path, **{"policies": OS, "budget": 0, "max_defer_timeout": longest, **settings})
        )
        return made[-1]

    yield make
    for core in made:
        core.close()


def body(number: int, size: int) -> bytes:
    """Return a body that begins with its number, if the size permits."""
    return (b"%d:" % number).ljust(size, bytes([number % 251]))[:size]


def order(count: int) -> list[int]:
    """Return the order in which messages are published."""
    return random.Random(count).sample(range(count), count)


def defer(core: Core, sizes: list[int], each: int = 1) -> Client:
    """Publish a message of each of these sizes, and return a consumer. The n-th one in a random
    order is due after FIRST + n * each (ms). All of them are only on disk."""
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    for number, size in zip(order(len(sizes)), sizes, strict=True):
        answer = producer.publish("t", body(number, size), FIRST + number * each)
        assert answer == (RESPONSE, b"OK")
    return consumer


def bytes_read(core: Core) -> int:
    assert core.io is not None
    return core.io.bytes_read()


def reads(core: Core) -> int:
    assert core.io is not None
    return core.io.calls_made("pread")


def segments(core: Core) -> list[Path]:
    assert core.path is not None
    return list(core.path.glob("t.topic/*.seg"))


def numbers(consumer: Client, sizes: list[int]) -> list[int]:
    """Check the bodies of the delivered messages, finish the messages, and return their numbers."""
    found = []
    for message in consumer.messages():
        number = int(message.body.partition(b":")[0])
        assert message.body in {body(number, size) for size in sizes}
        consumer.finish(message.id)
        found.append(number)
    return found


def restarted(make: Make, core: Core) -> Core:
    """Start again with the current content of the disk, and with enough memory for it."""
    core.copied().rename(core.path.with_name("1"))  # type: ignore[union-attr]
    fresh = make(budget=1 << 40, wall=core.wall)
    fresh.load_all()
    return fresh


def test_of_what_is_due_only_the_records_are_read(make: Make) -> None:
    core = make()
    consumer = defer(core, [1000] * 1500)
    core.advance((FIRST - 1) * MILLISECOND + MOMENT)
    for turn in range(75):
        core.advance(20 * MILLISECOND)
        assert sorted(numbers(consumer, [1000])) == list(range(20 * turn, 20 * turn + 20))
    # Each record has 1056 bytes, including its header and delay.
    in_memory = 1500 - reads(core)
    assert bytes_read(core) == reads(core) * 1056 and in_memory < 250


def test_they_are_read_in_the_order_of_the_file(make: Make) -> None:
    core = make()
    consumer = defer(core, [1000] * 600)
    core.advance((FIRST - 1) * MILLISECOND)
    assert core.io is not None
    # Ten of thirty can be read: those that come first on disk, not those that are due first.
    core.io.fault("pread", nth=11, error=errno.EMFILE, times=1000)
    core.advance(30 * MILLISECOND)
    some = numbers(consumer, [1000])
    assert len(some) < 10
    core.io.clear_faults()
    core.advance(SECOND)
    assert some + numbers(consumer, [1000]) == list(range(600))


def test_a_block_of_which_much_is_due_is_read_whole_if_there_is_room(make: Make) -> None:
    core = make()
    defer(core, [1000] * 1500)
    core = restarted(make, core)
    consumer = core.client().subscribe("t", "c", 2500)
    core.settle()
    before = reads(core)
    core.advance((FIRST + 1500) * MILLISECOND)
    assert sorted(numbers(consumer, [1000])) == list(range(1500))
    assert reads(core) - before < 20


def test_nothing_is_read_before_somebody_wants_it(make: Make) -> None:
    core = make()
    consumer = defer(core, [1000] * 300)
    consumer.ready(0)
    core.advance(2 * FIRST * MILLISECOND)
    assert numbers(consumer, [1000]) == [] and bytes_read(core) == 0
    consumer.ready(1)
    core.settle()
    assert numbers(consumer, [1000]) == [0]


SIZES = [1, 3, 1000, 5000, 17_000, 30_000, 100_000, 190_000, 300_000]


@pytest.mark.parametrize("seed", range(4))
def test_messages_of_all_sizes(make: Make, seed: int) -> None:
    """Some messages are requeued, so their sizes are unknown."""
    core = make()
    chance = random.Random(seed)
    sizes = [chance.choice(SIZES) for _ in range(100)]
    consumer = defer(core, sizes, chance.choice([1, 30]))
    owed = Counter(sizes)
    for _ in range(80):
        core.advance(FIRST * MILLISECOND // 40)
        for message in consumer.messages():
            size = len(message.body)
            assert message.body == body(int(message.body.partition(b":")[0] or b"0"), size)[:size]
            if message.attempts < 3:
                consumer.requeue(message.id, chance.choice([0, 0, 1, 100]))
            else:
                consumer.finish(message.id)
                owed[size] -= 1
    assert not +owed and not -owed


def test_with_headers_it_is_larger_than_was_thought(make: Make) -> None:
    core = make()
    reader = HeaderClient(core)
    reader.subscribe("t", "c", 2500)
    producer = HeaderClient(core)
    wanted = {b"%d:" % number: {"n": "v" * [1, 100, 4000][number % 3]} for number in range(150)}
    for number, (sent, headers) in enumerate(wanted.items()):
        assert producer.publish_with(sent, headers, FIRST + number) == (RESPONSE, b"OK")
    core.advance((FIRST - 1) * MILLISECOND + MOMENT)
    found = {}
    for _ in range(15):
        core.advance(10 * MILLISECOND)
        found |= dict(reader.received())
    assert found == wanted
    assert bytes_read(core) < 2 * sum(segment.stat().st_size for segment in segments(core))


@pytest.mark.parametrize("part", ["length", "seq", "body"])
def test_a_damaged_record_costs_that_record(make: Make, part: str) -> None:
    core = make()
    consumer = defer(core, [1000] * 300)
    (segment,) = segments(core)
    content = bytearray(segment.read_bytes())
    bad = order(300)[0]
    at = content.index(b"%d:" % bad) - 56
    content[at + {"length": 0, "seq": 8, "body": 99}[part]] ^= 8
    segment.write_bytes(content)
    found = []
    for _ in range(40):
        core.advance(FIRST // 30 * MILLISECOND)
        found += numbers(consumer, [1000])
    assert sorted(found) == [n for n in range(300) if n != bad]
    assert any("damaged" in line for line in core.log.lines)


@pytest.mark.parametrize("what", ["empty", "delete", "topic"])
def test_a_channel_that_goes_while_it_is_read_for(make: Make, what: str) -> None:
    core = make()
    defer(core, [1000] * 300)
    core.advance((FIRST - 1) * MILLISECOND)
    topic = core.topic("t")
    assert core.io is not None
    assert topic is not None
    core.io.hold("pread")
    core.now += 10 * MILLISECOND
    core.manager.run_turn(core.now, core.wall)
    core.io.wait_parked()
    if what == "empty":
        topic.empty_channel("c")
    elif what == "delete":
        topic.delete_channel("c")
    else:
        core.shard.delete_topic(b"t")
    core.io.release()
    core.settle()
    assert core.pool.entries == core.pool.deferred == 0


@pytest.mark.parametrize("topic", ["", "graveyard"])
def test_what_is_too_old_when_it_is_due(make: Make, topic: str) -> None:
    policies = Policies(
        TopicPolicy("os", ttl=FIRST * MILLISECOND + 50 * MILLISECOND),
        channel_sections=[("t/c", {"dead_letter_topic": topic})],
    )
    core = make(policies=policies)
    consumer = defer(core, [1000] * 100)
    consumer.ready(0)
    core.advance(FIRST * MILLISECOND + 80 * MILLISECOND)
    consumer.ready(2500)
    core.advance(SECOND)
    assert numbers(consumer, [1000]) == []
    ledger = core.topic("t").channels["c"].ledger()  # type: ignore[union-attr]
    assert ledger["dead_lettered" if topic else "expired"] == 100


def test_a_block_that_no_channel_needs_any_more_is_freed_after_its_read(make: Make) -> None:
    """`make asan` fails if the end of the read uses the block afterwards."""
    core = make(policies=Policies(), mem_queue_size=0)
    channel = core.create("t").channel("c")
    producer = core.client()
    for number in range(3):
        producer.publish("t", body(number, 200_000))
        core.settle()
    blocks = core.pool.blocks
    core.client().subscribe("t", "c", 1)
    core.manager.run_turn(core.now, core.wall)
    assert core.io.outstanding == 1
    channel.empty()
    assert core.pool.blocks < blocks
    before = core.pool.blocks
    core.settle()
    assert core.pool.blocks < before
