"""`nsqcy doctor --watch`: new and resolved findings.

Pure: the caller checks repeatedly, and passes the findings and the time. Findings are the same if
they differ only in their numbers, such as a count of messages.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from nsqcy.doctor import report
from nsqcy.doctor.checks import Judged

_NUMBER = re.compile(r"(?<!\S)\d[\d,.]*(?:/s|%)?(?=[\s,]|$)")

Identity = tuple[str, str, str]


class Watch:
    """The findings of the previous round, without those that are ok."""

    def __init__(self) -> None:
        self._before: list[Judged] | None = None

    def changes(self, found: Sequence[Judged]) -> tuple[list[Judged], list[Judged]]:
        """Return the findings that are new in this round, and the resolved ones."""
        now, before = report.not_ok(found), self._before or []
        self._before = now
        return _missing(now, before), _missing(before, now)

    def lines(self, found: Sequence[Judged], at: str) -> str:
        """Return the changes as lines that begin with + or -; empty if there are none."""
        is_first = self._before is None
        new, gone = self.changes(found)
        if not (new or gone or is_first):
            return ""
        counts = f"{len(new)} new, {len(gone)} gone" if not is_first else report.summary(found)
        marked = [f"+ {line}" for line in report.lines(new).splitlines(keepends=True)]
        marked += [f"- {check}: {finding.text}\n" for check, finding in gone]
        return f"{at} {counts.rstrip()}\n{''.join(marked)}"

    def as_json(self, found: Sequence[Judged], at: str) -> str:
        """Return the changes as one line of JSON; empty if there are none."""
        is_first = self._before is None
        new, gone = self.changes(found)
        if not (new or gone or is_first):
            return ""
        return json.dumps({"time": at, "new": _shown(new), "gone": _shown(gone)}) + "\n"


def _missing(found: Sequence[Judged], known: Sequence[Judged]) -> list[Judged]:
    """Return the findings in `found` that `known` lacks."""
    left = Counter(map(_identity, known))
    missing = []
    for each in found:
        if left[_identity(each)]:
            left[_identity(each)] -= 1
        else:
            missing.append(each)
    return missing


def _identity(judged: Judged) -> Identity:
    return judged.check, judged.finding.level, _NUMBER.sub("#", judged.finding.text)


def _shown(found: Sequence[Judged]) -> list[dict[str, Any]]:
    return [{"check": check, **finding._asdict()} for check, finding in found]
