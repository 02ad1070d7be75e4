"""The memory of a dead process: a range adopts it, whatever the process did last, and whatever has
happened to its table.
"""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nsqcy.storage.core import MemoryRange, create_memory
from nsqcy.storage.memory_faults import FaultyMemoryRange
from support.runs import runs
from support.sanitizer import SANITIZED

UNIT = 65536
UNITS = 32  # of a chunk
CHUNK = UNITS * UNIT
FREE, TABLE, MORE, ENTRIES, PAGES, HEAD, LARGE, LONG_NOTE, IDS, ARENA = (
    0,
    1,
    2,
    4,
    5,
    11,
    12,
    13,
    14,
    16,
)
"""Values of enum UnitKind."""
SLABS = [*range(3, HEAD + 1), IDS]  # kinds of pieces that have one unit
CHUNKS = 16
PAGE = 4096
FOREVER = 1 << 40
NEVER_BEFORE = 1 << 62

Piece = tuple[int, int, int]
OWN = (TABLE, 0, UNITS)


def created(chunks: int = CHUNKS) -> FaultyMemoryRange:
    memory = FaultyMemoryRange(fd=create_memory(chunks * CHUNK))
    memory.open()
    return memory


def adopt(memory: MemoryRange) -> FaultyMemoryRange:
    """Return a range over the same memfd, as if the process of the first one were dead."""
    adopted = FaultyMemoryRange(fd=os.dup(memory.fileno()))
    adopted.open()
    return adopted


def pages(memory: MemoryRange) -> int:
    """Return the bytes of a memfd that have pages, according to the kernel."""
    return os.fstat(memory.fileno()).st_blocks * 512


def write_table(memory: MemoryRange, unit: int, kinds: list[int]) -> None:
    os.pwrite(memory.fileno(), bytes(kinds), unit)


def table(memory: MemoryRange, chunks: int = CHUNKS) -> bytes:
    return os.pread(memory.fileno(), chunks * UNITS, 0)


def sound(kind: int, unit: int, units: int) -> bool:
    """Return whether a piece of this kind may lie there."""
    if kind in SLABS:
        return units == 1
    if ARENA <= kind < ARENA + 7:
        return units == UNITS and unit % UNITS == 0
    return kind in (LARGE, LONG_NOTE) and (unit % UNITS == 0 or unit % UNITS + units <= UNITS)


def read_table(content: bytes) -> tuple[list[Piece], int]:
    """Return the pieces that a table has, and the number of damaged entries."""
    heads = [at for at, kind in enumerate(content) if kind != MORE]
    pieces, damaged = [OWN], 0
    for at in heads:
        end = at + 1
        while end < len(content) and content[end] == MORE:
            end += 1
        kind, units = content[at], end - at
        if kind == FREE or (kind, at, units) == OWN:
            continue
        if at >= UNITS and sound(kind, at, units):
            pieces.append((kind, at * UNIT, units))
        else:
            damaged += 1
    return pieces, damaged


def release_all(memory: FaultyMemoryRange) -> None:
    """Check that nothing remains if all pieces are released."""
    for _, offset, units in list(memory.pieces())[1:]:
        memory.release_now(offset, units)
    memory.purge_now(0, NEVER_BEFORE)
    assert list(memory.pieces()) == [OWN]
    assert memory.usage()["used"] == memory.usage()["backed"] == CHUNK
    assert pages(memory) == PAGE
    assert memory.take_now((CHUNKS - 1) * UNITS) == CHUNK


# -- opening --


def test_a_new_memfd_is_sealed_and_empty() -> None:
    fd = create_memory(CHUNKS * CHUNK)
    assert os.fstat(fd).st_size == CHUNKS * CHUNK
    assert not os.get_inheritable(fd)
    for size in (0, 1 << 40):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, size)
    memory = MemoryRange(fd=fd)
    memory.open()
    assert memory.memfd
    assert memory.fileno() == fd
    assert list(memory.pieces()) == [OWN]
    assert pages(memory) == PAGE
    del memory
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_a_memfd_of_the_usual_size() -> None:
    usual = MemoryRange()
    usual.open()
    memory = MemoryRange(fd=create_memory())
    memory.open()
    assert memory.usage()["size"] == usual.usage()["size"]
    assert pages(memory) == -(-memory.usage()["used"] // UNIT // PAGE) * PAGE


@pytest.mark.parametrize("size", [1, CHUNK, 3 * CHUNK + UNIT, 1 << 50])
def test_a_memfd_of_an_invalid_size(size: int) -> None:
    with pytest.raises(OSError, match="cannot reserve addresses") as caught:
        create_memory(size)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize("file_size", [0, CHUNK, 5 * CHUNK + 1])
def test_a_file_of_an_invalid_size(file_size: int) -> None:
    fd = os.memfd_create("test")
    os.ftruncate(fd, file_size)
    with pytest.raises(OSError, match="cannot reserve addresses") as caught:
        MemoryRange(fd=fd).open()
    assert caught.value.errno == errno.EINVAL
    os.close(fd)


def test_a_memfd_of_another_size() -> None:
    fd = create_memory(CHUNKS * CHUNK)
    memory = MemoryRange(2 * CHUNKS * CHUNK, fd=fd)
    with pytest.raises(OSError, match="cannot reserve addresses") as caught:
        memory.open()
    assert caught.value.errno == errno.EINVAL
    MemoryRange(CHUNKS * CHUNK, fd=fd).open()


@pytest.mark.parametrize("call", ["map", "dontdump", "seek", "populate"])
def test_a_failure_to_adopt_changes_nothing(call: str) -> None:
    memory = created()
    piece = LARGE, memory.take_now(7), 7
    fd = os.dup(memory.fileno())
    for nth in range(1, 20):
        adopted = FaultyMemoryRange(fd=fd)
        adopted.fault(call, errno.ENOMEM, nth)
        try:
            adopted.open()
        except OSError as error:
            assert error.errno == errno.ENOMEM
            assert os.fstat(fd).st_size == CHUNKS * CHUNK
            continue
        assert nth > 1
        break
    assert list(adopted.pieces()) == [OWN, piece]


# -- what a process may leave --


def test_pieces_are_adopted_with_their_contents() -> None:
    memory = created()
    sizes = [(ENTRIES, 1), (PAGES, 1), (LARGE, 9), (ARENA + 6, 32), (LARGE, 70), (HEAD, 1)]
    sizes += [(LONG_NOTE, 3)]
    pieces = [(kind, memory.take_now(units, kind), units) for kind, units in sizes]
    for kind, offset, units in pieces:
        memory.write(offset, bytes([kind]) * units * UNIT)
    before = pages(memory), table(memory)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == [OWN, *sorted(pieces, key=lambda piece: piece[1])]
    assert (pages(adopted), table(adopted)) == before, "holes remain holes"
    for kind, offset, units in pieces:
        assert adopted.bytes_at(offset, units * UNIT) == bytes([kind]) * units * UNIT
    taken = adopted.take_now(3)
    assert taken not in {offset for _, offset, _ in pieces}
    adopted.release_now(taken, 3)
    release_all(adopted)


def test_the_pages_of_a_released_chunk_are_given_back() -> None:
    """The process died after it had cleared the table, and before it gave back the pages."""
    memory = created()
    offset = memory.take_now(64)
    memory.write(offset, b"x" * 64 * UNIT)
    kept = memory.take_now(32)
    write_table(memory, offset // UNIT, [FREE] * 64)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == [OWN, (LARGE, kept, 32)]
    assert adopted.usage()["backed"] == 2 * CHUNK
    assert pages(adopted) == PAGE + CHUNK
    assert adopted.bytes_at(offset, 8) == bytes(8)


def test_pages_that_cannot_be_given_back_yet() -> None:
    memory = created()
    offset = memory.take_now(64)
    write_table(memory, offset // UNIT, [FREE] * 64)
    adopted = FaultyMemoryRange(fd=os.dup(memory.fileno()))
    adopted.fault("remove", errno.EINVAL, times=FOREVER)
    adopted.fault("punch", errno.EINVAL, times=FOREVER)
    adopted.open()
    assert adopted.usage()["kept"] == 2
    assert adopted.usage()["idle"] == 2 * CHUNK
    adopted.clear_faults()
    adopted.purge_now(10, 10)
    assert pages(adopted) == PAGE
    release_all(adopted)


def test_pages_between_pieces_are_idle() -> None:
    memory = created()
    memory.fault("collapse", errno.ENOMEM, times=FOREVER)
    first, second, last = (memory.take_now(6) for _ in range(3))
    before = pages(memory)
    write_table(memory, second // UNIT, [FREE] * 6)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == [OWN, (LARGE, first, 6), (LARGE, last, 6)]
    assert adopted.usage()["idle"] == 6 * UNIT
    adopted.purge_now(10, 10)
    assert pages(adopted) == before - 6 * UNIT
    release_all(adopted)


def test_the_rest_of_a_huge_page_is_no_hole() -> None:
    memory = created()
    memory.take_now(1, ENTRIES)
    if not memory.usage()["collapsed"]:
        pytest.skip("this kernel has no huge page")
    adopted = adopt(memory)
    adopted.purge_now(10, 10)
    assert pages(adopted) == PAGE + CHUNK
    assert adopted.usage()["backed"] == 2 * CHUNK
    assert adopted.usage()["idle"] == 0
    assert adopted.take_now(1, ENTRIES) == CHUNK + UNIT
    assert adopted.calls_made("collapse") == 0
    assert adopted.calls_made("populate") == 1, "for the table"
    release_all(adopted)


def test_a_piece_that_was_being_taken_or_released_is_free() -> None:
    """The first unit is written last, and cleared first."""
    memory = created()
    first = memory.take_now(4)
    units = [FREE, MORE, MORE, FREE, MORE]
    write_table(memory, first // UNIT + 4, units)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == [OWN, (LARGE, first, 4)]
    assert adopted.usage()["damaged"] == 0
    assert table(adopted)[first // UNIT + 4 :][: len(units)] == bytes(len(units))


# A child takes and releases pieces, and stops before each instruction. The table always contains
# only whole pieces, and all their pages exist. The output is the child's status, the lengths of the
# pieces that were seen, and the number of states of the table.
STEPS = """
import ctypes, mmap, os, signal, sys
from nsqcy.storage.core import create_memory
from nsqcy.storage.memory_faults import FaultyMemoryRange

UNIT, UNITS, LARGE = 65536, 32, 12
TRACE_ME, SINGLE_STEP = 0, 9
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
fd = create_memory(16 * UNITS * UNIT)
memory = FaultyMemoryRange(fd=fd)
memory.open()
memory.take_now(3)
current = mmap.mmap(-1, 1)  # the units of the piece that the child takes and releases

child = os.fork()
if child == 0:
    if ptrace(TRACE_ME, 0, 0, 0) < 0:
        os._exit(77)
    memory.fault("collapse", 12, times=1 << 40)
    os.kill(os.getpid(), signal.SIGSTOP)
    for units in [1, 5, 27, 32, 70]:
        current[0] = units
        memory.release_now(memory.take_now(units), units)
    os._exit(0)


def pieces(table):
    at = UNITS
    while at < len(table):
        end = at + 1
        while table[at] > 2 and end < len(table) and table[end] == 2:
            end += 1
        if table[at] > 2:
            yield table[at], at, end - at
        at = end


states, seen, found = 0, b"", set()
while True:
    _, status = os.waitpid(child, 0)
    if not os.WIFSTOPPED(status):
        break
    table = os.pread(fd, 16 * UNITS, 0)
    if table != seen:
        seen = table
        states += 1
        here = list(pieces(table))
        if (LARGE, UNITS, 3) not in here:
            sys.exit(f"lost: {here}")
        for kind, at, units in here:
            if kind != LARGE or units != (3 if at == UNITS else current[0]):
                sys.exit(f"not a piece: {kind} {at} {units}")
            found.add(units)
            if os.lseek(fd, at * UNIT, os.SEEK_HOLE) < (at + units) * UNIT:
                sys.exit(f"a piece without pages: {at} {units}")
    if ptrace(SINGLE_STEP, child, 0, 0) < 0:
        sys.exit("cannot step")
if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 77:
    print("no ptrace")
else:
    print(status, sorted(found), states)
"""


@pytest.mark.skipif(SANITIZED, reason="a sanitized process has too many instructions")
def test_a_death_at_any_instruction_leaves_whole_pieces(tmp_path: Path) -> None:
    script = tmp_path / "steps.py"
    script.write_text(STEPS)
    answer = subprocess.run([sys.executable, script], capture_output=True, text=True)
    if answer.stdout == "no ptrace\n":
        pytest.skip("ptrace is not permitted here")
    assert answer.returncode == 0, answer.stderr
    status, found = answer.stdout.rsplit(maxsplit=1)[0].split(maxsplit=1)
    assert (status, found) == ("0", "[1, 3, 5, 27, 32, 70]")
    assert int(answer.stdout.split()[-1]) >= 10


# -- damage --


@pytest.mark.parametrize(
    ("unit", "kinds"),
    [
        (32, [ENTRIES, MORE]),
        (32, [ARENA] + [MORE] * 30),
        (33, [ARENA] + [MORE] * 31),
        (32, [ARENA + 7] + [MORE] * 31),
        (60, [LARGE] + [MORE] * 4),
        (40, [LARGE] + [MORE] * 40),
        (40, [255]),
        (40, [TABLE]),
        (40, [6, MORE]),
        (3, [LARGE]),
        (0, [LARGE]),
        (5, [77]),
        (CHUNKS * UNITS - 1, [IDS + 1]),
        (40, [HEAD, MORE]),
    ],
)
def test_damaged_entries_become_free(unit: int, kinds: list[int]) -> None:
    memory = created()
    write_table(memory, unit, kinds)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == [OWN]
    assert adopted.usage()["damaged"] == (2 if 0 < unit < UNITS else 1), "the table's own, too"
    assert table(adopted) == table(created())
    release_all(adopted)


entries = st.tuples(
    st.integers(0, CHUNKS * UNITS - 1),
    st.lists(
        st.one_of(
            st.sampled_from([FREE, TABLE, MORE, MORE, ENTRIES, HEAD, LARGE, LONG_NOTE, ARENA]),
            st.integers(0, 255),
        ),
        min_size=1,
        max_size=80,
    ),
)


@settings(max_examples=runs(80))
@given(
    st.lists(st.sampled_from([1, 1, 1, 2, 9, 32, 40, 64]), max_size=20),
    st.lists(entries, max_size=12),
)
@example([], [(UNITS, [LARGE] + [MORE] * ((CHUNKS - 1) * UNITS - 1))])
def test_any_table_is_adopted(sizes: list[int], damage: list[tuple[int, list[int]]]) -> None:
    memory = created()
    for units in sizes:
        with contextlib.suppress(OSError):  # the range is full
            memory.take_now(units)
    for unit, kinds in damage:
        write_table(memory, unit, kinds[: CHUNKS * UNITS - unit])
    pieces, damaged = read_table(table(memory))
    before = pages(memory)
    adopted = adopt(memory)
    assert list(adopted.pieces()) == pieces
    usage = adopted.usage()
    assert usage["damaged"] == damaged
    assert usage["used"] == sum(units for _, _, units in pieces) * UNIT
    assert usage["used"] + usage["idle"] <= usage["backed"]
    assert pages(adopted) <= before
    assert read_table(table(adopted)) == (pieces, 0)
    assert list(adopt(adopted).pieces()) == pieces
    release_all(adopted)
