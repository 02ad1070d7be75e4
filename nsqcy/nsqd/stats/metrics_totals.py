"""Totals over all workers, for topics and channels that have no series of their own.

Owns what keeps a total from decreasing: Prometheus would treat that as a restart, and the whole
total as growth.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nsqcy.metrics.families import CHANNELS, PAUSED, TOPICS, Family

Values = Sequence[float]


class Growing:
    """Counters summed over workers; each worker starts again at 0 after its restart.

    What a worker had counted by the last scrape stays in the sum; what it counted between that and
    its end is lost.
    """

    def __init__(self) -> None:
        self._ended: Values = []
        self._latest: dict[int, tuple[int, Values]] = {}

    def look(self, worker: int, generation: int, counters: Values) -> None:
        before, seen = self._latest.get(worker, (generation, counters))
        if before != generation:
            self._ended = added([self._ended, seen])
            seen = counters
        # Deletions while the worker walks over its topics may be missing in one walk.
        now = [max(pair) for pair in zip(counters, seen, strict=True)]
        self._latest[worker] = generation, now

    def total(self) -> Values:
        return added([self._ended, *(seen for _, seen in self._latest.values())])


def added(rows: Iterable[Values]) -> Values:
    """Return the sums of columns. Rows without values are left out."""
    return [sum(column) for column in zip(*filter(None, rows), strict=True)]


class Summed:
    """Everything that is shown under one name. Counters accumulate; gauges show the current
    value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._topics, self._channels, self._ages = Growing(), Growing(), Growing()
        self._now: list[Mapping[str, Any]] = []

    def look(self, shares: Mapping[int, Mapping[str, Any]], generations: Mapping[int, int]) -> None:
        """Return the sum over the workers that answered."""
        self._now = list(shares.values())
        for worker, found in shares.items():
            counts, seconds = found["ages"]
            generation = generations[worker]
            self._topics.look(worker, generation, found["topic"])
            self._channels.look(worker, generation, found["channel"])
            self._ages.look(worker, generation, [seconds, *counts])

    def count(self, what: str) -> int:
        """Set the current number of "topics" or "channels"."""
        return sum(each[what] for each in self._now)

    def topics(self) -> Iterator[tuple[Family, float]]:
        """Return what to show; nothing as long as nothing was counted."""
        return _shown(TOPICS, self._topics.total(), added(each["topic"] for each in self._now))

    def channels(self) -> Iterator[tuple[Family, float]]:
        return _shown(
            CHANNELS, self._channels.total(), added(each["channel"] for each in self._now)
        )

    def ages(self) -> tuple[Values, float] | None:
        """Return counts by bucket, and the sum in seconds."""
        seconds, *counts = self._ages.total() or [0.0]
        return (counts, seconds) if any(counts) else None


def _shown(table: Sequence[Family], grown: Values, now: Values) -> Iterator[tuple[Family, float]]:
    if any(grown):
        for number, family in enumerate(table):
            is_counter = family.kind == "counter"
            value = (grown if is_counter else now or [0] * len(table))[number]
            if value or family not in PAUSED:
                yield family, value
