"""`nsqcy drain`, `nsqcy ready` and `nsqcy reload`: drain or reload one nsqd, or check the readiness
of all.

The state itself is nsqd's: this module sends requests and shows their results.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from nsqcy.cli.cluster import NOT_FOUND, Cluster, Node
from nsqcy.cli.cluster_options import as_json, confirm, confirmed, on_cluster, print_json
from nsqcy.cli.tables import plural
from nsqcy.cli.values import DURATION
from nsqcy.cluster.web_client import describe
from nsqcy.config.durations import short_duration
from nsqcy.errors import RequestError

OURS = "/ready: this command requires nsqcy's nsqd"


@click.command()
@click.option(
    "--status",
    is_flag=True,
    help="only show whether nsqd is draining, and how many messages are left",
)
@click.option("--stop", is_flag=True, help="end the drain: nsqd accepts publishes again")
@click.option(
    "--within", type=DURATION, help="exit after this time, such as 10m, even if messages are left"
)
@click.option("--hand-over", is_flag=True, help="let other nodes take over the topics with copies")
@confirmed
@as_json
@on_cluster
def drain(
    cluster: Cluster,
    status: bool,
    stop: bool,
    within: int | None,
    hand_over: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Drain one nsqd: it refuses publishes, and exits once its consumers have emptied it.

    \b
      nsqcy drain --nsqd-http-address=10.0.0.1:4151
      nsqcy drain --nsqd-http-address=10.0.0.1:4151 --status
    """
    if sum((status, stop, within is not None or hand_over)) > 1:
        raise click.UsageError(
            "--status and --stop cannot be combined with each other or with the other options"
        )
    node = only_node(cluster)
    if not status and not stop:
        confirm(yes, f"Drain {node.name}? It will refuse publishes, and exit once it is empty.")
    with errors_of(node):
        if status:
            state = node.nsqd.drain_state()
        else:
            timeout = None if within is None else short_duration(within)
            state = node.nsqd.drain(not stop, timeout=timeout, hand_over=hand_over)
    if as_json:
        print_json(state)
    else:
        click.echo(_drain_text(node.name, state))


def _drain_text(name: str, state: dict[str, Any]) -> str:
    what = "is draining" if state["draining"] else "is not draining"
    left = state["left"]
    if left is None:  # a worker has just started
        return f"{name} {what}"
    lines = [f"{name} {what}, {plural(left['messages'], 'message')} left"]
    for each in left["most"]:
        place = "/".join(filter(None, (each["topic_name"], each["channel_name"])))
        counts = (
            f"{each['depth']} queued, {each['in_flight_count']} in flight,"
            f" {each['deferred_count']} deferred"
        )
        lines.append(f"  {place}: {counts}")
    return "\n".join(lines)


@click.command()
@as_json
@on_cluster
def ready(cluster: Cluster, as_json: bool) -> None:
    """Show whether all nsqds are ready for clients; exit with status 1 if one is not."""
    found = cluster.each(lambda nsqd: nsqd.not_ready_because(), needs=OURS)
    if as_json:
        print_json({node.name: reasons for node, reasons in found.items()})
    else:
        for node, reasons in found.items():
            click.echo(f"{node.name} {_ready_text(reasons)}")
    if any(found.values()):
        raise click.ClickException("not all nsqds are ready")
    if cluster.had_errors:
        raise click.ClickException("not all nsqds respond")


def _ready_text(reasons: list[str]) -> str:
    return f"is not ready: {'; '.join(reasons)}" if reasons else "is ready"


@click.command()
@on_cluster
def reload(cluster: Cluster) -> None:
    """Reload the configuration, certificates and users of one nsqd, as SIGHUP does."""
    node = only_node(cluster)
    with errors_of(node):
        node.nsqd.reload()
    click.echo(f"reloaded {node.name}")


@contextmanager
def errors_of(node: Node) -> Iterator[None]:
    """Convert a failed request to a ClickException that identifies the nsqd."""
    try:
        yield
    except RequestError as error:
        is_old = error.status == NOT_FOUND
        text = "this nsqd does not support this command" if is_old else describe(error)
        raise click.ClickException(f"{node.name}: {text}") from None


def only_node(cluster: Cluster) -> Node:
    """Return the cluster's only nsqd. Raises ClickException if there are several."""
    first, *others = cluster.nodes
    if others:
        names = ", ".join(each.name for each in cluster.nodes)
        raise click.ClickException(
            f"this command is for one nsqd: set --nsqd-http-address to one of {names}"
        )
    return first
