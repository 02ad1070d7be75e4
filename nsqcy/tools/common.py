"""Common parts of all tools: flags, addresses, output to stderr, exit codes.

    0  done, or stopped by a signal; --version; --help
    1  conflicting flags, or a failure; the last line on stderr gives the reason
    2  invalid command line

Independent of particular tools. Each tool has its own option table, and no configuration file.
"""

import sys
import time
from collections.abc import Callable, Sequence

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config import loader, stray_words
from nsqcy.config.daemon_options import VERSION
from nsqcy.config.durations import SECOND
from nsqcy.config.flags import split_flags
from nsqcy.config.options import DURATION, WORDS, OptionTable
from nsqcy.errors import DATED, Stop, VersionWanted
from nsqcy.logging import logger
from nsqcy.options.option import Option
from nsqcy.util import standard_streams

__all__ = [
    "CONNECT_TIMEOUT",
    "LOOKUPD_HTTP_ADDRESS",
    "NSQD_TCP_ADDRESS",
    "VERSION",
    "Settings",
    "ToolError",
    "parse",
    "request_timeout",
    "require_one_source",
    "require_positive",
    "run",
    "say",
    "show",
    "user_agent",
]

NSQD_TCP_ADDRESS = Option("nsqd-tcp-address", WORDS, (), "host:port of an nsqd to connect to")
LOOKUPD_HTTP_ADDRESS = Option(
    "lookupd-http-address", WORDS, (), "host:port of an nsqlookupd to discover nsqds from"
)
CONNECT_TIMEOUT = Option("http-client-connect-timeout", DURATION, 2 * SECOND, "connect timeout")


def request_timeout(default: int) -> Option[int]:
    """Return the option for the timeout of an entire HTTP request."""
    return Option("http-client-request-timeout", DURATION, default, "total timeout for a request")


class ToolError(Stop):
    """An error that ends a tool: prints one line, exit code 1."""

    shape = DATED

    def __str__(self) -> str:
        return logger.printable(super().__str__())


class Settings(loader.Settings):
    """Values of all options of a tool, and its positional arguments."""

    __slots__ = ("arguments",)

    def __init__(self, table: OptionTable, argv: Sequence[str]) -> None:
        flags, self.arguments = split_flags(table, argv)
        super().__init__(table, flags)


def parse(table: OptionTable, argv: Sequence[str]) -> Settings:
    """Parse a tool's arguments. Raises Stop."""
    settings = Settings(table, argv)
    if settings.values.get("version"):
        raise VersionWanted(f"{table.daemon} v{NSQ_VERSION}")
    for warning in stray_words.check(table, argv, settings.arguments):
        say(f"WARNING: {warning}")
    return settings


def require_one_source(
    nsqd: tuple[str, ...],
    lookupd: tuple[str, ...],
    nsqd_flag: str = "--nsqd-tcp-address",
) -> None:
    """Raise ToolError unless addresses of exactly one kind are given."""
    if not nsqd and not lookupd:
        raise ToolError(f"{nsqd_flag} or --lookupd-http-address required")
    if nsqd and lookupd:
        raise ToolError(f"use {nsqd_flag} or --lookupd-http-address not both")


def require_positive(settings: loader.Settings, *names: str) -> None:
    """Raise ToolError for the first of these options that is not positive."""
    for name in names:
        value = settings[name]
        assert isinstance(value, int)
        if value <= 0:
            flag = settings.table.by_name[name].flag
            raise ToolError(f"--{flag} should be positive")


def user_agent(tool: str) -> str:
    return f"{tool}/{NSQ_VERSION} nsqcy/{__version__}"


def say(text: str) -> None:
    """Print one line to stderr, with the date."""
    logger.write(2, f"{logger.date_time(int(time.time()))} {logger.printable(text)}\n")


def show(data: str | bytes) -> None:
    """Write all of the data to stdout, unbuffered. Raises ToolError if stdout has no reader."""
    try:
        standard_streams.show(data)
    except OSError as error:
        raise ToolError(f"write to stdout: {error.strerror}") from None


def run(main: Callable[[Sequence[str]], int], name: str, argv: Sequence[str] | None = None) -> int:
    """Run a tool and return its exit code. `main` returns the exit code or raises Stop."""

    def program() -> int:
        try:
            return main(sys.argv[1:] if argv is None else argv)
        except Stop as stop:
            return loader.report(stop, name)

    return standard_streams.guarded(name, program)
