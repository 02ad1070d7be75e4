"""statsd: lines, differences between pushes, packets."""

import contextlib
import json
import socket
import struct
import types
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import page_buffer, statsd
from nsqcy.nsqd.stats.page_buffer import Piece, SharedBuffer
from nsqcy.nsqd.stats.stats_formats import MEMORY_KEYS
from nsqcy.nsqd.stats.stats_page import Share, Whole
from nsqcy.nsqd.stats.statsd import DEFAULT_PACKET, Pusher, Writer, dial, packets
from support.gevent_hub import wait_until

NO_LATENCY = {"count": 0, "percentiles": None}


def channel(name: str, **values: Any) -> dict[str, Any]:
    return {
        "channel_name": name,
        "depth": 1,
        "backend_depth": 2,
        "in_flight_count": 3,
        "deferred_count": 4,
        "message_count": 5,
        "requeue_count": 6,
        "timeout_count": 7,
        "client_count": 8,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": NO_LATENCY,
    } | values


def topic(name: str, *channels: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "topic_name": name,
        "channels": channels,
        "depth": 11,
        "backend_depth": 12,
        "message_count": 13,
        "message_bytes": 14,
        "paused": False,
        "e2e_processing_latency": NO_LATENCY,
    } | values


def writer(prefix: str = "p.", *, exclude_ephemeral: bool = False) -> Writer:
    return Writer(prefix, exclude_ephemeral=exclude_ephemeral)


def push(
    writer: Writer, *topics: dict[str, Any], memory: Any = None, complete: bool = True
) -> list[str]:
    lines = [line for topic in topics for line in writer.topic(topic)]
    if memory is not None:
        lines += writer.memory(memory)
    writer.end_push(complete)
    assert all(line.endswith(b"\n") for line in lines)
    return [line.decode().rstrip("\n") for line in lines]


def test_lines_in_their_order() -> None:
    assert push(writer("nsq.h_4151."), topic("t.1", channel("c#ephemeral"))) == [
        "nsq.h_4151.topic.t.1.message_count:13|c",
        "nsq.h_4151.topic.t.1.message_bytes:14|c",
        "nsq.h_4151.topic.t.1.depth:11|g",
        "nsq.h_4151.topic.t.1.backend_depth:12|g",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.message_count:5|c",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.depth:1|g",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.backend_depth:2|g",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.in_flight_count:3|g",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.deferred_count:4|g",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.requeue_count:6|c",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.timeout_count:7|c",
        "nsq.h_4151.topic.t.1.channel.c#ephemeral.clients:8|g",
    ]


def test_memory_lines() -> None:
    one = writer("")
    memory = {key: number for number, key in enumerate(MEMORY_KEYS)}
    first = push(one, memory=memory)
    assert first == [
        *(f"mem.{key}:{memory[key]}|g" for key in MEMORY_KEYS[:-1]),
        "mem.gc_runs:8|c",
    ]
    assert push(one, memory=memory | {"gc_total_runs": 10})[-1] == "mem.gc_runs:2|c"


@pytest.mark.case("STATSD-06")
def test_percentiles() -> None:
    latency = {
        "count": 3,
        "percentiles": [
            {"quantile": 1.0, "value": 26897574},
            {"quantile": 0.999, "value": 5e6},
            {"quantile": 0.5, "value": 0},
        ],
    }
    lines = push(
        writer(),
        topic("t", channel("c", e2e_processing_latency=latency), e2e_processing_latency=latency),
    )
    for place, stat in ((4, "p.topic.t."), (15, "p.topic.t.channel.c.")):
        assert lines[place : place + 3] == [
            f"{stat}e2e_processing_latency_100:26897574|g",
            f"{stat}e2e_processing_latency_99_9:5000000|g",
            f"{stat}e2e_processing_latency_50:0|g",
        ]
    assert len(lines) == 18


@pytest.mark.case("STATSD-06")
@pytest.mark.parametrize(
    ("quantile", "name"),
    [
        (1.0, "100"),
        (0.9999, "99_99"),
        (0.999, "99_9"),
        (0.99, "99"),
        (0.57, "57"),
        (0.1, "10"),
        (0.07, "7"),
        (0.005, "0_5"),
        (1e-05, "0_001"),
    ],
)
def test_the_name_of_a_percentile(quantile: float, name: str) -> None:
    latency = {"count": 1, "percentiles": [{"quantile": quantile, "value": 1}]}
    lines = push(writer("p."), topic("t", e2e_processing_latency=latency))
    assert lines[-1] == f"p.topic.t.e2e_processing_latency_{name}:1|g"


@pytest.mark.case("STATSD-04")
def test_ephemeral_ones_are_left_out() -> None:
    one = writer(exclude_ephemeral=True)
    lines = push(one, topic("e#ephemeral", channel("c")), topic("t", channel("c#ephemeral")))
    assert len(lines) == 4 and all(line.startswith("p.topic.t.") for line in lines)


def increases(lines: list[str]) -> dict[str, int]:
    found = (line.rsplit(":", 1) for line in lines if line.endswith("|c"))
    return {stat: int(value[:-2]) for stat, value in found}


def test_counters_are_increases() -> None:
    one = writer("")
    first = increases(push(one, topic("t", channel("c"))))
    assert first["topic.t.message_count"] == 13 and first["topic.t.channel.c.requeue_count"] == 6
    again = increases(push(one, topic("t", channel("c"))))
    assert set(again.values()) == {0}
    grown = increases(push(one, topic("t", channel("c", timeout_count=9), message_bytes=20)))
    assert {stat: value for stat, value in grown.items() if value} == {
        "topic.t.message_bytes": 6,
        "topic.t.channel.c.timeout_count": 2,
    }


def test_what_was_made_anew_starts_at_zero() -> None:
    one = writer("")
    push(one, topic("t"), topic("u"))
    found = increases(push(one, topic("t", message_count=2)))
    assert found["topic.t.message_count"] == 2
    # The topic was missing from one push.
    assert increases(push(one, topic("u")))["topic.u.message_count"] == 13


def test_what_was_out_of_reach_is_not_counted_twice() -> None:
    one = writer("")
    push(one, topic("t"), topic("u"))
    push(one, topic("t"), complete=False)
    assert increases(push(one, topic("u")))["topic.u.message_count"] == 0


def test_equal_keys_of_different_things_are_counted_apart() -> None:
    one = writer("")
    topics = [topic("a", channel("b", message_count=3)), topic("a.channel.b", message_count=9)]
    push(one, *topics)
    assert set(increases(push(one, *topics)).values()) == {0}


@pytest.mark.slow
@given(st.lists(st.binary(min_size=1, max_size=40)), st.integers(-1, 100))
def test_packets(lines: list[bytes], size: int) -> None:
    found = packets(lines, size)
    assert b"".join(found) == b"".join(lines)
    limit = size if size > 0 else DEFAULT_PACKET
    assert all(len(packet) <= limit or packet in lines for packet in found)


def test_packets_are_filled() -> None:
    assert packets([b"12345", b"6789", b"0"], 10) == [b"1234567890"]
    assert packets([b"12345", b"6789", b"01"], 10) == [b"123456789", b"01"]
    assert packets([b"1", b"too long", b"2"], 4) == [b"1", b"too long", b"2"]
    assert packets([], 10) == []


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:no-such-service"])
def test_an_address_that_is_none(address: str) -> None:
    with pytest.raises(OSError):
        dial(address)


class Fleeting:
    """Returns the stats of one topic; records the queries."""

    def __init__(self) -> None:
        self.asked: list[Query] = []

    def __call__(self, query: Query) -> Whole:
        self.asked.append(query)
        piece = json.dumps(topic("t", channel("c"))).encode() + b","
        shared = SharedBuffer()
        topics = page_buffer.Writer(shared.fd, 1).write(piece)
        share = Share(topics, Piece(0, 0), struct.pack("<IH", len(piece), 1) + b"t")
        memory = dict.fromkeys(MEMORY_KEYS, 0)
        return Whole(shared, [share], True, "OK", memory, True)


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str, /, **_: object) -> None:
        self.lines.append(text)

    info = warn = error = note


def options(address: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(
        statsd_address=address,
        statsd_prefix="p.",
        statsd_interval=60 * 10**9,
        statsd_mem_stats=False,
        statsd_udp_packet_size=60,
        statsd_exclude_ephemeral=False,
    )


@pytest.mark.case("STATSD-01")
def test_pushes_come_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first push comes one interval after the start; a slow push does not delay the following
    ones."""
    clock = 1000.0
    pushes: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    def push() -> None:
        nonlocal clock
        pushes.append(clock - 1000.0)
        clock += {2: 59.5, 3: 130.0}.get(len(pushes), 1.0)
        if len(pushes) == 6:
            raise gevent.GreenletExit

    pusher = Pusher(options("127.0.0.1:1"), Fleeting(), Notes())
    monkeypatch.setattr(pusher, "_push", push)
    monkeypatch.setattr(statsd.time, "monotonic", lambda: clock)
    monkeypatch.setattr(gevent, "sleep", sleep)
    with pytest.raises(gevent.GreenletExit):
        pusher._run()
    # The third push took more than two intervals, so two pushes were missed. nsqd makes up for one
    # of them.
    assert pushes == [60, 120, 180, 310, 360, 420]


@pytest.mark.case("STATSD-01", "STATSD-03")
def test_a_push_is_spread_over_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses, with one after the last packet, fill the interval except its last second."""
    pauses: list[float] = []
    monkeypatch.setattr(gevent, "sleep", pauses.append)
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    stats, notes = Fleeting(), Notes()
    pusher = Pusher(options(address), stats, notes)
    pusher._push()
    assert stats.asked == [Query(json=True, include_clients=False)]
    assert len(pauses) > 5 and set(pauses) == {59 / len(pauses)}
    got = [listener.recv(1000) for _ in pauses]
    assert b"".join(got).startswith(b"p.topic.t.message_count:13|c\n")
    assert notes.lines == [f"STATSD: pushing stats to {address}"]
    listener.close()
    pusher._push()  # without a listener, nothing is logged
    assert len(notes.lines) == 2


def test_the_rest_of_a_push_is_sent_at_once() -> None:
    """The next version pushes what has been counted since, at the time when a push is due."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    listener.bind(("127.0.0.1", 0))
    listener.setblocking(False)
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    pusher = Pusher(options(address), Fleeting(), Notes())
    pusher._due = 5.0
    pusher._greenlet = gevent.spawn(pusher._push)
    wait_until(lambda: pusher._unsent)
    left = len(pusher._unsent)
    pusher.rest()
    assert left and not pusher._unsent
    got = []
    with contextlib.suppress(BlockingIOError):
        while True:
            got.append(listener.recv(1000))
    assert len(got) > left
    listener.close()
    dumped = json.loads(json.dumps(pusher.dump()))
    successor = Pusher(options(address), Fleeting(), Notes())
    successor.restore(dumped)
    assert json.loads(json.dumps(successor.dump())) == dumped
    assert dumped["due"] == 5.0 and dumped["before"]
