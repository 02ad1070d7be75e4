"""Record of one client process: its messages, and how long its publishes took.

Knows no library. nsqjs.js writes the same JSON.
"""

import collections
import json
import time

SHOWN = 5  # errors


class Record:
    def __init__(self, writers: int) -> None:
        self.published = 0
        self.acknowledged: set[bytes] = set()
        self.received: collections.Counter[bytes] = collections.Counter()
        self.errors: list[str] = []
        self._slowest: list[dict[int, float]] = [{} for _ in range(writers)]

    def next_body(self) -> bytes:
        self.published += 1
        return b"%d" % self.published

    def acknowledge(self, writer: int, body: bytes, began: float) -> None:
        """`began` is the time.time() of the publish."""
        self.acknowledged.add(body)
        second = int(began)
        slowest = self._slowest[writer]
        slowest[second] = max(slowest.get(second, 0.0), time.time() - began)

    def fail(self, error: object) -> None:
        self.errors.append(repr(error))

    @property
    def lost(self) -> int:
        return len(self.acknowledged - self.received.keys())

    def write(self) -> None:
        """Print the record: counts, and for each writer its slowest publish of each second."""
        figures = {
            "published": self.published,
            "acknowledged": len(self.acknowledged),
            "errors": len(self.errors),
            "examples": self.errors[:SHOWN],
            "lost": self.lost,
            "twice": sum(count > 1 for count in self.received.values()),
            "slowest": self._slowest,
        }
        print(json.dumps(figures), flush=True)
