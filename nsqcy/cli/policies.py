"""The `config` commands of topics and channels: show and change policies."""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import click

from nsqcy.cli.cluster import Cluster, Node
from nsqcy.cli.cluster_options import print_json
from nsqcy.cli.tables import plain, table
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.config.durations import parse_with_days, short_duration
from nsqcy.config.options import DURATION
from nsqcy.config.policies import CHANNEL_KEYS, TOPIC_KEYS

Request = Callable[[NsqdHTTPClient, Mapping[str, Any] | None], dict[str, Any]]


def configure(
    cluster: Cluster, request: Request, assignments: Sequence[str], *, as_json: bool
) -> None:
    """Set keys of a policy on all nsqds, or only show it."""
    values = dict(_assigned(each) for each in assignments)
    found = cluster.each(lambda nsqd: request(nsqd, values or None))
    if as_json:
        print_json({node.name: policy["config"] for node, policy in found.items()})
    else:
        click.echo(_table(found), nl=False)


def _assigned(text: str) -> tuple[str, Any]:
    """Return a key and its value; an empty value resets the key."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{text!r} is not KEY=VALUE")
    if not value:
        return key, None
    option = TOPIC_KEYS.get(key) or CHANNEL_KEYS.get(key)
    if option is not None and option.kind is DURATION:
        with suppress(ValueError):
            value = short_duration(parse_with_days(value))
        return key, value
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _table(found: Mapping[Node, dict[str, Any]]) -> str:
    """Return a row for each key; a column for each nsqd if their values differ."""
    configs = {node.name: policy["config"] for node, policy in found.items()}
    first = next(iter(configs.values()))
    if all(each == first for each in configs.values()):
        rows = [[key, _shown(each["value"]), plain(each["from"])] for key, each in first.items()]
        return table(["key", "value", "from"], rows)
    keys = dict.fromkeys(key for config in configs.values() for key in config)
    rows = [
        [key, *(_shown(config.get(key, {}).get("value")) for config in configs.values())]
        for key in keys
    ]
    return table(["key", *configs], rows)


def _shown(value: Any) -> str:
    return plain(value if isinstance(value, str) else json.dumps(value))
