"""What all tools share: flags, addresses, lines on stderr, exit codes.

    0  done, or stopped by a signal; --version; --help
    1  flags that do not go together, or a failure; the last line on stderr says which
    2  the command line could not be read

Knows no particular tool. Each has an option table of its own, and no configuration file.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config import loader
from nsqcy.config.daemon_options import VERSION
from nsqcy.config.durations import SECOND
from nsqcy.config.flags import split_flags
from nsqcy.config.options import DURATION, WORDS, OptionTable
from nsqcy.errors import DATED, Stop, VersionWanted
from nsqcy.logging import logger
from nsqcy.options.option import Option

__all__ = [
    "LOOKUPD_HTTP_ADDRESS",
    "NSQD_TCP_ADDRESS",
    "VERSION",
    "Settings",
    "ToolError",
    "http_timeouts",
    "parse",
    "require_one_source",
    "require_positive",
    "run",
    "say",
    "show",
    "user_agent",
]

NSQD_TCP_ADDRESS = Option("nsqd-tcp-address", WORDS, (), "host:port of an nsqd to connect to")
LOOKUPD_HTTP_ADDRESS = Option(
    "lookupd-http-address", WORDS, (), "host:port of an nsqlookupd to ask for nsqds"
)


def http_timeouts(request: int) -> tuple[Option, Option]:
    """The options of a tool that makes HTTP requests, with its time for a whole one."""
    return (
        Option("http-client-connect-timeout", DURATION, 2 * SECOND, "time for an HTTP connection"),
        Option("http-client-request-timeout", DURATION, request, "time for a whole HTTP request"),
    )


class ToolError(Stop):
    """Why a tool cannot do its work: one line, and exit code 1."""

    shape = DATED

    def __str__(self) -> str:
        return _one_line(super().__str__())


class Settings(loader.Settings):
    """A value for every option of a tool, and the words behind the flags."""

    __slots__ = ("arguments",)

    def __init__(self, table: OptionTable, argv: Sequence[str]) -> None:
        flags, self.arguments = split_flags(table, argv)
        super().__init__(table, flags)


def parse(table: OptionTable, argv: Sequence[str]) -> Settings:
    """The settings of a tool started with these arguments; raises a Stop."""
    settings = Settings(table, argv)
    if settings.values.get("version"):
        raise VersionWanted(f"{table.daemon} v{NSQ_VERSION}")
    return settings


def require_one_source(
    nsqd: tuple[str, ...],
    lookupd: tuple[str, ...],
    nsqd_flag: str = "--nsqd-tcp-address",
) -> None:
    """Raises ToolError unless there are addresses of exactly one kind."""
    if not nsqd and not lookupd:
        raise ToolError(f"{nsqd_flag} or --lookupd-http-address required")
    if nsqd and lookupd:
        raise ToolError(f"use {nsqd_flag} or --lookupd-http-address not both")


def require_positive(settings: loader.Settings, *names: str) -> None:
    """Raises ToolError for the first of these options that is not more than nothing."""
    for name in names:
        value = settings[name]
        assert isinstance(value, int)
        if value <= 0:
            flag = settings.table.by_name[name].flag
            raise ToolError(f"--{flag} should be positive")


def user_agent(tool: str) -> str:
    return f"{tool}/{NSQ_VERSION} nsqcy/{__version__}"


def say(text: str) -> None:
    """One line on stderr, with the date."""
    logger.write(2, f"{logger.date_time(int(time.time()))} {_one_line(text)}\n")


def show(data: str | bytes) -> None:
    """Output, on stdout, at once and whole. Without a reader the tool has no work: ToolError."""
    left = memoryview(data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data)
    try:
        while left:
            left = left[os.write(1, left) :]
    except OSError as error:
        raise ToolError(f"write to stdout: {error.strerror}") from None


def _one_line(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r")


def run(main: Callable[[Sequence[str]], int], name: str, argv: Sequence[str] | None = None) -> int:
    """The exit code of a tool. `main` is given the arguments and gives it, or raises a Stop."""
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except Stop as stop:
        return loader.report(stop, name)
