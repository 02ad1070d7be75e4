"""Thresholds of a run, and whether it met them.

    lost=0, failures=0.001, p99 deliver=50, p50 PUB load=5, rate deliver=1000

or the same as TOML:

    lost = 0
    failures = 0.001

    [p99]
    deliver = 50

    [p50]
    "PUB load" = 5

The name of a figure is followed by its scope: a request type, and optionally the name of one
request. Latencies are in milliseconds, failures are a share, and rates are in messages per second.
"""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.soak.timeline import PERCENTILES

RATE, FAILURES = "rate", "failures"
COUNTS = ("lost", "duplicates", "out_of_order", "early", "unconfirmed")  # fields of an account
OF_REQUESTS = (*PERCENTILES, RATE)


@dataclass(frozen=True)
class Threshold:
    figure: str
    of: str  # "deliver", "deliver load/archive"; "" for everything
    bar: float

    @property
    def name(self) -> str:
        return f"{self.figure} {self.of}".strip()

    def keeps(self, value: float) -> bool:
        return value >= self.bar if self.figure == RATE else value <= self.bar

    def told(self, value: float) -> str:
        unit = " ms" if self.figure in PERCENTILES else " msg/s" * (self.figure == RATE)
        return f"{value:,.6g}{unit}"


@dataclass(frozen=True)
class Verdict:
    threshold: Threshold
    found: float | None  # None: nothing was measured

    @property
    def kept(self) -> bool:
        return self.found is not None and self.threshold.keeps(self.found)

    def __str__(self) -> str:
        threshold = self.threshold
        found = "nothing was measured" if self.found is None else threshold.told(self.found)
        bound = "least" if threshold.figure == RATE else "most"
        return f"{threshold.name}: {found} (at {bound} {threshold.told(threshold.bar)})"


def parse(text: str) -> list[Threshold]:
    """Parse thresholds and TOML file names, separated by commas; if a threshold is repeated, the
    last value applies. Raises ValueError."""
    found: list[Threshold] = []
    for part in filter(None, map(str.strip, text.split(","))):
        if part.endswith(".toml"):
            found += read(Path(part))
            continue
        name, equals, bar = part.partition("=")
        figure, _, of = name.strip().partition(" ")
        if not equals:
            raise ValueError(f"threshold {part!r} is no NAME=VALUE, nor a file that ends in .toml")
        found.append(_threshold(figure, of.strip(), bar.strip()))
    return latest(found)


def read(path: Path) -> list[Threshold]:
    """Parse the thresholds in a TOML file. Raises ValueError."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"thresholds of {path}: {error}") from None
    return [
        _threshold(figure, of, bar)
        for figure, value in table.items()
        for of, bar in (value.items() if isinstance(value, dict) else [("", value)])
    ]


def latest(thresholds: Iterable[Threshold]) -> list[Threshold]:
    """Return each threshold once, with its last value."""
    return list({(each.figure, each.of): each for each in thresholds}.values())


def judge(
    thresholds: Iterable[Threshold], found: Callable[[Threshold], float | None]
) -> list[Verdict]:
    return [Verdict(each, found(each)) for each in thresholds]


def _threshold(figure: str, of: str, bar: Any) -> Threshold:
    known = (*OF_REQUESTS, FAILURES, *COUNTS)
    if figure not in known:
        raise ValueError(f"threshold {figure!r}: no such figure (there are {', '.join(known)})")
    if figure in OF_REQUESTS and not of:
        raise ValueError(f"threshold {figure!r}: of which requests? ({figure} deliver=...)")
    if figure in COUNTS and of:
        raise ValueError(f"threshold {figure!r} is of everything, not of {of!r}")
    try:
        value = float(bar)
    except (TypeError, ValueError):
        raise ValueError(f"threshold {figure!r}: {bar!r} is no number") from None
    return Threshold(figure, of, value)
