"""`nsqcy redrive`: returns dead letters to the channels that they came from."""

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import plural
from nsqcy.cli.values import CHANNEL, TOPIC, Count


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option(
    "--limit",
    type=Count(1),
    metavar="N",
    help="maximum number of messages on each nsqd; default: all",
)
@as_json
@on_cluster
def redrive(cluster: Cluster, topic: str, channel: str, limit: int | None, as_json: bool) -> None:
    """Return the dead letters in CHANNEL of the dead-letter TOPIC to where they came from.

    The channel must exist before the dead letters are published. Needs nsqcy's nsqd.
    """
    counts = cluster.each(
        lambda nsqd: nsqd.redrive_channel(topic, channel, limit), needs=f"channel {topic}/{channel}"
    )
    total = sum(counts.values())
    if as_json:
        by_node = {node.name: count for node, count in counts.items()}
        print_json({"redriven": total, "nsqds": by_node})
    else:
        click.echo(f"returning {plural(total, 'dead letter')}")
