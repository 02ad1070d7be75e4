"""Pumped connections are closed some time after an upgrade, one after the other."""

from nsqcy.nsqd.worker.upgrade_drain import PATIENCE, SECOND, SPREAD, UpgradeDrain

MINUTE = 60 * SECOND
DELAY = 10 * MINUTE


class Connection:
    def __init__(self, drain: UpgradeDrain, *, since: int = 0, quiet: bool = True) -> None:
        self.closed = False
        self.is_quiet = quiet
        self.withdrawn: list[int] = []
        drain.add(self, since)

    def withdraw(self) -> None:
        self.withdrawn.append(len(self.withdrawn))

    def end(self) -> None:
        assert not self.closed
        self.closed = True


def test_they_are_closed_over_a_minute() -> None:
    drain = UpgradeDrain(DELAY)
    connections = [Connection(drain) for _ in range(600)]
    assert drain.look(DELAY - 1) == 0
    counts = [drain.look(DELAY + (n + 1) * SECOND) for n in range(60)]
    assert sum(counts) == 600 and len(drain) == 0
    assert all(8 <= count <= 12 for count in counts)
    assert all(each.withdrawn == [0] for each in connections)
    assert drain.look(DELAY + 2 * MINUTE) == 0


def test_the_time_counts_from_the_first_replacement() -> None:
    drain = UpgradeDrain(DELAY)
    early, late = Connection(drain, since=0), Connection(drain, since=5 * MINUTE)
    assert drain.since(early) == 0 and drain.since(late) == 5 * MINUTE
    assert drain.look(DELAY + SPREAD) == 1 and early.closed and not late.closed
    assert drain.since(early) is None
    assert drain.look(DELAY + SPREAD + 5 * MINUTE) == 1 and late.closed


def test_one_that_is_busy_is_closed_when_it_is_quiet() -> None:
    drain = UpgradeDrain(DELAY)
    busy = Connection(drain, quiet=False)
    assert [drain.look(DELAY + SPREAD + n * SECOND) for n in range(9)] == [0] * 9
    assert busy.withdrawn == [0]
    busy.is_quiet = True
    assert drain.look(DELAY + SPREAD + 9 * SECOND) == 1 and busy.closed


def test_one_that_stays_busy_is_closed_at_last() -> None:
    drain = UpgradeDrain(DELAY)
    busy = Connection(drain, quiet=False)
    assert drain.look(DELAY + PATIENCE) == 0
    assert drain.look(DELAY + SPREAD + PATIENCE) == 1 and busy.closed


def test_one_that_has_ended_is_forgotten() -> None:
    drain = UpgradeDrain(DELAY)
    Connection(drain).closed = True
    assert drain.look(0) == 0 and len(drain) == 0


def test_a_short_delay_has_a_short_spread() -> None:
    drain = UpgradeDrain(SECOND)
    for _ in range(100):
        Connection(drain)
    assert drain.look(2 * SECOND) == 100


def test_without_a_delay_they_stay() -> None:
    drain = UpgradeDrain(0)
    Connection(drain)
    assert drain.look(10**18) == 0 and len(drain) == 1
