"""Command line of `nsqcy copies status`: prints a cluster's groups and their risks as tables or
JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.copies import answers
from nsqcy.cli.copies.answers import Answer
from nsqcy.cli.tables import size, table
from nsqcy.cluster import copies
from nsqcy.cluster.copies import Group
from nsqcy.cluster.problems import listed
from nsqcy.cluster.web_client import WebClient
from nsqcy.names import one_line

WORDS_OF_STATES = {
    copies.COMPLETE: "ok",
    copies.MISSING: "lacks copies",
    copies.UNKNOWN: "owner not queried",
}
"""States that have other names here than in nsqadmin, because scripts depend on these names."""
NO_RISKS = (copies.TAKEN_OVER, copies.MENDED)
"""Kinds of problems that have no effect on the messages."""


@dataclass(frozen=True)
class Merged:
    """The merged responses. answered: number of nsqds that responded."""

    workers: copies.Workers
    groups: Sequence[Group]
    risks: Sequence[str]
    answered: int


@click.command()
@as_json
@on_cluster
def status(cluster: Cluster, as_json: bool) -> int:
    """Show the groups of topics with copies, and their risks.

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


def merged(answers: Sequence[Answer]) -> Merged:
    workers = [(answer.address, worker) for answer in answers for worker in answer.workers]
    groups = copies.groups(workers)
    errors = [f"{each.daemon} {each.address}: {each.error}" for each in answers if each.error]
    risks = [each.text for each in copies.problems(groups, workers) if each.kind not in NO_RISKS]
    return Merged(workers, groups, errors + risks, len(answers) - len(errors))


def states(group: Group) -> str:
    if group.is_new:
        return "being created"
    words = [WORDS_OF_STATES.get(group.state, group.state)]
    if group.joining.id:
        kept = [] if group.state in (copies.COMPLETE, copies.MISSING) else words
        words = [*kept, f"joining {group.joining.id}"]
    return ", ".join(words)


def merged_json(cluster: Merged) -> dict[str, Any]:
    return {
        "nodes": [
            {
                "node": each["node"],
                "address": address,
                "etcd": each["etcd"],
                "ready": each["ready"],
            }
            for address, each in cluster.workers
        ],
        "groups": [
            {
                "group": each.id,
                "owner": each.owner.id,
                "owner_address": each.owner.nsqd,
                "members": [member.id for member in each.members],
                "members_with_session": [
                    member.id for member in each.members if member.has_session
                ],
                "epoch": each.epoch,
                "copies": each.copies,
                "min_copies": each.min_copies,
                "durability": each.durability,
                "closed": each.is_closed,
                "responding": each.responding,
                "accepts": each.accepts,
                "joining": each.joining.id,
                "state": states(each),
                "topics": list(each.reported_topics),
                "bytes": each.owner_bytes,
            }
            for each in cluster.groups
        ],
        "risks": list(cluster.risks),
    }


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
    if cluster.workers:
        rows = [
            [each["node"], address, "responds" if each["etcd"] else "does not respond"]
            for address, each in cluster.workers
        ]
        parts.append(table(["node", "nsqd", "etcd"], rows))
    parts.append("".join(f"risk: {one_line(risk)}\n" for risk in cluster.risks) or _calm(cluster))
    return "\n".join(parts)


def _row(group: Group) -> list[str]:
    responding = "-" if group.responding is None else group.responding
    return [
        group.id,
        group.owner.full_name,
        f"{responding}/{group.copies}",
        states(group),
        size(group.owner_bytes),
        listed(group.reported_topics) or "-",
    ]


def _calm(cluster: Merged) -> str:
    if not cluster.answered:
        return "no nsqd found\n"
    if not cluster.workers:
        return "no nsqd has --etcd-endpoints: all topics have one copy\n"
    if not cluster.groups:
        return "no topic has copies\n"
    return "ok: all groups have all of their copies\n"
