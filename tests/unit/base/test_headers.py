"""Message headers: how they are encoded, who receives them, and that they are kept with the
bodies."""

import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nsqcy.base.core import decode_headers, headers_from_text
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.testing.wire_client import sized
from support.header_client import HeaderClient, whole
from support.worker_core import ERROR, RESPONSE, SECOND, Core

OK = (RESPONSE, b"OK")
SOME = {"trace": "4bf92f", "from": "Zürich", "empty": ""}
MAX_BYTES, MAX_HEADERS, ROOM = 4096, 32, 4098
MAX_MSG_SIZE = 1 << 20
NAME = "abcdefghijklmnopqrstuvwxyz0123456789-"
ALLOWED = "allowed: 1 to 255 of a-z, 0-9 and -"

# `ttl` is the only name whose values have a specific format.
names = st.text(NAME, min_size=1, max_size=20).filter(lambda name: name != "ttl")
values = st.binary(max_size=60).map(lambda value: value.decode("utf-8", "surrogateescape"))
headers = st.dictionaries(names, values, max_size=MAX_HEADERS)


def raw(*pairs: tuple[bytes, bytes]) -> bytes:
    """Encode headers, valid or not."""
    return b"".join(
        bytes([len(name)]) + name + struct.pack(">H", len(value)) + value for name, value in pairs
    )


def slowly(data: bytes) -> dict[str, str] | None:
    """Return the expected result of decode(); None for an error."""
    found: dict[str, str] = {}
    rest = data
    while rest:
        name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        if len(rest) < 2:
            return None
        (size,) = struct.unpack_from(">H", rest)
        value, rest = rest[2 : 2 + size], rest[2 + size :]
        text = name.decode("latin-1")
        if len(value) < size or not text or set(text) - set(NAME) or text in found:
            return None
        found[text] = value.decode("utf-8", "surrogateescape")
    return found if len(data) <= MAX_BYTES and len(found) <= MAX_HEADERS else None


def decoded(data: bytes) -> dict[str, str] | None:
    try:
        return decode_headers(data)
    except ValueError as error:
        assert str(error)
        return None


@given(headers)
def test_there_and_back(wanted: dict[str, str]) -> None:
    data = headers_from_text(wanted)
    assert slowly(data) == decode_headers(data) == wanted


@given(st.binary(max_size=100))
@example(b"\1a\0\0")
@example(b"\1a\0")
@example(b"\1a\0\1")
@example(b"\0\0\0")
@example(b"\1A\0\0")
@example(b"\1a\0\0\1a\0\0")
@example(b"\1a\0\0\2ab\0\0")
@example(b"\xff")
def test_any_bytes(data: bytes) -> None:
    assert decoded(data) == slowly(data)


@given(headers, st.data())
def test_nearly_headers(wanted: dict[str, str], draw: st.DataObject) -> None:
    """Headers with one changed byte, and truncated headers."""
    data = bytearray(headers_from_text(wanted))
    if data:
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at] = draw.draw(st.integers(0, 255))
        data = data[: draw.draw(st.integers(at, len(data)))]
    assert decoded(bytes(data)) == slowly(bytes(data))


FAULTS = [
    (raw((b"a", bytes(4093))), "headers of 4097 bytes (at most 4096)"),
    (raw(*((b"n%d" % n, b"") for n in range(33))), "more than 32 headers"),
    (raw((b"a", b""), (b"b", b"c"))[:-1], "header 2 extends beyond the last of 8 bytes"),
    (b"\3a", "header 1 extends beyond the last of 2 bytes"),
    (raw((b"", b"v")), f'header name "" ({ALLOWED})'),
    (raw((b"Up", b"v")), f'header name "Up" ({ALLOWED})'),
    (raw((b"a_b\xff", b"v")), f'header name "a_b\\xff" ({ALLOWED})'),
    (raw((b"a", b"1"), (b"b", b"2"), (b"a", b"3")), 'header "a" twice'),
]


@pytest.mark.parametrize(("data", "text"), FAULTS, ids=[text for _, text in FAULTS])
def test_what_is_wrong(data: bytes, text: str) -> None:
    with pytest.raises(ValueError) as raised:
        decode_headers(data)
    assert str(raised.value) == text


def test_the_most() -> None:
    full = {"a": "x" * (MAX_BYTES - 4)}
    many = {f"n{number}": "" for number in range(MAX_HEADERS)}
    for wanted in (full, many, {"n" * 255: "v"}):
        assert decode_headers(headers_from_text(wanted)) == wanted


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"n" * 256: "v"}, ValueError),
        ({"": "v"}, ValueError),
        ({"a": "x" * 70_000}, ValueError),
        ({"a": b"v"}, TypeError),
        ({b"a": "v"}, TypeError),
    ],
)
def test_nonsense(wanted: dict[str, str], error: type[Exception]) -> None:
    with pytest.raises(error):
        headers_from_text(wanted)


# -- on a connection


def body_of(received: tuple[bytes, dict[str, str]]) -> bytes:
    return received[0]


def mpub(*messages: bytes) -> bytes:
    body = struct.pack(">i", len(messages)) + b"".join(map(sized, messages))
    return b"MPUB t\n" + sized(body)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Core]]:
    made: list[Core] = []

    def one(path: Path | None = tmp_path, **settings: Any) -> Core:
        made.append(Core(path, **settings))
        return made[-1]

    yield one
    for core in made:
        if core.shard.topics and not (core.io and core.io.outstanding):
            core.close()


@pytest.fixture
def core(make: Callable[..., Core]) -> Core:
    return make(None)


BODIES = [b"x", b"y" * 16_383, b"z" * 16_384, b"w" * 300_000]


def test_each_command_and_who_gets_what(core: Core) -> None:
    plain = core.client().subscribe("t", "plain", 100)
    reader = HeaderClient(core)
    reader.subscribe("t", "c", 100)
    publisher = HeaderClient(core)
    encoded = headers_from_text(SOME)
    for body in BODIES:
        assert publisher.publish_with(body, SOME) == OK
        assert publisher.ask(mpub(whole(body), whole(body, encoded))) == OK
        assert publisher.publish_with(body, SOME, delay=1000) == OK
    core.settle()
    expected = [(body, wanted) for body in BODIES for wanted in (SOME, {}, SOME)]
    assert reader.received() == expected
    core.advance(2 * SECOND)
    assert sorted(reader.received(), key=body_of) == [(body, SOME) for body in sorted(BODIES)]
    assert Counter(message.body for message in plain.messages()) == Counter(4 * BODIES)
    counters = core.counters("t")
    assert counters["message_count"] == 4 * len(BODIES)
    assert counters["message_bytes"] == 4 * sum(map(len, BODIES))


def test_bodies_without_headers_come_behind_two_zeros(core: Core) -> None:
    reader = HeaderClient(core)
    reader.subscribe("t", "c", 10)
    core.client().publish("t", b"bare")
    core.settle()
    assert [message.body for message in reader.messages()] == [b"\0\0bare"]


def test_whoever_asks_without_negotiation_gets_none(core: Core) -> None:
    client = core.client()
    assert client.ask(b"IDENTIFY\n", sized(b'{"headers":true}')) == OK
    assert not client.session.headers


@pytest.mark.parametrize(
    "line", [b"PUB t\n", b"DPUB t 5\n", b"MPUB t\n"], ids=["PUB", "DPUB", "MPUB"]
)
@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"\0", "message of 1 bytes has no room for the length of its headers"),
        (b"\x10\x01" + b"b" * 5000, "headers of 4097 bytes (at most 4096)"),
        (b"\0\5abc", "headers of 5 bytes extend beyond a message of 5"),
        (whole(b""), "invalid message body size 0"),
        (whole(b"", raw((b"a", b"b"))), "invalid message body size 0"),
        (whole(b"x" * (MAX_MSG_SIZE + 1)), f"message too big {MAX_MSG_SIZE + 1} > {MAX_MSG_SIZE}"),
        (
            b"x" * (MAX_MSG_SIZE + ROOM + 1),
            f"message too big {MAX_MSG_SIZE + ROOM + 1} > {MAX_MSG_SIZE + ROOM}",
        ),
        *((whole(b"body", data), text) for data, text in FAULTS[1:]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused(core: Core, line: bytes, message: bytes, text: str) -> None:
    publisher = HeaderClient(core)
    command = line.split()[0].decode()
    send = mpub(message) if command == "MPUB" else line + sized(message)
    answer = publisher.ask(send)
    assert answer == (ERROR, f"E_BAD_MESSAGE {command} {text}".encode())
    assert core.topic("t") is None


def test_the_largest_message_with_the_most_headers(core: Core) -> None:
    reader = HeaderClient(core)
    reader.subscribe("t", "c", 10)
    full = {"a": "x" * (MAX_BYTES - 4)}
    body = b"b" * MAX_MSG_SIZE
    assert HeaderClient(core).publish_with(body, full) == OK
    core.settle()
    assert reader.received() == [(body, full)]


def test_they_go_with_a_session_that_moves(core: Core) -> None:
    state, unread, unsent = HeaderClient(core).session.pack()
    assert state["headers"] is True
    other = core.client()
    other.session.unpack(state, unread, unsent)
    assert other.session.headers


# -- on disk


def expected(count: int) -> list[tuple[bytes, dict[str, str]]]:
    return [
        (
            b"%05d" % number * (1 + number % 7 * 100),
            {"n": str(number), **SOME} if number % 3 else {},
        )
        for number in range(count)
    ]


def publish_all(core: Core, count: int, delay: int = 0) -> None:
    publisher = HeaderClient(core)
    for body, wanted in expected(count):
        assert publisher.publish_with(body, wanted, delay) == OK


def read_all(core: Core, count: int, channel: str = "c") -> list[tuple[bytes, dict[str, str]]]:
    reader = HeaderClient(core)
    reader.subscribe("t", channel, 50)
    found: list[tuple[bytes, dict[str, str]]] = []
    while len(found) < count:
        core.settle()
        got = reader.received()
        assert got, (len(found), count)
        found += got
    reader.ready(0)
    core.settle()
    return found


def again(make: Callable[..., Core], core: Core, path: Path, **settings: Any) -> Core:
    fresh = make(path, now=9 * SECOND, wall=core.wall, **settings)
    fresh.shard.load_topic(b"t", False, {"c": False})
    fresh.settle()
    return fresh


@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
@pytest.mark.parametrize("mem_queue_size", [10_000, 20], ids=["memory", "overflow"])
@pytest.mark.parametrize("delay", [0, 1000])
def test_a_restart(
    make: Callable[..., Core], tmp_path: Path, durability: str, mem_queue_size: int, delay: int
) -> None:
    settings: dict[str, Any] = {
        "policies": Policies(TopicPolicy(durability=durability)),
        "mem_queue_size": mem_queue_size,
    }
    core = make(**settings)
    core.create("t").channel("c")
    publish_all(core, 100, delay)
    core.save()
    core.shard.topics.clear()
    fresh = again(make, core, tmp_path, **settings)
    fresh.advance(2 * SECOND)
    assert sorted(read_all(fresh, 100), key=body_of) == sorted(expected(100), key=body_of)


def test_the_record_on_disk(make: Callable[..., Core], tmp_path: Path) -> None:
    core = make(policies=Policies(TopicPolicy("os")))
    encoded = b"\3key\0\5value"
    assert HeaderClient(core).publish("t", whole(b"body", encoded), 7) == OK
    core.save()
    core.shard.topics.clear()
    (segment,) = (tmp_path / "t.topic").glob("*.seg")
    data = segment.read_bytes()[64:]
    length, _, _, _, _, body, extensions, attributes = struct.unpack_from("<IIQQqIHH", data)
    assert (length, body, extensions, attributes) == (88, 4, 16 + 24, 1 | 4)
    delay = struct.pack("<HHIq", 1, 8, 0, 7_000_000)
    own = struct.pack("<HHI", 2, len(encoded), 0) + encoded.ljust(16, b"\0")
    assert data[40:length] == (delay + own + b"body").ljust(48, b"\0")


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_a_crash(make: Callable[..., Core], tmp_path: Path, durability: str) -> None:
    settings: dict[str, Any] = {
        "policies": Policies(TopicPolicy(durability=durability)),
    }
    (tmp_path / "before").mkdir()
    core = make(tmp_path / "before", **settings)
    core.create("t").channel("c")
    publish_all(core, 100)
    shutil.copytree(tmp_path / "before", tmp_path / "after")
    fresh = again(make, core, tmp_path / "after", **settings)
    assert read_all(fresh, 100) == expected(100)


def test_a_replay(make: Callable[..., Core]) -> None:
    core = make(
        policies=Policies(TopicPolicy("os", retention_time=3600 * SECOND)),
        mem_queue_size=50,
        log_options={"max_bytes_per_file": 100_000},
    )
    core.create("t").channel("c")
    publish_all(core, 400)
    assert read_all(core, 400) == expected(400)
    topic = core.topic("t")
    assert topic is not None
    assert topic.seek("c", 101) == 101
    assert read_all(core, 300) == expected(400)[100:]


def test_copies_that_a_compaction_makes(core: Core) -> None:
    core.create("t").channel("c")
    publish_all(core, 5000)
    reader = HeaderClient(core)
    reader.subscribe("t", "c", 2500)
    kept = []
    for number, (body, wanted) in enumerate(expected(5000)):
        if number % 2500 == 0:
            core.settle()
            delivered = iter(reader.delivered())
        message = next(delivered)
        assert (message.body, message.headers) == (body, wanted)
        if number % 500 == 1:
            kept.append((body, wanted))
            reader.requeue(message.id, 60_000)
        else:
            reader.finish(message.id)
    before = core.pool.resident_bytes
    for _ in range(20):
        core.advance(SECOND)
    assert core.pool.resident_bytes < before / 2
    core.advance(60 * SECOND)
    assert sorted(reader.received(), key=body_of) == sorted(kept, key=body_of)
