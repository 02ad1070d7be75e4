"""`nsqcy channel`: lists, shows, creates and changes channels on all nsqds."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from nsqcy.cli import log_positions, policies, seeking
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import act, as_json, confirm, confirmed, on_cluster, print_json
from nsqcy.cli.tables import number, plain, plural, table, yes
from nsqcy.cli.topics import channel_table, named
from nsqcy.cli.values import CHANNEL, PLACE, Count
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.problems import client_name, rate
from nsqcy.cluster.stats import ChannelStats, ClientStats
from nsqcy.config.commands import Commands
from nsqcy.config.durations import SECOND, short_duration

MAX_KEYS = 1000  # per request, as in nsqd

channel_named = click.argument("channel", type=CHANNEL)


@click.group(cls=Commands)
def channel() -> None:
    """List, show, create and change channels on all nsqds."""


@channel.command("list")
@named
@as_json
@on_cluster
def list_channels(cluster: Cluster, topic: str, as_json: bool) -> None:
    """List the channels of TOPIC with their figures, summed across all nsqds."""
    found = cluster.topic(topic)
    if as_json:
        print_json([_json(each) for each in found.channels.values()])
    else:
        click.echo(channel_table(found), nl=False)


@channel.command()
@named
@channel_named
@as_json
@on_cluster
def show(cluster: Cluster, topic: str, channel: str, as_json: bool) -> None:
    """Show CHANNEL's statistics on each nsqd, and the channel's consumers, slowest first."""
    found = cluster.topic(topic, clients=True).channels.get(channel)
    if found is None:
        raise click.ClickException(f"no nsqd has channel {topic}/{channel}")
    consumers = sorted(found.clients or (), key=_slowness)
    if as_json:
        shown = [each.__dict__ for each in consumers]
        nodes = [_json(each) | {"nsqd": each.node} for each in found.nodes]
        print_json(_json(found) | {"nsqds": nodes, "consumers": shown})
        return
    head = ["nsqd", "depth", "in flight", "deferred", "requeued", "timed out", "paused"]
    rows = [
        [
            each.node,
            number(each.figures.depth),
            number(each.figures.in_flight_count),
            number(each.figures.deferred_count),
            number(each.figures.requeue_count),
            number(each.figures.timeout_count),
            yes(each.figures.paused),
        ]
        for each in found.nodes
    ]
    click.echo(table(head, rows, right=",".join(head[1:-1])))
    click.echo(_consumer_table(consumers) if consumers else "no consumers\n", nl=False)


def _slowness(client: ClientStats) -> tuple[bool, float]:
    """Return a key that sorts saturated and slow consumers first."""
    return not client.saturated, client.finish_rate or 0.0


def _consumer_table(clients: Sequence[ClientStats]) -> str:
    head = ["consumer", "nsqd", "finishes", "in flight", "rdy", "saturated", "user agent"]
    rows = [
        [
            plain(client_name(each)),
            each.node,
            "-" if each.finish_rate is None else rate(each.finish_rate),
            number(each.in_flight_count),
            number(each.ready_count),
            yes(each.saturated),
            plain(each.user_agent),
        ]
        for each in clients
    ]
    return table(head, rows, right="finishes,in flight,rdy")


def _json(channel: ChannelStats) -> dict[str, Any]:
    return {"topic": channel.topic, "channel": channel.name} | channel.figures._asdict()


@channel.command()
@named
@channel_named
@click.option("--start", type=PLACE, help=f"position in the log: {log_positions.ALLOWED}")
@on_cluster
def create(cluster: Cluster, topic: str, channel: str, start: str | None) -> None:
    """Create CHANNEL on all nsqds that have TOPIC, and register it with all nsqlookupds.

    If no nsqd has TOPIC, the topic is created on all of them.
    """
    if start:
        seeking.check(cluster, start)
    if topic not in cluster.stats(topic).topics:
        cluster.each(lambda nsqd: nsqd.create_topic(topic))
        click.echo(f"created topic {topic}")
    cluster.register(lambda lookupd: lookupd.create_channel(topic, channel))
    nodes = cluster.each(
        lambda nsqd: nsqd.create_channel(topic, channel, start), needs=f"topic {topic}"
    )
    click.echo(f"created channel {topic}/{channel} on {plural(len(nodes), 'nsqd')}")


@channel.command()
@named
@channel_named
@confirmed
@on_cluster
def delete(cluster: Cluster, topic: str, channel: str, yes: bool) -> None:
    """Delete CHANNEL with its messages and policies."""
    confirm(yes, f"Delete channel {topic}/{channel} with all of its messages?")
    cluster.register(lambda lookupd: lookupd.delete_channel(topic, channel))
    act(
        cluster,
        f"channel {topic}/{channel}",
        "deleted",
        lambda nsqd: nsqd.delete_channel(topic, channel),
    )


@channel.command()
@named
@channel_named
@click.option("--key", help="only the waiting messages of this key")
@confirmed
@on_cluster
def empty(cluster: Cluster, topic: str, channel: str, key: str | None, yes: bool) -> None:
    """Drop all messages of CHANNEL.

    With --key, drop only the key's waiting messages: those in flight and deferred ones stay.
    """
    if key is None:
        confirm(yes, f"Drop all messages of channel {topic}/{channel}?")
    else:
        confirm(yes, f"Drop the waiting messages of {_of_key(topic, channel, key)}?")
    act(
        cluster,
        f"channel {topic}/{channel}" if key is None else _of_key(topic, channel, key),
        "emptied",
        lambda nsqd: (
            nsqd.empty_channel(topic, channel)
            if key is None
            else nsqd.empty_key(topic, channel, key)
        ),
    )


@channel.command()
@named
@channel_named
@click.option("--key", help="only this key; the channel needs rules for keys")
@on_cluster
def pause(cluster: Cluster, topic: str, channel: str, key: str | None) -> None:
    """Pause CHANNEL: its consumers receive no messages."""
    act(
        cluster,
        f"channel {topic}/{channel}" if key is None else _of_key(topic, channel, key),
        "paused",
        lambda nsqd: (
            nsqd.pause_channel(topic, channel)
            if key is None
            else nsqd.pause_key(topic, channel, key)
        ),
    )


@channel.command()
@named
@channel_named
@click.option("--key", help="only this key")
@on_cluster
def unpause(cluster: Cluster, topic: str, channel: str, key: str | None) -> None:
    """Unpause CHANNEL."""
    act(
        cluster,
        f"channel {topic}/{channel}" if key is None else _of_key(topic, channel, key),
        "unpaused",
        lambda nsqd: (
            nsqd.unpause_channel(topic, channel)
            if key is None
            else nsqd.unpause_key(topic, channel, key)
        ),
    )


def _of_key(topic: str, channel: str, key: str) -> str:
    return f"key {plain(key)} of channel {topic}/{channel}"


@channel.command()
@named
@channel_named
@click.option("--search", metavar="TEXT", default="", help="only keys that contain this text")
@click.option("--key", help="only this key")
@click.option("--blocked", is_flag=True, help="only keys that a rule or a pause blocks")
@click.option("--paused", is_flag=True, help="only paused keys")
@click.option(
    "--count",
    type=Count(1, MAX_KEYS),
    metavar="N",
    default=20,
    show_default=True,
    help="maximum number of keys",
)
@as_json
@on_cluster
def keys(
    cluster: Cluster,
    topic: str,
    channel: str,
    search: str,
    key: str | None,
    blocked: bool,
    paused: bool,
    count: int,
    as_json: bool,
) -> None:
    """List the keys of CHANNEL, those with the most waiting messages first.

    The channel needs rules for keys. Keys without waiting messages are listed only if they are
    paused.
    """
    found = cluster.each(
        lambda nsqd: nsqd.keys(
            topic, channel, limit=count, key=key, search=search, blocked=blocked, paused=paused
        ),
        needs=f"channel {topic}/{channel}",
    )
    rows = [{**each, "nsqd": node.name} for node, page in found.items() for each in page["keys"]]
    rows.sort(key=lambda each: -each["depth"])
    is_complete = all(page["complete"] for page in found.values()) and len(rows) <= count
    rows = rows[:count]
    if as_json:
        print_json({"keys": rows, "complete": is_complete})
        return
    if not rows:
        click.echo(f"channel {topic}/{channel} has no such keys")
    else:
        head = ["key", "waiting", "held", "blocked for", "paused", "nsqd"]
        cells = [
            [
                plain(each["key"]),
                number(each["depth"]),
                number(each["held"]),
                short_duration(each["blocked_seconds"] * SECOND) if each["blocked"] else "",
                yes(each["paused"]),
                each["nsqd"],
            ]
            for each in rows
        ]
        click.echo(table(head, cells, right="waiting,held,blocked for"), nl=False)
    if not is_complete:
        click.echo("there may be more keys: use --search, --key or --count", err=True)


@channel.command()
@named
@channel_named
@seeking.to_option
@confirmed
@on_cluster
def seek(cluster: Cluster, topic: str, channel: str, to: str, yes: bool) -> None:
    """Move CHANNEL to a position in the log of TOPIC. Drop its queued messages."""
    seeking.check(cluster, to)
    confirm(yes, f"Move channel {topic}/{channel} to {to}?")
    cluster.each(
        lambda nsqd: nsqd.seek_channel(topic, channel, to), needs=f"channel {topic}/{channel}"
    )
    click.echo(f"moved channel {topic}/{channel} to {to}")


@channel.command()
@named
@channel_named
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--reset", is_flag=True, help="reset all keys")
@as_json
@on_cluster
def config(
    cluster: Cluster,
    topic: str,
    channel: str,
    assignments: Sequence[str],
    reset: bool,
    as_json: bool,
) -> None:
    """Show the policy of CHANNEL, after setting the given keys. KEY= resets a key."""

    def request(nsqd: NsqdHTTPClient, values: Mapping[str, Any] | None) -> dict[str, Any]:
        return nsqd.channel_config(topic, channel, values, reset=reset)

    policies.configure(cluster, request, assignments, as_json=as_json)
    if cluster.lacks(topic, channel):  # set in advance, or the name is misspelled
        text = (
            f"note: channel {topic}/{channel} does not exist yet; its policy applies once it does"
        )
        click.echo(text, err=True)
