"""`nsqcy peek`: shows messages of a topic or channel without consuming them."""

from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import click

from nsqcy.cli import bodies, log_positions, seeking
from nsqcy.cli.cluster import Cluster, Node
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import moment, plain, table
from nsqcy.cli.values import CHANNEL, PLACE, TOPIC, Count
from nsqcy.client.cancelling import CANCEL_KEY
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.peeking import MAX_BODY, attempts, messages


class Peeked(NamedTuple):
    """A message in a queue, as its node describes it."""

    node: str
    values: dict[str, Any]

    @property
    def body(self) -> bytes:
        return b64decode(self.values["body"] or "")

    @property
    def reason(self) -> str:
        """Return why a dead letter was moved, and from where; empty for other messages."""
        headers = self.values.get("headers") or {}
        if "reason" not in headers or "origin-topic" not in headers:
            return ""
        origin = f"{headers['origin-topic']}/{headers.get('origin-channel', '')}"
        if headers["reason"] == "attempts":
            return plain(f"attempts in {origin}: {headers.get('attempts', '?')}")
        text = headers.get("reason-text", "")
        return plain(f"{headers['reason']} in {origin}{': ' if text else ''}{text}")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL, required=False)
@click.option(
    "--state",
    type=click.Choice(["queued", "in_flight", "deferred"]),
    default="queued",
    show_default=True,
    help="which messages to show",
)
@click.option(
    "--from",
    "place",
    type=PLACE,
    help="show the log of TOPIC from this position on, including finished messages: "
    + log_positions.ALLOWED,
)
@click.option(
    "--count",
    type=Count(1, 10_000),
    metavar="N",
    default=20,
    show_default=True,
    help="maximum number of messages",
)
@click.option("--key", help="only messages with this key")
@click.option("--full", is_flag=True, help="print bodies in full instead of a table")
@as_json
@on_cluster
def peek(
    cluster: Cluster,
    topic: str,
    channel: str | None,
    state: str,
    place: str | None,
    count: int,
    key: str | None,
    full: bool,
    as_json: bool,
) -> None:
    """Show the messages of CHANNEL without consuming them, oldest first.

    Without CHANNEL, show the messages of TOPIC that are not in any channel yet. Needs nsqcy's nsqd.

    \b
      nsqcy peek orders billing --state=deferred
      nsqcy peek orders --from=-24h --count=100
      nsqcy peek orders billing --key=customer-17
    """
    name = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    if channel is None and state != "queued":
        raise click.UsageError("--state needs a CHANNEL")
    if channel is not None and place is not None:
        raise click.UsageError("--from shows TOPIC's log: omit CHANNEL")
    if place is not None:
        seeking.check(cluster, place)
    ask = _Ask(topic, channel, state, place, key)
    found = cluster.each(lambda nsqd: list(messages(partial(ask.page, nsqd), count)), needs=name)
    shown = merged(found)[:count]
    if as_json:
        print_json([_as_json(each) for each in shown])
    elif full:
        for each in shown:
            click.echo(each.body)
    elif shown:
        head, rows = _table(shown, in_log=place is not None)
        click.echo(table(head, rows, right="size,attempts,number"), nl=False)
    elif place is not None:
        click.echo(f"{name} has no messages at or after that position")
    else:
        of_key = "" if key is None else f" with key {plain(key)}"
        click.echo(f"{name} has no {state.replace('_', '-')} messages{of_key}")


class _Ask(NamedTuple):
    """The messages to show: from a channel, from a topic's backlog, or from its log after a given
    position."""

    topic: str
    channel: str | None
    state: str
    place: str | None
    key: str | None

    def page(self, nsqd: NsqdHTTPClient, count: int, start: str | None) -> dict[str, Any]:
        if self.channel is not None:
            return nsqd.peek_channel(
                self.topic,
                self.channel,
                self.state,
                count=count,
                start=start,
                max_body=MAX_BODY,
                key=self.key,
            )
        state = "backlog" if self.place is None else "log"
        return nsqd.peek_topic(
            self.topic,
            state,
            count=count,
            place=self.place,
            start=start,
            max_body=MAX_BODY,
            key=self.key,
        )


def merged(found: dict[Node, list[dict[str, Any]]]) -> list[Peeked]:
    """Return the messages of all nodes in order of their timestamps or due times."""
    rows = [Peeked(node.name, each) for node, messages in found.items() for each in messages]
    return sorted(rows, key=lambda each: each.values.get("due") or each.values["timestamp"] or 0)


def _as_json(message: Peeked) -> dict[str, Any]:
    values = {name: value for name, value in message.values.items() if name != "start"}
    if "attempts" in values:
        values["attempts"] = attempts(message.values)
    return values | {"body": None, "nsqd": message.node} | bodies.as_json(message.body)


def _table(messages: list[Peeked], *, in_log: bool) -> tuple[list[str], list[list[str]]]:
    """Return the titles and cells. Deferred messages are shown with their due times, messages that
    can be cancelled with their keys, and dead letters with their reasons. Messages in a log are
    shown with their numbers instead of their attempts, which the log does not contain."""
    columns: dict[str, Callable[[Peeked], str]] = {
        "time": lambda each: moment(each.values["timestamp"]),
        "due": lambda each: moment(each.values["due"]) if "due" in each.values else "",
        "id": lambda each: each.values["id"] or "-",
        "number" if in_log else "attempts": lambda each: str(
            each.values["seq"] if in_log else attempts(each.values)
        ),
        "size": lambda each: str(each.values["size"]),
        "nsqd": lambda each: each.node,
        "key": lambda each: plain((each.values.get("headers") or {}).get(CANCEL_KEY, "")),
        "reason": lambda each: each.reason,
        "message": lambda each: bodies.preview(each.body),
    }
    for title in ("due", "key", "reason"):
        if not any(map(columns[title], messages)):
            del columns[title]
    return list(columns), [[cell(each) for cell in columns.values()] for each in messages]
