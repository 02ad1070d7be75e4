"""The pages of messages: queued, in flight, deferred, or dead, node by node.

Pure: functions of what was fetched. Bodies and headers are whatever a producer published: they are
text on these pages, and never anything else.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html import message_bodies
from nsqcy.nsqadmin.html.elements import (
    Child,
    Markup,
    Question,
    ask,
    join,
    notice,
    question_box,
    tag,
)
from nsqcy.nsqadmin.html.formatting import moment, number, plural
from nsqcy.nsqadmin.html.layout import Layout, trail

TABS = {
    "queued": "Queued",
    "in_flight": "In Flight",
    "deferred": "Deferred",
    "dead": "Dead Letters",
}
MAX_BYTES = 512 << 10  # of a body that is requested whole


@dataclass(frozen=True)
class MessageQuery:
    """What is looked at: a channel, or a topic where that is empty; and the page's parameters."""

    topic: str
    channel: str
    tab: str
    params: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    def path(self, layout: Layout) -> str:
        return layout.link("peek", self.topic, *([self.channel] if self.channel else []))

    def link(self, layout: Layout, **params: str) -> str:
        """This page with other parameters, but the same tab."""
        kept = {"state": self.tab} | {
            name: self.params[name] for name in ("dead", "via", "as") if name in self.params
        }
        return f"{self.path(layout)}?{urlencode(kept | params)}"


def peek(
    layout: Layout, subject: MessageQuery, answers: Sequence[NodeAnswer], waiting: int = 0
) -> list[Markup]:
    """What nsqds answered about one tab; `waiting`: how many messages would be redriven."""
    return [
        *_head(layout, subject, waiting),
        *_nodes(layout, subject, answers),
    ]


def dead_letters(
    layout: Layout,
    subject: MessageQuery,
    topics: Sequence[str],
    places: Sequence[tuple[str, str]],
    answers: Sequence[NodeAnswer],
) -> list[Markup]:
    """Those of a channel. `topics`: where its policy sends them; `places`: the channels of these
    that have them, or the topics themselves, of which the first is shown."""
    head = _head(layout, subject)
    if not topics:
        link = tag("a", "policy", href=layout.link("policy", subject.topic, subject.channel))
        return [*head, notice("Nothing dies location: the ", link, " has no dead_letter_topic.")]
    if not places:
        return [*head, notice(f"There is no topic {', '.join(topics)} yet: nothing has died.")]
    (topic, channel), *others = places
    place = MessageQuery(topic, channel, "queued", {})
    where = tag("a", place.name, href=place.path(layout))
    also = [
        [", ", tag("a", f"{topic}/{each}", href=f"{subject.path(layout)}?{_via(topic, each)}")]
        for topic, each in others
    ]
    redrive = join()
    if layout.is_admin and channel:
        redrive = tag("div", ask(place.path(layout), "Redrive …", "redrive"), class_="actions")
    return [
        *head,
        tag("p", "Dead letters of this channel are in ", where, "."),
        tag("p", "The same letters are also in", also) if also else join(),
        redrive,
        *_nodes(layout, subject, [_only_from(each, subject) for each in answers]),
    ]


def _via(topic: str, channel: str) -> str:
    return urlencode({"state": "dead", "dead": topic, "via": channel})


def _only_from(answers: NodeAnswer, subject: MessageQuery) -> NodeAnswer:
    """Without the dead letters of other channels."""
    if not answers.is_done:
        return answers
    mine = [
        each
        for each in answers.value["messages"]
        if each["headers"].get("origin-topic") == subject.topic
        and each["headers"].get("origin-channel") == subject.channel
    ]
    return NodeAnswer(answers.node, answers.status, {**answers.value, "messages": mine})


# --- what all tabs have -------------------------------------------------------------------------


def _head(layout: Layout, subject: MessageQuery, waiting: int = 0) -> list[Markup]:
    return [
        trail(layout, subject.topic, subject.channel, "Messages"),
        tag("h1", f"Messages of {subject.name}"),
        question_box(subject.path(layout), _question(subject, waiting)),
        _tabs(layout, subject),
    ]


def _tabs(layout: Layout, subject: MessageQuery) -> Markup:
    if not subject.channel:
        return tag("p", "What the topic has for itself: no channel has been given it yet.")
    path = subject.path(layout)
    links = [
        tag(
            "a",
            text,
            href=f"{path}?state={state}",
            aria_current="page" if state == subject.tab else None,
        )
        for state, text in TABS.items()
    ]
    return tag("nav", links, class_="tabs", aria_label="Which messages")


def _question(subject: MessageQuery, waiting: int) -> Question | None:
    params = subject.params
    match params.get("ask"):
        case "redrive" if subject.channel:
            text = f"The queue of {subject.name} has {plural(waiting, 'message')}. Those that are"
            text += " dead letters go back to the channels where they came from, and are delivered"
            text += " there again; what is none stays."
            return Question(f"Redrive {subject.name}?", text, "redrive", "Redrive")
        case "cancel" if subject.channel:
            id, node = params.get("id", ""), params.get("node", "")
            text = f"The deferred message {id} of {subject.name} on {node} is thrown away."
            fields = (("id", id), ("node", node))
            return Question(f"Cancel message {id}?", text, "cancel", "Cancel Message", fields)
    return None


def _nodes(layout: Layout, subject: MessageQuery, answers: Sequence[NodeAnswer]) -> list[Markup]:
    if answers and all(each.is_missing for each in answers):
        text = "No nsqd can show its messages: they are NSQ's, or of an older nsqcy."
        return [notice(text)]
    return [_node(layout, subject, each) for each in answers]


def _node(layout: Layout, subject: MessageQuery, answers: NodeAnswer) -> Markup:
    title = tag("h2", tag("a", answers.node, href=layout.link("nodes", answers.node)))
    if not answers.is_done:
        return tag("section", title, notice(answers.reason))
    messages, following = answers.value["messages"], answers.value["next"]
    onwards = subject.link(layout, node=answers.node, start=following) if following else ""
    return tag(
        "section",
        title,
        [_message(layout, subject, answers.node, each) for each in messages],
        notice("No messages.") if not messages and not following else None,
        tag("p", tag("a", "Next messages", href=onwards, rel="next")) if onwards else None,
    )


# --- a message ----------------------------------------------------------------------------------


def _message(
    layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]
) -> Markup:
    id = message["id"] or f"number {message['seq']}"
    facts = [
        tag("div", tag("dt", name), tag("dd", value)) for name, value in _facts(message) if value
    ]
    headers = [
        tag("div", tag("dt", name), tag("dd", message_bodies.visible(value)))
        for name, value in message["headers"].items()
    ]
    return tag(
        "article",
        tag("h3", id, " ", _cancel(layout, subject, node, message)),
        tag("dl", facts),
        tag("dl", headers, class_="headers", aria_label="Headers") if headers else None,
        _body(layout, subject, node, message),
        class_="message",
    )


def _facts(message: Mapping[str, Any]) -> list[tuple[str, Child]]:
    size = message["size"]
    consumer = message.get("consumer")
    facts: list[tuple[str, Child]] = [
        ("Published", _moment(message["timestamp"])),
        ("Attempts", number(message["attempts"])),
        ("Size", None if size is None else plural(size, "byte")),
        ("Due", _moment(message.get("due"))),
    ]
    if "deadline" in message:
        facts.append(("Deadline", _moment(message["deadline"]) or "it moves to another topic"))
        name = "has left" if consumer is None else consumer["client_id"]
        facts.append(("Consumer", name if message["deadline"] else None))
        facts.append(("Address", consumer and consumer["remote_address"]))
    return facts


def _moment(nanoseconds: int | None) -> str:
    return moment(nanoseconds) if nanoseconds else ""


def _cancel(layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]) -> Markup:
    if not layout.is_admin or subject.tab != "deferred" or not message["id"]:
        return join()
    path, id = subject.path(layout), message["id"]
    return ask(path, "Cancel", "cancel", f"Cancel {id}", state="deferred", node=node, id=id)


def _body(layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]) -> Markup:
    if message["body"] is None:
        return notice("The disk does not give it back.")
    body = b64decode(message["body"])
    as_hex = subject.params.get("as") == "hex"
    shown = message_bodies.body_text(body, cut=message["cut"], as_hex=as_hex)
    missing = message["size"] - len(body) + shown.left_out
    return join(
        tag("pre", shown.text, class_=f"body {shown.kind.lower()}", tabindex=0),
        _below(layout, subject, node, message, shown, missing),
    )


def _below(
    layout: Layout,
    subject: MessageQuery,
    node: str,
    message: Mapping[str, Any],
    shown: message_bodies.Shown,
    missing: int,
) -> Markup:
    """What form it is in, how else it can be had, and what is missing."""
    parts: list[Child] = [shown.kind]
    alone = {"node": node, "start": message["start"], "count": "1", "bytes": str(MAX_BYTES)}
    if missing:
        parts.append(f" · {plural(missing, 'byte')} more")
    if message["cut"] and subject.params.get("bytes") != str(MAX_BYTES):
        parts += [" · ", tag("a", "alone, and more of it", href=subject.link(layout, **alone))]
    if shown.kind != message_bodies.HEX and message["size"]:
        in_hex = subject.link(layout, **alone, **{"as": "hex"})
        parts += [" · ", tag("a", "in hex", href=in_hex)]
    return tag("p", parts, class_="below")
