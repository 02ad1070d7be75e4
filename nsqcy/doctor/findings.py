"""What doctors find: how bad it is, what it is, what to do about it. Knows nothing of anybody."""

from collections.abc import Iterable
from typing import NamedTuple

OK, NOTE, WARNING, PROBLEM = LEVELS = ("ok", "note", "warning", "problem")

NAMES_SHOWN = 8


class Finding(NamedTuple):
    level: str
    text: str
    advice: str = ""


def ok(text: str) -> Finding:
    return Finding(OK, text)


def note(text: str, advice: str = "") -> Finding:
    """Something to know, and perhaps as it is meant to be."""
    return Finding(NOTE, text, advice)


def warning(text: str, advice: str = "") -> Finding:
    """Something that works, and will not for ever or not for everybody."""
    return Finding(WARNING, text, advice)


def problem(text: str, advice: str = "") -> Finding:
    """Something that does not work."""
    return Finding(PROBLEM, text, advice)


def several(names: Iterable[str]) -> str:
    """Names on one line, however many there are."""
    found = sorted(names)
    shown = ", ".join(found[:NAMES_SHOWN])
    more = len(found) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
