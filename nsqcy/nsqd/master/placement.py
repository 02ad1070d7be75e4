"""Assignment of topics to workers. A pure data structure without I/O or a clock.

Sticky: once placed, a name stays on its worker until the master exits, even after the topic's
deletion, so that a topic never has two owners.
"""

import zlib
from typing import Any


class Placement:
    """All topics ever placed, and the number of live topics on each worker."""

    def __init__(self, workers: int) -> None:
        self._placed: dict[str, int] = {}
        self._live: set[str] = set()
        self._counts = [0] * workers

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {"placed": self._placed, "deleted": [*(self._placed.keys() - self._live)]}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        self._placed = dict(dumped["placed"])
        self._live = self._placed.keys() - dumped["deleted"]
        self._counts = [0] * len(self._counts)
        for topic in self._live:
            self._counts[self._placed[topic]] += 1

    def place(self, topic: str) -> int:
        """Return a topic's worker. A new topic is placed on the worker that has the fewest topics;
        ties are broken by hash."""
        worker = self._placed.get(topic)
        if worker is None:
            worker = self._placed[topic] = self._choose(topic)
        if topic not in self._live:
            self._live.add(topic)
            self._counts[worker] += 1
        return worker

    def pin(self, topic: str, worker: int) -> None:
        """Place a topic whose files only one worker can use."""
        if topic not in self._placed and worker < len(self._counts):
            self._placed[topic] = worker

    def retire(self, topic: str) -> None:
        """Mark a topic as deleted: it keeps its worker but no longer counts."""
        if topic in self._live:
            self._live.remove(topic)
            self._counts[self._placed[topic]] -= 1

    def worker_of(self, topic: str) -> int | None:
        """Return a topic's worker; None if the topic has never been placed."""
        return self._placed.get(topic)

    def counts(self) -> list[int]:
        """Return the number of each worker's live topics."""
        return list(self._counts)

    def table(self) -> dict[str, int]:
        """Return a copy of the complete table."""
        return dict(self._placed)

    def _choose(self, topic: str) -> int:
        fewest = min(self._counts)
        minimum = [worker for worker, count in enumerate(self._counts) if count == fewest]
        return minimum[zlib.crc32(topic.encode()) % len(minimum)]
