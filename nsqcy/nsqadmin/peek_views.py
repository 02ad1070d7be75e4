"""The pages of messages: what waits, is in flight, is deferred, or has died, node by node.

Pure: functions of what was gathered. Bodies and headers are whatever somebody has published: they
are text on these pages, and never anything else.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from nsqcy.nsqadmin import bodies
from nsqcy.nsqadmin.figures import number, plural
from nsqcy.nsqadmin.frame import Frame
from nsqcy.nsqadmin.markup import Child, Markup, join, tag
from nsqcy.nsqadmin.moments import moment
from nsqcy.nsqadmin.saying import Said
from nsqcy.nsqadmin.subject_views import trail
from nsqcy.nsqadmin.tables import Question, ask, notice, question_box

TABS = {
    "queued": "Queued",
    "in_flight": "In Flight",
    "deferred": "Deferred",
    "dead": "Dead Letters",
}
BYTES_MOST = 512 << 10  # of a body that is asked for whole


@dataclass(frozen=True)
class Subject:
    """What is looked at: a channel, or a topic where that is empty; and the page's parameters."""

    topic: str
    channel: str
    tab: str
    params: Mapping[str, str]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    def path(self, frame: Frame) -> str:
        return frame.link("peek", self.topic, *([self.channel] if self.channel else []))

    def link(self, frame: Frame, **params: str) -> str:
        """This page with other parameters, but the same tab."""
        kept = {"state": self.tab} | {
            name: self.params[name] for name in ("dead", "via", "as") if name in self.params
        }
        return f"{self.path(frame)}?{urlencode(kept | params)}"


def peek(frame: Frame, subject: Subject, said: Sequence[Said], waiting: int = 0) -> list[Markup]:
    """What nsqds have said of one tab; `waiting`: how many messages would be redriven."""
    return [
        *_head(frame, subject, waiting),
        *_nodes(frame, subject, said),
    ]


def dead_letters(
    frame: Frame,
    subject: Subject,
    topics: Sequence[str],
    places: Sequence[tuple[str, str]],
    said: Sequence[Said],
) -> list[Markup]:
    """Those of a channel. `topics`: where its policy sends them; `places`: the channels of these
    that have them, or the topics themselves, of which the first is shown."""
    head = _head(frame, subject)
    if not topics:
        link = tag("a", "policy", href=frame.link("policy", subject.topic, subject.channel))
        return [*head, notice("Nothing dies here: the ", link, " has no dead_letter_topic.")]
    if not places:
        return [*head, notice(f"There is no topic {', '.join(topics)} yet: nothing has died.")]
    (topic, channel), *others = places
    place = Subject(topic, channel, "queued", {})
    where = tag("a", place.name, href=place.path(frame))
    also = [
        [", ", tag("a", f"{topic}/{each}", href=f"{subject.path(frame)}?{_via(topic, each)}")]
        for topic, each in others
    ]
    redrive = join()
    if frame.is_admin and channel:
        redrive = tag("div", ask(place.path(frame), "Redrive …", "redrive"), class_="actions")
    return [
        *head,
        tag("p", "Dead letters of this channel are in ", where, "."),
        tag("p", "The same letters are also in", also) if also else join(),
        redrive,
        *_nodes(frame, subject, [_only_from(each, subject) for each in said]),
    ]


def _via(topic: str, channel: str) -> str:
    return urlencode({"state": "dead", "dead": topic, "via": channel})


def _only_from(said: Said, subject: Subject) -> Said:
    """Without the dead letters of other channels."""
    if not said.is_done:
        return said
    mine = [
        each
        for each in said.value["messages"]
        if each["headers"].get("origin-topic") == subject.topic
        and each["headers"].get("origin-channel") == subject.channel
    ]
    return Said(said.node, said.status, {**said.value, "messages": mine})


# --- what all tabs have -------------------------------------------------------------------------


def _head(frame: Frame, subject: Subject, waiting: int = 0) -> list[Markup]:
    return [
        trail(frame, subject.topic, subject.channel, "Messages"),
        tag("h1", f"Messages of {subject.name}"),
        question_box(subject.path(frame), _question(subject, waiting)),
        _tabs(frame, subject),
    ]


def _tabs(frame: Frame, subject: Subject) -> Markup:
    if not subject.channel:
        return tag("p", "What the topic has for itself: no channel has been given it yet.")
    path = subject.path(frame)
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


def _question(subject: Subject, waiting: int) -> Question | None:
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


def _nodes(frame: Frame, subject: Subject, said: Sequence[Said]) -> list[Markup]:
    if said and all(each.is_missing for each in said):
        text = "No nsqd can show its messages: they are NSQ's, or of an older nsqcy."
        return [notice(text)]
    return [_node(frame, subject, each) for each in said]


def _node(frame: Frame, subject: Subject, said: Said) -> Markup:
    title = tag("h2", tag("a", said.node, href=frame.link("nodes", said.node)))
    if not said.is_done:
        return tag("section", title, notice(said.reason))
    messages, following = said.value["messages"], said.value["next"]
    onwards = subject.link(frame, node=said.node, start=following) if following else ""
    return tag(
        "section",
        title,
        [_message(frame, subject, said.node, each) for each in messages],
        notice("No messages.") if not messages and not following else None,
        tag("p", tag("a", "Next messages", href=onwards, rel="next")) if onwards else None,
    )


# --- a message ----------------------------------------------------------------------------------


def _message(frame: Frame, subject: Subject, node: str, message: Mapping[str, Any]) -> Markup:
    id = message["id"] or f"number {message['seq']}"
    facts = [
        tag("div", tag("dt", name), tag("dd", value)) for name, value in _facts(message) if value
    ]
    headers = [
        tag("div", tag("dt", name), tag("dd", bodies.visible(value)))
        for name, value in message["headers"].items()
    ]
    return tag(
        "article",
        tag("h3", id, " ", _cancel(frame, subject, node, message)),
        tag("dl", facts),
        tag("dl", headers, class_="headers", aria_label="Headers") if headers else None,
        _body(frame, subject, node, message),
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


def _cancel(frame: Frame, subject: Subject, node: str, message: Mapping[str, Any]) -> Markup:
    if not frame.is_admin or subject.tab != "deferred" or not message["id"]:
        return join()
    path, id = subject.path(frame), message["id"]
    return ask(path, "Cancel", "cancel", f"Cancel {id}", state="deferred", node=node, id=id)


def _body(frame: Frame, subject: Subject, node: str, message: Mapping[str, Any]) -> Markup:
    if message["body"] is None:
        return notice("The disk does not give it back.")
    body = b64decode(message["body"])
    as_hex = subject.params.get("as") == "hex"
    shown = bodies.shown(body, cut=message["cut"], as_hex=as_hex)
    missing = message["size"] - len(body) + shown.left_out
    return join(
        tag("pre", shown.text, class_=f"body {shown.kind.lower()}", tabindex=0),
        _below(frame, subject, node, message, shown, missing),
    )


def _below(
    frame: Frame,
    subject: Subject,
    node: str,
    message: Mapping[str, Any],
    shown: bodies.Shown,
    missing: int,
) -> Markup:
    """What form it is in, how else it can be had, and what is missing."""
    parts: list[Child] = [shown.kind]
    alone = {"node": node, "start": message["start"], "count": "1", "bytes": str(BYTES_MOST)}
    if missing:
        parts.append(f" · {plural(missing, 'byte')} more")
    if message["cut"] and subject.params.get("bytes") != str(BYTES_MOST):
        parts += [" · ", tag("a", "alone, and more of it", href=subject.link(frame, **alone))]
    if shown.kind != bodies.HEX and message["size"]:
        in_hex = subject.link(frame, **alone, **{"as": "hex"})
        parts += [" · ", tag("a", "in hex", href=in_hex)]
    return tag("p", parts, class_="below")
