"""`nsqcy peek`: shows messages of a topic or channel without consuming them."""

from base64 import b64decode
from typing import Any, NamedTuple

import click

from nsqcy.cli import bodies
from nsqcy.cli.cluster import Cluster, Node
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import moment, plain, table
from nsqcy.cli.values import CHANNEL, TOPIC, Count
from nsqcy.cluster.http_clients import NsqdHTTPClient

PAGE = 100  # messages per request; nsqd's limit
MAX_BODY = 512 << 10  # bytes of a body; nsqd's limit


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
        return plain(f"{headers['reason']} in {origin}")


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
    "--count",
    type=Count(1, 10_000),
    metavar="N",
    default=20,
    show_default=True,
    help="how many",
)
@click.option("--full", is_flag=True, help="print the whole bodies instead of a table")
@as_json
@on_cluster
def peek(
    cluster: Cluster,
    topic: str,
    channel: str | None,
    state: str,
    count: int,
    full: bool,
    as_json: bool,
) -> None:
    """Show the messages of CHANNEL without consuming them, oldest first.

    Without CHANNEL, show the messages of TOPIC that are not in any channel yet. Needs nsqcy's nsqd.
    """
    name = f"channel {topic}/{channel}" if channel else f"topic {topic}"
    if channel is None and state != "queued":
        raise click.UsageError("--state needs a CHANNEL")
    found = cluster.each(lambda nsqd: _messages(nsqd, topic, channel, state, count), needs=name)
    shown = merged(found)[:count]
    if as_json:
        print_json([_as_json(each) for each in shown])
    elif full:
        for each in shown:
            click.echo(each.body)
    elif shown:
        click.echo(table(*_table(shown), right="size,attempts"), nl=False)
    else:
        click.echo(f"{name} has no {state.replace('_', ' ')} messages")


def _messages(
    nsqd: NsqdHTTPClient, topic: str, channel: str | None, state: str, count: int
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    start = None
    while len(found) < count:
        many = min(PAGE, count - len(found))
        if channel is None:
            page = nsqd.peek_topic(topic, count=many, start=start, max_body=MAX_BODY)
        else:
            page = nsqd.peek_channel(
                topic, channel, state, count=many, start=start, max_body=MAX_BODY
            )
        found += page["messages"]
        start = page["next"]
        if start is None:
            break
    return found


def merged(found: dict[Node, list[dict[str, Any]]]) -> list[Peeked]:
    """Return the messages of all nodes in order of their timestamps."""
    rows = [Peeked(node.name, each) for node, messages in found.items() for each in messages]
    return sorted(rows, key=lambda each: each.values["timestamp"] or 0)


def _as_json(message: Peeked) -> dict[str, Any]:
    values = {name: value for name, value in message.values.items() if name != "start"}
    return values | {"body": None, "nsqd": message.node} | bodies.as_json(message.body)


def _table(messages: list[Peeked]) -> tuple[list[str], list[list[str]]]:
    """Return the titles and cells. Dead letters show why they are there."""
    with_reasons = any(each.reason for each in messages)
    head = ["time", "id", "attempts", "size", "nsqd", *(["reason"] * with_reasons), "message"]
    return head, [
        [
            moment(each.values["timestamp"]),
            each.values["id"] or "-",
            str(each.values["attempts"]),
            str(each.values["size"]),
            each.node,
            *([each.reason] * with_reasons),
            bodies.preview(each.body),
        ]
        for each in messages
    ]
