"""How a session handles its input: input split anywhere, minimal buffering, and PUB lines that
resemble the previous one."""

import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.two_workers import Near
from support.worker_core import ERROR, RESPONSE, Core, mpub

Make = Callable[..., Core]

OK = (RESPONSE, b"OK")
MPUB_BYTES = 40_000


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    cores: list[Core] = []

    def make(**settings: Any) -> Core:
        cores.append(Core(tmp_path, **settings))
        return cores[-1]

    yield make
    for core in cores:
        core.close()


def pub(line: bytes, body: bytes) -> bytes:
    return line + struct.pack(">i", len(body)) + body


def large(number: int) -> bytes:
    """Return an MPUB with many different bodies."""
    return mpub("t", [b"%d.%d " % (number, i) * 20 for i in range(MPUB_BYTES // 200)])


@pytest.mark.parametrize("step", [1, 3, 100, 255, 256, 257, 5000, 131072])
def test_a_cut_changes_nothing(step: int, make: Make) -> None:
    """Commands of all sizes, in pieces of any size: each is executed once, in order."""
    core = make(mem_queue_size=1 << 20)
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    bodies = [b"one", b"two" * 100, b"3", b"four" * 9000, b"5", b"six", b"7" * 300]
    commands = [
        pub(b"PUB t\n", bodies[0]),
        pub(b"PUB t\n", bodies[1]),
        mpub("t", bodies[2:4]),
        b"NOP\n",
        pub(b"PUB u\n", b"elsewhere"),
        pub(b"PUB t\r\n", bodies[4]),
        mpub("t", bodies[5:6]),
        pub(b"PUB t\n", bodies[6]),
    ]
    stream = b"".join(commands)
    for at in range(0, len(stream), step):
        producer.send(stream[at : at + step])
    core.settle()
    assert [producer.answer() for _ in range(8)] == [OK] * 7 + [None]
    assert [message.body for message in consumer.messages()] == bodies
    assert core.counters("u")["depth"] == 1
    assert core.manager.input_bytes == 0


def i32(number: int) -> bytes:
    return struct.pack(">i", number)


def announced(length: int, bodies: list[bytes]) -> bytes:
    """Return an MPUB that declares this length."""
    whole = mpub("t", bodies)
    return whole[:7] + i32(length) + whole[11:]


@pytest.mark.parametrize("step", [1, 3, 7, 100, 256, 257, 5000, 131072])
@pytest.mark.parametrize("length", [1, 4, 20_000, 40_000, 1 << 20, 5 << 20])
def test_an_announced_length_changes_nothing(step: int, length: int, make: Make) -> None:
    core = make(mem_queue_size=1 << 20)
    consumer = core.client().subscribe("t", "c", 2500)
    producer = core.client()
    bodies = [b"%d " % number * 50 for number in range(60)]
    parts = [announced(length, bodies[:40]), announced(length, bodies[40:41])]
    stream = b"".join([*parts, b"NOP\n", announced(length, bodies[41:]), pub(b"PUB t\n", b"last")])
    for at in range(0, len(stream), step):
        producer.send(stream[at : at + step])
    core.settle()
    assert [producer.answer() for _ in range(5)] == [OK] * 4 + [None]
    assert [message.body for message in consumer.messages()] == [*bodies, b"last"]
    assert core.manager.input_bytes == 0


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("command", "text"),
    [
        (announced(9, [b"a" * 400, b"b" * 600]), b"E_BAD_BODY MPUB body too big 1012 > 1000"),
        (announced(9, [b"a" * 996, b"b"]), b"E_BAD_BODY MPUB body too big 1008 > 1000"),
        (announced(9, [b"a" * 993, b""]), b"E_BAD_BODY MPUB body too big 1005 > 1000"),
        (announced(9, [b"a" * 992, b""]), b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (announced(9, [b"a", b""]), b"E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (announced(9, [b"a", b"b" * 5001]), b"E_BAD_MESSAGE MPUB message too big 5001 > 5000"),
        (announced(9, [b"a" * 5000]), b"E_BAD_BODY MPUB body too big 5008 > 1000"),
    ],
)
def test_too_much_is_too_much_wherever_it_is_cut(
    seed: int, command: bytes, text: bytes, make: Make
) -> None:
    core = make(max_msg_size=5000, max_body_size=1000)
    producer = core.client()
    stream = announced(9, [b"a" * 500, b"b" * 488]) + command
    chance = random.Random(seed)
    maximum = at = 0
    while at < len(stream):
        step = chance.choice([1, 5, 300, 700, 9000])
        producer.send(stream[at : at + step])
        maximum = max(maximum, core.manager.input_bytes)
        at += step
    core.settle()
    assert [producer.answer() for _ in range(2)] == [OK, (ERROR, text)]
    assert producer.closed
    assert core.counters("t")["message_count"] == 2
    assert maximum <= 2 * len(stream)


@pytest.mark.parametrize("length", [1, 4, 20, 5000])
def test_what_was_read_is_what_is_forwarded(length: int) -> None:
    """Later commands are not part of the forwarded one, and reach the owner in order."""
    near = Near()
    try:
        producer = near.client()
        stream = announced(length, [b"one", b"two"]) + pub(b"PUB t\n", b"three")
        producer.send(stream[:20])
        producer.send(stream[20:])
        near.settle()
        assert [producer.answer() for _ in range(3)] == [OK, OK, None]
        assert near.owner is not None
        consumer = near.owner.client().subscribe("t", "c", 10)
        near.settle()
        assert [message.body for message in consumer.messages()] == [b"one", b"two", b"three"]
    finally:
        near.close()


def test_only_a_command_that_is_cut_is_kept(make: Make) -> None:
    """Received data may contain the end of one command and many others. These are parsed in place,
    and only the incomplete command at the end is buffered."""
    core = make()
    producer = core.client()
    stream = b"".join(large(i) for i in range(20))
    receive = 3 * MPUB_BYTES
    maximum = 0
    for at in range(0, len(stream), receive):
        producer.send(stream[at : at + receive])
        maximum = max(maximum, core.manager.input_bytes)
    core.settle()
    assert [producer.answer() for _ in range(21)] == [OK] * 20 + [None]
    assert 0 < maximum <= len(large(19)) * 3 // 2
    assert core.manager.input_bytes == 0


def test_an_error_ends_what_was_cut(make: Make) -> None:
    """Commands after a refused one are not executed, for any split."""
    core = make()
    producer = core.client()
    stream = pub(b"PUB t\n", b"one") + pub(b"PUB t\n", b"") + pub(b"PUB t\n", b"never")
    producer.send(stream[:5])
    producer.send(stream[5:])
    core.settle()
    assert producer.answer() == OK
    assert producer.answer() == (ERROR, b"E_BAD_MESSAGE PUB invalid message body size 0")
    assert producer.closed
    assert core.counters("t")["message_count"] == 1


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"PUB to\n", b"OK"),
        (b"PUB topic\n", b"OK"),
        (b"PUB topics\n", b"OK"),
        (b"PUB topic and more\n", b"OK"),
        (b"PUB topic\r\n", b"OK"),
        (b"PUB top c\n", b"OK"),
        (b"PUB Topic\n", b"OK"),
        (b"PUB  topic\n", b'E_BAD_TOPIC PUB topic name "" is not valid'),
        (b"PUB topic\0\n", b'E_BAD_TOPIC PUB topic name "topic\\x00" is not valid'),
        (b"PUB top!c\n", b'E_BAD_TOPIC PUB topic name "top!c" is not valid'),
        (b"PUB\n", b"E_INVALID PUB insufficient number of parameters"),
        (b"pub topic\n", b"E_INVALID invalid command pub"),
        (b"PUBtopic\n", b"E_INVALID invalid command PUBtopic"),
    ],
)
def test_a_line_much_like_the_one_before(line: bytes, found: bytes, make: Make) -> None:
    core = make()
    client = core.client()
    assert client.ask(pub(b"PUB topic\n", b"first")) == OK
    kind = RESPONSE if found == b"OK" else ERROR
    assert client.ask(pub(line, b"second")) == (kind, found)
    published = {key: topic.counters()["message_count"] for key, topic in core.shard.topics.items()}
    expected = {b"topic": 1}
    if found == b"OK":
        name = line.split()[1]
        expected[name] = expected.get(name, 0) + 1
    assert published == expected
