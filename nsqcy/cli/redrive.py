"""`nsqcy redrive`: returns dead letters to the channels that they came from."""

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.tables import plural
from nsqcy.cli.values import CHANNEL, TOPIC, Count
from nsqcy.cluster.http_clients import NsqdHTTPClient


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("channel", type=CHANNEL)
@click.option(
    "--limit",
    type=Count(1),
    metavar="N",
    help="maximum number of messages on each nsqd; default: all",
)
@click.option("--id", metavar="ID", help="only the message with this id, as shown by `nsqcy peek`")
@as_json
@on_cluster
def redrive(
    cluster: Cluster, topic: str, channel: str, limit: int | None, id: str | None, as_json: bool
) -> None:
    """Return the dead letters in CHANNEL of the dead-letter TOPIC to their original channels.

    Messages whose headers contain no origin remain. Needs nsqcy's nsqd.
    """
    if id is not None and limit is not None:
        raise click.UsageError("--limit is not allowed with --id")

    def request(nsqd: NsqdHTTPClient) -> int:
        if id is None:
            return nsqd.redrive_channel(topic, channel, limit)
        nsqd.redrive_message(topic, channel, id)
        return 1

    needs = f"channel {topic}/{channel}" + (f" with message {id}" if id else "")
    counts = cluster.each(request, needs=needs)
    total = sum(counts.values())
    if as_json:
        by_node = {node.name: count for node, count in counts.items()}
        print_json({"redriven": total, "nsqds": by_node})
    else:
        examined = plural(total, "message")
        click.echo(
            f"examining {examined}: dead letters are being returned to their channels in the "
            "background; other messages are not affected"
        )
