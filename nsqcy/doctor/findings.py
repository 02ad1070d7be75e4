"""Findings of the doctor commands: level, text and advice. Independent of the individual
commands."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nsqcy.cluster.problems import Problem, Severity

OK, NOTE, WARNING, ERROR = LEVELS = ("ok", "note", "warning", "error")

NAMES_SHOWN = 8
_LEVELS = {Severity.NOTE: NOTE, Severity.WARNING: WARNING, Severity.ERROR: ERROR}


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


def error(text: str, advice: str = "") -> Finding:
    """Return a finding about something that does not work."""
    return Finding(ERROR, text, advice)


def from_problem(problem: Problem) -> Finding:
    """Return a problem that is shared with nsqadmin and `nsqcy top` as a finding."""
    return Finding(_LEVELS[problem.severity], problem.text, problem.advice)


def of_kinds(problems: Iterable[Problem], *kinds: str) -> Iterator[Finding]:
    """Yield the problems of these kinds as findings."""
    return (from_problem(each) for each in problems if each.kind in kinds)


def several(names: Iterable[str]) -> str:
    """Join at most NAMES_SHOWN of the names for one line."""
    found = sorted(names)
    shown = ", ".join(found[:NAMES_SHOWN])
    more = len(found) - NAMES_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
