"""Formats findings as lines or JSON, and the table of all checks."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nsqcy.doctor import cluster, copies, disk, host, speed, topics
from nsqcy.doctor.checks import Check, Judged
from nsqcy.doctor.findings import ERROR, LEVELS, OK
from nsqcy.names import one_line

SECTIONS: Sequence[tuple[str, Sequence[Check[Any]]]] = (
    ("host", (*host.CHECKS, *disk.CHECKS, *copies.OF_HOST)),
    ("cluster", (*cluster.CHECKS, *topics.CHECKS, *speed.CHECKS, *copies.OF_CLUSTER)),
)


def not_ok(found: Sequence[Judged]) -> list[Judged]:
    return [each for each in found if each.finding.level != OK]


def by_level(found: Sequence[Judged]) -> list[Judged]:
    """Return the findings with the most severe first."""
    return sorted(found, key=lambda each: -LEVELS.index(each.finding.level))


def exit_code(found: Sequence[Judged], fail_on: str = ERROR) -> int:
    """Return 1 if there is a finding of at least this level."""
    failing = LEVELS[LEVELS.index(fail_on) :]
    return int(any(each.finding.level in failing for each in found))


def lines(found: Sequence[Judged]) -> str:
    """Return a line for each finding, with its advice on the next line."""
    text = []
    for check, (level, what, advice) in found:
        text.append(f"{level:<8} {check}: {one_line(what)}\n")
        if advice and level != OK:
            text.append(f"{'':<8} -> {advice}\n")
    return "".join(text)


def summary(found: Sequence[Judged], scopes: Sequence[str] = ()) -> str:
    """Return the number of findings of each level, and the checks in these scopes that did not
    apply."""
    count = Counter(each.finding.level for each in found)
    told = [_plural(count[level], level) for level in LEVELS if count[level]]
    names = {each.check for each in found}
    checks = [each for scope, those in SECTIONS if scope in scopes for each in those]
    skipped = [each.name for each in checks if each.name not in names]
    nothing = f"nothing to check: {', '.join(skipped)}\n" if skipped else ""
    return f"{', '.join(told)}\n{nothing}"


def _plural(count: int, level: str) -> str:
    return f"{count} {level}" if count == 1 or level == OK else f"{count} {level}s"


def as_json(found: Sequence[Judged], fail_on: str = ERROR) -> str:
    shown = [{"check": check, **finding._asdict()} for check, finding in found]
    return json.dumps({"findings": shown, "exit_code": exit_code(found, fail_on)}, indent=2) + "\n"


def list_of_checks() -> str:
    """Return all checks as lines for a terminal."""
    rows = [(scope, each.name, each.told) for scope, checks in SECTIONS for each in checks]
    return "".join(f"{scope:<8} {name:<18} {told}\n" for scope, name, told in rows)


def table() -> str:
    """Return all checks as a Markdown table."""
    rows = ["| scope | check | reports |\n", "| --- | --- | --- |\n"]
    for section, checks in SECTIONS:
        rows += [f"| {section} | `{each.name}` | {each.told} |\n" for each in checks]
    return "".join(rows)
