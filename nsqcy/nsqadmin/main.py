"""nsqadmin: arguments in, exit code out.

Owns the order of what comes before the daemon: signals held back, options, what they need, the
socket, and only then the imports that take time. Whoever connects meanwhile waits in the backlog.

Exit codes:

    0  stopped by SIGTERM or SIGINT; --version; --help
    1  could not start (the last line says why); the listening socket failed
    2  the command line could not be read
"""

import os
import signal
import sys
from collections.abc import Sequence

from nsqcy import __version__, config, listeners, log
from nsqcy.durations import SECOND
from nsqcy.errors import Stop
from nsqcy.nsqadmin import preflight
from nsqcy.nsqadmin.options import NSQADMIN, resolve
from nsqcy.process import openfiles, service, spawn


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin; gives the exit code."""
    words = sys.argv[1:] if argv is None else argv
    # Until there is a hub to receive them on, and a way to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
    try:
        return _run(words)
    except Stop as stop:
        return config.report(stop, "nsqadmin")


def _run(argv: Sequence[str]) -> int:
    settings = config.load(NSQADMIN, argv)
    options = resolve(settings)
    preflight.check(options)
    lines = log.Log(
        options.log_prefix,
        options.log_level,
        options.log_format,
        context={"daemon": "nsqadmin"},
    )
    lines.info(config.version_line("nsqadmin"), event="started", version=__version__)
    listener = listeners.bind(options.http_address, "http", "nsqadmin", unix=False)
    for warning in settings.warnings:
        lines.warn(warning, event="config_warning")
    openfiles.raise_limit().tell(lines)
    notifier = service.notifier(os.environ, lines)

    from nsqcy.nsqadmin.daemon import Daemon
    from nsqcy.nsqadmin.logins import Logins

    logins = None
    if options.auth_file:
        logins = Logins(options.auth_file, options.auth_session_time / SECOND, lines)

    def reread() -> int | None:
        try:
            return resolve(config.load(NSQADMIN, argv)).log_level
        except Stop as stop:
            lines.error(
                f"SIGHUP: {stop}; everything stays as it was",
                event="config_refused",
                error=str(stop),
            )
            return None

    return Daemon(options, listener, lines, reread, notifier, logins).run()


if __name__ == "__main__":
    sys.exit(main())
