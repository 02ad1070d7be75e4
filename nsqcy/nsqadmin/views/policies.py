"""The pages of policies: each key of a topic or channel with its value, its source, and a field to
set it.

Pure: functions of what was fetched. What a user may not do has no button.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.config.options import BOOL, FLOAT, INT
from nsqcy.config.policies import CHANNEL_KEYS, TOPIC_KEYS
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html.elements import (
    Cell,
    Child,
    Markup,
    Question,
    Row,
    ask,
    form,
    join,
    notice,
    question_box,
    tag,
)
from nsqcy.nsqadmin.html.formatting import plural
from nsqcy.nsqadmin.html.layout import Layout, trail
from nsqcy.nsqadmin.html.tables import table

HTTP, DEFAULT = "http", "default"  # where a value comes from


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
    layout: Layout,
    topic: str,
    channel: str,
    answers: Sequence[NodeAnswer],
    params: Mapping[str, str],
    problem: Problem | None = None,
) -> list[Markup]:
    name = f"{topic}/{channel}" if channel else topic
    path = layout.link("policy", topic, *([channel] if channel else []))
    head = [trail(layout, topic, channel, "Policy"), tag("h1", f"Policy of {name}")]
    known = [each for each in answers if each.is_done]
    if not known and all(each.is_missing for each in answers):
        text = "No nsqd has policies: they are NSQ's, or of an older nsqcy."
        return [*head, notice(text)]
    question = _question(name, known, params)
    return [
        *head,
        question_box(path, question),
        *[notice(f"{each.node}: {each.reason}.") for each in answers if not each.is_done],
        tag("div", _keys(layout, path, channel, known, problem), class_="policy"),
        _reset(layout, path, known),
    ]


def _question(
    name: str, answers: Sequence[NodeAnswer], params: Mapping[str, str]
) -> Question | None:
    if params.get("ask") != "reset-all":
        return None
    keys = sorted({key for each in answers for key in _set_keys(each)})
    text = f"What was set for {name} on {plural(len(answers), 'node')} is taken back, and what the"
    text += f" configuration says holds again: {', '.join(keys) or 'nothing is set'}."
    return Question(f"Reset the policy of {name}?", text, "reset-all", "Reset All")


def _set_keys(answers: NodeAnswer) -> list[str]:
    return [key for key, each in answers.value["config"].items() if each["from"] == HTTP]


def _reset(layout: Layout, path: str, answers: Sequence[NodeAnswer]) -> Markup:
    if not layout.is_admin or not any(map(_set_keys, answers)):
        return join()
    return tag("div", ask(path, "Reset All", "reset-all"), class_="actions")


def _keys(
    layout: Layout, path: str, channel: str, answers: Sequence[NodeAnswer], problem: Problem | None
) -> Markup:
    keys = list(dict.fromkeys(key for each in answers for key in each.value["config"]))
    columns = ["Key", "Value", "From", *(["Set"] if layout.is_admin else [])]
    rows: list[Row] = []
    for key in keys:
        row: list[Child | Cell] = [_key(channel, key), *_values(key, answers)]
        if layout.is_admin:
            row.append(
                _field(path, key, answers, problem if problem and problem.key == key else None)
            )
        rows.append(row)
    return table("Policy", columns, rows)


def _key(channel: str, key: str) -> Cell:
    option = (CHANNEL_KEYS if channel else TOPIC_KEYS).get(key)
    return Cell([key, " ", tag("small", option.help) if option else None], key)


def _values(key: str, answers: Sequence[NodeAnswer]) -> list[Child]:
    """The value and its source: once, if all nodes agree."""
    found = [(each.node, each.value["config"].get(key)) for each in answers]
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
    """Marked, unless it is the default."""
    return name if name == DEFAULT else tag("span", name, class_="label")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _field(path: str, key: str, answers: Sequence[NodeAnswer], problem: Problem | None) -> Markup:
    configs = [each.value["config"][key] for each in answers if key in each.value["config"]]
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
