"""Page that moves a channel to a different position in its topic's log, with a preview of the
effect.

Pure: maps fetched data to template values.
"""

from collections.abc import Mapping, Sequence

from nsqcy.nsqadmin.cluster.answers import NodeAnswer, SeekEffect
from nsqcy.nsqadmin.html.formatting import number, plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.log_positions import picked, shortcuts
from nsqcy.nsqadmin.html.tables import Columns, table

_COLUMNS: Columns[SeekEffect] = [
    ("NSQd Host", lambda row: row.node),
    ("Current Position", lambda row: row.now),
    ("New Position", lambda row: row.then),
    ("Redelivered", lambda row: row.again),
    ("Skipped", lambda row: row.skipped),
    ("Leaving", lambda row: row.dropped),
]


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
        "picked": picked(to),
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
    nodes, text = plural(len(found), "node"), ""
    if dropped:
        text = f"The channel's {plural(dropped, 'message')} on {nodes} will be removed, including"
        text += " those in flight and deferred. Messages after the new position will be delivered. "
    text += f"Afterwards, {plural(waiting, 'message')} will be waiting on {nodes}, of which"
    text += f" {number(again)} were delivered before."
    return Question(f"Seek {name} to {to}?", text, "seek", "Seek", (("to", to),))
