"""Message ids: their layout and uniqueness."""

import mmap
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference.ids
from nsqcy.base.core import IdSource, format_id, parse_id

NOW = 1_790_000_000_000_000_000
EPOCH_TICKS = 1288834974288


def lease_word() -> memoryview:
    return memoryview(mmap.mmap(-1, 4096))[64:72]


def test_layout():
    id = IdSource(lease_word(), 5).next_id(NOW)
    assert id >> 22 == (NOW >> 20) - EPOCH_TICKS
    assert id >> 12 & 1023 == 5
    assert id & 4095 == 0


def test_ids_carry_the_current_time():
    source = IdSource(lease_word(), 0)
    for tick in range(20):
        wall = NOW + (tick << 20)
        assert source.next_id(wall) >> 22 == (wall >> 20) - EPOCH_TICKS


def test_a_used_up_tick_runs_ahead_of_the_clock():
    source = IdSource(lease_word(), 1)
    ids = [source.next_id(NOW) for _ in range(3 * 4096)]
    ticks = [id >> 22 for id in ids]
    assert ids == sorted(set(ids))
    assert ticks[-1] == ticks[0] + 2


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("next"),
            st.integers(0, 2),
            st.integers(-(1 << 24), 1 << 24),
            st.integers(1, 5000),
        ),
        st.tuples(st.just("lift"), st.integers(0, 2), st.integers(-5, 5)),
    ),
    max_size=12,
)


@given(STEPS)
def test_three_sources_do_what_the_twin_does(steps):
    word, twin_word = lease_word(), reference.ids.LeaseWord()
    sources = [IdSource(word, 7) for _ in range(3)]
    twins = [reference.ids.IdSource(twin_word, 7) for _ in range(3)]
    last, seen, wall = [-1, -1, -1], set(), NOW
    for step in steps:
        who = step[1]
        if step[0] == "lift":
            id = ((wall >> 20) - EPOCH_TICKS + step[2]) << 22
            sources[who].raise_above(id)
            twins[who].raise_above(id)
            continue
        wall += step[2]
        for _ in range(step[3]):
            id = sources[who].next_id(wall)
            assert id == twins[who].next_id(wall)
            assert id > last[who]
            assert id not in seen
            last[who] = id
            seen.add(id)


@pytest.mark.parametrize("wall", [0, -1, -(1 << 62), EPOCH_TICKS << 20])
def test_a_clock_before_the_epoch_is_harmless(wall):
    source = IdSource(lease_word(), 0)
    ids = [source.next_id(wall) for _ in range(5000)]
    assert ids == sorted(set(ids))
    assert 0 <= ids[0] < ids[-1] < 1 << 63


def test_start_past_the_largest_id_on_disk():
    word = lease_word()
    source, other = IdSource(word, 0), IdSource(word, 0)
    largest = source.next_id(NOW) + (1000 << 22)
    source.raise_above(largest)
    assert source.next_id(NOW) > largest
    assert other.next_id(NOW) > largest
    source.raise_above(0)
    assert source.next_id(NOW) > largest


def test_threads_never_share_an_id():
    word = lease_word()
    made: list[list[int]] = [[] for _ in range(4)]

    def run(out: list[int]) -> None:
        source = IdSource(word, 3)
        out.extend(source.next_id(NOW) for _ in range(50_000))

    threads = [threading.Thread(target=run, args=(out,)) for out in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id for out in made for id in out}) == 200_000


@pytest.mark.parametrize("node", [-1, 1024])
def test_node_id_range(node):
    with pytest.raises(ValueError, match=r"\[0,1024\)"):
        IdSource(lease_word(), node)


def test_lease_word_must_be_eight_aligned_writable_bytes():
    page = memoryview(mmap.mmap(-1, 4096))
    for bad in (page[:16], page[1:9], bytes(8)):
        with pytest.raises((ValueError, BufferError)):
            IdSource(bad, 0)


@given(st.integers(0, 2**64 - 1))
def test_hex_there_and_back(id):
    text = b"%016x" % id
    assert format_id(id) == text
    assert parse_id(text) == id


NEARLY_DIGITS = st.text("0123456789abcdefABCDEF/:`g", min_size=16, max_size=16)


@given(st.binary(min_size=15, max_size=17) | NEARLY_DIGITS)
def test_only_sixteen_lower_case_digits_are_an_id(text):
    text = text if isinstance(text, bytes) else text.encode()
    valid = len(text) == 16 and all(c in b"0123456789abcdef" for c in text)
    assert parse_id(text) == (int(text, 16) if valid else None)


@pytest.mark.parametrize("bad", range(256))
def test_every_byte_that_is_no_digit_is_refused(bad):
    for at in range(16):
        text = bytearray(b"0123456789abcdef")
        text[at] = bad
        assert (parse_id(text) is not None) == (bad in b"0123456789abcdef")
