"""The Check type, and how checks run. Independent of any particular check."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from nsqcy.doctor.findings import Finding, ok

Facts = TypeVar("Facts")


@dataclass(frozen=True)
class Check(Generic[Facts]):
    """A check. judge: pure function that returns findings. told: what the check reports, for the
    documentation. fine: the text shown if there are no findings. applies: whether there are facts
    to judge."""

    name: str
    told: str
    fine: str
    judge: Callable[[Facts], Iterable[Finding]]
    applies: Callable[[Facts], object] = lambda _: True


class Judged(NamedTuple):
    check: str
    finding: Finding


def run(checks: Sequence[Check[Facts]], facts: Facts) -> list[Judged]:
    """Return the findings of all checks, in order."""
    found = []
    for check in checks:
        if check.applies(facts):
            said = list(check.judge(facts)) or [ok(check.fine)]
            found += [Judged(check.name, each) for each in said]
    return found


def size(count: int) -> str:
    """Format a number of bytes with a unit."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.1f} {unit}" if unit != "bytes" else f"{count} bytes"
        size /= 1024
    return f"{size:.1f} TiB"
