"""`nsqcy top`: a live table of channels and problems, the worst first."""

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from nsqcy.cli import top_screen
from nsqcy.cli.cluster import Cluster
from nsqcy.cli.cluster_options import as_json, on_cluster, print_json
from nsqcy.cli.top_screen import Omitted, Snapshot
from nsqcy.cli.values import DURATION
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.node_answer import state_of
from nsqcy.cluster.problems import NodeState
from nsqcy.cluster.stats import TopicStats, sum_topics
from nsqcy.cluster.summaries import Summary, sum_origins, sum_totals, totals_of
from nsqcy.cluster.two_samples import with_rates
from nsqcy.cluster.web_client import describe
from nsqcy.config.durations import SECOND
from nsqcy.errors import RequestError

HOME, CLEAR_REST = "\x1b[H", "\x1b[J"
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
CUT_LINES, WRAP_LINES = "\x1b[?7l", "\x1b[?7h"
OWN_SCREEN, MAIN_SCREEN = "\x1b[?1049h", "\x1b[?1049l"


@click.command()
@click.option(
    "--interval", type=DURATION, default="2s", show_default=True, help="time between queries"
)
@click.option("--once", is_flag=True, help="print the table once, after one interval")
@as_json
@on_cluster
def top(cluster: Cluster, interval: int, once: bool, as_json: bool) -> None:
    """Show problems and channels, the worst first, until Ctrl-C.

    Checks the 1,000 busiest topics of each nsqd. --json prints one sample. If the output is not a
    terminal, the table is printed once. After one sample or table, the exit code is 1 if an nsqd or
    nsqlookupd did not respond.
    """
    observer = Observer(cluster)
    pause = interval / SECOND
    if as_json or once or not sys.stdout.isatty():
        observer.look()
        time.sleep(pause)  # rates of NSQ's own nsqd need two samples
        found = observer.look()
        if as_json:
            print_json(top_screen.as_json(found))
        else:
            click.echo(top_screen.text(found))
        sys.exit(int(found.is_partial))
    click.echo(OWN_SCREEN + HIDE_CURSOR + CUT_LINES, nl=False)
    try:
        while True:
            lines = top_screen.text(observer.look(), *shutil.get_terminal_size()).splitlines()
            click.echo(HOME + "".join(f"{each}\x1b[K\n" for each in lines) + CLEAR_REST, nl=False)
            time.sleep(pause)
    finally:
        click.echo(WRAP_LINES + SHOW_CURSOR + MAIN_SCREEN, nl=False)


class Observer:
    """Queries a cluster repeatedly, and keeps the last sample."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._time = 0.0
        self._answers: dict[str, Sequence[TopicStats]] = {}

    def look(self) -> Snapshot:
        """Query all daemons again. Those that do not answer are problems, not errors."""
        errors: dict[tuple[str, str], str] = {}

        def note(daemon: str, address: str, error: RequestError) -> None:
            errors[daemon, address] = describe(error)

        cluster = replace(self._cluster, on_error=note)
        states: dict[str, NodeState] = {}
        found: Mapping[str, Summary] = {}
        try:
            found = cluster.summaries()
            states = _states(cluster)
        except click.ClickException as error:
            if not errors:
                errors["nsqd", "none"] = error.format_message()
        now = time.monotonic()
        answers = {
            name: with_rates(self._answers.get(name, ()), each.rows, now - self._time)
            for name, each in found.items()
        }
        self._time, self._answers = now, {name: each.rows for name, each in found.items()}
        complete = {name: totals_of(answers[name]) for name in found if found[name].is_complete}
        return Snapshot(
            sum_topics(topic for topics in answers.values() for topic in topics),
            [
                *(states.get(name, NodeState(name)) for name in answers),
                *(NodeState(name, text) for (kind, name), text in errors.items() if kind == "nsqd"),
            ],
            {name: text for (kind, name), text in errors.items() if kind == "nsqlookupd"},
            datetime.now(),
            sum_totals(complete.get(name, each.totals) for name, each in found.items()),
            sum_origins(each.origins for each in found.values()),
            Omitted(
                sum(each.omitted for each in found.values()),
                sum(each.unseen for each in found.values()),
            ),
        )


def _states(cluster: Cluster) -> dict[str, NodeState]:
    """Return the state of the nsqds that report it."""

    def ask(nsqd: NsqdHTTPClient) -> Any:
        with suppress(RequestError):
            return nsqd.node()

    return {
        node.name: state_of(node.name, answer, time.time())
        for node, answer in cluster.each(ask).items()
        if answer
    }
