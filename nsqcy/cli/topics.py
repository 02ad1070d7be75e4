"""`nsqcy topic`: lists, shows, creates and changes topics on all nsqds."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from nsqcy.cli import policies, seeking
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import act, as_json, confirm, confirmed, on_cluster, print_json
from nsqcy.cli.tables import number, plural, table, yes
from nsqcy.cli.values import TOPIC
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.stats import TopicStats
from nsqcy.config.commands import Commands

named = click.argument("topic", type=TOPIC)


@click.group(cls=Commands)
def topic() -> None:
    """List, show, create and change topics on all nsqds."""


@topic.command("list")
@as_json
@on_cluster
def list_topics(cluster: Cluster, as_json: bool) -> None:
    """List all topics with their figures, summed across all nsqds.

    backlog: messages that wait in the topic and in its channels. messages: all messages received
    since nsqd started.
    """
    topics = [each for _, each in sorted(cluster.stats().topics.items())]
    if as_json:
        print_json([_json(each) for each in topics])
    elif topics:
        head = ["topic", "backlog", "messages", "channels", "nsqds", "paused"]
        rows = [
            [
                each.name,
                number(_backlog(each)),
                number(each.figures.message_count),
                str(len(each.channels)),
                str(len(each.nodes)),
                yes(each.figures.paused),
            ]
            for each in topics
        ]
        click.echo(table(head, rows, right="backlog,messages,channels,nsqds"), nl=False)
    else:
        click.echo("no topics; create one: nsqcy pub greetings hello")


@topic.command()
@named
@as_json
@on_cluster
def show(cluster: Cluster, topic: str, as_json: bool) -> None:
    """Show the statistics of TOPIC and of its channels on each nsqd."""
    found = cluster.topic(topic)
    if as_json:
        print_json(
            _json(found) | {"nsqds": [_json(each) | {"nsqd": each.node} for each in found.nodes]}
        )
        return
    rows = [
        [
            each.node,
            number(each.figures.depth),
            number(each.figures.message_count),
            yes(each.figures.paused),
        ]
        for each in found.nodes
    ]
    head = ["nsqd", "depth", "messages", "paused"]
    click.echo(table(head, rows, right="depth,messages"))
    click.echo(channel_table(found), nl=False)


def channel_table(topic: TopicStats) -> str:
    """Return the channels of a topic, summed across all nsqds."""
    if not topic.channels:
        return "no channels\n"
    head = [
        "channel",
        "depth",
        "in flight",
        "deferred",
        "requeued",
        "timed out",
        "consumers",
        "paused",
    ]
    rows = [
        [
            name,
            number(each.figures.depth),
            number(each.figures.in_flight_count),
            number(each.figures.deferred_count),
            number(each.figures.requeue_count),
            number(each.figures.timeout_count),
            number(each.figures.client_count),
            yes(each.figures.paused),
        ]
        for name, each in sorted(topic.channels.items())
    ]
    return table(head, rows, right=",".join(head[1:-1]))


def _backlog(topic: TopicStats) -> int:
    channels = sum(each.figures.depth for each in topic.channels.values())
    return topic.figures.depth + channels


def _json(topic: TopicStats) -> dict[str, Any]:
    figures = topic.figures
    return {
        "topic": topic.name,
        "depth": figures.depth,
        "backlog": _backlog(topic),
        "messages": figures.message_count,
        "paused": figures.paused,
        "channels": {name: each.figures._asdict() for name, each in topic.channels.items()},
    }


@topic.command()
@named
@on_cluster
def create(cluster: Cluster, topic: str) -> None:
    """Create TOPIC on all nsqds, and register it with all nsqlookupds."""
    cluster.register(lambda lookupd: lookupd.create_topic(topic))
    nodes = cluster.each(lambda nsqd: nsqd.create_topic(topic))
    click.echo(f"created topic {topic} on {plural(len(nodes), 'nsqd')}")


@topic.command()
@named
@confirmed
@on_cluster
def delete(cluster: Cluster, topic: str, yes: bool) -> None:
    """Delete TOPIC with its channels, messages and policies."""
    confirm(yes, f"Delete topic {topic} with all of its messages?")
    cluster.register(lambda lookupd: lookupd.delete_topic(topic))
    act(cluster, f"topic {topic}", "deleted", lambda nsqd: nsqd.delete_topic(topic))


@topic.command()
@named
@confirmed
@on_cluster
def empty(cluster: Cluster, topic: str, yes: bool) -> None:
    """Drop the messages of TOPIC that are not in any channel yet."""
    confirm(yes, f"Drop the messages of topic {topic} that are not in any channel?")
    act(cluster, f"topic {topic}", "emptied", lambda nsqd: nsqd.empty_topic(topic))


@topic.command()
@named
@on_cluster
def pause(cluster: Cluster, topic: str) -> None:
    """Pause TOPIC: its channels receive no new messages."""
    act(cluster, f"topic {topic}", "paused", lambda nsqd: nsqd.pause_topic(topic))


@topic.command()
@named
@on_cluster
def unpause(cluster: Cluster, topic: str) -> None:
    """Unpause TOPIC."""
    act(cluster, f"topic {topic}", "unpaused", lambda nsqd: nsqd.unpause_topic(topic))


@topic.command()
@named
@seeking.to_option
@confirmed
@on_cluster
def seek(cluster: Cluster, topic: str, to: str, yes: bool) -> None:
    """Move all channels of TOPIC to a position in its log. Drop their queued messages."""
    seeking.check(cluster, to)
    channels = sorted(cluster.topic(topic).channels)
    if not channels:
        raise click.ClickException(f"topic {topic} has no channels")
    confirm(yes, f"Move the channels {', '.join(channels)} of topic {topic} to {to}?")
    for channel in channels:
        cluster.each(lambda nsqd, channel=channel: nsqd.seek_channel(topic, channel, to))  # type: ignore[misc]
        click.echo(f"moved channel {topic}/{channel} to {to}")


@topic.command()
@named
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--reset", is_flag=True, help="reset all keys")
@as_json
@on_cluster
def config(
    cluster: Cluster, topic: str, assignments: Sequence[str], reset: bool, as_json: bool
) -> None:
    """Show the policy of TOPIC, after setting the given keys. KEY= resets a key."""

    def request(nsqd: NsqdHTTPClient, values: Mapping[str, Any] | None) -> dict[str, Any]:
        return nsqd.topic_config(topic, values, reset=reset)

    policies.configure(cluster, request, assignments, as_json=as_json)
