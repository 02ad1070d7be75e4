"""The ids of a topic, beside a slow model: which ids count, and what files of ids contain."""

import random
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.broker.core import Once

SECOND = 1_000_000_000
WALL = 1_700_000_000 * SECOND
WINDOW = 60 * SECOND
MANY = 1 << 40


def hash_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


class Model:
    """The same, slowly: (time, seq, id) in the order of the publishes."""

    def __init__(self, maximum: int) -> None:
        self.known: list[tuple[int, int, int]] = []
        self.maximum = maximum

    def publish(self, id: int, wall: int, seq: int) -> bool:
        for time, _, other in self.known:
            if other == id and abs(time - wall) < WINDOW:
                return False
        self.known = [each for each in self.known if each[2] != id]
        self.known.append((wall, seq, id))
        if len(self.known) > self.maximum:
            self.known.pop(0)
        return True

    def forget_from(self, seq: int) -> None:
        self.known = [each for each in self.known if each[1] < seq]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("publish"), st.integers(0, 30)),
            st.tuples(st.just("wait"), st.sampled_from([1, 20, 59, 60, 61, 1000])),
            st.tuples(st.just("back"), st.sampled_from([1, 59, 60, 100])),
            st.tuples(st.just("undo"), st.integers(0, 5)),
            st.tuples(st.just("file"), st.just(0)),
            st.tuples(st.just("tick"), st.just(0)),
        ),
        max_size=120,
    )
)
def test_the_table_knows_what_the_model_knows(steps: list[tuple[str, int]]) -> None:
    once, model = Once(WINDOW, MANY), Model(MANY)
    wall, seq, filed = WALL, 1, 1
    for step, value in steps:
        if step == "publish":
            fresh = model.publish(value, wall, seq)
            assert once.publish(hash_of(value), wall, seq) == fresh
            seq += fresh
        elif step == "wait":
            wall += value * SECOND
        elif step == "back":
            wall -= value * SECOND
            # An id may be forgotten while it does not count, and would count again after this.
            model.known = [each for each in model.known if abs(each[0] - wall) < WINDOW]
            if value >= 59:
                return
        elif step == "undo":
            seq = max(filed, seq - value)
            once.forget_from(seq)
            model.forget_from(seq)
        elif step == "file":
            once.file(seq)
            filed = seq
        else:
            once.tick(wall)


def test_a_large_table_grows_and_shrinks() -> None:
    once = Once(WINDOW, MANY)
    count = 30_000
    for i in range(count):
        assert once.publish(hash_of(i), WALL + i, i + 1)
    assert len(once) == count
    assert once.memory_bytes / count <= 40
    once.file(count + 1)
    chance = random.Random(1)
    for _ in range(3000):
        assert not once.publish(hash_of(chance.randrange(count)), WALL + count, 0)
    now = WALL + WINDOW
    for i in range(count):
        assert once.publish(hash_of(count + i), now + i, count + i + 1)
        assert len(once) <= count + 1
    for _ in range(5):
        once.tick(now + 2 * WINDOW)
    once.file(2 * count + 1)
    for _ in range(5):
        once.tick(now + 2 * WINDOW)
    assert len(once) == 0
    assert once.memory_bytes < 300_000


@given(st.lists(st.integers(0, 25), max_size=80))
def test_above_the_maximum_the_oldest_go_early(ids: list[int]) -> None:
    once, model = Once(WINDOW, 10), Model(10)
    early = 0
    for seq, id in enumerate(ids, 1):
        before = len(model.known)
        fresh = model.publish(id, WALL, seq)
        assert once.publish(hash_of(id), WALL, seq) == fresh
        early += fresh and before == 10
        assert len(once) <= 10
    assert once.early == early


def files_of(once: Once, seq: int) -> bytes:
    whole = b""
    while (batch := once.file(seq)) is not None:
        whole += batch
    return whole


@given(st.lists(st.lists(st.integers(0, 1000), unique=True, max_size=20), max_size=5))
def test_what_was_filed_is_known_again(batches: list[list[int]]) -> None:
    once, seq, content = Once(WINDOW, MANY), 1, b""
    known: set[int] = set()
    for batch in batches:
        for id in batch:
            seq += once.publish(hash_of(id), WALL, seq)
        known.update(batch)
        content += files_of(once, seq)
    again = Once(WINDOW, MANY)
    if content:
        assert again.restore_file(1, content, WALL + WINDOW - 1)
    assert len(again) == len(known)
    for id in known:
        assert not again.publish(hash_of(id), WALL + WINDOW - 1, seq)
    late = Once(WINDOW, MANY)
    if content:
        late.restore_file(1, content, WALL + WINDOW)
    assert len(late) == 0


def test_ids_of_records_that_are_not_safe_are_not_filed() -> None:
    once = Once(WINDOW, MANY)
    for seq in range(1, 11):
        once.publish(hash_of(seq), WALL, seq)
    again = Once(WINDOW, MANY)
    assert again.restore_file(1, once.file(7), WALL)
    assert [again.publish(hash_of(id), WALL, id) for id in range(1, 11)] == [False] * 6 + [True] * 4


def test_an_id_costs_24_bytes_on_disk() -> None:
    once = Once(WINDOW, MANY)
    for seq in range(1, 1001):
        once.publish(hash_of(seq), WALL, seq)
    assert len(once.file(2000)) == 16 + 8 + 1000 * 24


@pytest.mark.parametrize("at", [0, 10, 14, 16, 20, 30, 60])
def test_a_damaged_file_is_noticed(at: int) -> None:
    once = Once(WINDOW, MANY)
    for seq in range(1, 4):
        once.publish(hash_of(seq), WALL, seq)
    content = bytearray(once.file(9))
    content[at] ^= 1
    assert not Once(WINDOW, MANY).restore_file(1, bytes(content), WALL)


@given(st.binary(max_size=200))
def test_any_bytes_may_be_a_file(content: bytes) -> None:
    once = Once(WINDOW, MANY)
    once.restore_file(1, content, WALL)
    head = b"SQCYIDS\0\1\0\0\0"
    once.restore_file(2, head + content, WALL)
