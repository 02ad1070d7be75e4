"""The program's own code that the client runs: callbacks, and the filters and handlers of its log.

An exception in such code, including sys.exit(), is not an error of the client: it must not end a
thread, or leave a change half done. Uses no locks and no clock.
"""

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any


class Log:
    """The client's logger, without its exceptions: a line that cannot be logged is dropped."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._has_failed = False

    def info(self, text: str, *args: object) -> None:
        self._log(logging.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        self._log(logging.WARNING, text, args)

    def error(self, text: str, *args: object, exc_info: BaseException | None = None) -> None:
        self._log(logging.ERROR, text, args, exc_info)

    def _log(
        self,
        level: int,
        text: str,
        args: tuple[object, ...],
        exc_info: BaseException | None = None,
    ) -> None:
        try:
            self._logger.log(level, text, *args, exc_info=exc_info, stacklevel=3)
        except BaseException as error:
            self._report(error)

    def _report(self, error: BaseException) -> None:
        """Write to stderr, once, that lines are missing."""
        if self._has_failed or not logging.raiseExceptions:
            return
        self._has_failed = True
        name = self._logger.name
        with suppress(BaseException):
            print(
                f"{name}: a filter or handler failed, so log lines are lost: {error!r}",
                file=sys.stderr,
            )


log = Log(logging.getLogger("nsqcy.client"))


def call(name: str, hook: Callable[..., Any], *about: object) -> Any:
    """Call a callback of the consumer or producer `name`, and return its result; log its exception
    and return None."""
    try:
        return hook(*about)
    except BaseException as error:  # including sys.exit(), which would end a thread silently
        report(name, error)
        return None


def report(name: str, error: BaseException) -> None:
    """Log the exception of a callback, and pass an interrupt on."""
    log.error("[%s] a callback failed", name, exc_info=error)
    pass_on(error)


def pass_on(error: BaseException) -> None:
    """Raise an interrupt in the main greenlet, once the client is done: with gevent, Ctrl-C
    interrupts any work of the main thread, including a callback or handler. It does not
    interrupt other threads."""
    hubs = sys.modules.get("gevent._hub_local")
    if not isinstance(error, KeyboardInterrupt) or hubs is None:
        return
    if (hub := hubs.get_hub_if_exists()) is not None:
        hub.loop.run_callback(hub.handle_system_error, type(error), error)
