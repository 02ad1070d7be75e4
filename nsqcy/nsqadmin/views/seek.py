"""Page that moves a channel to a different position in its topic's log, with a preview of the
effect.

Pure: maps fetched data to template values.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsqcy.nsqadmin.cluster.answers import NodeAnswer, SeekEffect
from nsqcy.nsqadmin.html.formatting import instant, plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.tables import Columns, table

_COLUMNS: Columns[SeekEffect] = [
    ("NSQd Host", lambda row: row.node),
    ("Current Position", lambda row: row.now),
    ("New Position", lambda row: row.then),
    ("Redelivered", lambda row: row.again),
    ("Skipped", lambda row: row.skipped),
    ("Discarded", lambda row: row.dropped),
]


_HOUR, _DAY = 3600, 86400  # seconds
_PICKED = re.compile(r"\d{4,}-\d\d-\d\dT\d\d:\d\d(?::\d\d)?(?:\.\d+)?")


class Shortcut(NamedTuple):
    """A link to the effect of seeking to a time."""

    text: str
    to: str


def with_picked_time(params: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters with `to` from the picker's field `at`, which is in UTC. A text that is
    no picked time is passed on, so that nsqds reject it."""
    at = params.get("at", "")
    if not at or params.get("to"):
        return dict(params)
    seconds = ":00" if at.count(":") == 1 else ""
    return {**params, "to": f"{at}{seconds}Z" if _PICKED.fullmatch(at) else at}


def shortcuts(now: float) -> list[Shortcut]:
    """Return the times that users often want. now: seconds since 1970."""
    today = int(now) // _DAY * _DAY
    times = {
        "1 h ago": int(now) - _HOUR,
        "24 h ago": int(now) - _DAY,
        "Today 00:00 UTC": today,
        "Yesterday 00:00 UTC": today - _DAY,
    }
    return [Shortcut(text, instant(time)) for text, time in times.items()]


def seek(
    topic: str,
    channel: str,
    path: str,
    answers: Sequence[NodeAnswer],
    found: Sequence[SeekEffect],
    params: Mapping[str, str],
    now: float,
) -> View:
    to = params.get("to", "")
    is_previewed = bool(to and found)
    values = {
        "topic": topic,
        "channel": channel,
        "path": path,
        "to": "" if to in ("earliest", "latest") else to,
        "picked": to.removesuffix("Z") if _PICKED.fullmatch(to.removesuffix("Z")) else "",
        "shortcuts": shortcuts(now),
        "is_missing": bool(answers) and all(each.is_missing for each in answers),
        "refused": [each for each in answers if not each.is_done],
        "effects": table("Effect", _COLUMNS, found) if is_previewed else None,
        "asked": _question(f"{topic}/{channel}", to, found) if is_previewed else None,
    }
    return View("seek.html", values)


def _question(name: str, to: str, found: Sequence[SeekEffect]) -> Question:
    dropped = sum(each.dropped for each in found)
    again = sum(each.again for each in found)
    waiting = sum(each.waiting for each in found)
    text = f"On {plural(len(found), 'node')}. Redelivered: {plural(again, 'message')}. Waiting"
    text += f" afterwards: {plural(waiting, 'message')}. Discarded: {plural(dropped, 'message')},"
    text += " all that the channel has now, including those in flight and deferred. Of these, only"
    text += " messages after the new position are redelivered."
    return Question(f"Seek {name} to {to}?", text, "seek", "Seek", (("to", to),))
