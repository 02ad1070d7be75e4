"""Requests over time, and their latencies as histograms that can be added up.

A latency is counted in a bucket, with 64 buckets per doubling of microseconds, and is reported as
the bucket's upper bound: at most 1.6 % too high, and never too low. locust's own figures are whole
milliseconds, which is ten times the latency of an NSQ message.

Like a ledger, the timeline of an entire test is the sum of the processes' parts. Independent of
clocks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

FINE = 7  # number of significant bits of a latency
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999, "max": 1.0}
SPANS = 600  # maximum number of spans; beyond it, pairs of spans are merged

Name = tuple[str, str]  # request type and subject
K = TypeVar("K", bound=tuple[Any, ...])


def bucket(milliseconds: float) -> int:
    """Return the upper bound of a latency's bucket, in microseconds."""
    micros = int(milliseconds * 1000)
    if micros <= 0:
        return 0
    shift = max(0, micros.bit_length() - FINE)
    return ((micros >> shift) + 1 << shift) - 1


@dataclass
class Cell:
    """Counts and latencies of the requests that share a name."""

    requests: int = 0
    messages: int = 0
    failures: int = 0
    latencies: dict[int, int] = field(default_factory=dict)

    def add(self, milliseconds: float | None, messages: int, failed: bool) -> None:
        self.requests += 1
        if failed:
            self.failures += 1
            return
        self.messages += messages
        if milliseconds is not None:
            key = bucket(milliseconds)
            self.latencies[key] = self.latencies.get(key, 0) + 1

    def merge(self, other: "Cell") -> None:
        self.requests += other.requests
        self.messages += other.messages
        self.failures += other.failures
        for key, count in other.latencies.items():
            self.latencies[key] = self.latencies.get(key, 0) + count

    def percentile(self, share: float) -> float | None:
        """Return a percentile of the latencies of successful requests, in milliseconds; None if
        there are none."""
        left = share * sum(self.latencies.values())
        for key in sorted(self.latencies):
            left -= self.latencies[key]
            if left <= 0:
                return key / 1000
        return None


class Key(NamedTuple):
    span: int  # the span's first second since the epoch
    kind: str
    name: str


class Timeline:
    """Cells by time and name. The longer a test lasts, the longer `span` is, in seconds."""

    def __init__(self) -> None:
        self.span = 1
        self.cells: dict[Key, Cell] = {}
        self._spans: set[int] = set()

    def add(
        self,
        second: int,
        kind: str,
        name: str,
        milliseconds: float | None,
        *,
        messages: int = 1,
        failed: bool = False,
    ) -> None:
        self._cell(second, kind, name).add(milliseconds, messages, failed)

    def _cell(self, second: int, kind: str, name: str) -> Cell:
        key = Key(second - second % self.span, kind, name)
        cell = self.cells.get(key)
        if cell is None:
            cell = self.cells[key] = Cell()
            self._spans.add(key.span)
            if len(self._spans) > SPANS:
                self._fold()
                return self._cell(second, kind, name)
        return cell

    def _fold(self) -> None:
        self.span *= 2
        cells, self.cells = self.cells, {}
        self._spans = {each - each % self.span for each in self._spans}
        for key, cell in cells.items():
            self._cell(*key).merge(cell)

    def take(self) -> list[Any]:
        """Return the new entries, encoded for the network, and forget them."""
        cells, self.cells = self.cells, {}
        self._spans.clear()
        return [
            (*key, cell.requests, cell.messages, cell.failures, list(cell.latencies.items()))
            for key, cell in cells.items()
        ]

    def merge(self, taken: Iterable[Any]) -> None:
        for second, kind, name, requests, messages, failures, latencies in taken:
            cell = Cell(requests, messages, failures, dict(latencies))
            self._cell(second, kind, name).merge(cell)

    def totals(self, since: float = 0.0, until: float = float("inf")) -> dict[Name, Cell]:
        """Return cells by name, from all spans that begin in the given time range."""
        return _summed(
            ((key.kind, key.name), cell)
            for key, cell in self.cells.items()
            if since <= key.span < until
        )

    def kinds(self) -> dict[tuple[int, str], Cell]:
        """Return cells by span and type."""
        return _summed(((key.span, key.kind), cell) for key, cell in self.cells.items())


def _summed(cells: Iterable[tuple[K, Cell]]) -> dict[K, Cell]:
    found: dict[K, Cell] = {}
    for key, cell in cells:
        found.setdefault(key, Cell()).merge(cell)
    return found
