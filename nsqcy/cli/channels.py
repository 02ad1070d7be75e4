"""`nsqcy channel`: lists, shows, creates and changes channels on all nsqds."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from nsqcy.cli import log_positions, policies, seeking
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import act, as_json, confirm, confirmed, on_cluster, print_json
from nsqcy.cli.tables import number, plain, plural, table, yes
from nsqcy.cli.topics import channel_table, named
from nsqcy.cli.values import CHANNEL, PLACE
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.problems import client_name, rate
from nsqcy.cluster.stats import ChannelStats, ClientStats
from nsqcy.config.commands import Commands

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
@confirmed
@on_cluster
def empty(cluster: Cluster, topic: str, channel: str, yes: bool) -> None:
    """Drop all messages of CHANNEL."""
    confirm(yes, f"Drop all messages of channel {topic}/{channel}?")
    act(
        cluster,
        f"channel {topic}/{channel}",
        "emptied",
        lambda nsqd: nsqd.empty_channel(topic, channel),
    )


@channel.command()
@named
@channel_named
@on_cluster
def pause(cluster: Cluster, topic: str, channel: str) -> None:
    """Pause CHANNEL: its consumers receive no messages."""
    act(
        cluster,
        f"channel {topic}/{channel}",
        "paused",
        lambda nsqd: nsqd.pause_channel(topic, channel),
    )


@channel.command()
@named
@channel_named
@on_cluster
def unpause(cluster: Cluster, topic: str, channel: str) -> None:
    """Unpause CHANNEL."""
    act(
        cluster,
        f"channel {topic}/{channel}",
        "unpaused",
        lambda nsqd: nsqd.unpause_channel(topic, channel),
    )


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
