"""The fast path for runs has the effects of the state machine, and refuses what that must
decide."""

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.copies.holder import Holder
from nsqcy.copies.messages import Confirm, Filled, Write
from nsqcy.net.core import FrameData
from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.nsqd.copies.file_table import HEADER
from nsqcy.nsqd.copies.run_sink import RunSink
from nsqcy.nsqd.copies.wire import decode, write_head
from nsqcy.storage.io_faults import FaultyIoThread
from support.disk_format import messages, run, segment_header

SEGMENT = "t.topic/00000000000000000001.seg"
OTHER = "t.topic/00000000000000000009.seg"


class Host:
    """Records the confirmed positions."""

    def __init__(self) -> None:
        self.confirmed: list[int] = []

    def reply(self, node: str, group_id: str, message: Any) -> None:
        if isinstance(message, Confirm):
            self.confirmed.append(message.position)


class Side:
    """A holder with a filled copy."""

    def __init__(self, root: Path, durability: str) -> None:
        self.io = FaultyIoThread()
        self.root = root
        self.copy = CopyFiles(self.io, root, "b", durability, lambda error: None)
        self.host: Any = Host()
        self.holder = Holder("g", "n", 1, self.copy, self.host, 0.0)
        self.copy.truncate(SEGMENT, 0)
        self.copy.write(SEGMENT, 0, Data(segment_header(1)))
        self.holder.received(Filled([SEGMENT], 0), 0.0)
        self.io.drain_now()
        self.sink = RunSink(self.holder, self.copy, lambda: None, self.io.kick_now)
        self.end = HEADER

    def frame(self, first: int, path: str = SEGMENT, *, records: bool = True) -> tuple[Any, ...]:
        """Return the next run as it arrives."""
        data = run(messages(first, 3))
        head = write_head(path, self.end, Data(data, records), first)[5:]
        received = FrameData(len(data))
        memoryview(received)[:] = data
        self.end += len(data)
        return head, received

    def close(self) -> None:
        self.io.drain_now()
        self.copy = self.holder = self.sink = None  # type: ignore[assignment]
        self.io.close()


@pytest.fixture(params=["os", "fsync"])
def sides(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    found = Side(tmp_path / "a", request.param), Side(tmp_path / "b", request.param)
    yield found
    for each in found:
        each.close()


def test_both_ways_lead_to_the_same_copy(sides: tuple[Side, Side]) -> None:
    short, long = sides
    for first in range(1, 30, 3):
        if first % 2:
            assert short.sink.take(*short.frame(first))
        else:
            short.holder.received(decode(7, *short.frame(first)), 0.0)  # type: ignore[arg-type]
        long.holder.received(decode(7, *long.frame(first)), 0.0)  # type: ignore[arg-type]
        assert short.host.confirmed == long.host.confirmed
        if first % 5 == 0:
            short.io.drain_now()
            long.io.drain_now()
    short.io.drain_now()
    long.io.drain_now()
    assert short.host.confirmed == long.host.confirmed == [0, *range(1, 30, 3)]
    assert (short.root / SEGMENT).read_bytes() == (long.root / SEGMENT).read_bytes()
    assert short.copy.files() == long.copy.files()


def test_a_failed_write_is_not_confirmed(sides: tuple[Side, Side]) -> None:
    side, _ = sides
    side.io.fault("pwrite", error=errno.EIO)
    assert side.sink.take(*side.frame(1))
    side.io.drain_now()
    assert side.host.confirmed == [0]
    assert not side.copy.whole
    assert not side.sink.take(*side.frame(4))


def test_the_state_machine_decides_about_anything_else(sides: tuple[Side, Side]) -> None:
    side, _ = sides
    before = side.copy.files()
    assert not side.sink.take(*side.frame(1, OTHER))  # a new file
    assert not side.sink.take(*side.frame(1, records=False))
    head, data = side.frame(1)
    assert not side.sink.take(write_head(SEGMENT, HEADER, Data(b"", True), -1)[5:], data)  # a fill
    assert not side.sink.take(head[:-1], data)  # malformed
    side.copy.begin_filling()
    assert not side.sink.take(head, data)
    side.io.drain_now()
    assert side.copy.files() == before
    assert side.host.confirmed == [0]


def test_a_stream_that_has_ended_changes_nothing(sides: tuple[Side, Side]) -> None:
    side, _ = sides
    assert side.sink.take(*side.frame(1))
    assert side.holder.heard > 0.0
    before = side.copy.files()
    side.holder.end()
    assert not side.sink.take(*side.frame(4))
    side.io.drain_now()
    assert side.copy.files() == before
    assert side.host.confirmed == [0]


def test_messages_are_decoded_alike(sides: tuple[Side, Side]) -> None:
    head, data = sides[0].frame(1)
    message = decode(7, head, data)
    assert isinstance(message, Write)
    assert (message.path, message.offset, message.position) == (SEGMENT, HEADER, 1)
