"""The `seek` commands of topics and channels."""

import click

from nsqcy.cli import log_positions
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.values import PLACE

to_option = click.option(
    "--to",
    type=PLACE,
    required=True,
    help=f"{log_positions.ALLOWED}; times without a zone are local",
)


def check(cluster: Cluster, to: str) -> None:
    """Raise UsageError for a position that means something else on each node."""
    if log_positions.is_sequence(to) and len(cluster.nodes) > 1:
        raise click.UsageError(
            "a sequence number is valid on one nsqd only: use a time, or --nsqd-http-address"
        )
