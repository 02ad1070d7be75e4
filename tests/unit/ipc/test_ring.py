"""A single ring, compared with a model, and with a peer that writes garbage."""

import ctypes
import mmap
import os
import random
import threading
from collections import deque
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from nsqcy.formats import FormatError
from nsqcy.ipc import core as ipc_core
from nsqcy.ipc.core import Shared, format_shared, map_size, page_size, quotas_offset, ring_offset
from support.c_functions import function
from support.runs import runs

RING_BYTES = 262144
RESERVE = 16384
RECORD_MAX = 32768

u8, u32, u64, address = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_void_p


class Writer(ctypes.Structure):
    _fields_ = [
        ("shared", address),
        ("data", address),
        ("head", u64),
        ("published", u64),
        ("tail", u64),
    ]


class Reader(ctypes.Structure):
    _fields_ = [
        ("shared", address),
        ("data", address),
        ("tail", u64),
        ("released", u64),
        ("head", u64),
    ]


class Record(ctypes.Structure):
    _fields_ = [("data", address), ("length", u32), ("stream", u32), ("size", u32), ("kind", u8)]


writer_p, reader_p = ctypes.POINTER(Writer), ctypes.POINTER(Reader)
attach_writer = function(ipc_core, "ring_attach_writer", ctypes.c_int, writer_p, address)
attach_reader = function(ipc_core, "ring_attach_reader", ctypes.c_int, reader_p, address)
ring_write = function(
    ipc_core, "ring_write", ctypes.c_int, writer_p, u8, u32, ctypes.c_char_p, u32, u32
)
ring_publish = function(ipc_core, "ring_publish", None, writer_p)
ring_half_free = function(ipc_core, "ring_half_free", ctypes.c_int, writer_p)
ring_read = function(ipc_core, "ring_read", ctypes.c_int, reader_p, ctypes.POINTER(Record))
ring_release = function(ipc_core, "ring_release", None, reader_p)
slot_post = function(ipc_core, "slot_post", ctypes.c_int, address, address, ctypes.c_int)
slot_sleep = function(ipc_core, "slot_sleep", ctypes.c_int, address)


class Memory:
    """Shared memory for a given number of workers, and its addresses."""

    def __init__(self, workers: int = 2) -> None:
        self.workers = workers
        self.map = mmap.mmap(-1, map_size(workers))
        format_shared(self.map, workers)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.map))

    def word(self, offset: int) -> ctypes.c_uint64:
        return u64.from_buffer(self.map, offset)

    def slot(self, worker: int) -> int:
        return 128 + 128 * worker


class Ring:
    """The ring from worker 0 to worker 1 in a shared memory region, with both ends."""

    def __init__(self, start: int = 0) -> None:
        self.memory = Memory()
        self.at = ring_offset(2, 0, 1)
        self.head, self.tail = self.memory.word(self.at), self.memory.word(self.at + 64)
        self.head.value = self.tail.value = start
        self.writer, self.reader = Writer(), Reader()
        assert attach_writer(self.writer, self.memory.base + self.at) == 0
        assert attach_reader(self.reader, self.memory.base + self.at) == 0

    def write(self, data: bytes, kind: int = 1, stream: int = 0, reserve: int = 0) -> int:
        written = ring_write(self.writer, kind, stream, data, len(data), reserve)
        ring_publish(self.writer)
        return written

    def read(self) -> tuple[int, int, bytes] | int:
        """Return a record, or the code of ring_read() if there is none."""
        record = Record()
        got = ring_read(self.reader, record)
        if got != 1:
            return got
        first = record.data - self.memory.base - self.at - 4096
        assert 8 <= first <= first + record.length <= RING_BYTES
        return record.kind, record.stream, ctypes.string_at(record.data, record.length)

    def release(self) -> None:
        ring_release(self.reader)


# --- rings ---


class Machine(RuleBasedStateMachine):
    """A ring, along with a queue of its content."""

    def __init__(self):
        super().__init__()
        self.ring = Ring()
        self.queue: deque[tuple[int, int, bytes]] = deque()
        self.count = 0

    @rule(
        size=st.integers(0, 40) | st.sampled_from([RECORD_MAX - 1, RECORD_MAX, 30000]),
        reserve=st.sampled_from([0, RESERVE]),
        times=st.integers(1, 12),
    )
    def write(self, size, reserve, times):
        for _ in range(times):
            self.count += 1
            record = (self.count % 255 + 1, self.count * 7, bytes([self.count % 256]) * size)
            written = self.ring.write(record[2], record[0], record[1], reserve)
            assert written in (0, 1)
            if written:
                self.queue.append(record)
                used = self.ring.writer.head - self.ring.writer.tail
                assert used + reserve <= RING_BYTES
            else:
                # The held records, the skipped end, this record and the reserve do not fit
                # together.
                held = sum(8 + (len(data) + 7) // 8 * 8 for _, _, data in self.queue)
                held += self.ring.reader.tail - self.ring.reader.released
                assert held + 2 * (size + 16) + RECORD_MAX + reserve > RING_BYTES

    @rule(times=st.integers(1, 20), release=st.booleans())
    def read(self, times, release):
        for _ in range(times):
            expected = self.queue.popleft() if self.queue else 0
            assert self.ring.read() == expected
        if release:
            self.ring.release()


TestRing = pytest.mark.slow(Machine.TestCase)
TestRing.settings = settings(max_examples=runs(40), stateful_step_count=60, deadline=None)


def test_unpublished_records_are_not_seen():
    ring = Ring()
    assert ring_write(ring.writer, 1, 2, b"abc", 3, 0) == 1
    assert ring.read() == 0
    ring_publish(ring.writer)
    assert ring.read() == (1, 2, b"abc")


def test_read_records_stay_until_released():
    ring = Ring()
    while ring.write(bytes(RECORD_MAX)):
        pass
    assert ring.read() == (1, 0, bytes(RECORD_MAX))
    assert ring.write(bytes(RECORD_MAX)) == 0
    ring.release()
    assert ring.write(bytes(RECORD_MAX)) == 1


def test_only_control_records_get_the_reserve():
    ring = Ring()
    while ring.write(bytes(1000), reserve=RESERVE):
        pass
    assert ring.write(b"", reserve=RESERVE) in (0, 1)
    control = 0
    while ring.write(bytes(4)):
        control += 1
    assert control >= RESERVE // 16


def test_half_free():
    ring = Ring()
    while ring.writer.head <= RING_BYTES // 2:
        assert ring_half_free(ring.writer)
        ring.write(bytes(1000))
    assert not ring_half_free(ring.writer)
    ring.read()
    ring.release()
    assert ring_half_free(ring.writer)


# --- a misbehaving peer ---


def test_a_head_that_cannot_be_is_broken():
    for head in (RING_BYTES + 8, 4, 2**64 - 8, 1 << 40):
        ring = Ring()
        ring.head.value = head
        assert ring.read() == -1
        assert attach_reader(Reader(), ring.memory.base + ring.at) == -1
        assert attach_writer(Writer(), ring.memory.base + ring.at) == -1


def test_a_head_that_goes_back_is_broken():
    ring = Ring()
    ring.write(bytes(100))
    assert ring.read() != -1
    ring.head.value = 0
    assert ring.read() == -1


@pytest.mark.parametrize("tail", [8, 3, 2**64 - 8, 1 << 40])
def test_a_tail_that_cannot_be_breaks_the_writer(tail):
    ring = Ring(start=1 << 20)
    while ring.write(bytes(RECORD_MAX)) == 1:
        pass
    ring.tail.value += tail if tail != 8 else -8
    assert ring.write(bytes(RECORD_MAX)) == -1
    assert not ring_half_free(ring.writer)


@pytest.mark.parametrize(
    ("word", "available"),
    [
        (RECORD_MAX + 1 | 1 << 16, RING_BYTES),  # too long for any record
        (100 | 1 << 16, 64),  # longer than the published data
        (8 | 1 << 16 | 1 << 24, 64),  # the byte that must be zero is not
        (0, 64),  # a skip beyond the head
    ],
)
def test_a_header_that_cannot_be_is_broken(word, available):
    ring = Ring()
    ring.memory.word(ring.at + 4096).value = word
    ring.head.value = available
    assert ring.read() == -1


def test_a_record_across_the_end_is_broken():
    ring = Ring(start=RING_BYTES - 64)
    ring.memory.word(ring.at + 4096 + RING_BYTES - 64).value = 200 | 1 << 16
    ring.head.value += 1000
    assert ring.read() == -1


def test_two_skips_are_broken():
    ring = Ring(start=RING_BYTES - 64)
    ring.head.value += RING_BYTES
    assert ring.read() == -1


@pytest.mark.slow
@settings(max_examples=runs(40), deadline=None)
@given(st.data(), st.integers(0, 2**40))
def test_garbage_is_never_read_out_of_bounds(data, seed):
    start = data.draw(st.integers(0, 2 * RING_BYTES // 8)) * 8
    ring = Ring(start)
    chance = random.Random(seed)
    noise = chance.randbytes(4096) * (RING_BYTES // 4096)
    ring.memory.map[ring.at + 4096 : ring.at + 4096 + RING_BYTES] = noise
    # A plausible first record, so that not every ring is broken from the start.
    length = data.draw(st.integers(0, RECORD_MAX + 100)) & 0xFFFF
    ring.memory.word(ring.at + 4096 + start % RING_BYTES).value = length | 1 << 16
    ring.head.value = start + data.draw(st.integers(0, RING_BYTES // 8 + 10)) * 8
    while (got := ring.read()) not in (0, -1):
        assert len(got[2]) <= RECORD_MAX


# --- two threads; both ends run without the interpreter lock ---


@pytest.mark.slow
def test_writer_and_reader_at_once():
    ring = Ring()
    chance = random.Random(2)
    records = [chance.randbytes(chance.choice((0, 5, 240, 5000, RECORD_MAX))) for _ in range(4000)]

    def write() -> None:
        for number, data in enumerate(records):
            while ring.write(data, 1, number) == 0:
                os.sched_yield()

    thread = threading.Thread(target=write)
    thread.start()
    for number, data in enumerate(records):
        while (got := ring.read()) == 0:
            ring.release()
            os.sched_yield()
        assert got == (1, number, data)
    thread.join()


# --- wake-ups ---


def test_only_a_sleeping_worker_is_woken_and_only_once():
    memory = Memory(3)
    slot = memory.base + memory.slot(1)
    dirty = slot + 72
    assert slot_post(slot, dirty, 0) == 0
    assert memory.word(memory.slot(1) + 72).value == 0b001
    assert slot_sleep(slot) == 0  # a bit is set: check before sleeping
    memory.word(memory.slot(1) + 72).value = 0
    assert slot_sleep(slot) == 1
    assert slot_post(slot, dirty, 2) == 1
    assert slot_post(slot, dirty, 0) == 0
    assert memory.word(memory.slot(1) + 72).value == 0b101


# --- the layout ---


def test_regions_do_not_overlap():
    for workers in (1, 2, 5, 64):
        assert page_size(workers) >= 128 + 128 * workers
        ends = [ring_offset(workers, w, r) for w in range(workers) for r in range(workers)]
        ends.append(quotas_offset(workers))
        assert ends[0] == page_size(workers)
        assert {b - a for a, b in pairwise(ends)} == {4096 + RING_BYTES}
        assert map_size(workers) - quotas_offset(workers) == 1 << 20


def test_two_mappings_of_one_memfd():
    fd = os.memfd_create("shared")
    os.truncate(fd, map_size(2))
    format_shared(mmap.mmap(fd, map_size(2)), 2)
    one, two = Shared(fd, 2), Shared(fd, 2)
    os.close(fd)
    one.enter(1, 4711, 2)
    one.beat(1, 123456789012, 750, 500, 42)
    one.lease_word[:] = b"12345678"
    view = two.view(1)
    assert (view.pid, view.state, view.beat, view.busy, view.connections) == (
        4711,
        2,
        123456789012,
        750,
        42,
    )
    assert (two.busy(1), two.ran(1)) == (750, 500)
    assert two.busy(0) == 0
    assert two.busy(2) == 1000
    assert bytes(two.lease_word) == b"12345678"


def test_foreign_memory_is_refused():
    good = mmap.mmap(-1, map_size(2))
    with pytest.raises(ValueError, match="not nsqd's shared memory"):
        Shared(good, 2)
    format_shared(good, 2)
    with pytest.raises(ValueError, match="for 2 workers"):
        Shared(good, 1)
    with pytest.raises(ValueError, match="too small"):
        Shared(good, 3)
    newer = mmap.mmap(-1, map_size(2))
    format_shared(newer, 2)
    newer[8] = 2
    text = r"shared memory format version 2 is newer than this nsqcy supports \(1\): restart nsqd"
    with pytest.raises(FormatError, match=text):
        Shared(newer, 2)
    for workers in (0, 65):
        with pytest.raises(ValueError, match="workers must be"):
            map_size(workers)
    with pytest.raises(IndexError):
        Shared(good, 2).view(2)


def test_reset_empties_what_one_worker_had_to_do_with():
    memory = Memory(3)
    shared = Shared(memory.map, 3)
    for writer in range(3):
        for reader in range(3):
            memory.word(ring_offset(3, writer, reader)).value = 800
            memory.word(ring_offset(3, writer, reader) + 64).value = 16
    for worker in range(3):
        for bitmap in (72, 80, 88):
            memory.word(memory.slot(worker) + bitmap).value = 0b111
    shared.enter(1, 99, 1)
    assert shared.reset(1) == 1
    assert shared.reset(1) == 2
    assert shared.view(1) == (0, 2, 0, 0, 0, 0, 0)
    for writer in range(3):
        for reader in range(3):
            expected = (0, 0) if 1 in (writer, reader) else (800, 16)
            at = ring_offset(3, writer, reader)
            assert (memory.word(at).value, memory.word(at + 64).value) == expected
    for bitmap in (72, 80, 88):
        assert memory.word(memory.slot(0) + bitmap).value == 0b101
        assert memory.word(memory.slot(1) + bitmap).value == 0
