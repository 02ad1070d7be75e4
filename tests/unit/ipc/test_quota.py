"""Quotas with a simulated clock: what workers count together, and how a rate is enforced."""

import mmap
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.ipc.core import Quota, QuotaTable
from nsqcy.nsqd.stats.metrics_page import together
from nsqcy.users.file import parse
from nsqcy.users.quotas import Quotas
from nsqcy.users.user import User

MILLISECOND, SECOND = 1_000_000, 1_000_000_000
START = 1000 * SECOND
ROW = 320  # bytes


def tables(workers: int, rows: int = 4) -> list[QuotaTable]:
    memory = mmap.mmap(-1, rows * ROW)
    return [QuotaTable(memoryview(memory), worker) for worker in range(workers)]


def quotas(workers: int, name: str = "a", **limits: float) -> list[Quota]:
    kept = int(limits.get("connections", 0)), limits.get("rate", 0), limits.get("bytes_rate", 0)
    return [Quota(table, name, *kept) for table in tables(workers)]


@pytest.fixture
def quota() -> Iterator[Quota]:
    (quota,) = quotas(1, rate=100)
    yield quota


def test_a_second_at_once_and_then_the_rate(quota: Quota) -> None:
    for _ in range(100):
        assert quota.wait(START) == 0
        quota.pay(START, 1, 10)
    wait = quota.wait(START)
    assert 0 < wait <= 10 * MILLISECOND
    assert quota.wait(START + wait - 1) == 1 and quota.wait(START + wait) == 0
    quota.pay(START + wait, 1, 10)
    assert quota.wait(START + wait) > 0
    later = START + 10 * SECOND
    assert quota.wait(later) == 0  # ten unused seconds count as one


def test_a_batch_may_be_more_than_there_is_and_is_paid_for_after(quota: Quota) -> None:
    quota.pay(START, 1000, 1)
    assert quota.wait(START) == 9 * SECOND + 1
    assert quota.wait(START + 9 * SECOND + 1) == 0


def test_bytes_are_a_rate_of_their_own() -> None:
    (quota,) = quotas(1, rate=1000, bytes_rate=1 << 20)
    quota.pay(START, 1, 3 << 20)
    assert quota.wait(START) == 2 * SECOND + 1
    quota.pay(START, 5000, 0)
    assert quota.wait(START) == pytest.approx(4 * SECOND, abs=2 * MILLISECOND)


def test_no_limit_counts_nothing() -> None:
    (quota,) = quotas(1)
    quota.pay(START, 10**9, 10**15)
    assert quota.wait(START) == 0 and not quota.limits_publishes()
    assert all(quota.enter() for _ in range(1000))


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),  # who
            st.integers(0, 300 * MILLISECOND),  # time since the previous step
            st.integers(1, 40),  # how many
        ),
        max_size=200,
    ),
    st.integers(1, 500),
)
def test_workers_keep_a_rate_together(steps: list[tuple[int, int, int]], rate: int) -> None:
    """Workers never publish more than the rate, plus one second's credit, plus the last batch."""
    workers = quotas(3, rate=rate)
    now, published, last = START, 0, START
    for who, after, count in steps:
        now += after
        if workers[who].wait(now) == 0:
            assert published < rate * (1 + (now - START) / SECOND) + 1
            workers[who].pay(now, count, 0)
            published += count
            last = now
    assert all(each.wait(now) == workers[0].wait(now) for each in workers)
    assert published <= rate * (1 + (last - START) / SECOND) + 41


def test_who_waits_looks_again_one_after_the_other(quota: Quota) -> None:
    quota.pay(START, 200, 0)
    assert quota.turn(START) > START + SECOND


def test_the_connection_limit_counts_all_workers() -> None:
    one, two, three = quotas(3, connections=2)
    assert one.enter() and two.enter()
    assert not three.enter() and three.connections() == 2
    two.leave()
    assert three.enter() and not two.enter()
    one.join()  # the connection was already counted
    assert one.connections() == 3
    one.leave()
    assert not one.enter() and one.connections() == 2


def test_a_worker_that_starts_again_has_none() -> None:
    memory = mmap.mmap(-1, 4 * ROW)
    first, other = (Quota(QuotaTable(memoryview(memory), worker), "a") for worker in range(2))
    for each in (first, first, other):
        each.join()
    again = Quota(QuotaTable(memoryview(memory), 0), "a")
    assert again.connections() == 1


def test_each_user_has_a_row() -> None:
    one, two = tables(2, rows=2)
    for table, name in ((one, "a"), (two, "b"), (two, "a"), (one, "b")):
        Quota(table, name).join()
    assert [Quota(one, name).connections() for name in "ab"] == [2, 2]


def test_who_comes_when_all_rows_are_taken_is_counted_alone() -> None:
    one, two = tables(2, rows=1)
    Quota(one, "a").join()
    late, elsewhere = Quota(one, "b", 1), Quota(two, "b", 1)
    assert late.enter() and not late.enter() and elsewhere.connections() == 0


def test_news_are_a_minute_apart(quota: Quota) -> None:
    assert quota.is_news(START)
    assert not quota.is_news(START + 59 * SECOND)
    assert quota.is_news(START + 60 * SECOND)


def test_what_is_counted_is_of_all_workers() -> None:
    one, other = quotas(2, rate=10, connections=1)
    assert one.enter() and not other.enter()
    one.pay(START, 3, 70)
    other.pay(START, 2, 30)
    other.refuse_publish()
    figures = (1, 1, 5, 100, 0, 1)
    assert one.figures(START) == other.figures(START) == figures
    assert one.is_shared and other.is_shared


def test_what_was_published_without_a_rate_is_not_counted() -> None:
    (quota,) = quotas(1, connections=5)
    quota.pay(START, 3, 70)
    quota.change(5, 0, 1000)
    quota.pay(START, 1, 10)
    assert quota.figures(START) == (0, 0, 1, 10, 0, 0)


def test_the_time_that_all_have_waited_is_counted() -> None:
    one, other = quotas(2, rate=10)
    one.begin_wait(START)
    one.begin_wait(START + 2 * SECOND)
    other.begin_wait(START + 3 * SECOND)
    assert one.figures(START + 3 * SECOND)[4] == 4 * SECOND
    assert one.figures(START + SECOND)[4] == 4 * SECOND  # with an earlier clock reading
    one.end_wait(START + 4 * SECOND)
    other.end_wait(START + 4 * SECOND)
    one.end_wait(START + 5 * SECOND)
    assert one.figures(START + 9 * SECOND)[4] == other.figures(START)[4] == 8 * SECOND


def test_a_worker_that_starts_again_forgets_nothing_that_was_counted() -> None:
    memory = mmap.mmap(-1, 4 * ROW)
    quota = Quota(QuotaTable(memoryview(memory), 0), "a", 1, 1)
    assert quota.enter() and not quota.enter()
    quota.pay(START, 3, 70)
    again = Quota(QuotaTable(memoryview(memory), 0), "a", 1, 1)
    assert again.figures(START) == (0, 1, 3, 70, 0, 0)


def test_users_with_quotas_are_told_of() -> None:
    (table,) = tables(1, rows=2)
    users = {
        user.name: user
        for user in (
            User("free"),
            User("few", max_connections=1),
            User("slow", publish_rate=1),
            User("late", publish_bytes_rate=1),
        )
    }
    found = Quotas(table)
    few, slow = found.of(users["few"]), found.of(users["slow"])
    assert few is not None and slow is not None
    few.join()
    slow.pay(START, 2, 9)
    assert list(found.told(users, START)) == [
        {"user": "few", "shared": True, "figures": (1, 0)},
        {"user": "slow", "shared": True, "figures": (0, 0, 2, 9, 0, 0)},
        {"user": "late", "shared": False, "figures": (0, 0, 0, 0, 0, 0)},
    ]


def test_figures_of_all_workers_are_one_users() -> None:
    """Shared counters count once, with the latest values; others are summed."""
    shares = [
        [
            {"user": "a", "shared": True, "figures": (1, 5)},
            {"user": "b", "shared": False, "figures": (1, 5)},
        ],
        [
            {"user": "a", "shared": True, "figures": (1, 7)},
            {"user": "b", "shared": False, "figures": (2, 7)},
        ],
    ]
    assert together(shares) == {"a": [1, 7], "b": [3, 12]}


def test_a_worker_that_comes_late_forgives_nothing() -> None:
    one, two = tables(2)
    early = Quota(one, "a", 0, 1)
    early.pay(START, 10, 0)
    assert Quota(two, "a", 0, 1).wait(START) == early.wait(START) > 0


def test_another_rate_has_no_debts(quota: Quota) -> None:
    quota.pay(START, 10**6, 0)
    quota.change(5, 100, 0)
    assert quota.wait(START) > SECOND  # the rate has not changed
    quota.change(5, 200, 0)
    assert quota.wait(START) == 0


def test_quotas_follow_the_file() -> None:
    (table,) = tables(1)
    found = Quotas(table)
    user = User("a", max_connections=1, publish_rate=2.5)
    quota = found.of(user)
    assert quota is not None and found.of(user) is quota
    assert (quota.max_connections, quota.rate, quota.bytes_rate) == (1, 2.5, 0)
    assert found.of(User("b")) is None
    found.renew({"a": User("a", publish_bytes_rate=7)})
    assert (quota.max_connections, quota.rate, quota.bytes_rate) == (0, 0, 7)
    found.renew({})
    assert not quota.limits_publishes()


@pytest.mark.parametrize(
    "text",
    [
        "[user a]\ncertificate = c\npublish = *\n"
        "max-connections = 20\npublish_rate = 2.5\npublish_bytes_rate = 1_000_000\n",
        '[user.a]\ncertificate = "c"\npublish = "*"\n'
        "max_connections = 20\npublish_rate = 2.5\npublish_bytes_rate = 1000000\n",
    ],
)
def test_quotas_of_a_file(text: str) -> None:
    user = parse("f", text)["a"]
    assert user.has_quota
    assert (user.max_connections, user.publish_rate) == (20, 2.5)
    assert user.publish_bytes_rate == 1_000_000


def test_memory_that_is_none() -> None:
    with pytest.raises(ValueError, match="no worker 64"):
        QuotaTable(memoryview(mmap.mmap(-1, ROW)), 64)
    with pytest.raises(ValueError, match="not aligned"):
        QuotaTable(memoryview(mmap.mmap(-1, ROW))[1:], 0)
