"""Command line of `nsqcy copies status`: prints tables or JSON."""

import json
from collections.abc import Sequence
from typing import Any

import click

from nsqcy.cli.copies import answers
from nsqcy.cli.copies.merged import Cluster, Group, as_json, merged, shown
from nsqcy.cli.tables import size, table
from nsqcy.cluster.copies import listed
from nsqcy.cluster.web_client import WebClient
from nsqcy.config.arguments import Parser
from nsqcy.config.options import BOOL, WORDS
from nsqcy.errors import UsageError
from nsqcy.names import one_line
from nsqcy.options.option import Option
from nsqcy.tools.cluster_flags import ADDRESSES, REQUESTS, complete, terms

CLUSTER = (
    Option(
        ADDRESSES[0],
        WORDS,
        (),
        "host:port or URL of an nsqlookupd; all nsqds that it announces are queried",
    ),
    Option(ADDRESSES[1], WORDS, (), "host:port or URL of an nsqd to query"),
    *REQUESTS,
)
OUTPUT = (Option("json", BOOL, False, "print JSON"),)
SECTIONS = {"cluster": CLUSTER, "output": OUTPUT}


def run(words: Sequence[str]) -> int:
    """Print the state of the groups; return the exit code. Raises Stop."""
    flags = parse(words)
    found = merged(
        answers.ask(
            flags["lookupd_http_address"], flags["nsqd_http_address"], WebClient(terms(flags))
        )
    )
    code = exit_code(found)
    if flags["json"]:
        click.echo(json.dumps({**as_json(found), "exit_code": code}, indent=2))
    else:
        click.echo(text(found), nl=False)
    return code


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Return the parsed flags. Raises Stop."""
    description = "Show the groups of topics with copies on several machines, and what is at risk."
    flags = Parser("nsqcy copies status", description, SECTIONS).values(words)
    complete(flags)
    if not (flags["lookupd_http_address"] or flags["nsqd_http_address"]):
        raise UsageError("--lookupd-http-address or --nsqd-http-address is required")
    return flags


def exit_code(cluster: Cluster) -> int:
    return int(bool(cluster.risks) or not cluster.answered)


# --- text ---------------------------------------------------------------------------------------


def text(cluster: Cluster) -> str:
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


def _calm(cluster: Cluster) -> str:
    if not cluster.answered:
        return "no nsqd found\n"
    if not cluster.nodes:
        return "no nsqd has --etcd-endpoints: all topics have one copy\n"
    if not cluster.groups:
        return "no topic has copies\n"
    return "ok: all groups have all of their copies\n"
