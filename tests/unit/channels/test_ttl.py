"""Messages with a time to live: delivered before they expire, counted afterwards."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.base.core import decode_headers
from nsqcy.config.policies import Policies
from support.header_client import HeaderClient, whole
from support.worker_core import ERROR, MOMENT, RESPONSE, SECOND, Client, Core, mpub

Make = Callable[..., Core]
OK = (RESPONSE, b"OK")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Core] = []

    def make(ttl: int = 0, **other: Any) -> Core:
        """ttl: seconds"""
        values = {"ttl": ttl * SECOND, "durability": other.pop("durability", "memory")}
        policies = Policies(sections=[("t*", values)])
        made.append(Core(tmp_path, policies=policies, **other))
        return made[-1]

    yield make
    made[-1].close()


def perishable(core: Core, ttl: int, body: bytes, delay: int = 0) -> Any:
    """Publish a message with its own time to live (ms)."""
    return HeaderClient(core).publish_with(body, {"ttl": str(ttl), "kind": "x"}, delay)


def publish(core: Core, *bodies: bytes) -> None:
    assert core.client().ask(mpub("t", list(bodies))) == OK
    core.settle()


def received(consumer: Client) -> list[bytes]:
    """Finish the delivered messages, and return them."""
    consumer.core.settle()
    found = consumer.messages()
    for message in found:
        consumer.finish(message.id)
    consumer.core.settle()
    return [message.body for message in found]


def expired(core: Core) -> int:
    ledger = core.topic("t").channels["c"].ledger()
    dropped = ledger.pop("dropped")
    assert ledger.pop("received") == sum(ledger.values()) + sum(dropped.values())
    return int(ledger["expired"])


def test_what_is_too_old_is_not_delivered(make: Make) -> None:
    core = make(ttl=10)
    core.create("t").channel("c")
    publish(core, b"old", b"old as well")
    core.advance(6 * SECOND)
    publish(core, b"young")
    core.advance(5 * SECOND)
    consumer = core.client().subscribe("t", "c", 10)
    assert received(consumer) == [b"young"]
    assert expired(core) == 2


def test_to_the_nanosecond(make: Make) -> None:
    core = make(ttl=10)
    core.create("t").channel("c")
    publish(core, b"one")
    core.advance(10 * SECOND - 1)
    consumer = core.client().subscribe("t", "c", 1)
    core.settle()
    (message,) = consumer.messages()
    consumer.requeue(message.id)
    core.advance(1)
    assert received(consumer) == []
    assert expired(core) == 1


def test_it_goes_without_consumers_too(make: Make) -> None:
    core = make(ttl=10)
    core.create("t").channel("c")
    publish(core, *(b"%d" % n for n in range(9000)))
    core.advance(11 * SECOND)
    assert expired(core) == 9000
    assert core.counters("t", "c")["depth"] == 0


def test_a_topic_without_channels_forgets(make: Make) -> None:
    core = make(ttl=10)
    publish(core, b"old")
    core.advance(6 * SECOND)
    publish(core, b"young")
    core.advance(6 * SECOND)
    core.advance(SECOND)
    assert core.counters("t")["depth"] == 1
    assert core.topic("t").ledger()["expired"] == 1
    consumer = core.client().subscribe("t", "c", 10)
    assert received(consumer) == [b"young"]
    assert expired(core) == 0


def test_a_paused_topic_forgets_its_own(make: Make) -> None:
    core = make(ttl=10)
    core.create("t").channel("c")
    core.topic("t").pause(True)
    publish(core, b"old")
    core.advance(12 * SECOND)
    publish(core, b"young")
    core.topic("t").pause(False)
    consumer = core.client().subscribe("t", "c", 10)
    assert received(consumer) == [b"young"]
    assert (core.topic("t").ledger()["expired"], expired(core)) == (1, 0)


def test_what_was_requeued_deferred_or_timed_out_expires(make: Make) -> None:
    core = make(ttl=100)
    consumer = core.client(msg_timeout=30_000).subscribe("t", "c", 3)
    publish(core, b"requeued", b"deferred", b"held")
    one, two, _ = consumer.messages()
    consumer.ready(0)
    consumer.requeue(one.id)
    consumer.requeue(two.id, 99_000)
    core.advance(101 * SECOND)
    consumer.ready(3)
    core.settle()
    assert received(consumer) == []
    assert expired(core) == 3


def test_a_message_has_its_own(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    for n, ttl in enumerate([5000, 60_000, 1, 20_000]):
        assert perishable(core, ttl, b"%d" % n) == OK
    publish(core, b"for ever")
    core.advance(6 * SECOND)
    consumer = core.client().subscribe("t", "c", 10)
    assert received(consumer) == [b"1", b"3", b"for ever"]
    assert expired(core) == 2


def test_the_shorter_time_counts(make: Make) -> None:
    core = make(ttl=10)
    core.create("t").channel("c")
    assert perishable(core, 5000, b"shorter") == perishable(core, 50_000, b"longer") == OK
    core.advance(7 * SECOND)
    consumer = core.client().subscribe("t", "c", 10)
    assert received(consumer) == [b"longer"]
    consumer.ready(0)
    publish(core, b"one")
    core.advance(11 * SECOND)
    assert expired(core) == 2


def test_a_delay_beyond_it(make: Make) -> None:
    core = make()
    core.create("t").channel("c")
    assert perishable(core, 5000, b"late", delay=6000) == OK
    assert perishable(core, 7000, b"in time", delay=6000) == OK
    core.advance(6 * SECOND + MOMENT)
    assert received(core.client().subscribe("t", "c", 10)) == [b"in time"]


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_over_a_restart(make: Make, durability: str) -> None:
    core = make(durability=durability)
    core.create("t").channel("c")
    assert perishable(core, 5000, b"short") == perishable(core, 500_000, b"long") == OK
    core.save()
    again = make(durability=durability, wall=core.wall + 6 * SECOND)
    again.shard.load_topic(b"t", False, {"c": False})
    again.settle()
    assert received(again.client().subscribe("t", "c", 10)) == [b"long"]
    assert expired(again) == 1


@pytest.mark.parametrize("ttl", [b"", b"0", b"-1", b"1.5", b"1s", b"1234567890123", b" 1", b"\xff"])
def test_bad_values(make: Make, ttl: bytes) -> None:
    headers = b"\3ttl" + struct.pack(">H", len(ttl)) + ttl
    producer = HeaderClient(make())
    kind, text = producer.publish("t", whole(b"x", headers)) or (0, b"")
    assert kind == ERROR and text.startswith(b"E_BAD_MESSAGE ")
    assert b'header "ttl" is not a number of milliseconds (1 to 12 digits, not 0)' in text
    with pytest.raises(ValueError, match='header "ttl"'):
        decode_headers(headers)


def test_an_ephemeral_channel(make: Make) -> None:
    core = make(ttl=10)
    consumer = core.client().subscribe("t", "c#ephemeral", 0)
    publish(core, b"old")
    core.advance(11 * SECOND)
    publish(core, b"young")
    consumer.ready(5)
    core.settle()
    assert received(consumer) == [b"young"]
