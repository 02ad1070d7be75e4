"""`nsqcy pub`: publishes messages from the command line or from stdin, over HTTP."""

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import BinaryIO

import click

from nsqcy.cli.cluster import Cluster, Node, warn
from nsqcy.cli.cluster_options import as_json, on_cluster_within, print_json
from nsqcy.cli.tables import plural
from nsqcy.cli.values import DURATION, HEADER, TOPIC
from nsqcy.client.keys import keyed
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.web_client import describe
from nsqcy.config.durations import MILLISECOND
from nsqcy.errors import RequestError

BATCH = 100  # maximum messages from stdin per request
LIMITS = {
    "INVALID_DEFER": "nsqd's options --max-defer-timeout and --max-req-timeout (default 1h) limit "
    "the delay; max_defer_timeout in the topic's policy overrides them",
    "MSG_TOO_BIG": "nsqd's option --max-msg-size (default 1048576) limits the size of a message; "
    "max_msg_size in the topic's policy overrides it",
    "BODY_TOO_BIG": "nsqd's option --max-body-size (default 5242880) limits the size of a request",
}


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("messages", nargs=-1)
@click.option("--lines", is_flag=True, help="read one message per line from stdin")
@click.option(
    "--defer",
    type=DURATION,
    default="0",
    help="deliver after this time, such as 10m or 3d; at most 1h by default (nsqd's "
    "--max-defer-timeout, or max_defer_timeout in the topic's policy)",
)
@click.option(
    "-H",
    "--header",
    "headers",
    type=HEADER,
    multiple=True,
    help="message header; its name is converted to lower case. Repeatable.",
)
@click.option("--key", help="key of the messages: the header `key`")
@click.option(
    "--dedup-id",
    help="deduplication id of the message: the header `dedup-id`; if the topic has a dedup_window, "
    "nsqd keeps only the first of several messages",
)
@click.option(
    "--priority", type=click.IntRange(0, 9), help="priority, 9 first: the header `priority`"
)
@as_json
@on_cluster_within("30s")  # copies may delay a publish for 20 s
def pub(
    cluster: Cluster,
    topic: str,
    messages: Sequence[str],
    lines: bool,
    defer: int,
    headers: Sequence[tuple[str, str]],
    key: str | None,
    dedup_id: str | None,
    priority: int | None,
    as_json: bool,
) -> None:
    """Publish MESSAGES, or a message from stdin, to TOPIC.

    All messages go to one nsqd. The topic is created if it does not exist.

    \b
      nsqcy pub greetings hello
      nsqcy pub jobs --defer=10m '{"job": 1}'
      nsqcy pub events --lines < events.jsonl
    """
    bodies = _bodies(messages, sys.stdin.buffer, lines)
    try:
        given = dict(keyed(dict(headers), key, dedup_id, priority) or {})
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    publisher = _Publisher(cluster, topic, defer // MILLISECOND, given)
    count = publisher.publish(bodies)
    if as_json:
        print_json({"topic": topic, "nsqd": publisher.node.name, "published": count})
    else:
        click.echo(f"published {plural(count, 'message')} to {topic} on {publisher.node.name}")


def _bodies(messages: Sequence[str], stdin: BinaryIO, lines: bool) -> Iterator[bytes]:
    """Return the bodies in their order. Raises UsageError."""
    if messages and lines:
        raise click.UsageError("--lines reads stdin: remove MESSAGES or --lines")
    if messages:
        return (each.encode("utf-8", "surrogateescape") for each in messages)
    if lines:
        return (line for each in stdin if (line := each.rstrip(b"\r\n")))
    return iter([stdin.read()])


class _Publisher:
    """Publishes to one nsqd: the first one, in random order, that accepts a message."""

    def __init__(self, cluster: Cluster, topic: str, defer: int, headers: dict[str, str]) -> None:
        self.node: Node = random.choice(cluster.nodes)
        self._others = [each for each in cluster.nodes if each is not self.node]
        random.shuffle(self._others)
        self._topic = topic
        self._defer = defer or None  # milliseconds
        self._headers = headers

    def publish(self, bodies: Iterable[bytes]) -> int:
        """Publish all messages; return how many there were. Raises ClickException."""
        count = 0
        bodies = iter(bodies)
        while batch := list(islice(bodies, BATCH)):
            if any(not each for each in batch):
                done = plural(count, "published message")
                raise click.ClickException(f"empty message, after {done}")
            try:
                self._batch(batch)
            except RequestError as error:
                done = f", after {plural(count, 'published message')}" if count else ""
                why = describe(error)
                limit = LIMITS.get(why.partition(" ")[0])
                text = f"{self.node.name}: {why}{done}{f'; {limit}' if limit else ''}"
                raise click.ClickException(text) from None
            count += len(batch)
            self._others = []  # all messages go to one nsqd
        return count

    def _batch(self, bodies: Sequence[bytes]) -> None:
        if len(bodies) > 1 and self._defer is None and not self._headers:
            self._send(lambda nsqd: nsqd.multipublish(self._topic, bodies, binary=True))
            return
        for body in bodies:
            self._send(lambda nsqd, body=body: self._one(nsqd, body))  # type: ignore[misc]

    def _one(self, nsqd: NsqdHTTPClient, body: bytes) -> bytes:
        return nsqd.publish(self._topic, body, self._defer, headers=self._headers)

    def _send(self, request: Callable[[NsqdHTTPClient], bytes]) -> None:
        """Send a request to the nsqd; try other nsqds until one has accepted a message."""
        while True:
            try:
                request(self.node.nsqd)
                return
            except RequestError as error:
                if not self._others or 400 <= error.status < 500:
                    raise
                warn(f"{self.node.name}: {describe(error)}")
                self.node = self._others.pop()
