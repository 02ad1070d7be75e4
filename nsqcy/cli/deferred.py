"""`nsqcy deferred`: lists and cancels a channel's deferred messages."""

from collections.abc import Sequence
from typing import Any

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import moment, plural, table
from nsqcy.cli.values import CHANNEL, TOPIC, Count
from nsqcy.client.cancelling import CANCEL_KEY
from nsqcy.cluster.deferred import PeekedMessage, cancel_deferred
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.config.commands import Commands
from nsqcy.errors import RequestError

PAGE = 1000  # maximum messages per request, as in nsqd
NOT_FOUND = 404


@click.group(cls=Commands)
def deferred() -> None:
    """List and cancel deferred messages. Needs nsqcy's nsqd."""


@deferred.command("list")
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option(
    "--count",
    type=Count(1),
    metavar="N",
    default=100,
    show_default=True,
    help="maximum number of messages",
)
@as_json
@on_cluster
def list_deferred(cluster: Cluster, topic: str, channel: str, count: int, as_json: bool) -> None:
    """List the deferred messages of CHANNEL in order of due time."""
    found = cluster.each(
        lambda nsqd: _deferred(nsqd, topic, channel, count), needs=f"channel {topic}/{channel}"
    )
    rows = [{**each, "nsqd": node.name} for node, messages in found.items() for each in messages]
    rows = sorted(rows, key=lambda each: each["due"])[:count]
    if as_json:
        print_json(rows)
    elif rows:
        head = ["due", "id", "attempts", "size", "nsqd"]
        cells = [
            [
                moment(each["due"]),
                each["id"] or "-",
                str(each["attempts"]),
                "-" if each["size"] is None else str(each["size"]),
                each["nsqd"],
            ]
            for each in rows
        ]
        click.echo(table(head, cells, right="attempts,size"), nl=False)
    else:
        click.echo(f"channel {topic}/{channel} has no deferred messages")


def _deferred(nsqd: NsqdHTTPClient, topic: str, channel: str, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = None
    while len(found) < count:
        page = nsqd.deferred(topic, channel, limit=min(PAGE, count - len(found)), after=after)
        found += page["deferred"]
        after = page["next"]
        if after is None:
            break
    return found


@deferred.command()
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--key", help="all messages whose cancel-key header has this value")
@as_json
@on_cluster
def cancel(
    cluster: Cluster, topic: str, channel: str, ids: Sequence[str], key: str | None, as_json: bool
) -> None:
    """Drop the deferred messages with these IDs, or with a key, from CHANNEL."""
    if bool(ids) == (key is not None):
        raise click.UsageError("specify either IDs or a --key")
    if key is not None:
        _cancel_key(cluster, topic, channel, key, as_json=as_json)
        return
    by_node = cluster.each(lambda nsqd: _cancelled(nsqd, topic, channel, ids))
    cancelled = {id for found in by_node.values() for id in found}
    if as_json:
        print_json({"cancelled": sorted(cancelled)})
    else:
        click.echo(f"cancelled {len(cancelled)} of {len(ids)} messages")
    if missing := [id for id in ids if id not in cancelled]:
        raise click.ClickException(f"not a deferred message of {topic}/{channel}: {missing[0]}")


def _cancel_key(cluster: Cluster, topic: str, channel: str, key: str, *, as_json: bool) -> None:
    def has_key(message: PeekedMessage) -> bool:
        return bool(message["headers"].get(CANCEL_KEY) == key)

    by_node = cluster.each(
        lambda nsqd: cancel_deferred(nsqd, topic, channel, has_key),
        needs=f"channel {topic}/{channel}",
    )
    total = sum(by_node.values())
    if as_json:
        print_json({"cancelled": total})
    else:
        click.echo(f"cancelled {plural(total, 'message')} with key {key}")
    if not total:
        raise click.ClickException(f"no deferred message of {topic}/{channel} has key {key}")


def _cancelled(nsqd: NsqdHTTPClient, topic: str, channel: str, ids: Sequence[str]) -> list[str]:
    """Return the ids of the messages that were on this nsqd."""
    found = []
    for id in ids:
        try:
            nsqd.cancel_message(topic, channel, id)
        except RequestError as error:
            if error.status == NOT_FOUND:
                continue
            raise
        found.append(id)
    return found
