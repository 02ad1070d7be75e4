"""Findings of the doctor commands: level, text and advice. Independent of particular doctors."""

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
    """Return a finding about something that may be intended."""
    return Finding(NOTE, text, advice)


def warning(text: str, advice: str = "") -> Finding:
    """Return a finding about something that works now, but not indefinitely or not for all
    clients."""
    return Finding(WARNING, text, advice)


def problem(text: str, advice: str = "") -> Finding:
    """Return a finding about something that does not work."""
    return Finding(PROBLEM, text, advice)


def several(names: Iterable[str]) -> str:
    """Join at most NAMES_SHOWN of the names for one line."""
    found = sorted(names)
    shown = ", ".join(found[:NAMES_SHOWN])
    more = len(found) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
