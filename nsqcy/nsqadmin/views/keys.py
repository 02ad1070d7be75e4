"""Page of a channel's keys: those with the most waiting messages, of all nodes in one list.

Pure: maps fetched data to template values. Keys are arbitrary texts from producers.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.config.durations import SECOND, short_duration
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html.error_texts import explained
from nsqcy.nsqadmin.html.formatting import plural
from nsqcy.nsqadmin.html.layout import Layout, Question, View
from nsqcy.nsqadmin.html.tables import Columns, table
from nsqcy.nsqadmin.views.messages import Refused

LISTED = "100"  # keys on each nsqd
ONLY = {"": "All", "blocked": "Blocked", "paused": "Paused"}


class Key(NamedTuple):
    """A key on one node. blocked: for how long it has been blocked; empty if it is not."""

    text: str
    node: str
    depth: int
    held: int
    blocked: str
    is_paused: bool
    asks_empty: str  # the link to the question


_COLUMNS: Columns[Key] = [
    ("Key", lambda row: row.text),
    ("Node", lambda row: row.node),
    ("Depth", lambda row: row.depth),
    ("Held", lambda row: row.held),
    ("Blocked", lambda row: row.blocked),
    ("Actions", lambda row: row.text),
]


def wanted(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters for nsqds."""
    params = {"limit": LISTED}
    if given.get("q"):
        params["search"] = given["q"]
    if given.get("only") in ("blocked", "paused"):
        params[given["only"]] = "true"
    return params


def keys(
    layout: Layout,
    topic: str,
    channel: str,
    path: str,
    answers: Sequence[NodeAnswer],
    given: Mapping[str, str],
) -> View:
    done = [each for each in answers if each.is_done]
    rows = [
        _key(layout, path, answer.node, each) for answer in done for each in answer.value["keys"]
    ]
    rows.sort(key=lambda row: -row.depth)
    values = {
        "topic": topic,
        "channel": channel,
        "path": path,
        "q": given.get("q", ""),
        "only": given.get("only", ""),
        "choices": ONLY,
        "is_missing": bool(answers) and all(each.is_missing for each in answers),
        "refused": [
            Refused(each.node, explained(each.reason)) for each in answers if not each.is_done
        ],
        "has_answers": bool(done),
        "found": table("Keys", _COLUMNS, rows),
        "is_complete": all(each.value["complete"] for each in done),
        "asked": _question(topic, channel, given),
    }
    return View("keys.html", values)


def _key(layout: Layout, path: str, node: str, key: Mapping[str, Any]) -> Key:
    text = key["key"]
    return Key(
        text,
        node,
        key["depth"],
        key["held"],
        short_duration(key["blocked_seconds"] * SECOND) if key["blocked"] else "",
        key["paused"],
        layout.asking(path, "empty-key", key=text, node=node, depth=str(key["depth"])),
    )


def _question(topic: str, channel: str, given: Mapping[str, str]) -> Question | None:
    if given.get("ask") != "empty-key":
        return None
    key, node, depth = (given.get(name, "") for name in ("key", "node", "depth"))
    count = plural(int(depth), "waiting message") if depth.isdecimal() else "waiting messages"
    text = f"The {count} of key {key} in {topic}/{channel} on {node} will be discarded."
    text += " Its messages in flight and deferred messages stay."
    fields = (("key", key), ("node", node))
    return Question(f"Empty key {key}?", text, "empty-key", "Empty Key", fields)
