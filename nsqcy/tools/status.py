"""Status lines with request times, one per N requests.

Owns the recorded durations. Reads no clock and prints nothing.
"""

from collections.abc import Iterable

TOO_FEW = 100


class StatusMeter:
    """Returns one line per `every` durations; the first duration after these triggers it."""

    def __init__(self, label: str, every: int) -> None:
        self._label = label
        self._every = every
        self._took: list[float] = []
        self._next = 0

    def add(self, seconds: float) -> str | None:
        """Add a duration. Return a line if one is due."""
        if len(self._took) < self._every:
            self._took.append(seconds)
            return None
        self._took[self._next] = seconds
        self._next += 1
        line = self._line() if self._next == 1 else None
        if self._next == self._every:
            self._next = 0
        return line

    def _line(self) -> str:
        took = sorted(self._took)
        figures = [
            ("99th", _percentile(took, 0.99)),
            ("95th", _percentile(took, 0.95)),
            ("avg", sum(took) / len(took)),
        ]
        shown = " - ".join(f"{name}: {1000 * seconds:.2f}ms" for name, seconds in figures)
        return f"{self._label} finished {len(took)} - {shown}"


def _percentile(ordered: list[float], part: float) -> float:
    return ordered[min(int(part * len(ordered) + 0.5), len(ordered) - 1)]


class StatusMeters:
    """One meter for all destinations together and, if there are several, one per destination."""

    def __init__(self, addresses: Iterable[str], every: int) -> None:
        addresses = list(addresses)
        self._all: StatusMeter | None = None
        self._each: list[StatusMeter] = []
        self.warnings: list[str] = []
        if every <= 0:
            return
        self._all = StatusMeter("[aggregate]:", every)
        if len(addresses) > 1:
            self._each = [StatusMeter(f"[{address}]:", every) for address in addresses]
        if every < TOO_FEW:
            warning = (
                f"Warning: use more than {TOO_FEW} status values for accurate percentiles"
                f" (configured with {every})"
            )
            self.warnings = [warning] * (1 + len(self._each))

    def add(self, destination: int, seconds: float) -> list[str]:
        """Add a duration. Return the lines that are due."""
        meters = self._each[destination : destination + 1]
        lines = [meter.add(seconds) for meter in (*meters, self._all) if meter is not None]
        return [line for line in lines if line is not None]
