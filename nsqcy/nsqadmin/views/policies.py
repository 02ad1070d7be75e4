"""Policy pages: each key of a topic or channel, with its value, its source, and a field for setting
it.

Pure: maps fetched data to template values.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.config.policies import CHANNEL_KEYS, TOPIC_KEYS
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html.formatting import plural
from nsqcy.nsqadmin.html.layout import Question, View
from nsqcy.nsqadmin.html.tables import table
from nsqcy.nsqadmin.views import policy_fields
from nsqcy.nsqadmin.views.policy_fields import Field

HTTP = "http"  # source of a value that was set over HTTP


class Draft(NamedTuple):
    """A rejected form, and the error text from the nsqds. key: the field that the error concerns;
    empty if it concerns none."""

    fields: Mapping[str, str]
    key: str
    text: str


EMPTY = Draft({}, "", "")


def draft(fields: Mapping[str, str], keys: Iterable[str], error: str) -> Draft:
    """Return the draft for a rejected form. The error contains the key that it concerns."""
    key = next((each for each in keys if f"{each}: " in error), "")
    return Draft(fields, key, error)


class Key(NamedTuple):
    """A key of a policy. on_nodes: (node, value, source) for each node, with source "" if the key
    is unknown to the node; a single entry with node "" if all agree. is_set: whether any node's
    value was set over HTTP."""

    name: str
    help: str
    on_nodes: Sequence[tuple[str, str, str]]
    field: Field
    is_set: bool


def policy(
    topic: str,
    channel: str,
    path: str,
    answers: Sequence[NodeAnswer],
    params: Mapping[str, str],
    draft: Draft = EMPTY,
) -> View:
    name = f"{topic}/{channel}" if channel else topic
    known = [each for each in answers if each.is_done]
    keys = dict.fromkeys(key for each in known for key in each.value["config"])
    rows = [_key(channel, key, known, draft) for key in keys]
    columns = [(title, lambda row: row.name) for title in ("Key", "Value", "From", "Set")]
    values = {
        "topic": topic,
        "channel": channel,
        "name": name,
        "path": path,
        "is_missing": not known and all(each.is_missing for each in answers),
        "refused": [each for each in answers if not each.is_done],
        "asked": _question(name, known, params),
        "readonly": table("Policy", columns[:3], rows),
        "editable": table("Policy", columns, rows),
        "is_set": any(row.is_set for row in rows),
        "problem": draft,
    }
    return View("policy.html", values)


def _question(
    name: str, answers: Sequence[NodeAnswer], params: Mapping[str, str]
) -> Question | None:
    if params.get("ask") != "reset-all":
        return None
    keys = sorted({key for each in answers for key in _set_keys(each)})
    text = f"Keys of {name} that return to their configured values on"
    text += f" {plural(len(answers), 'node')}: {', '.join(keys) or 'none'}."
    return Question(f"Reset the policy of {name}?", text, "reset-all", "Reset All")


def _set_keys(answers: NodeAnswer) -> list[str]:
    return [key for key, each in answers.value["config"].items() if each["from"] == HTTP]


def _key(channel: str, key: str, answers: Sequence[NodeAnswer], draft: Draft) -> Key:
    option = (CHANNEL_KEYS if channel else TOPIC_KEYS).get(key)
    found = [(each.node, each.value["config"].get(key)) for each in answers]
    configs = [config for _, config in found if config]
    same = len(configs) == len(found) and all(config == configs[0] for config in configs)
    if same:
        found = [("", configs[0])]
    is_one_value = all(config["value"] == configs[0]["value"] for config in configs)
    return Key(
        key,
        option.help if option else "",
        [
            (node, _text(config["value"]), config["from"]) if config else (node, "–", "")
            for node, config in found
        ],
        policy_fields.field(
            channel, key, configs[0]["value"] if is_one_value else None, draft.fields
        ),
        any(config["from"] == HTTP for config in configs),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
