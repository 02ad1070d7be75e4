"""The range of addresses that holds a worker's blocks or entries, compared with a slow and obvious
model, and with system calls that fail.

NSQCY_RUNS=20 tries many more histories.
"""

import errno
import gc
import mmap
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from nsqcy.storage.core import BlockPool, MemoryRange
from nsqcy.storage.memory_faults import FaultyMemoryRange
from support.runs import runs
from support.sanitizer import SANITIZED
from support.worker_core import RESPONSE, SECOND, Core

UNIT = 65536
UNITS = 32  # of a chunk
CHUNK = UNITS * UNIT
FREE, TABLE, MORE, ENTRIES, PAGES, BLOCKS, HEAD, LARGE, ARENA = 0, 1, 2, 4, 5, 6, 11, 12, 16
"""Values of enum UnitKind."""
IDLE_LIMIT = 1024 * UNIT
FOREVER = 1 << 40
NEVER_BEFORE = 1 << 62
PAGE = mmap.PAGESIZE
LARGE_RANGE = 1 << 40

memory_kinds = pytest.mark.parametrize("memfd", [False, True], ids=["anonymous", "memfd"])


class Model:
    """Which unit of a range belongs to which piece."""

    def __init__(self, chunks: int) -> None:
        self.units = [0] * (chunks * UNITS)  # number of the piece; 0: free
        self.pieces: dict[int, tuple[int, int]] = {}  # first unit and length by number
        self.numbers = 0
        self.use(0, UNITS)  # the table

    def use(self, first: int, units: int) -> int:
        assert first + units <= len(self.units)
        assert not any(self.units[first : first + units]), "two pieces overlap"
        self.numbers += 1
        self.units[first : first + units] = [self.numbers] * units
        self.pieces[self.numbers] = first, units
        return self.numbers

    def free(self, number: int) -> tuple[int, int]:
        first, units = self.pieces.pop(number)
        self.units[first : first + units] = [0] * units
        return first, units

    def used(self) -> int:
        return sum(units for _, units in self.pieces.values())

    def has_room(self, units: int) -> bool:
        """Return whether a piece fits: into one chunk, or into consecutive empty chunks."""
        chunks = [self.units[at : at + UNITS] for at in range(0, len(self.units), UNITS)]
        if units <= UNITS:
            return any(
                not any(chunk[at : at + units])
                for chunk in chunks
                for at in range(UNITS - units + 1)
            )
        empty = "".join(" " if any(chunk) else "e" for chunk in chunks)
        return "e" * -(-units // UNITS) in empty

    def listed(self) -> list[tuple[int, int, int]]:
        """Return the expected kind, offset and length of all pieces."""
        return [
            (TABLE if number == 1 else LARGE, first * UNIT, units)
            for number, (first, units) in sorted(self.pieces.items(), key=lambda item: item[1])
        ]

    def table(self) -> bytes:
        """Return the expected table, if all pieces but the first are LARGE."""
        found = bytearray(len(self.units))
        for number, (first, units) in self.pieces.items():
            found[first : first + units] = bytes([MORE]) * units
            found[first] = TABLE if number == 1 else LARGE
        return bytes(found)


def pages(memory: MemoryRange) -> int:
    """Return the bytes of a memfd that have pages, according to the kernel."""
    return os.fstat(memory.fileno()).st_blocks * 512


def mapping(memory: MemoryRange) -> str:
    """Return the lines of /proc/self/smaps about the mapping of a memfd."""
    inode = os.fstat(memory.fileno()).st_ino
    text = Path("/proc/self/smaps").read_text()
    found = re.findall(rf"^[0-9a-f]+-[0-9a-f]+ .* {inode} +/memfd:.*\n(?:\w+:.*\n)+", text, re.M)
    assert len(found) == 1
    return str(found[0])


def addresses() -> int:
    """Return the bytes of this process's address space."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * PAGE


def opened(chunks: int, memfd: bool) -> FaultyMemoryRange:
    memory = FaultyMemoryRange(chunks * CHUNK, memfd=memfd)
    memory.open()
    return memory


# -- the model --

CHUNKS = 9
SIZES = [1, 2, 5, 6, 17, 31, 32, 33, 40, 64, 96, 250]
FAULTS = ["collapse", "populate", "remove", "punch", "dontneed", "protect", "map", "hugepage"]


class RangeMachine(RuleBasedStateMachine):
    """Any history of pieces, times and failures, in a range of 9 chunks."""

    @initialize(memfd=st.booleans())
    def begin(self, memfd: bool) -> None:
        self.memory = opened(CHUNKS, memfd)
        self.memfd = memfd
        self.model = Model(CHUNKS)
        self.now = 0
        self.may_fail = False

    def content(self, number: int) -> list[tuple[int, bytes]]:
        """Return what is written to the first and last bytes of each unit of a piece."""
        first, units = self.model.pieces[number]
        text = number.to_bytes(8, "little")
        starts = range(first * UNIT, (first + units) * UNIT, UNIT)
        return [(at + place, text) for at in starts for place in (0, UNIT - 8)]

    @rule(units=st.sampled_from(SIZES), huge=st.booleans())
    def take(self, units: int, huge: bool) -> None:
        try:
            offset = self.memory.take_now(units, LARGE, huge and units == UNITS)
        except OSError as error:
            assert error.errno == errno.ENOMEM
            assert self.may_fail or not self.model.has_room(units)
            return
        assert offset % UNIT == 0
        assert units < UNITS or offset % CHUNK == 0
        number = self.model.use(offset // UNIT, units)
        for at, text in self.content(number):
            self.memory.write(at, text)

    @precondition(lambda self: len(self.model.pieces) > 1)
    @rule(pick=st.integers(0, 1000), keep=st.booleans())
    def release(self, pick: int, keep: bool) -> None:
        numbers = sorted(self.model.pieces)[1:]
        number = numbers[pick % len(numbers)]
        for at, text in self.content(number):
            assert self.memory.bytes_at(at, 8) == text
        first, units = self.model.free(number)
        self.memory.release_now(first * UNIT, units, keep)

    @rule(passed=st.integers(1, 5), kept=st.integers(0, 10))
    def purge(self, passed: int, kept: int) -> None:
        self.now += passed
        self.memory.purge_now(self.now, self.now - kept)

    @rule(
        call=st.sampled_from(FAULTS),
        nth=st.integers(1, 4),
        times=st.integers(1, 40),
        error=st.sampled_from([errno.ENOMEM, errno.EAGAIN, errno.EFAULT]),
    )
    def fail(self, call: str, nth: int, times: int, error: int) -> None:
        self.memory.fault(call, error, nth, times)
        self.may_fail = True

    @rule()
    def work_again(self) -> None:
        self.memory.clear_faults()
        self.memory.tight = False
        # A call that failed may have left pages in chunks that are free otherwise.
        self.memory.purge_now(self.now, NEVER_BEFORE)
        self.may_fail = False

    @precondition(lambda self: self.memfd)
    @rule()
    def die(self) -> None:
        """The process ends, and another one adopts the memory."""
        before = self.memory.usage()
        adopted = FaultyMemoryRange(fd=os.dup(self.memory.fileno()))
        adopted.open()
        assert list(adopted.pieces()) == list(self.memory.pieces()) == self.model.listed()
        after = adopted.usage()
        assert (after["size"], after["used"]) == (before["size"], before["used"])
        assert after["damaged"] == 0
        assert after["used"] + after["idle"] <= after["backed"]
        if not self.may_fail:
            assert after["backed"] <= before["backed"]
        for number in self.model.pieces:
            if number != 1:
                assert all(adopted.bytes_at(at, 8) == text for at, text in self.content(number))
        self.memory = adopted
        self.now, self.may_fail = 0, False

    @rule()
    def be_tight(self) -> None:
        self.memory.tight = True
        self.may_fail = True

    @invariant()
    def agree(self) -> None:
        usage = self.memory.usage()
        assert usage["used"] == self.model.used() * UNIT
        assert usage["used"] + usage["idle"] <= usage["backed"] <= CHUNKS * CHUNK
        assert self.memory.bytes_at(0, CHUNKS * UNITS) == self.model.table()
        if self.memfd and not self.may_fail:
            assert pages(self.memory) <= usage["backed"]

    def teardown(self) -> None:
        if not hasattr(self, "memory"):
            return
        self.work_again()
        while len(self.model.pieces) > 1:
            self.release(0, True)
        self.memory.purge_now(self.now, NEVER_BEFORE)
        self.agree()
        assert self.memory.usage()["backed"] == CHUNK
        if self.memfd:
            assert pages(self.memory) == PAGE
        # All free chunks have become one again.
        assert self.memory.take_now((CHUNKS - 1) * UNITS) == CHUNK


TestAnyHistory = RangeMachine.TestCase
TestAnyHistory.settings = settings(max_examples=runs(60), stateful_step_count=40)


@pytest.mark.parametrize("share", [0.4, 0.9], ids=["half full", "full"])
def test_a_million_allocations_leak_nothing(share: float) -> None:
    """Sizes as in nsqd: mostly arenas and slabs, some large blocks, few very large ones."""
    chunks = 64
    memory = opened(chunks, memfd=True)
    memory.skip_advice()
    owners = bytearray(chunks * UNITS)
    owners[:UNITS] = b"\1" * UNITS
    pieces: list[tuple[int, int]] = []
    used, refused = UNITS, 0
    generator = random.Random(44)
    sizes = [1] * 12 + [32] * 4 + [5, 6, 9, 17, 17, 24, 33, 70]
    for step in range(runs(1_000_000)):
        if pieces and generator.random() < used / (2 * share * chunks * UNITS):
            at = generator.randrange(len(pieces))
            pieces[at], pieces[-1] = pieces[-1], pieces[at]
            first, units = pieces.pop()
            assert owners.count(1, first, first + units) == units
            owners[first : first + units] = bytes(units)
            memory.release_now(first * UNIT, units, step & 1 == 0)
            used -= units
        else:
            units = generator.choice(sizes)
            try:
                first = memory.take_now(units) // UNIT
            except OSError:
                refused += 1
                continue
            assert owners.count(0, first, first + units) == units, "two pieces overlap"
            owners[first : first + units] = b"\1" * units
            pieces.append((first, units))
            used += units
        if step & 1023 == 0:
            memory.purge_now(step, step - 4096)
            assert memory.usage()["used"] == used * UNIT
            assert memory.usage()["idle"] <= IDLE_LIMIT
    assert (refused > 1000) == (share > 0.5)
    for first, units in pieces:
        memory.release_now(first * UNIT, units)
    memory.purge_now(0, NEVER_BEFORE)
    assert memory.usage()["used"] == memory.usage()["backed"] == CHUNK
    assert memory.bytes_at(UNITS, (chunks - 1) * UNITS) == bytes((chunks - 1) * UNITS)
    assert memory.take_now((chunks - 1) * UNITS) == CHUNK


# -- opening --


def test_a_memfd_is_sealed_sparse_and_shared() -> None:
    memory = opened(1024, memfd=True)
    offset = memory.take_now(5)
    memory.write(offset, b"seen elsewhere")
    assert os.fstat(memory.fileno()).st_size == 1024 * CHUNK
    assert pages(memory) <= CHUNK + PAGE
    assert os.pread(memory.fileno(), 14, offset) == b"seen elsewhere"
    assert os.pread(memory.fileno(), 6, offset // UNIT) == bytes([LARGE, *[MORE] * 4, FREE])
    assert not os.get_inheritable(memory.fileno())
    for size in (0, 1 << 40):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.fileno(), size)


def test_a_core_dump_does_not_fill_a_memfd() -> None:
    flags = re.search(r"VmFlags:(.*)", mapping(opened(16, memfd=True)))
    assert flags
    assert "dd" in flags[1].split()


@memory_kinds
def test_a_range_of_the_usual_size_is_larger_than_the_memory(memfd: bool) -> None:
    memory = FaultyMemoryRange(memfd=memfd)
    memory.open()
    size = memory.usage()["size"]
    assert size >= os.sysconf("SC_PHYS_PAGES") * PAGE
    assert memory.usage()["used"] == -(-size // UNIT // CHUNK) * CHUNK
    assert memory.take_now(1) >= memory.usage()["used"] - UNIT


LIMITED = """
import resource, sys
from nsqcy.storage.core import MemoryRange

limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
memory = MemoryRange()
memory.open()
print(memory.usage()["size"] >> 20)
"""


@pytest.mark.skipif(SANITIZED, reason="the sanitizer needs terabytes of addresses")
@pytest.mark.parametrize(("limit", "size"), [(8192, 7168), (1023, 510)])
def test_a_limited_address_space_is_shared(limit: int, size: int) -> None:
    command = [sys.executable, "-c", LIMITED, str(limit)]
    assert int(subprocess.run(command, capture_output=True, check=True).stdout) == size


def test_a_small_address_space_is_shared() -> None:
    """If the addresses are not sufficient, others need some as well."""
    memory = FaultyMemoryRange()
    usual = FaultyMemoryRange()
    usual.open()
    memory.fault("map", errno.ENOMEM, times=3)
    memory.open()
    assert memory.usage()["size"] == usual.usage()["size"] // 8 // 4


@pytest.mark.parametrize("shift", [0, PAGE, UNIT, CHUNK - PAGE])
@memory_kinds
def test_addresses_are_aligned(memfd: bool, shift: int) -> None:
    """The block pool finds a slab by the address of its cells. Some kernels align mappings."""
    records, state = (FaultyMemoryRange(16 * CHUNK, memfd=memfd) for _ in range(2))
    for memory in (records, state):
        memory.shift_mappings(shift)
    core = Core(None, pool=BlockPool(1 << 40, records, state))
    consumer = core.client().subscribe("t", "c", 2500)
    client = core.client()
    for number in range(2000):
        client.publish("t", b"%d" % number)
    core.settle()
    for message in consumer.messages():
        consumer.finish(message.id)
    core.settle()
    assert core.counters("t", "c")["in_flight_count"] == core.pool.entries == 0
    core.shard.delete_topic(b"t")
    core.settle()
    assert core.pool.blocks == 0


@pytest.mark.parametrize("size", [1, CHUNK, 3 * CHUNK + UNIT, 1 << 50])
def test_a_size_that_makes_no_sense(size: int) -> None:
    with pytest.raises(OSError) as caught:
        MemoryRange(size).open()
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("memfd", "call", "nth"),
    [
        (True, "create", 1),
        (True, "resize", 1),
        (True, "seal", 1),
        (True, "map", 1),  # the addresses
        (True, "map", 2),  # the bookkeeping
        (True, "map", 3),  # the memfd
        (True, "dontdump", 1),
        (True, "seek", 1),  # the size
        (True, "seek", 2),  # the table
        (True, "seek", 3),  # the pages
        (True, "populate", 1),  # the table
        (False, "map", 1),
        (False, "map", 2),
        (False, "protect", 1),
    ],
)
def test_a_failure_to_open_leaves_nothing(memfd: bool, call: str, nth: int) -> None:
    memory = FaultyMemoryRange(LARGE_RANGE, memfd=memfd)
    before, size = os.listdir("/proc/self/fd"), addresses()
    memory.fault(call, errno.ENOMEM, nth)
    with pytest.raises(OSError, match=os.strerror(errno.ENOMEM)):
        memory.open()
    assert os.listdir("/proc/self/fd") == before
    assert addresses() < size + LARGE_RANGE
    assert memory.calls_made("close") == (memfd and memory.calls_made("resize"))
    with pytest.raises(OSError):
        memory.take_now(1)
    memory.open()
    assert memory.take_now(1) == memory.usage()["used"] - UNIT


@memory_kinds
def test_a_range_that_is_gone_leaves_nothing(memfd: bool) -> None:
    gc.collect()
    before, size = os.listdir("/proc/self/fd"), addresses()
    memory = FaultyMemoryRange(LARGE_RANGE, memfd=memfd)
    memory.open()
    memory.take_now(100)
    assert len(os.listdir("/proc/self/fd")) == len(before) + memfd
    assert addresses() > size + LARGE_RANGE
    del memory
    assert os.listdir("/proc/self/fd") == before
    assert addresses() < size + LARGE_RANGE


# -- filling --


def test_a_chunk_is_filled_before_it_is_used() -> None:
    memory = opened(16, memfd=True)
    memory.take_now(1)
    assert memory.usage()["collapsed"] + memory.usage()["populated"] == 1
    filled = pages(memory)
    memory.write(CHUNK, b"x" * UNIT)
    assert pages(memory) == filled, "the piece had pages already"
    if memory.usage()["collapsed"]:
        assert filled == CHUNK + PAGE
        huge = re.search(r"(?:ShmemPmdMapped|FilePmdMapped): +(\d+) kB", mapping(memory))
        assert huge and huge[1] == "2048"


def test_anonymous_memory_is_not_filled() -> None:
    memory = opened(16, memfd=False)
    memory.take_now(32, huge=True)
    memory.take_now(1)
    assert memory.calls_made("collapse") == memory.calls_made("populate") == 0
    assert memory.calls_made("hugepage") == 1
    memory.take_now(31)
    assert memory.calls_made("hugepage") == 1
    memory.take_now(70)
    assert memory.calls_made("hugepage") == 2, "for its whole chunks"


@pytest.mark.parametrize("units", [2, 11, 31, 33, 75])
def test_large_pieces_have_only_the_pages_that_they_need(units: int) -> None:
    memory = opened(16, memfd=True)
    memory.take_now(units)
    assert pages(memory) == PAGE + units * UNIT


@pytest.mark.parametrize(("units", "spare"), [(17, 60_000), (5, 4096), (32, 5_000), (40, 65_535)])
def test_the_last_unit_has_only_the_pages_that_it_needs(units: int, spare: int) -> None:
    memory = opened(16, memfd=True)
    memory.fault("collapse", errno.ENOMEM, times=FOREVER)
    offset = memory.take_now(units, spare=spare)
    assert pages(memory) == PAGE + units * UNIT - spare // PAGE * PAGE
    memory.release_now(offset, units, keep=True)
    assert memory.take_now(units) == offset
    assert pages(memory) == PAGE + units * UNIT


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOMEM, errno.EAGAIN, errno.EBUSY])
def test_small_pages_replace_a_huge_page(error: int) -> None:
    memory = opened(16, memfd=True)
    memory.fault("collapse", error, times=FOREVER)
    memory.take_now(5)
    assert pages(memory) == PAGE + 5 * UNIT
    assert memory.take_now(40) == 2 * CHUNK
    assert pages(memory) == PAGE + 45 * UNIT
    usage = memory.usage()
    assert (usage["collapsed"], usage["populated"]) == (0, 3)
    assert usage["backed"] == CHUNK + 45 * UNIT


def test_only_huge_pages_while_memory_is_short() -> None:
    memory = opened(16, memfd=True)
    memory.take_now(1)
    memory.tight = True
    memory.fault("collapse", errno.ENOMEM, times=FOREVER)
    before = pages(memory)
    for units in (32, 33, 5):
        if units == 5:  # there is room in a chunk that has pages
            memory.take_now(units)
            continue
        with pytest.raises(OSError, match="no piece"):
            memory.take_now(units)
    assert pages(memory) <= before + 5 * UNIT


@pytest.mark.parametrize("error", [errno.ENOMEM, errno.EFAULT, errno.EAGAIN])
@pytest.mark.parametrize(
    ("units", "nth"),
    [(3, 1), (32, 1), (32, 2), (35, 1), (35, 2), (35, 3), *((70, nth) for nth in range(1, 6))],
)
def test_a_lack_of_memory_is_an_error(error: int, nth: int, units: int) -> None:
    """EFAULT: the access would have been a SIGBUS."""
    memory = opened(16, memfd=True)
    memory.fault("collapse", errno.ENOMEM, times=FOREVER)
    before = pages(memory), memory.usage()["backed"]
    memory.fault("populate", error, nth)
    with pytest.raises(OSError) as caught:
        memory.take_now(units)
    assert caught.value.errno == errno.ENOMEM
    assert (pages(memory), memory.usage()["backed"]) == before
    assert memory.usage()["idle"] == 0
    assert memory.take_now(units) == CHUNK


def test_an_old_kernel_fills_when_memory_is_used() -> None:
    memory = opened(16, memfd=True)
    memory.fault("collapse", errno.EINVAL, times=FOREVER)
    memory.fault("populate", errno.EINVAL, times=FOREVER)
    offset = memory.take_now(40)
    memory.write(offset, b"x" * 40 * UNIT)
    assert pages(memory) == PAGE + 40 * UNIT


def test_the_table_has_its_pages_before_it_is_written() -> None:
    """A page of the table is for 128 chunks."""
    memory = opened(256, memfd=True)
    memory.skip_advice()
    memory.take_now(127 * UNITS)
    made = memory.calls_made("populate")
    memory.fault("populate", errno.ENOMEM, 2)
    with pytest.raises(OSError, match="no piece"):
        memory.take_now(1)
    assert memory.calls_made("populate") == made + 2
    assert memory.take_now(1) == 128 * CHUNK


def test_anonymous_memory_that_cannot_be_committed() -> None:
    memory = opened(16, memfd=False)
    memory.fault("protect", errno.ENOMEM, 2)
    with pytest.raises(OSError, match="no piece"):
        memory.take_now(100)
    assert memory.usage()["backed"] == CHUNK
    assert memory.take_now(100) == CHUNK


def test_a_long_piece_skips_the_runs_that_are_too_short() -> None:
    memory = opened(128, memfd=False)
    short, _, long, _ = (memory.take_now(chunks * UNITS) for chunks in (20, 1, 30, 76))
    memory.release_now(long, 30 * UNITS)
    memory.release_now(short, 20 * UNITS)
    assert memory.take_now(25 * UNITS) == long


@memory_kinds
def test_units_with_pages_are_taken_first(memfd: bool) -> None:
    memory = opened(16, memfd)
    first, _, last = (memory.take_now(units) for units in (10, 2, 10))
    memory.release_now(first, 10)
    memory.release_now(last, 10, keep=True)
    filled = memory.usage()["populated"]
    assert memory.take_now(10) == last
    assert memory.usage()["populated"] == filled


# -- giving back --


@memory_kinds
def test_pages_are_kept_for_a_while(memfd: bool) -> None:
    memory = opened(16, memfd)
    offset = memory.take_now(20)
    memory.write(offset, b"first")
    backed = memory.usage()["backed"]
    memory.purge_now(100, 90)
    memory.release_now(offset, 20, keep=True)
    memory.purge_now(105, 99)
    assert memory.usage()["backed"] == backed
    assert memory.take_now(20) == offset
    assert memory.bytes_at(offset, 5) == b"first"
    memory.release_now(offset, 20, keep=True)
    memory.purge_now(115, 105)
    assert memory.usage()["backed"] == CHUNK
    assert memory.usage()["idle"] == 0
    assert memory.take_now(20) == offset
    assert memory.bytes_at(offset, 5) == bytes(5)


@memory_kinds
def test_few_pages_are_kept(memfd: bool) -> None:
    memory = opened(64, memfd)
    pieces = [memory.take_now(30) for _ in range(40)]
    for offset in pieces:
        memory.release_now(offset, 30, keep=True)
        assert memory.usage()["idle"] <= IDLE_LIMIT
    assert memory.usage()["backed"] <= CHUNK + IDLE_LIMIT


@memory_kinds
def test_kept_chunks_do_not_prevent_a_large_piece(memfd: bool) -> None:
    memory = opened(5, memfd)
    pieces = [memory.take_now(32) for _ in range(4)]
    for offset in pieces:
        memory.release_now(offset, 32, keep=True)
    assert memory.take_now(128) == CHUNK


def test_part_of_a_chunk_is_given_back() -> None:
    memory = opened(16, memfd=True)
    first, second = memory.take_now(10), memory.take_now(10)
    memory.write(second, b"stays")
    before = pages(memory)
    memory.release_now(first, 10)
    assert pages(memory) == before - 10 * UNIT
    assert memory.bytes_at(second, 5) == b"stays"
    memory.release_now(second, 10)
    assert pages(memory) == PAGE


@pytest.mark.parametrize("used", [False, True], ids=["chunk", "part"])
def test_a_hole_is_punched_into_locked_memory(used: bool) -> None:
    memory = opened(16, memfd=True)
    offset = memory.take_now(20)
    if used:
        memory.take_now(3)
    before = pages(memory)
    memory.fault("remove", errno.EINVAL)
    memory.release_now(offset, 20)
    assert memory.calls_made("punch") == 1
    assert pages(memory) == (before - 20 * UNIT if used else PAGE)


@pytest.mark.parametrize("used", [False, True], ids=["chunk", "part"])
@memory_kinds
def test_pages_that_cannot_be_given_back_are_kept(memfd: bool, used: bool) -> None:
    memory = opened(16, memfd)
    offset = memory.take_now(20)
    if used:
        memory.take_now(3)
    before = memory.usage()["backed"]
    failing = ["remove", "punch"] if memfd else ["dontneed" if used else "map"]
    for call in failing:
        memory.fault(call, errno.ENOMEM, times=2)
    memory.release_now(offset, 20)
    memory.purge_now(10, 10)
    assert memory.usage()["backed"] == before
    assert memory.usage()["kept"] == 2
    assert memory.take_now(20) == offset, "the pages are used again"
    memory.release_now(offset, 20)
    assert memory.usage()["backed"] < before
    assert memory.usage()["idle"] == 0


def test_pages_of_a_failed_fill_are_given_back_later() -> None:
    memory = opened(16, memfd=True)
    memory.fault("collapse", errno.ENOMEM)
    memory.fault("populate", errno.ENOMEM, 2)
    memory.fault("remove", errno.EINVAL)
    memory.fault("punch", errno.EINVAL)
    with pytest.raises(OSError, match="no piece"):
        memory.take_now(32)
    assert pages(memory) > PAGE
    assert memory.usage()["kept"] == 1
    memory.purge_now(10, 10)
    assert pages(memory) == PAGE
    assert memory.usage()["backed"] == CHUNK


def test_units_that_lost_some_of_their_pages_are_filled_again() -> None:
    """A purge gives back one of two idle pieces, and then fails."""
    memory = opened(16, memfd=True)
    pieces = [memory.take_now(8) for _ in range(4)]
    before = pages(memory)
    for offset in pieces[:3:2]:
        memory.release_now(offset, 8, keep=True)
    memory.fault("remove", errno.ENOMEM, 2)
    memory.fault("punch", errno.ENOMEM)
    memory.purge_now(10, 10)
    assert pages(memory) == before - 8 * UNIT
    assert memory.usage()["idle"] == 8 * UNIT
    assert sorted(memory.take_now(8) for _ in range(2)) == pieces[:3:2]
    assert pages(memory) == before


def test_idle_units_are_filled_again() -> None:
    memory = opened(16, memfd=True)
    offset = memory.take_now(8)
    before = pages(memory)
    memory.release_now(offset, 8, keep=True)
    assert memory.thin_now(offset, 4 * UNIT) == 0
    assert memory.take_now(8) == offset
    assert pages(memory) == before


def test_idle_units_that_cannot_be_filled_are_given_back() -> None:
    memory = opened(16, memfd=True)
    first, _ = memory.take_now(5), memory.take_now(5)
    before = pages(memory)
    memory.release_now(first, 5, keep=True)
    memory.fault("populate", errno.ENOMEM)
    with pytest.raises(OSError, match="no piece"):
        memory.take_now(5)
    assert memory.usage()["idle"] == 0
    assert pages(memory) == before - 5 * UNIT
    assert memory.usage()["backed"] == CHUNK + 5 * UNIT
    assert memory.take_now(5) == first


def test_a_whole_chunk_does_not_keep_a_few_small_pages() -> None:
    probe = opened(16, memfd=True)
    probe.take_now(1)
    memory = opened(16, memfd=True)
    memory.release_now(memory.take_now(5), 5, keep=True)
    assert memory.usage()["collapsed"] == 0
    memory.take_now(32)
    assert memory.usage()["collapsed"] == probe.usage()["collapsed"]
    assert memory.usage()["idle"] == 0


@memory_kinds
def test_an_arena_is_thinned_and_refilled(memfd: bool) -> None:
    memory = opened(16, memfd)
    arena = memory.take_now(32, ARENA, huge=True)
    memory.write(arena, b"x" * CHUNK)
    before = pages(memory) if memfd else 0
    advice = memory.calls_made("hugepage")
    assert memory.thin_now(arena + PAGE, 4 * UNIT - PAGE) == 0
    assert memory.bytes_at(arena, 2 * PAGE) == b"x" * PAGE + bytes(PAGE)
    assert memory.bytes_at(arena + 4 * UNIT, 1) == b"x"
    made = memory.calls_made("collapse")
    assert memory.refill_now(arena, 4 * UNIT) == (0 if memfd else 1)
    assert memory.calls_made("collapse") == made
    assert memory.calls_made("hugepage") == advice + (0 if memfd else 2)
    if memfd:
        assert pages(memory) == before
        memory.fault("populate", errno.ENOMEM)
        assert memory.refill_now(arena, 4 * UNIT) == -1
        memory.tight = True
        assert memory.refill_now(arena, 4 * UNIT) == -1


# -- the block pool --


class Pool:
    """The memories of a core."""

    def __init__(self, memfd: bool) -> None:
        self.records, self.state = (FaultyMemoryRange(256 * CHUNK, memfd=memfd) for _ in range(2))
        pool = BlockPool(1 << 40, self.records, self.state)
        self.core = Core(None, pool=pool, max_msg_size=10 << 20, max_body_size=10 << 20)
        self.core.advance(SECOND)

    @property
    def both(self) -> list[FaultyMemoryRange]:
        return [self.records, self.state]


def kinds(memory: FaultyMemoryRange) -> set[int]:
    return set(memory.bytes_at(0, memory.usage()["size"] // UNIT))


@memory_kinds
@pytest.mark.parametrize("which", [0, 1], ids=["records", "state"])
def test_a_pool_opens_its_memory(memfd: bool, which: int) -> None:
    memories = [FaultyMemoryRange(64 * CHUNK, memfd=memfd) for _ in range(2)]
    memories[which].fault("map", errno.ENOMEM)
    with pytest.raises(OSError, match="cannot reserve addresses"):
        BlockPool(1 << 30, *memories)
    pool = BlockPool(1 << 30, *memories)
    assert [pool.records, pool.state] == memories
    assert [memory.usage()["size"] for memory in memories] == [64 * CHUNK] * 2
    usual = BlockPool(1 << 30)
    assert not usual.records.memfd
    assert not usual.state.memfd


@memory_kinds
def test_a_pool_begins_with_the_head_of_its_state(memfd: bool) -> None:
    pool = Pool(memfd)
    assert kinds(pool.records) == {FREE, TABLE, MORE}
    assert kinds(pool.state) == {FREE, TABLE, MORE, HEAD}
    assert list(pool.state.pieces()) == [(TABLE, 0, UNITS), (HEAD, CHUNK, 1)]


def test_a_pool_without_memory_for_its_head() -> None:
    state = FaultyMemoryRange(16 * CHUNK, memfd=True)
    state.open()
    state.fault("collapse", errno.ENOMEM)
    state.fault("populate", errno.ENOMEM)
    with pytest.raises(MemoryError):
        BlockPool(1 << 30, state=state)
    assert kinds(state) == {FREE, TABLE, MORE}


def test_messages_lie_in_the_memory_of_their_pool() -> None:
    pool = Pool(memfd=True)
    client = pool.core.client()
    consumer = pool.core.client().subscribe("t", "c", 10)
    small, large = b"a small body" * 10, b"a large body" * 50_000
    client.publish("t", small)
    client.publish("t", large)
    client.publish("t", b"deferred", 1000)
    pool.core.settle()
    assert len(consumer.messages()) == 2
    assert kinds(pool.records) == {FREE, TABLE, MORE, LARGE, ARENA, ARENA + 1}
    assert kinds(pool.state) == {FREE, TABLE, MORE, HEAD, ENTRIES, PAGES, BLOCKS}
    content = os.pread(pool.records.fileno(), 16 * CHUNK, 0)
    assert small in content
    at = content.index(large) // UNIT
    assert content[at] == LARGE
    assert content[at + 1] == MORE


@memory_kinds
def test_a_pool_keeps_one_slab_of_each_kind_and_gives_back_everything_else(memfd: bool) -> None:
    pool = Pool(memfd)
    client = pool.core.client()
    for body in [b"x" * 100, b"x" * 5_000, b"x" * 190_000, b"x" * 700_000] * 30:
        assert client.publish("t", body) == (RESPONSE, b"OK")
        assert client.publish("t", body, 100_000) == (RESPONSE, b"OK")
    assert pool.records.usage()["used"] > 60 * 890_000
    pool.core.shard.delete_topic(b"t")
    for _ in range(40):
        pool.core.advance(SECOND)
    assert kinds(pool.records) == {FREE, TABLE, MORE}
    assert pool.records.usage()["used"] == pool.records.usage()["backed"] == CHUNK
    assert kinds(pool.state) == {FREE, TABLE, MORE, HEAD, ENTRIES, BLOCKS}
    assert pool.state.usage()["used"] == CHUNK + 3 * UNIT
    assert pool.state.usage()["backed"] <= 2 * CHUNK


@memory_kinds
def test_slabs_in_memory_that_was_used(memfd: bool) -> None:
    """Cells begin without an owner, whatever their pages contained."""
    pool = Pool(memfd)
    core = pool.core
    client = core.client()
    offset = pool.state.take_now(20)
    pool.state.write(offset, b"\xff" * 20 * UNIT)
    pool.state.release_now(offset, 20, keep=True)
    idle = pool.state.usage()["idle"]
    consumer = core.client().subscribe("t", "c", 2500)
    for number in range(2500):
        client.publish("t", b"%d" % number)
        client.publish("t", b"%d" % number, 100_000)
    core.settle()
    assert pool.state.usage()["idle"] < idle
    messages = consumer.messages()
    assert len(messages) == 2500
    assert core.pool.entries == core.pool.deferred == 2500
    for message in messages:
        consumer.finish(message.id)
    core.shard.delete_topic(b"t")
    core.settle()
    assert not any(core.live().values())


@memory_kinds
def test_a_publish_without_memory_changes_nothing(memfd: bool) -> None:
    """Bodies of all sizes: they need an arena, or a separate block, or neither."""
    pool = Pool(memfd)
    core = pool.core
    client = core.client()
    assert client.publish("t", b"first") == (RESPONSE, b"OK")
    refused = 0
    for size in [100, 3_000, 30_000, 190_000, 300_000, 3_000_000]:
        for memory in pool.both:
            for call in ("populate", "protect"):
                memory.fault(call, errno.ENOMEM, times=FOREVER)
        before = core.live()
        try:
            client.publish("t", b"x" * size)
        except MemoryError:
            refused += 1
            assert core.live() == before
            client = core.client()
        for memory in pool.both:
            memory.clear_faults()
        assert client.publish("t", b"y" * size) == (RESPONSE, b"OK")
    assert refused >= 3
    consumer = core.client().subscribe("t", "c", 100)
    core.settle()
    sizes = [len(message.body) for message in consumer.messages() if message.body[:1] != b"x"]
    assert sizes == [5, 100, 3_000, 30_000, 190_000, 300_000, 3_000_000]


@memory_kinds
def test_blocks_of_an_arena_that_was_thinned(memfd: bool) -> None:
    pool = Pool(memfd)
    memory, core = pool.records, pool.core
    client = core.client()
    body = b"." * 190_000
    for _ in range(8):
        client.publish("kept", body)
        for _ in range(7):
            client.publish("deleted", body)
    full = pages(memory) if memfd else 0
    core.shard.delete_topic(b"deleted")
    core.settle()
    for _ in range(15):
        core.advance(SECOND)
    thin = pages(memory) if memfd else 0
    if memfd:
        assert thin < full / 3
        memory.fault("populate", errno.ENOMEM, times=FOREVER)
        with pytest.raises(MemoryError):
            client.publish("again", b"!" * 190_000)
        memory.clear_faults()
    client = core.client()
    for number in range(40):
        assert client.publish("again", b"%06d" % number * 30_000) == (RESPONSE, b"OK")
    for topic, count in ("kept", 8), ("again", 40):
        consumer = core.client().subscribe(topic, "c", 100)
        core.settle()
        found = [message.body for message in consumer.messages()]
        expected = [body] * 8 if topic == "kept" else [b"%06d" % n * 30_000 for n in range(40)]
        assert found == expected
        assert len(found) == count
