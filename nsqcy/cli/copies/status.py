"""Command line of `nsqcy copies status`: prints tables or JSON."""

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.copies import answers
from nsqcy.cli.copies.merged import Cluster as Merged
from nsqcy.cli.copies.merged import Group, merged, shown
from nsqcy.cli.copies.merged import as_json as merged_json
from nsqcy.cli.tables import size, table
from nsqcy.cluster.copies import listed
from nsqcy.cluster.web_client import WebClient
from nsqcy.names import one_line


@click.command()
@as_json
@on_cluster
def status(cluster: Cluster, as_json: bool) -> int:
    """Show the groups of topics with copies, and what is at risk.

    A group consists of the copied logs of one worker of an nsqd.
    """
    if not (cluster.lookupds or cluster.nsqds):
        raise click.UsageError("--lookupd-http-address or --nsqd-http-address is required")
    found = merged(answers.ask(cluster.lookupds, cluster.nsqds, WebClient(cluster.terms)))
    code = exit_code(found)
    if as_json:
        print_json({**merged_json(found), "exit_code": code})
    else:
        click.echo(text(found), nl=False)
    return code


def exit_code(cluster: Merged) -> int:
    return int(bool(cluster.risks) or not cluster.answered)


# --- text ---------------------------------------------------------------------------------------


def text(cluster: Merged) -> str:
    parts = []
    if cluster.groups:
        parts.append(
            table(
                ["group", "owner", "copies", "state", "size", "topics"],
                [_row(group) for group in cluster.groups],
            )
        )
    if cluster.nodes:
        rows = [
            [each.name, each.address, "responds" if each.etcd else "does not respond"]
            for each in cluster.nodes
        ]
        parts.append(table(["node", "nsqd", "etcd"], rows))
    parts.append("".join(f"risk: {one_line(risk)}\n" for risk in cluster.risks) or _calm(cluster))
    return "\n".join(parts)


def _row(group: Group) -> list[str]:
    responding = "-" if group.responding is None else group.responding
    return [
        group.id,
        shown(group.owner, group.owner_address),
        f"{responding}/{group.copies}",
        ", ".join(group.states),
        size(group.bytes),
        listed(group.topics) or "-",
    ]


def _calm(cluster: Merged) -> str:
    if not cluster.answered:
        return "no nsqd found\n"
    if not cluster.nodes:
        return "no nsqd has --etcd-endpoints: all topics have one copy\n"
    if not cluster.groups:
        return "no topic has copies\n"
    return "ok: all groups have all of their copies\n"
