"""The `seek` commands of topics and channels."""

import click

from nsqcy.cli import places
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.values import PLACE

to_option = click.option(
    "--to",
    type=PLACE,
    required=True,
    help=f"{places.ALLOWED}; times without a zone are local",
)


def check(cluster: Cluster, to: str) -> None:
    """Raise UsageError for a position that means something else on each node."""
    if places.is_sequence(to) and len(cluster.nodes) > 1:
        raise click.UsageError(
            "a sequence number is valid on one nsqd only: use a time, or --nsqd-http-address"
        )
