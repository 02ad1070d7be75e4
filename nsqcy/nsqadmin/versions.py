"""Versions as nsqds announce them, in order: semantic ones, and 0.0.0 for anything else."""

import re
from collections.abc import Iterable
from typing import Any

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")
_ZERO = ((0, 0, 0), (1,))


def version_key(text: str) -> tuple[Any, ...]:
    """Sorts versions; a pre-release is older than what it leads to."""
    found = _VERSION.fullmatch(text)
    if not found:
        return _ZERO
    numbers = tuple(int(found[place]) for place in (1, 2, 3))
    if found[4] is None:
        return numbers, (1,)
    return numbers, (0, *map(_part, found[4].split(".")))


def _part(text: str) -> tuple[int, int, str]:
    """A number is older than a word."""
    return (0, int(text), "") if text.isdecimal() and len(text) < 19 else (1, 0, text)


def latest(versions: Iterable[str]) -> tuple[Any, ...]:
    return max(map(version_key, versions), default=_ZERO)
