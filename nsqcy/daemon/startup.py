"""Start of a daemon: opening the log, and reading the options again on SIGHUP.

Imported before all heavy modules. Owns no option and no daemon.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from nsqcy import __version__
from nsqcy.config import loader
from nsqcy.errors import Stop
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
    """Open the log and write its first line, which has the version."""
    log = Log(options.log_prefix, options.log_level, options.log_format, context={"daemon": daemon})
    log.info(loader.version_line(daemon), event="started", version=__version__)
    return log


def rereading(read: Callable[[], T], log: Log) -> Callable[[], T | None]:
    """Return a handler of SIGHUP that calls `read`; it logs Stop and returns None instead."""

    def reread() -> T | None:
        try:
            return read()
        except Stop as stop:
            log.error(
                f"SIGHUP: {stop}; the configuration stays unchanged",
                event="config_refused",
                error=str(stop),
            )
            return None

    return reread
