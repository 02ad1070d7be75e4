"""What can be done on one node only: a box for a topic or channel there, and draining the node.

Pure: functions of what was gathered. What a user may not do has no button.
"""

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from nsqcy.cluster.stats import AnyFigures, TopicStats
from nsqcy.nsqadmin.figures import plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Markup, join, tag
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.tables import Question, ask, form


def manage(frame: Frame, path: str, topic: str, channel: str = "") -> Markup:
    """A link to the box."""
    if not frame.is_admin:
        return join()
    names = {"topic": topic} | ({"channel": channel} if channel else {})
    title = f"Actions on {_name(topic, channel)} here"
    return tag("a", "⋯", href=f"{path}?{urlencode(names)}#actions", class_="button", title=title)


def box(
    frame: Frame, path: str, node: str, rows: Sequence[TopicStats], params: Mapping[str, str]
) -> Markup:
    """What can be done to the topic or channel that was chosen."""
    found = _chosen(rows, params)
    if not frame.is_admin or found is None or "ask" in params:
        return join()
    topic, channel, figures = found
    names = {"topic": topic} | ({"channel": channel} if channel else {})
    pause = ("unpause", "UnPause Here") if figures.paused else ("pause", "Pause Here")
    buttons = [
        form(path, *pause, list(names.items())),
        ask(path, "Empty Here", "empty", **names),
        ask(path, "Delete Here", "delete", **names),
        tag("a", "Close", class_="button", href=path),
    ]
    title = tag("h2", f"{_name(topic, channel)} on {node} only")
    return tag(
        "section", title, tag("div", buttons, class_="actions"), id="actions", class_="notice"
    )


def question(
    node: str, rows: Sequence[TopicStats], drain: Said | None, params: Mapping[str, str]
) -> Question | None:
    """What is asked before something is destroyed on one node."""
    action = params.get("ask")
    if action == "drain" and drain is not None and drain.is_done:
        return _drain_question(node, drain)
    found = _chosen(rows, params)
    if found is None or action not in ("empty", "delete"):
        return None
    topic, channel, _ = found
    name, held = _name(topic, channel), _held(rows, topic, channel, action)
    fields = (("topic", topic), *([("channel", channel)] if channel else []))
    if action == "empty":
        text = f"{plural(held, 'message')} on {node} will be lost; those on other nodes stay."
        return Question(f"Empty {name} on {node}?", text, "empty", "Empty Here", fields)
    text = f"It is deleted on {node} with {plural(held, 'message')}; on other nodes it stays."
    return Question(f"Delete {name} on {node}?", text, "delete", "Delete Here", fields)


def _chosen(
    rows: Sequence[TopicStats], params: Mapping[str, str]
) -> tuple[str, str, AnyFigures] | None:
    topic, channel = params.get("topic", ""), params.get("channel", "")
    row = next((each for each in rows if each.name == topic), None)
    if row is None:
        return None
    if not channel:
        return topic, "", row.figures
    found = row.channels.get(channel)
    return None if found is None else (topic, channel, found.figures)


def _held(rows: Sequence[TopicStats], topic: str, channel: str, action: str) -> int:
    """Messages that would be lost."""
    row = next(each for each in rows if each.name == topic)
    channels = [row.channels[channel]] if channel else list(row.channels.values())
    if not channel and action == "empty":
        return row.figures.depth
    figures = [each.figures for each in channels]
    held = sum(each.depth + each.in_flight_count + each.deferred_count for each in figures)
    return held if channel else held + row.figures.depth


def _name(topic: str, channel: str) -> str:
    return f"channel {topic}/{channel}" if channel else f"topic {topic}"


# --- draining -----------------------------------------------------------------------------------


def drain_state(frame: Frame, path: str, drain: Said | None) -> Markup:
    """Whether the node drains, and the button for it; nothing of a node that cannot."""
    if drain is None or drain.is_missing:
        return join()
    if not drain.is_done:
        return tag("p", f"Whether it drains is not known: {drain.message}")
    if not drain.value.get("draining"):
        asks = ask(path, "Drain …", "drain", "Take no more publishes, and exit when empty")
        return tag("div", asks, class_="actions") if frame.is_admin else join()
    text = tag("p", tag("span", "draining", class_="label old"), f" {_left(drain)}.")
    if "seconds_left" in drain.value:
        text = join(text, tag("p", f"It exits in {drain.value['seconds_left']} s in any case."))
    stop = form(path, "undrain", "Stop Draining") if frame.is_admin else None
    return tag("section", text, tag("div", stop, class_="actions"))


def _left(drain: Said) -> str:
    left = drain.value.get("left")
    if left is None:
        return "How much is left is not known"
    return f"{plural(left['messages'], 'message')} left in {plural(left['places'], 'place')}"


def _drain_question(node: str, drain: Said) -> Question:
    text = (
        f"{node} refuses publishes from now on, nsqlookupds are told that nothing is there, and it"
    )
    text += f" exits when its consumers have emptied it. {_left(drain)}."
    return Question(f"Drain {node}?", text, "drain", "Drain")
