"""Shared parts of the cluster commands: options, confirmation, and output format.

A command decorated with `on_cluster`, or with `on_cluster_within`, receives a Cluster as its first
argument.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import click

from nsqcy.cli.cluster import LOOKUPD, NSQD, Cluster
from nsqcy.cli.tables import plural
from nsqcy.cli.values import ADDRESS, DURATION
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.tools.cluster_flags import ENVIRONMENT, FLAGS, terms
from nsqcy.users import token_file

OPTIONS = (
    click.option(
        "-l",
        "--lookupd-http-address",
        type=ADDRESS,
        multiple=True,
        envvar=ENVIRONMENT["lookupd_http_address"],
        help="host:port or URL of an nsqlookupd; all nsqds that it lists are used. Repeatable.",
    ),
    click.option(
        "-n",
        "--nsqd-http-address",
        type=ADDRESS,
        multiple=True,
        envvar=ENVIRONMENT["nsqd_http_address"],
        help="host:port or URL of an nsqd. Repeatable.",
    ),
    click.option(
        "--tls-root-ca-file", default="", help="PEM file with CA certificates for HTTPS ports"
    ),
    click.option("--tls-insecure-skip-verify", is_flag=True, help="accept any certificate"),
    click.option(
        "--auth-token-file",
        default="",
        help="file with the token for daemons that use an --auth-file or an auth server; by"
        f" default, the file that {token_file.FILE_VARIABLE} names, or the token in"
        f" {token_file.VARIABLE}",
    ),
    click.option("--trust-lookupd", is_flag=True, help=token_file.TRUST.help),
)
NAMES = (
    *FLAGS,
    "timeout",
    "tls_root_ca_file",
    "tls_insecure_skip_verify",
    "auth_token_file",
    "trust_lookupd",
)

confirmed = click.option("--yes", is_flag=True, help="do not ask for confirmation")
as_json = click.option("--json", "as_json", is_flag=True, help="print JSON")


def on_cluster_within(timeout: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the cluster options to a command, which receives the Cluster. `timeout`: the default
    timeout of a request."""
    options = (
        *OPTIONS,
        click.option(
            "--timeout",
            type=DURATION,
            default=timeout,
            show_default=True,
            help="timeout of a request",
        ),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            chosen = {name: values.pop(name) for name in NAMES}
            lookupds, nsqds = (tuple(chosen[name]) for name in FLAGS)
            cluster = Cluster(lookupds, nsqds, terms(chosen, (LOOKUPD, NSQD)))
            return command(cluster, **values)

        for option in reversed(options):
            run = option(run)
        return run

    return decorate


on_cluster = on_cluster_within("5s")


def confirm(yes: bool, question: str) -> None:
    """Ask for confirmation, unless --yes is set. Raises Abort for an answer other than y."""
    if not yes:
        click.confirm(question, abort=True, err=True)


def act(cluster: Cluster, what: str, done: str, request: Callable[[NsqdHTTPClient], Any]) -> None:
    """Change a topic or channel on all nsqds that have it, and report it.

    what: for example `topic orders`. done: for example `paused`
    """
    nodes = cluster.each(request, needs=what)
    click.echo(f"{done} {what} on {plural(len(nodes), 'nsqd')}")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2))


def print_json_line(value: Any) -> None:
    click.echo(json.dumps(value, separators=(",", ":")))
