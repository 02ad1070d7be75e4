"""Message pages: queued, in-flight, deferred and dead-lettered messages, node by node.

Pure: maps fetched data to template values. Bodies and headers are arbitrary bytes from producers;
these pages always escape them as text.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html import message_bodies
from nsqcy.nsqadmin.html.formatting import moment, number, plural
from nsqcy.nsqadmin.html.layout import Layout, Question, View

TABS = {
    "queued": "Queued",
    "in_flight": "In Flight",
    "deferred": "Deferred",
    "dead": "Dead Letters",
}
MAX_BYTES = 512 << 10  # bytes of a body on a single message's page


@dataclass(frozen=True)
class MessageQuery:
    """The queue to show and the page's parameters. An empty channel means the topic itself."""

    topic: str
    channel: str
    tab: str
    params: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    def path(self, layout: Layout) -> str:
        return layout.queue("peek", self.topic, self.channel)

    def link(self, layout: Layout, **params: str) -> str:
        """Return a link to this page and tab, with changed parameters."""
        kept = {"state": self.tab} | {
            name: self.params[name] for name in ("dead", "via", "as") if name in self.params
        }
        return f"{self.path(layout)}?{urlencode(kept | params)}"


def peek(
    layout: Layout, subject: MessageQuery, answers: Sequence[NodeAnswer], waiting: int = 0
) -> View:
    """Return the view for one tab. waiting: number of messages that a redrive would move."""
    return View("messages.html", _values(layout, subject, answers, waiting))


class DeadLetterPlace(NamedTuple):
    """A channel that holds a different channel's dead letters, or a topic without channels."""

    name: str
    path: str


def dead_letters(
    layout: Layout,
    subject: MessageQuery,
    topics: Sequence[str],
    places: Sequence[tuple[str, str]],
    answers: Sequence[NodeAnswer],
) -> View:
    """Return the view for a channel's dead letters.

    topics: the dead-letter topics that its policy names. places: (topic, channel) for each channel
    of these topics, or for the topics themselves; the view shows the first one.
    """
    found = [MessageQuery(topic, channel, "queued", {}) for topic, channel in places]
    mine = [_only_from(each, subject) for each in answers] if places else []
    values = _values(layout, subject, mine) | {
        "dead_letter_topics": topics,
        "place": found[0] if found else None,
        "others": [
            DeadLetterPlace(f"{each.topic}/{each.channel}", f"{subject.path(layout)}?{_via(each)}")
            for each in found[1:]
        ],
    }
    return View("dead_letters.html", values)


def _via(place: MessageQuery) -> str:
    return urlencode({"state": "dead", "dead": place.topic, "via": place.channel})


def _only_from(answers: NodeAnswer, subject: MessageQuery) -> NodeAnswer:
    """Remove dead letters that come from other channels."""
    if not answers.is_done:
        return answers
    mine = [
        each
        for each in answers.value["messages"]
        if each["headers"].get("origin-topic") == subject.topic
        and each["headers"].get("origin-channel") == subject.channel
    ]
    return NodeAnswer(answers.node, answers.status, {**answers.value, "messages": mine})


# All tabs


class Messages(NamedTuple):
    """One node's messages. reason: why the list is empty. following: link to the next messages."""

    node: str
    reason: str
    messages: Sequence["Message"]
    following: str


def _values(
    layout: Layout, subject: MessageQuery, answers: Sequence[NodeAnswer], waiting: int = 0
) -> dict[str, object]:
    return {
        "subject": subject,
        "path": subject.path(layout),
        "tabs": TABS,
        "asked": _question(subject, waiting),
        "is_missing": bool(answers) and all(each.is_missing for each in answers),
        "nodes": [_node(layout, subject, each) for each in answers],
    }


def _question(subject: MessageQuery, waiting: int) -> Question | None:
    params = subject.params
    match params.get("ask"):
        case "redrive" if subject.channel:
            text = f"The queue of {subject.name} has {plural(waiting, 'message')}. Dead letters"
            text += " among them return to their original channels and are"
            text += " redelivered there. Other messages stay."
            return Question(f"Redrive {subject.name}?", text, "redrive", "Redrive")
        case "cancel" if subject.channel:
            id, node = params.get("id", ""), params.get("node", "")
            text = f"The deferred message {id} of {subject.name} on {node} will be discarded."
            fields = (("id", id), ("node", node))
            return Question(f"Cancel message {id}?", text, "cancel", "Cancel Message", fields)
    return None


def _node(layout: Layout, subject: MessageQuery, answers: NodeAnswer) -> Messages:
    if not answers.is_done:
        return Messages(answers.node, answers.reason, (), "")
    following = answers.value["next"]
    return Messages(
        answers.node,
        "",
        [_message(layout, subject, answers.node, each) for each in answers.value["messages"]],
        subject.link(layout, node=answers.node, start=following) if following else "",
    )


# A message


class Body(NamedTuple):
    """The shown part of a body. kind: JSON, text or hex. missing: number of bytes not shown. whole,
    as_hex: links to the complete body and to hex; empty if they would add nothing."""

    kind: str
    text: str
    missing: int
    whole: str
    as_hex: str


class Message(NamedTuple):
    """One message. title: its id or number. cancel: link that cancels a deferred message, shown to
    users who may act. body: None if it could not be read from disk."""

    id: str
    title: str
    facts: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    cancel: str
    body: Body | None


def _message(
    layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]
) -> Message:
    id = message["id"]
    cancel = ""
    if subject.tab == "deferred" and id:
        cancel = layout.asking(subject.path(layout), "cancel", state="deferred", node=node, id=id)
    return Message(
        id,
        id or f"number {message['seq']}",
        [(name, value) for name, value in _facts(message) if value],
        message["headers"],
        cancel,
        None if message["body"] is None else _body(layout, subject, node, message),
    )


def _facts(message: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    size = message["size"]
    consumer = message.get("consumer")
    facts: list[tuple[str, str | None]] = [
        ("Published", _moment(message["timestamp"])),
        ("Attempts", number(message["attempts"])),
        ("Size", None if size is None else plural(size, "byte")),
        ("Due", _moment(message.get("due"))),
    ]
    if "deadline" in message:
        facts.append(("Deadline", _moment(message["deadline"]) or "moving to another topic"))
        name = "disconnected" if consumer is None else consumer["client_id"]
        facts.append(("Consumer", name if message["deadline"] else None))
        facts.append(("Address", consumer and consumer["remote_address"]))
    return facts


def _moment(nanoseconds: int | None) -> str:
    return moment(nanoseconds) if nanoseconds else ""


def _body(layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]) -> Body:
    body = b64decode(message["body"])
    as_hex = subject.params.get("as") == "hex"
    shown = message_bodies.body_text(body, cut=message["cut"], as_hex=as_hex)
    alone = {"node": node, "start": message["start"], "count": "1", "bytes": str(MAX_BYTES)}
    is_whole = not message["cut"] or subject.params.get("bytes") == str(MAX_BYTES)
    is_hex = shown.kind == message_bodies.HEX or not message["size"]
    return Body(
        shown.kind,
        shown.text,
        message["size"] - len(body) + shown.left_out,
        "" if is_whole else subject.link(layout, **alone),
        "" if is_hex else subject.link(layout, **alone, **{"as": "hex"}),
    )
