"""Frames on a plain socket: any split, any size, slow readers, and connections that end."""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.net.core import FrameData, FrameSocket
from support.gevent_hub import wait_until

BULK, BULK_HEAD = 7, 19
MAXIMUM = 1 << 20

Frame = tuple[int, bytes, bytes | None]
SIZES = st.one_of(st.integers(0, 100), st.sampled_from([16383, 16384, 16385, 70_000, 300_000]))
OTHERS = st.builds(
    lambda kind, size: (kind, b"p" * size, None),
    st.integers(0, 255).filter(lambda kind: kind != BULK),
    SIZES,
)


def bulk(name: int, size: int) -> Frame:
    head = struct.pack(">H", name) + b"h" * (BULK_HEAD - 2) + b"n" * name
    return BULK, head, os.urandom(1) * size


FRAMES = st.lists(st.one_of(OTHERS, st.builds(bulk, st.integers(0, 300), SIZES)), max_size=6)


def encoded(frames: list[Frame]) -> bytes:
    return b"".join(
        struct.pack(">IB", len(payload) + len(data or b""), kind) + payload + (data or b"")
        for kind, payload, data in frames
    )


class Side:
    """A frame socket, and the other end of its connection."""

    def __init__(self) -> None:
        ours, self.peer = socket.socketpair()
        ours.setblocking(False)
        self.peer.setblocking(False)
        self.sock = ours
        self.found: list[Frame] = []
        self.reasons: list[str] = []
        self.due: list[Callable[[], object]] = []
        self.frames = self.make(self.received)

    def make(self, received: Callable[[int, bytes, FrameData | None], object]) -> FrameSocket:
        return FrameSocket(
            self.sock.fileno(),
            gevent.get_hub().loop,
            received,
            self.ended,
            self.due.append,
            MAXIMUM,
            BULK,
            BULK_HEAD,
        )

    def use(self, received: Callable[[int, bytes, FrameData | None], object]) -> None:
        """Use another receiver."""
        self.frames.close()
        self.frames = self.make(received)

    def received(self, kind: int, payload: bytes, data: FrameData | None) -> None:
        self.found.append((kind, payload, None if data is None else bytes(data)))

    def ended(self, reason: str) -> None:
        self.reasons.append(reason)
        self.frames.close()

    def feed(self, data: bytes) -> None:
        """Send bytes to the frame socket, and let it receive all of them."""
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self.peer.send(rest) :]
            except BlockingIOError:
                pass
            self.frames.on_readable()
        for _ in range(3):
            self.frames.on_readable()

    def run_due(self) -> None:
        due, self.due[:] = list(self.due), []
        for call in due:
            call()


@contextmanager
def open_side() -> Iterator[Side]:
    side = Side()
    try:
        yield side
    finally:
        side.frames.close()
        side.sock.close()
        side.peer.close()


@pytest.fixture
def side() -> Iterator[Side]:
    with open_side() as found:
        yield found


@given(FRAMES, st.data())
def test_frames_survive_any_split(wanted: list[Frame], data: Any) -> None:
    stream, at = encoded(wanted), 0
    with open_side() as side:
        while at < len(stream) and len(side.found) < len(wanted):
            size = data.draw(st.one_of(st.integers(1, 40), st.integers(1, len(stream) - at)))
            side.feed(stream[at : at + size])
            at = min(len(stream), at + size)
        assert side.found == wanted
        assert not side.reasons


@given(st.binary(max_size=400))
def test_garbage_ends_the_connection_or_is_frames(data: bytes) -> None:
    with open_side() as side:
        side.feed(data)
        assert encoded(side.found) == data[: len(encoded(side.found))]


def test_the_hub_calls_it(side: Side) -> None:
    side.frames.start()
    side.peer.sendall(encoded([(3, b"x", None)]))
    wait_until(lambda: side.found == [(3, b"x", None)])
    side.peer.close()
    wait_until(lambda: side.reasons == ["connection closed"])


def test_a_frame_above_the_maximum_ends_the_connection(side: Side) -> None:
    side.feed(struct.pack(">IB", MAXIMUM + 1, 3))
    assert side.reasons == [f"frame of {MAXIMUM + 1} bytes: at most {MAXIMUM} are allowed"]


def test_a_name_that_is_too_long_ends_the_connection(side: Side) -> None:
    side.feed(encoded([bulk(17_000, 1)]))
    assert side.reasons == ["malformed frame"]


def test_nothing_is_delivered_after_close(side: Side) -> None:
    def close(kind: int, payload: bytes, data: FrameData | None) -> None:
        side.received(kind, payload, data)
        side.frames.close()

    side.use(close)
    side.peer.sendall(encoded([(1, b"", None), (2, b"", None)]))
    side.frames.on_readable()
    assert side.found == [(1, b"", None)]


def test_a_failed_receiver_ends_the_connection(side: Side) -> None:
    def fail(kind: int, payload: bytes, data: FrameData | None) -> None:
        side.received(kind, payload, data)
        raise ValueError

    side.use(fail)
    side.peer.sendall(encoded([(1, b"", None), (2, b"", None)]))
    with pytest.raises(ValueError):
        side.frames.on_readable()
    assert side.found == [(1, b"", None)]
    assert side.reasons == ["ValueError"]


def test_parts_are_sent_in_order_and_once(side: Side) -> None:
    parts = [bytes([number]) * size for number, size in enumerate((1, 0, 900_000, 5, 300_000))]
    side.frames.send((parts[0], parts[1]))
    side.frames.send((bytearray(parts[2]),))
    assert len(side.due) == 1
    wanted = b"".join(parts)
    found = bytearray()
    side.run_due()
    for part in parts[3:]:
        side.frames.send((part,))
    assert not side.due  # the socket is full: the data is sent as soon as there is room

    def receive() -> bool:
        try:
            found.extend(side.peer.recv(1 << 16))
        except BlockingIOError:
            pass
        return len(found) == len(wanted)

    wait_until(receive)
    assert found == wanted
    assert side.frames.queued == 0
    side.frames.send((b"x",))
    assert len(side.due) == 1


def test_many_parts(side: Side) -> None:
    for number in range(1000):
        side.frames.send((b"%04d" % number,))
    side.run_due()
    found = side.peer.recv(1 << 16)
    assert found == b"".join(b"%04d" % number for number in range(1000))


def test_a_failed_send_ends_the_connection(side: Side) -> None:
    side.frames.start()
    side.sock.shutdown(socket.SHUT_WR)
    side.frames.send((b"x",))
    side.run_due()
    assert side.reasons == []  # reported by the hub, not in the middle of a turn
    wait_until(lambda: side.reasons == [os.strerror(errno.EPIPE)])


def test_memory_of_data_is_reused_only_after_its_last_use() -> None:
    kept = [FrameData(20_000) for _ in range(20)]
    for number, each in enumerate(kept):
        memoryview(each)[:] = bytes([number]) * len(each)
    view = memoryview(kept[0])
    del kept[:10]
    others = [FrameData(20_000) for _ in range(10)]
    for other in others:
        memoryview(other)[:] = b"\xff" * len(other)
    assert bytes(view) == bytes(20_000)
    assert [bytes(each) for each in kept] == [bytes([n]) * 20_000 for n in range(10, 20)]
