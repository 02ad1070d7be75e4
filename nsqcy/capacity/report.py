"""Formats a plan: a table with the source of each part, or JSON."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from nsqcy.capacity import measured
from nsqcy.capacity.model import Need, Plan

MEASURED = f"measured on {measured.MACHINE} (docs/BENCHMARKS.md, docs/PERFORMANCE.md)"
PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def as_json(flags: Mapping[str, Any], plan: Plan) -> str:
    """Return the plan as JSON. Amounts are in bytes, bytes per second or cores, and cover all nsqds
    together."""
    told = {
        "flags": {name: value for name, value in flags.items() if name != "json"},
        "needs": [
            {
                "name": need.name,
                "unit": need.unit,
                "amount": need.amount,
                "nsqds": plan.wanted[need.name],
                "parts": [part._asdict() for part in need.parts],
            }
            for need in plan.needs
        ],
        "nsqds": plan.nsqds,
        "spare": flags["spare"],
        "each": {
            "workers": plan.workers,
            "memory_bytes": plan.memory,
            "disk_bytes": plan.disk,
        },
        "notes": plan.notes,
        "measured": measured.MACHINE,
    }
    return json.dumps(told, indent=2) + "\n"


def as_text(flags: Mapping[str, Any], plan: Plan) -> str:
    return "".join(f"{line}\n" for line in _lines(flags, plan))


def _lines(flags: Mapping[str, Any], plan: Plan) -> Iterator[str]:
    yield (
        f"{flags['rate']:,} messages/s of {flags['body_bytes']:,} bytes, class"
        f" {flags['durability']}, {_count(flags['topics'], 'topic')} with"
        f" {_count(flags['channels'], 'channel')}"
    )
    for need in plan.needs:
        yield ""
        yield f"{need.name}: {_shown(need.amount, need.unit)}"
        yield from _parts(need)
    yield ""
    yield f"nsqds needed for each resource, with {flags['headroom']} % headroom:"
    for name, count in plan.wanted.items():
        yield f"  {count:>9}  {name}"
    yield ""
    spare = f" and {_count(flags['spare'], 'spare nsqd')}" if flags["spare"] else ""
    yield f"{_count(plan.nsqds, 'nsqd')}{spare}, each with"
    yield f"  {plan.workers:>9}  {'worker' if plan.workers == 1 else 'workers'}"
    yield f"  {_shown(plan.memory, 'B'):>9}  memory"
    yield f"  {_shown(plan.disk, 'B'):>9}  disk"
    yield ""
    yield from (f"note: {note}" for note in plan.notes)
    yield MEASURED


def _parts(need: Need) -> Iterator[str]:
    for part in sorted(need.parts, key=lambda part: -part.amount):
        yield f"  {_shown(part.amount, need.unit):>9}  {part.what} <- {part.source}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _shown(amount: float, unit: str) -> str:
    if unit == "cores":
        return f"{amount:.3f}"
    for size, prefix in PREFIXES:
        if amount >= size:
            return f"{amount / size:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}"
