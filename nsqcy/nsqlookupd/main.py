"""Command-line entry point of nsqlookupd.

Owns the startup order: blocked signals, options, the sockets, and only then the slow imports.
Clients that connect in the meantime wait in the backlog.

Exit codes:

    0  stopped by SIGTERM or SIGINT; --version; --help
    1  could not start (the last line gives the reason); a listening socket failed
    2  invalid command line
"""

import os
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqcy.config import loader
from nsqcy.daemon.startup import open_log, rereading
from nsqcy.errors import Stop
from nsqcy.logging import events, logger
from nsqcy.net import listeners
from nsqcy.nsqlookupd.options import NSQLOOKUPD, LookupdOptions, resolve
from nsqcy.process import openfiles, service, spawn
from nsqcy.util import standard_streams

if TYPE_CHECKING:
    from nsqcy.users.known import Known


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd and return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    standard_streams.open_closed()
    # Signals are blocked until a hub can receive them and nsqlookupd can stop.
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    try:
        return _run(words)
    except Stop as stop:
        return loader.report(stop, "nsqlookupd")


def _run(argv: Sequence[str]) -> int:
    settings = loader.load(NSQLOOKUPD, argv)
    options = resolve(settings)
    lines = open_log("nsqlookupd", options)
    bound = _listen(options)
    for warning in settings.warnings:
        events.config_warning(lines, warning)
    users = _users(options, lines)
    openfiles.raise_limit().tell(lines)
    notifier = service.notifier(os.environ, lines)

    from nsqcy.nsqlookupd.daemon import Daemon

    def level() -> int:
        return resolve(loader.load(NSQLOOKUPD, argv)).log_level

    return Daemon(options, bound, lines, rereading(level, lines), notifier, users).run()


def _users(options: LookupdOptions, lines: logger.Log) -> "Known | None":
    """Return the users of --auth-file, if it is set."""
    if not options.auth_file:
        return None
    from nsqcy.users import known

    users, warnings = known.read(options.auth_file)
    for warning in warnings:
        events.config_warning(lines, warning)
    return known.Known(users)


def _listen(options: LookupdOptions) -> list[listeners.Listener]:
    bound: list[listeners.Listener] = []
    try:
        for kind, address in (("tcp", options.tcp_address), ("http", options.http_address)):
            bound.append(listeners.bind(address, kind, "nsqlookupd", unix=False))
    except Stop:
        for each in bound:
            each.close()
        raise
    return bound


if __name__ == "__main__":
    sys.exit(main())
