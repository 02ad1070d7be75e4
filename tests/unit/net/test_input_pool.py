"""Which connection is dropped when unfinished input exceeds its limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.net.input_pool import InputPool, address_of


class Pool(InputPool[str]):
    """Connections are named by their address and a number: a1, a2, b1."""

    def keep(self, name: str, size: int, *, droppable: bool = True) -> list[str]:
        self.hold(name, name[0], size, droppable=droppable)
        return list(self.excess(name[0]))


@pytest.fixture
def pool() -> Pool:
    return Pool(100, 50)


def test_within_the_limits_all_are_kept(pool: Pool) -> None:
    assert [pool.keep(name, 25) for name in ("a1", "a2", "b1", "b2")] == [[]] * 4
    assert pool.held == 100
    assert pool.keep("a1", 10) == []
    assert pool.keep("a1", 0) == []
    assert pool.held == 75


def test_over_a_share_the_address_loses_its_oldest_one(pool: Pool) -> None:
    for name in ("b1", "a1", "a2"):
        pool.keep(name, 20)
    assert pool.keep("a3", 20) == ["a1"]
    assert pool.held == 60


def test_over_the_limit_the_oldest_one_is_dropped(pool: Pool) -> None:
    for name in ("a1", "b1", "c1"):
        pool.keep(name, 33)
    assert pool.keep("d1", 33) == ["a1"]
    pool.keep("b1", 34)  # a slow client remains the oldest
    assert pool.keep("e1", 33) == ["b1"]
    pool.keep("c1", 0)
    pool.keep("c1", 33)
    assert pool.keep("f1", 33) == ["d1"]


def test_as_many_as_necessary_are_dropped(pool: Pool) -> None:
    for number in range(10):
        pool.keep(f"{number}1", 10)
    assert pool.keep("a1", 45) == ["01", "11", "21", "31", "41"]


def test_a_single_connection_may_exceed_the_share(pool: Pool) -> None:
    pool.keep("b1", 10)
    pool.keep("a1", 10)
    assert pool.keep("a2", 51) == ["a1"]
    assert pool.keep("a2", 91) == ["b1"]
    assert pool.keep("a2", 101) == ["a2"]
    assert pool.held == 0


def test_complete_input_counts_but_is_not_dropped(pool: Pool) -> None:
    pool.keep("a1", 40, droppable=False)
    pool.keep("a2", 10)
    pool.keep("b1", 10)
    assert pool.keep("a3", 10) == ["a2"]
    assert pool.keep("a1", 95, droppable=False) == ["b1", "a3"]
    assert pool.held == 95


def test_the_parts_of_a_budget() -> None:
    whole, few = Pool.of_budget(256 << 20), Pool.of_unauthenticated(256 << 20)
    assert (whole.limit, whole.share) == (256 << 20, 128 << 20)
    assert (few.limit, few.share) == (16 << 20, 2 << 20)


def test_addresses() -> None:
    assert [address_of(peer) for peer in ("1.2.3.4:5", "[::1]:5", "@")] == ["1.2.3.4", "[::1]", ""]


NAMES = st.sampled_from([f"{address}{number}" for address in "abcd" for number in range(4)])


@given(st.lists(st.tuples(NAMES, st.integers(0, 60), st.booleans()), max_size=60))
def test_any_sequence_stays_within_the_limits(steps: list[tuple[str, int, bool]]) -> None:
    pool, sizes = Pool(100, 50), dict[str, int]()
    for name, size, droppable in steps:
        sizes[name] = size
        for dropped in pool.keep(name, size, droppable=droppable):
            sizes[dropped] = 0
        assert pool.held == sum(sizes.values())
        if all(each for _, _, each in steps):
            assert pool.held <= 100
            for address in "abcd":
                its = [sizes[each] for each in sizes if each[0] == address and sizes[each]]
                assert sum(its) <= 50 or len(its) == 1
    for name in sizes:
        pool.keep(name, 0)
    assert pool.held == 0 and not pool._addresses
