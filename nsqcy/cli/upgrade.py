"""`nsqcy upgrade`: upgrade a running nsqd in place.

The steps are nsqd's: this module starts the upgrade, and shows each step until it has ended.
"""

import os
import time
from typing import Any

import click

from nsqcy.cli.cluster import Cluster, Node
from nsqcy.cli.cluster_options import on_cluster
from nsqcy.cli.operations import errors_of, only_node
from nsqcy.errors import RequestError

LOOK = 0.1  # seconds
LIMIT = 90.0  # maximum seconds for a step

_SHOWN = {
    "trial": "trial: the next version reads a copy of the state",
    "rest": "rest: calls between the processes end",
    "execute": "execute: the next version of the master takes over",
}


@click.command()
@click.option(
    "--to",
    metavar="PYTHON",
    default="",
    help="Python interpreter of an environment with the next version; by default, the one that "
    "runs nsqd, with what is installed there now",
)
@on_cluster
def upgrade(cluster: Cluster, to: str) -> None:
    """Upgrade one nsqd in place: its process id, its connections and its messages stay.

    \b
      pip install --upgrade nsqcy && nsqcy upgrade --nsqd-http-address=127.0.0.1:4151
      nsqcy upgrade --nsqd-http-address=127.0.0.1:4151 --to=/opt/nsqcy-2/bin/python
    """
    node = only_node(cluster)
    with errors_of(node):
        before = node.nsqd.upgrade_state()
        if before["under_way"]:
            raise click.ClickException(f"{node.name}: an upgrade is already under way")
        node.nsqd.upgrade(os.path.abspath(to) if to else "")
    state = _follow(node)
    if state["error"]:
        raise click.ClickException(f"{node.name}: {state['error']}")
    click.echo(f"done: {node.name} runs version {state['version']} with {state['python']}")


def _follow(node: Node) -> dict[str, Any]:
    """Show the steps until the upgrade has ended; return its state."""
    shown = 0
    deadline = time.monotonic() + LIMIT
    while True:
        state = _state(node, deadline)
        for step in state["steps"][shown:]:
            deadline = time.monotonic() + LIMIT
            if step != "done":
                click.echo(_SHOWN.get(step, f"{step}: a new process has taken over"))
        shown = len(state["steps"])
        if not state["under_way"]:
            return state
        if time.monotonic() >= deadline:
            text = f"{node.name}: a step of the upgrade has not ended in {LIMIT:g} s"
            raise click.ClickException(text)
        time.sleep(LOOK)


def _state(node: Node, deadline: float) -> dict[str, Any]:
    """Return the state. A request that fails while nsqd executes the next version is repeated."""
    while True:
        try:
            return node.nsqd.upgrade_state()
        except RequestError as error:
            if error.status or time.monotonic() >= deadline:
                with errors_of(node):
                    raise
            time.sleep(LOOK)
