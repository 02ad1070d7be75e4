"""Totals across all workers, for topics and channels without their own series.

Prevents a total from decreasing: Prometheus would interpret that as a restart, and count the entire
total as growth.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nsqcy.metrics.families import AGES, CHANNELS, OPTIONAL, TOPICS, Family

Values = Sequence[float]


class Growing:
    """Counters summed across workers; a restarted worker counts from 0 again.

    A worker's counts up to the last scrape before it exits stay in the sum; later counts are lost.
    """

    def __init__(self) -> None:
        self._ended: Values = []
        self._latest: dict[int, tuple[int, Values]] = {}

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        latest = [[worker, *each] for worker, each in self._latest.items()]
        return {"ended": self._ended, "latest": latest}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        self._ended = dumped["ended"]
        self._latest = {worker: (number, seen) for worker, number, seen in dumped["latest"]}

    def look(self, worker: int, generation: int, counters: Values) -> None:
        before, seen = self._latest.get(worker, (generation, counters))
        if before != generation:
            self._ended = added([self._ended, seen])
            seen = counters
        # A walk may miss topics that are deleted in the meantime.
        now = [max(pair) for pair in zip(counters, seen, strict=True)]
        self._latest[worker] = generation, now

    def total(self) -> Values:
        return added([self._ended, *(seen for _, seen in self._latest.values())])


def added(rows: Iterable[Values]) -> Values:
    """Return the sum of each column. Empty rows are skipped."""
    return [sum(column) for column in zip(*filter(None, rows), strict=True)]


class Summed:
    """All objects shown under one name. Counters accumulate; gauges show the current value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._topics, self._channels, self._ages = Growing(), Growing(), Growing()
        self._now: list[Mapping[str, Any]] = []
        self._growing = {"topics": self._topics, "channels": self._channels, "ages": self._ages}

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version. A version with other families counts
        from 0."""
        return {name: [_COLUMNS[name], each.dump()] for name, each in self._growing.items()}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        for name, each in self._growing.items():
            columns, values = dumped[name]
            if columns == _COLUMNS[name]:
                each.restore(values)

    def look(self, shares: Mapping[int, Mapping[str, Any]], generations: Mapping[int, int]) -> None:
        """Add the shares of the workers that answered."""
        self._now = list(shares.values())
        for worker, found in shares.items():
            counts, seconds = found["ages"]
            generation = generations[worker]
            self._topics.look(worker, generation, found["topic"])
            self._channels.look(worker, generation, found["channel"])
            self._ages.look(worker, generation, [seconds, *counts])

    def count(self, what: str) -> int:
        """Return the current number of "topics" or "channels"."""
        return sum(each[what] for each in self._now)

    def topics(self) -> Iterator[tuple[Family, float]]:
        """Return each topic family with its value; empty if nothing has been counted yet."""
        return _shown(TOPICS, self._topics.total(), added(each["topic"] for each in self._now))

    def channels(self) -> Iterator[tuple[Family, float]]:
        return _shown(
            CHANNELS, self._channels.total(), added(each["channel"] for each in self._now)
        )

    def ages(self) -> tuple[Values, float] | None:
        """Return the counts by bucket, and the sum in seconds; None if all counts are 0."""
        seconds, *counts = self._ages.total() or [0.0]
        return (counts, seconds) if any(counts) else None


_COLUMNS = {
    "topics": [family.sample for family in TOPICS],
    "channels": [family.sample for family in CHANNELS],
    "ages": [AGES.name],
}


def _shown(table: Sequence[Family], grown: Values, now: Values) -> Iterator[tuple[Family, float]]:
    if any(grown):
        for number, family in enumerate(table):
            is_counter = family.kind == "counter"
            value = (grown if is_counter else now or [0] * len(table))[number]
            if value or family not in OPTIONAL:
                yield family, value
