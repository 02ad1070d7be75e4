"""Command-line entry point of nsqadmin.

Owns the startup order: blocked signals, options, preflight checks, the socket, and only then the
slow imports. Clients that connect in the meantime wait in the backlog.

Exit codes:

    0  stopped by SIGTERM or SIGINT; --version; --help
    1  could not start (the last line gives the reason); the listening socket failed
    2  invalid command line
"""

import sys
import time
from collections.abc import Sequence

from nsqcy.config import configuration_file, loader
from nsqcy.config.durations import SECOND
from nsqcy.daemon import startup
from nsqcy.errors import StartError
from nsqcy.net import listeners
from nsqcy.nsqadmin import preflight
from nsqcy.nsqadmin.options import NSQADMIN, AdminOptions, resolve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from nsqcy.nsqadmin.auth.provider import LoginProvider


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqadmin and return the exit code."""
    return startup.run("nsqadmin", _run, argv)


def _run(argv: Sequence[str]) -> int:
    settings = loader.load(NSQADMIN, argv)
    options = resolve(settings)
    settings.warnings += preflight.check(options)
    lines = startup.open_log("nsqadmin", options)
    listener = listeners.bind(options.http_address, "http", "nsqadmin", unix=False)
    startup.warn(lines, settings.warnings)
    notifier = startup.join_system(lines)

    from nsqcy.nsqadmin.app import Daemon
    from nsqcy.nsqadmin.auth.logins import Logins

    logins = None
    if options.auth_file:
        session_time = options.auth_session_time / SECOND
        logins = Logins(options.auth_file, session_time, lines, time.monotonic)
    provider = _provider(options) if options.oidc_issuer else None

    def level() -> int:
        return resolve(loader.load(NSQADMIN, argv)).log_level

    reread = startup.rereading(level, lines)
    return Daemon(options, listener, lines, reread, notifier, logins, provider).run()


def _provider(options: AdminOptions) -> "LoginProvider":
    """Return the log-in provider. Raises StartError."""
    try:
        from nsqcy.nsqadmin.auth.oidc import Provider, Settings
    except ModuleNotFoundError as error:
        text = f'--oidc-issuer requires the {error.name} package: pip install "nsqcy[oidc]"'
        raise StartError(text) from None
    path = options.oidc_client_secret_file
    settings = Settings(
        issuer=options.oidc_issuer,
        client_id=options.oidc_client_id,
        secret=configuration_file.read_text(path).strip() if path else "",
        redirect=options.oidc_redirect_url,
        name_claim=options.oidc_name_claim,
        role_claim=options.oidc_role_claim,
        operate=options.oidc_operate_value,
        view=options.oidc_view_value,
    )
    return Provider(settings, time.monotonic, time.time)


if __name__ == "__main__":
    sys.exit(main())
