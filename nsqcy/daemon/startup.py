"""Daemon startup: opening the log, and reloading the options on SIGHUP.

Imported before all slow modules. Independent of particular options and daemons.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from nsqcy import __version__
from nsqcy.config import loader
from nsqcy.errors import Stop
from nsqcy.logging import events
from nsqcy.logging.logger import Log

T = TypeVar("T")


class LogOptions(Protocol):
    @property
    def log_prefix(self) -> str: ...

    @property
    def log_level(self) -> int: ...

    @property
    def log_format(self) -> str: ...


def open_log(daemon: str, options: LogOptions) -> Log:
    """Open the log and write its first line, which contains the version."""
    log = Log(options.log_prefix, options.log_level, options.log_format, context={"daemon": daemon})
    events.started(log, loader.version_line(daemon), version=__version__)
    return log


def rereading(read: Callable[[], T], log: Log) -> Callable[[], T | None]:
    """Return a SIGHUP handler that calls `read`. If `read` raises Stop, the handler logs the error
    and returns None."""

    def reread() -> T | None:
        try:
            return read()
        except Stop as stop:
            for part in stop.parts:
                events.config_refused(log, error=str(part))
            return None

    return reread
