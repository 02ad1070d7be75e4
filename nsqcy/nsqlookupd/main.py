"""Command-line entry point of nsqlookupd.

Owns the startup order: blocked signals, options, the sockets, and only then the slow imports.
Clients that connect in the meantime wait in the backlog.

Exit codes:

    0  stopped by SIGTERM or SIGINT; --version; --help
    1  could not start (the last line gives the reason); a listening socket failed
    2  invalid command line
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nsqcy.config import loader
from nsqcy.daemon import startup
from nsqcy.errors import Stop
from nsqcy.logging.logger import Log
from nsqcy.net import listeners
from nsqcy.nsqlookupd.options import NSQLOOKUPD, LookupdOptions, resolve

if TYPE_CHECKING:
    from nsqcy.users.credentials import Known


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqlookupd and return the exit code."""
    return startup.run("nsqlookupd", _run, argv)


def _run(argv: Sequence[str]) -> int:
    settings = loader.load(NSQLOOKUPD, argv)
    options = resolve(settings)
    lines = startup.open_log("nsqlookupd", options)
    bound = _listen(options)
    startup.warn(lines, settings.warnings)
    users = _users(options, lines)
    notifier = startup.join_system(lines)

    from nsqcy.nsqlookupd.daemon import Daemon

    def level() -> int:
        return resolve(loader.load(NSQLOOKUPD, argv)).log_level

    reread = startup.rereading(level, lines)
    return Daemon(options, bound, lines, reread, notifier, users).run()


def _users(options: LookupdOptions, lines: Log) -> "Known | None":
    """Return the users of --auth-file, if it is set."""
    if not options.auth_file:
        return None
    from nsqcy.users import credentials

    users, warnings = credentials.read(options.auth_file)
    startup.warn(lines, warnings)
    return credentials.Known(users)


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
