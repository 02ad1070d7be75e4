"""Types of command-line values: names, durations, positions in a log, headers.

Converts text to values, and completes names in a shell. Sends requests only for completion.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from nsqcy.cli import log_positions
from nsqcy.cli.cluster import Cluster
from nsqcy.cluster.discovery import daemon_url
from nsqcy.cluster.web_client import Terms
from nsqcy.config.durations import ALLOWED_WITH_DAYS, parse_with_days
from nsqcy.errors import NsqError
from nsqcy.names import is_valid_name, quote

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]
else:
    ParamType = click.ParamType  # generic only in recent versions of click

COMPLETION = Terms(connect_timeout=1.0, request_timeout=1.0)  # while a user waits for Tab
NAME = "1 to 64 characters of a-z A-Z 0-9 . _ -, and #ephemeral at the end if it is ephemeral"


class _Name(ParamType):
    """Name of a topic or channel."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_valid_name(value):
            self.fail(f"{quote(value)} is not a valid {self.name} name ({NAME})", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        lookupds = tuple(ctx.params.get("lookupd_http_address") or ())
        nsqds = tuple(ctx.params.get("nsqd_http_address") or ())
        with suppress(NsqError, click.ClickException):
            names = Cluster(lookupds, nsqds, COMPLETION).names(ctx.params.get("topic"))
            return [CompletionItem(name) for name in names if name.startswith(incomplete)]
        return []


class _Duration(ParamType):
    """Duration in Go's notation or with days; the value is in nanoseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            found = parse_with_days(value)
        except ValueError as error:
            unit = f"; did you mean {value}s?" if value.isdecimal() else f" ({ALLOWED_WITH_DAYS})"
            self.fail(f"{quote(value)} is not a duration: {error}{unit}", param, ctx)
        if found < 0:
            self.fail(f"{value} is negative", param, ctx)
        return found


class _Place(ParamType):
    """Position in a topic's log, as nsqd understands it."""

    name = "position"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return log_positions.place(value, log_positions.now())
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Header(ParamType):
    """Message header, NAME=VALUE."""

    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{quote(value)} is not NAME=VALUE", param, ctx)
        return name, text


class _Address(ParamType):
    """HTTP address of a daemon: host:port or a URL."""

    name = "address"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            daemon_url(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return value


class Count(click.IntRange):
    """Whole number within limits."""

    name = "number"  # click names it "integer range" in errors


TOPIC = _Name("topic")
CHANNEL = _Name("channel")
DURATION = _Duration()
PLACE = _Place()
HEADER = _Header()
ADDRESS = _Address()
