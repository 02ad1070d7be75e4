"""Which worker a topic belongs to. A pure data structure: no I/O, no clock.

Sticky: once placed, a name stays on its worker until the master exits, also after its deletion, so
that two workers can never both believe that a topic is theirs.
"""

import zlib


class Placement:
    """The table of all topics ever named, and how many live ones each worker has."""

    def __init__(self, workers: int) -> None:
        self._placed: dict[str, int] = {}
        self._live: set[str] = set()
        self._counts = [0] * workers

    def place(self, topic: str) -> int:
        """The worker of a topic, chosen now if it is new: fewest topics, ties by hash."""
        worker = self._placed.get(topic)
        if worker is None:
            worker = self._placed[topic] = self._choose(topic)
        if topic not in self._live:
            self._live.add(topic)
            self._counts[worker] += 1
        return worker

    def retire(self, topic: str) -> None:
        """The topic was deleted: it keeps its worker but no longer counts."""
        if topic in self._live:
            self._live.remove(topic)
            self._counts[self._placed[topic]] -= 1

    def worker_of(self, topic: str) -> int | None:
        """The worker of a topic, None when it was never placed."""
        return self._placed.get(topic)

    def counts(self) -> list[int]:
        """Live topics of each worker."""
        return list(self._counts)

    def table(self) -> dict[str, int]:
        """A copy of the whole table."""
        return dict(self._placed)

    def _choose(self, topic: str) -> int:
        fewest = min(self._counts)
        minimum = [worker for worker, count in enumerate(self._counts) if count == fewest]
        return minimum[zlib.crc32(topic.encode()) % len(minimum)]
