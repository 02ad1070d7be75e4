"""Message pages: a channel's queued, in-flight, deferred and dead-lettered messages, or a topic's
backlog and log, of all nodes in one list.

Pure: maps fetched data to template values. Bodies and headers are arbitrary bytes from producers;
these pages always escape them as text.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any, NamedTuple
from urllib.parse import urlencode

from nsqcy.cluster.peeking import attempts
from nsqcy.cluster.stats import TopicStats, total
from nsqcy.nsqadmin import message_filter
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.html import message_bodies
from nsqcy.nsqadmin.html.formatting import moment, number, plural, size
from nsqcy.nsqadmin.html.layout import Layout, Question, View
from nsqcy.nsqadmin.html.log_positions import Shortcut, picked, shortcuts

TOPIC_TABS = {"backlog": "Backlog", "log": "Log"}
CHANNEL_TABS = {
    "queued": "Queued",
    "in_flight": "In Flight",
    "deferred": "Deferred",
    "dead": "Dead Letters",
}
MAX_BYTES = 512 << 10  # maximum bytes of a body on a single message's page
PREVIEW = 120  # maximum characters of a body in a row
KEPT = ("dead", "via", "as", "q", "path", "from")  # parameters that links on the page preserve
SIZES = ("10", "50", "100")  # messages per nsqd; the last one is nsqd's maximum


@dataclass(frozen=True)
class MessageQuery:
    """The queue to show and the page's parameters. An empty channel means the topic itself."""

    topic: str
    channel: str
    tab: str
    params: Mapping[str, str]

    @classmethod
    def of(cls, topic: str, channel: str, params: Mapping[str, str]) -> "MessageQuery":
        """Return the query for a page's parameters; its tab is the first one by default."""
        tabs = CHANNEL_TABS if channel else TOPIC_TABS
        tab = params.get("state", "")
        return cls(topic, channel, tab if tab in tabs else next(iter(tabs)), params)

    @property
    def tabs(self) -> Mapping[str, str]:
        return CHANNEL_TABS if self.channel else TOPIC_TABS

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}" if self.channel else self.topic

    def path(self, layout: Layout) -> str:
        return layout.queue("peek", self.topic, self.channel)

    def link(self, layout: Layout, **params: str) -> str:
        """Return a link to this page and tab, with changed parameters; empty ones are omitted."""
        kept = {"state": self.tab, "count": self.size if self.size != SIZES[0] else ""}
        kept |= {name: self.params.get(name, "") for name in KEPT} | params
        return f"{self.path(layout)}?{urlencode({k: v for k, v in kept.items() if v})}"

    @property
    def size(self) -> str:
        """The number of messages per nsqd. The page of a single message does not change it."""
        count = self.params.get("count", "")
        return count if count in SIZES else SIZES[0]

    @property
    def filter(self) -> message_filter.Filter:
        """The filter of the list. Raises ValueError if its path is invalid."""
        return message_filter.parse(self.params.get("q", ""), self.params.get("path", ""))

    @property
    def is_filtered(self) -> bool:
        return bool(self.params.get("q") or self.params.get("path"))


def peek(
    layout: Layout,
    subject: MessageQuery,
    answers: Sequence[NodeAnswer],
    counts: Mapping[str, int],
    now: float,
) -> View:
    """Return the view for one tab.

    counts: number of messages by tab, where known. now: seconds since 1970.
    """
    values = _values(layout, subject, answers, counts)
    if subject.tab == "log":
        values["starts"] = [
            Shortcut("Newest", ""),
            Shortcut("Beginning", "earliest"),
            *shortcuts(now),
        ]
        values["picked"] = picked(subject.params.get("from", ""))
    return View("messages.html", values)


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
    counts: Mapping[str, int],
) -> View:
    """Return the view for a channel's dead letters.

    topics: the dead-letter topics in its policy. places: (topic, channel) for each channel
    of these topics, or for the topics themselves; the view shows the first one.
    """
    found = [MessageQuery.of(topic, channel, {}) for topic, channel in places]
    mine = [_only_from(each, subject) for each in answers] if places else []
    values = _values(layout, subject, mine, counts, found[0] if found else None) | {
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


def counts_of(rows: Sequence[TopicStats], channel: str) -> dict[str, int]:
    """Return the number of messages by tab. rows: the topic on all nodes."""
    if not channel:
        return {"backlog": sum(row.figures.depth for row in rows)}
    figures = total([row.channels[channel].figures for row in rows])
    return {
        "queued": figures.depth,
        "in_flight": figures.in_flight_count,
        "deferred": figures.deferred_count,
    }


class Refused(NamedTuple):
    """A node that shows no messages, and the reason."""

    node: str
    reason: str


class Turn(NamedTuple):
    """The link to a node's next or earlier messages."""

    node: str
    path: str


def _values(
    layout: Layout,
    subject: MessageQuery,
    answers: Sequence[NodeAnswer],
    counts: Mapping[str, int],
    source: MessageQuery | None = None,
) -> dict[str, object]:
    """source: the queue that holds the messages, if it is not the page's own."""
    done = [each for each in answers if each.is_done]
    found = [
        _message(layout, subject, source or subject, node, each) for node, each in _merged(done)
    ]
    problem = _problem(subject)
    return {
        "subject": subject,
        "path": subject.path(layout),
        "asked": _question(subject, counts.get("queued", 0)),
        "counts": counts,
        "sizes": SIZES,
        "is_missing": bool(answers) and all(each.is_missing for each in answers),
        "refused": [Refused(each.node, each.reason) for each in answers if not each.is_done],
        "messages": () if problem else found,
        "examined": sum(each.value.get("examined", 0) for each in done),
        "may_redrive": subject.tab == "queued" and _have_dead_letters(subject, found),
        "problem": problem,
        "has_answers": bool(done),
        "with_nodes": len(answers) > 1,
        "earlier": () if subject.is_filtered else _turns(layout, subject, done, "previous"),
        "following": _turns(layout, subject, done, "next"),
    }


def _turns(
    layout: Layout, subject: MessageQuery, answers: Sequence[NodeAnswer], key: str
) -> Sequence[Turn]:
    """Return the links to the next pages and, in a log, also to the previous ones."""
    places = [(each.node, each.value.get(key)) for each in answers]
    return [Turn(node, subject.link(layout, node=node, start=at)) for node, at in places if at]


def _have_dead_letters(subject: MessageQuery, found: Sequence["Message"]) -> bool:
    """Return whether a channel has messages that a redrive returns to their original channels."""
    return bool(subject.channel) and any("origin-channel" in each.headers for each in found)


def _merged(answers: Sequence[NodeAnswer]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the messages of all nodes by time. Each node's messages are kept in the order in which
    the node delivers them."""
    lists = [[(each.node, message) for message in each.value["messages"]] for each in answers]
    return list(merge(*lists, key=lambda each: _time(each[1])))


def _time(message: Mapping[str, Any]) -> int:
    return message.get("deadline") or message.get("due") or message["timestamp"] or 0


def _problem(subject: MessageQuery) -> str:
    """Return the error in the filter; empty if there is none."""
    try:
        _ = subject.filter
    except ValueError as error:
        return str(error)
    return ""


def _question(subject: MessageQuery, waiting: int) -> Question | None:
    params = subject.params
    match params.get("ask"):
        case "redrive" if subject.channel:
            text = f"The queue of {subject.name} has {plural(waiting, 'message')}. Dead letters"
            text += " among them return to their original channels and are"
            text += " redelivered there. Other messages are not affected."
            limit = "Messages from the head of each node's queue (all if empty)"
            return Question(f"Redrive {subject.name}?", text, "redrive", "Redrive", limit=limit)
        case "cancel" | "redrive-message" | "delete-message" as action if subject.channel:
            return _of_one(subject, action, params.get("id", ""), params.get("node", ""))
    return None


def _of_one(subject: MessageQuery, action: str, id: str, node: str) -> Question:
    """Return the question for an action on one message."""
    where = f"message {id} of {subject.name} on {node}"
    verb, text = {
        "cancel": ("Cancel", f"The deferred {where} will be discarded."),
        "delete-message": ("Delete", f"The waiting {where} will be discarded."),
        "redrive-message": (
            "Redrive",
            f"M{where[1:]} will return to the channel that it came from, and will be redelivered.",
        ),
    }[action]
    fields = (("id", id), ("node", node))
    return Question(f"{verb} message {id}?", text, action, f"{verb} Message", fields)


# A message


class Body(NamedTuple):
    """The shown part of a body. kind: JSON, text or hex. missing: number of bytes not shown. whole,
    as_hex: links to the complete body and to hex; empty if they would add nothing."""

    kind: str
    text: str
    missing: int
    whole: str
    as_hex: str


class Ask(NamedTuple):
    """The link to the question of an action on one message."""

    text: str
    path: str


class Message(NamedTuple):
    """One message. title: its id or number. counted: its attempts, or its number in a log. preview:
    the beginning of its body, on one line. asks: links to the questions of the possible actions,
    shown to users who may act. download: link to the body as a file. body: None if it could not
    be read from disk."""

    id: str
    node: str
    title: str
    time: str
    counted: str
    size: str
    preview: str
    facts: Sequence[tuple[str, str]]
    headers: Mapping[str, str]
    asks: Sequence[Ask]
    download: str
    body: Body | None


def _message(
    layout: Layout,
    subject: MessageQuery,
    source: MessageQuery,
    node: str,
    message: Mapping[str, Any],
) -> Message:
    id = message["id"] or ""
    body = None if message["body"] is None else _body(layout, subject, node, message)
    return Message(
        id,
        node,
        id or f"number {message['seq']}",
        _when(message),
        _counted(source, message),
        "" if message["size"] is None else size(message["size"]),
        _preview(body),
        [(name, value) for name, value in _facts(source, message) if value],
        message["headers"],
        _asks(layout, source, node, message) if id and source.channel else (),
        _download(layout, source, node, message) if id and body else "",
        body,
    )


def _asks(
    layout: Layout, source: MessageQuery, node: str, message: Mapping[str, Any]
) -> Sequence[Ask]:
    """Return the possible actions on a deferred or waiting message."""
    texts: dict[str, str] = {}
    if source.tab == "deferred":
        texts["cancel"] = "Cancel"
    if source.tab == "queued" and "origin-channel" in message["headers"]:
        texts["redrive-message"] = "Redrive"
    if source.tab == "queued":
        texts["delete-message"] = "Delete"
    place = {"state": source.tab, "node": node, "id": message["id"]}
    return [
        Ask(text, layout.asking(source.path(layout), action, **place))
        for action, text in texts.items()
    ]


def _when(message: Mapping[str, Any]) -> str:
    """Return the time by which the list is sorted, with a label unless it is the publish time."""
    kind = "due " if message.get("due") else "times out " if message.get("deadline") else ""
    return f"{kind}{_moment(_time(message))}"


def _preview(body: Body | None) -> str:
    if body is None:
        return "unreadable"
    text = " ".join(body.text[: 4 * PREVIEW].split())
    return f"{text[:PREVIEW]}…" if len(text) > PREVIEW else text


def _download(layout: Layout, source: MessageQuery, node: str, message: Mapping[str, Any]) -> str:
    query = {"state": source.tab, "node": node, "start": message["start"], "id": message["id"]}
    path = layout.queue("download", source.topic, source.channel)
    return f"{path}?{urlencode(query)}"


def _counted(source: MessageQuery, message: Mapping[str, Any]) -> str:
    """Return the attempts; for a dead letter, those in its original channel. A log contains the
    numbers of its messages, not their attempts."""
    if source.tab == "log":
        return f"sequence number {number(message['seq'])}"
    headers, counted = message["headers"], plural(attempts(message), "attempt")
    if "origin-topic" in headers and "origin-channel" in headers:
        return f"{counted} in {headers['origin-topic']}/{headers['origin-channel']}"
    return counted


def _facts(source: MessageQuery, message: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    size = message["size"]
    consumer = message.get("consumer")
    facts: list[tuple[str, str | None]] = [
        ("Published", _moment(message["timestamp"])),
        ("First Published", _first_published(message["headers"])),
        ("Attempts", None if source.tab == "log" else number(attempts(message))),
        ("Number", number(message["seq"]) if source.tab == "log" else None),
        ("Size", None if size is None else plural(size, "byte")),
        ("Due", _moment(message.get("due"))),
    ]
    if "deadline" in message:
        facts.append(("Deadline", _moment(message["deadline"]) or "moving to another topic"))
        name = "disconnected" if consumer is None else consumer["client_id"]
        facts.append(("Consumer", name if message["deadline"] else None))
        facts.append(("Address", consumer and consumer["remote_address"]))
    return facts


def _first_published(headers: Mapping[str, str]) -> str:
    """Return the time at which a dead letter was published to its original topic. Producers can set
    any header, so its value may be anything."""
    text = headers.get("first-time", "") if "origin-channel" in headers else ""
    return _moment(int(text)) if text.isascii() and text.isdigit() and len(text) <= 19 else ""


def _moment(nanoseconds: int | None) -> str:
    return moment(nanoseconds) if nanoseconds else ""


def _body(layout: Layout, subject: MessageQuery, node: str, message: Mapping[str, Any]) -> Body:
    body = b64decode(message["body"])
    as_hex = subject.params.get("as") == "hex"
    shown = message_bodies.body_text(body, cut=message["cut"], as_hex=as_hex)
    alone = {"node": node, "start": message["start"], "count": "1", "bytes": str(MAX_BYTES)}
    alone |= {"q": "", "path": ""}
    is_whole = not message["cut"] or subject.params.get("bytes") == str(MAX_BYTES)
    is_hex = shown.kind == message_bodies.HEX or not message["size"]
    return Body(
        shown.kind,
        shown.text,
        message["size"] - len(body) + shown.left_out,
        "" if is_whole else subject.link(layout, **alone),
        "" if is_hex else subject.link(layout, **alone, **{"as": "hex"}),
    )
