"""The pages of policies: what holds for a topic or channel, who has said so, and what may be said.

Pure: functions of what was gathered. What a user may not do has no button.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.broker.policies import CHANNEL_KEYS, TOPIC_KEYS
from nsqcy.config.options import BOOL, FLOAT, INT
from nsqcy.nsqadmin.figures import plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.subject_views import trail
from nsqcy.nsqadmin.tables import Cell, Question, Row, ask, form, notice, question_box, table

HTTP, DEFAULT = "http", "default"  # who has said a value


class Problem(NamedTuple):
    """What nsqds have refused, in their words."""

    key: str
    value: str
    text: str


def value_of(channel: str, key: str, text: str) -> Any:
    """What a field says, as nsqds want it; what makes no sense they refuse."""
    option = (CHANNEL_KEYS if channel else TOPIC_KEYS).get(key)
    if option is None or option.kind not in (INT, FLOAT, BOOL):
        return text
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, int | float) else text


def policy(
    frame: Frame,
    topic: str,
    channel: str,
    said: Sequence[Said],
    params: Mapping[str, str],
    problem: Problem | None = None,
) -> list[Markup]:
    name = f"{topic}/{channel}" if channel else topic
    path = frame.link("policy", topic, *([channel] if channel else []))
    head = [trail(frame, topic, channel, "Policy"), tag("h1", f"Policy of {name}")]
    known = [each for each in said if each.is_done]
    if not known and all(each.is_missing for each in said):
        text = "No nsqd has policies: they are NSQ's, or of an older nsqcy."
        return [*head, notice(text)]
    question = _question(name, known, params)
    return [
        *head,
        question_box(path, question),
        *[notice(f"{each.node}: {each.reason}.") for each in said if not each.is_done],
        tag("div", _keys(frame, path, channel, known, problem), class_="policy"),
        _reset(frame, path, known),
    ]


def _question(name: str, said: Sequence[Said], params: Mapping[str, str]) -> Question | None:
    if params.get("ask") != "reset-all":
        return None
    keys = sorted({key for each in said for key in _set_keys(each)})
    text = f"What was set for {name} on {plural(len(said), 'node')} is taken back, and what the"
    text += f" configuration says holds again: {', '.join(keys) or 'nothing is set'}."
    return Question(f"Reset the policy of {name}?", text, "reset-all", "Reset All")


def _set_keys(said: Said) -> list[str]:
    return [key for key, each in said.value["config"].items() if each["from"] == HTTP]


def _reset(frame: Frame, path: str, said: Sequence[Said]) -> Markup:
    if not frame.is_admin or not any(map(_set_keys, said)):
        return join()
    return tag("div", ask(path, "Reset All", "reset-all"), class_="actions")


def _keys(
    frame: Frame, path: str, channel: str, said: Sequence[Said], problem: Problem | None
) -> Markup:
    keys = list(dict.fromkeys(key for each in said for key in each.value["config"]))
    columns = ["Key", "Value", "From", *(["Set"] if frame.is_admin else [])]
    rows: list[Row] = []
    for key in keys:
        row: list[Child | Cell] = [_key(channel, key), *_values(key, said)]
        if frame.is_admin:
            row.append(_field(path, key, said, problem if problem and problem.key == key else None))
        rows.append(row)
    return table("Policy", columns, rows)


def _key(channel: str, key: str) -> Cell:
    option = (CHANNEL_KEYS if channel else TOPIC_KEYS).get(key)
    return Cell([key, " ", tag("small", option.help) if option else None], key)


def _values(key: str, said: Sequence[Said]) -> list[Child]:
    """The value and its source: once, if all nodes agree."""
    found = [(each.node, each.value["config"].get(key)) for each in said]
    if all(config == found[0][1] for _, config in found):
        config = found[0][1]
        return [_text(config["value"]), _source(config["from"])]
    values = [
        tag("div", f"{node}: {_text(config['value']) if config else '–'}") for node, config in found
    ]
    sources = [
        tag("div", f"{node}: ", _source(config["from"]) if config else "–")
        for node, config in found
    ]
    return [values, sources]


def _source(name: str) -> Child:
    """Marked, if somebody has said so."""
    return name if name == DEFAULT else tag("span", name, class_="label")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _field(path: str, key: str, said: Sequence[Said], problem: Problem | None) -> Markup:
    configs = [each.value["config"][key] for each in said if key in each.value["config"]]
    value = problem.value if problem else _text(configs[0]["value"])
    fields = [
        tag("input", type="hidden", name="key", value=key),
        tag(
            "input",
            name="value",
            value=value,
            aria_label=key,
            autocomplete="off",
            aria_invalid="true" if problem else None,
            aria_describedby=f"problem-{key}" if problem else None,
        ),
        tag("button", "Set", name="action", value="set"),
    ]
    reset = join()
    if any(config["from"] == HTTP for config in configs):
        reset = form(path, "reset", "Reset", (("key", key),))
    return tag(
        "div",
        tag("form", fields, method="post", action=path, class_="set"),
        reset,
        tag("p", problem.text, id=f"problem-{key}", class_="problem", role="alert")
        if problem
        else None,
        class_="field",
    )
