"""`nsqcy sub`: prints the messages of a channel as they arrive, and finishes them."""

import os
import sys
from typing import Any

import click

from nsqcy.cli import bodies
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import on_cluster, print_json_line
from nsqcy.cli.values import CHANNEL, TOPIC, Count
from nsqcy.client import Consumer, Message
from nsqcy.cluster.problems import waiting
from nsqcy.errors import NsqError
from nsqcy.users import token_file

# Remedies for errors that would recur, by words in the error's text.
_REMEDIES = {
    "E_AUTH_FAILED": f"check {token_file.SETTINGS}",
    "E_UNAUTHORIZED": f"check {token_file.SETTINGS}",
    "TLS required": "set --tls",
    "certificate": "set --tls-root-ca-file to the CA that issued the daemon's certificate",
}


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL, required=False)
@click.option("--count", type=Count(1), metavar="N", help="stop after this number of messages")
@click.option(
    "--max-in-flight",
    type=Count(1),
    metavar="N",
    default=100,
    show_default=True,
    help="maximum number of unfinished messages",
)
@click.option("--tls", is_flag=True, help="connect with TLS")
@click.option("--json", "as_json", is_flag=True, help="print a JSON object per message")
@on_cluster
def sub(
    cluster: Cluster,
    topic: str,
    channel: str | None,
    count: int | None,
    max_in_flight: int,
    tls: bool,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC until Ctrl-C. The topic is created if it does not exist.

    Without CHANNEL, a temporary channel receives a copy of each new message. With CHANNEL, the
    messages are consumed: other consumers of the channel do not receive them.

    The nsqlookupds are queried once, at the start: nsqds that are added later are not used.
    """
    if channel is None:
        _check_backlog(cluster, topic)
    options = _options(cluster, tls) | {"max_in_flight": min(max_in_flight, count or max_in_flight)}
    addresses = cluster.tcp_addresses(with_tls=tls)
    channel = channel or f"nsqcy-sub-{os.getpid()}#ephemeral"
    if sys.stderr.isatty():
        click.echo(f"waiting for messages of {topic}, channel {channel}; Ctrl-C stops", err=True)
    left = count
    denials: list[str] = []

    def end_if_denied(error: NsqError) -> None:
        if (text := _denial(error)) is not None:
            denials.append(text)
            consumer.close(wait=False)

    with Consumer(topic, channel, addresses, on_error=end_if_denied, **options) as consumer:
        for message in consumer:
            try:
                _print(message, as_json)
            except BrokenPipeError:  # the output's reader has ended: nsqd keeps the rest
                message.requeue(0, backoff=False)
                return
            if left is not None:
                left -= 1
                # nsqd must not send more messages: their attempts would count.
                consumer.set_max_in_flight(min(max_in_flight, left))
            message.finish()
            if left == 0:
                return
    if denials:
        raise click.ClickException(denials[0])


def _denial(error: NsqError) -> str | None:
    """Return a remedy for an error that would recur, or None for another error."""
    text = str(error)
    if "requires AUTH" in text:
        return text.replace("AUTH: set auth_secret", f"a token: set {token_file.SETTINGS}")
    for words, remedy in _REMEDIES.items():
        if words in text:
            return f"{text}: {remedy}"
    return None


def _check_backlog(cluster: Cluster, topic: str) -> None:
    """Raise ClickException if a temporary channel would consume the messages of a topic that has no
    channel yet, and drop them when it ends."""
    found = cluster.stats(topic).topics.get(topic)
    if found is not None and not found.channels and found.figures.depth:
        raise click.ClickException(
            f"{waiting(found.figures.depth)} in topic {topic}, which has no channel: a temporary"
            f" channel would consume and drop them; view them with nsqcy peek {topic}, or name a"
            f" channel that keeps them: nsqcy sub {topic} CHANNEL"
        )


def _options(cluster: Cluster, tls: bool) -> dict[str, Any]:
    terms = cluster.terms
    found: dict[str, Any] = {"auth_secret": terms.token} if terms.token else {}
    if tls:
        found["tls_v1"] = True
        if not terms.verify:
            found["tls_options"] = {"verify": False}
        elif terms.root_ca_file:
            found["tls_options"] = {"ca_certs": terms.root_ca_file}
    return found


def _print(message: Message, as_json: bool) -> None:
    if not as_json:
        click.echo(message.body)
        return
    print_json_line(
        {
            "id": message.id.decode() if isinstance(message.id, bytes) else message.id,
            "timestamp": message.timestamp,
            "attempts": message.attempts,
            **bodies.as_json(message.body),
        }
    )
