"""The nsqd command: parses the arguments and returns the exit code.

If another version has executed this one in its process, it continues with that one's state.
Otherwise, it defines the startup order: block signals, read the options, lock the data path, open
the sockets, start the workers, and then load the master's modules. A client that connects while
nsqd starts waits in the backlog.

Exit codes:

    0  stopped by SIGTERM or SIGINT and everything is saved (an interrupted import leaves NSQ's
       files unchanged); --version; --help
    1  could not start (see the last line); a listening socket failed; not everything was saved
    2  invalid command line
    3  draining reached its time limit before consumers had emptied nsqd; everything is saved
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nsqcy.config import configuration_file, loader
from nsqcy.config.policies import Policies
from nsqcy.daemon import startup
from nsqcy.errors import StartError, Stop
from nsqcy.logging import logger
from nsqcy.net import listeners
from nsqcy.nsqd import upgrade_steps
from nsqcy.nsqd.master import activation, master_state, policy_file
from nsqcy.nsqd.master.launcher import Launcher
from nsqcy.nsqd.options import (
    NSQD,
    REQUIRE_VERIFY,
    NsqdOptions,
    asks_for_tls_version,
    derive,
    policies,
    resolve,
)
from nsqcy.process import data_path_lock, systemd

if TYPE_CHECKING:
    from nsqcy.nsqd.master.live_options import Reread

ENGINE = "nsqcy.nsqd.worker.engine:Engine"
UNIX = -1  # the port that is reported for a unix socket


def main(argv: Sequence[str] | None = None) -> int:
    """Run nsqd; return the exit code."""
    return startup.run("nsqd", _run, argv)


def _run(argv: Sequence[str]) -> int:
    if master_state.TRIAL in os.environ:
        from nsqcy.nsqd.master import trial

        return trial.main(lambda state: _read_settings(argv, state).options)
    state = master_state.received(os.environ)
    if state is not None:
        return _take_over(argv, state)
    settings = loader.load(NSQD, argv)
    data_path = str(settings["data_path"])
    lock = _lock(data_path)
    options = resolve(settings)
    lines = startup.open_log("nsqd", options)
    lines.info(f"ID: {options.node_id}")
    bound = _listen(_addresses(options), systemd.inherited(os.environ))
    try:
        tls = _load_tls(settings, options)
        users = _load_users(settings, options)
        copies = _load_copies(settings, options, lines)
        startup.warn(lines, settings.warnings)
        notifier = startup.join_system(lines)
        options = derive(options, {each.kind: each.port for each in bound})
        _import(options, lines, notifier)
        by_name = policies(settings, options)
        saved = policy_file.load(data_path, lines)
        for name, values in saved.values(options, lines).items():
            by_name.set(name, values)
        by_name.version = saved.version
        context = _context(options, by_name, bound, tls, users, copies)
        return _serve(options, context, argv, lines, bound, lock, notifier, saved)
    except BaseException:
        for each in bound:
            each.close()
        raise


def _lock(data_path: str) -> data_path_lock.DataPathLock:
    """Held until this process and every worker have exited."""
    try:
        return data_path_lock.lock_data_path(data_path)
    except data_path_lock.DataPathError as error:
        raise StartError(f"failed to instantiate nsqd - {error}") from None


def _load_tls(settings: loader.Settings, options: NsqdOptions) -> dict[str, Any] | None:
    """Check and return the workers' TLS material; None if TLS is not configured."""
    if not options.tls_cert:
        return None
    from nsqcy.nsqd import tls

    try:
        material, warnings = tls.load(options, asks_for_tls_version(settings))
    except tls.TlsError as error:
        text = f"failed to instantiate nsqd - failed to build TLS config - {error}"
        raise StartError(text) from None
    settings.warnings += warnings
    return material._asdict() if material else None


def _load_users(settings: loader.Settings, options: NsqdOptions) -> str | None:
    """Check the users file and return its text; None if there is no such file."""
    if not options.auth_file:
        return None
    from nsqcy.users import credentials, file

    text = configuration_file.read_text(options.auth_file)
    users = file.parse(options.auth_file, text)
    settings.warnings += credentials.warnings(options.auth_file)
    verifies = options.tls_client_auth_policy == REQUIRE_VERIFY
    if not verifies and any(user.certificate for user in users.values()):
        settings.warnings.append(
            f"{options.auth_file}: user certificates require "
            "--tls-client-auth-policy=require-verify"
        )
    return text


def _load_copies(
    settings: loader.Settings, options: NsqdOptions, lines: logger.Log
) -> dict[str, str] | None:
    """Check all settings for copies, and return the workers' data for them; None if etcd is not
    configured."""
    if not options.etcd_endpoints:
        return None
    from nsqcy.nsqd.copies.settings import prepare

    if not options.copies_secret_file and not options.copies_tls_cert:
        settings.warnings.append(
            "--etcd-endpoints without --copies-secret-file or --copies-tls-cert: anyone who can "
            f"connect to {options.copies_address} can read and change the copies"
        )
    return prepare(options, lines, _is_stopping)


def _addresses(options: NsqdOptions) -> dict[str, str]:
    """Return the listening addresses by kind; https is missing if there is no certificate."""
    addresses = {"tcp": options.tcp_address, "http": options.http_address}
    if options.tls_cert:
        addresses["https"] = options.https_address
    return addresses


def _listen(
    addresses: dict[str, str], inherited: list[systemd.Inherited]
) -> list[listeners.Listener]:
    """Return the sockets opened by the service manager, and open sockets for the missing kinds."""

    bound = activation.assign(inherited, addresses)
    try:
        for kind, address in addresses.items():
            if (address or kind == "tcp") and all(each.kind != kind for each in bound):
                bound.append(listeners.bind(address, kind, unix=kind != "https"))
    except Stop:
        for each in bound:
            each.close()
        raise
    return sorted(bound, key=lambda each: list(addresses).index(each.kind))


def _import(options: NsqdOptions, lines: logger.Log, notifier: systemd.Notifier) -> None:
    """Import the files of NSQ's nsqd, once. Clients that connect during the import wait in the
    backlog."""
    from nsqcy.nsqd.data import importer

    if importer.is_needed(options.data_path):
        notifier.still_starting("importing")
        importer.Importer(
            options.data_path,
            lines,
            max_bytes_per_file=options.max_bytes_per_file,
            on_progress=notifier.still_starting,
            stopping=_is_stopping,
        ).run()


def _is_stopping() -> bool:
    """Return whether a signal that ends nsqd is waiting for the master's hub."""
    return bool(signal.sigpending() & {signal.SIGTERM, signal.SIGINT})


def _serve(
    options: NsqdOptions,
    context: dict[str, Any],
    argv: Sequence[str],
    lines: logger.Log,
    bound: list[listeners.Listener],
    lock: data_path_lock.DataPathLock,
    notifier: systemd.Notifier,
    saved: policy_file.SavedPolicies,
) -> int:
    launcher = Launcher(options.workers, lock, context, ENGINE, lines)
    born = launcher.fork()

    # This module creates the hub, so the workers are forked first.
    from nsqcy.nsqd.master.master import Master

    reread = startup.rereading(_reader(argv, options, lines), lines)
    data_path = options.data_path
    master = Master(launcher, bound, data_path, lines, reread, notifier, saved, argv)
    return master.run(born)


def _reader(argv: Sequence[str], options: NsqdOptions, lines: logger.Log) -> "Callable[[], Reread]":
    """Return a function that reads the configuration again. It raises Stop."""

    def read() -> "Reread":
        settings = loader.load(NSQD, argv)
        found = _reread(settings, resolve(settings), options)
        startup.warn(lines, settings.warnings)
        return found

    return read


def _reread(settings: loader.Settings, resolved: NsqdOptions, options: NsqdOptions) -> "Reread":
    """Return what a running nsqd adopts from its configuration. options: those of its start"""
    from nsqcy.nsqd.master.live_options import Reread

    # Keep the paths from startup: the content of the files may change, but their paths may not.
    material = _load_tls(settings, options)
    users = _load_users(settings, resolved)
    return Reread(resolved.log_level, material, resolved.lookupd_tcp_address, users)


# -- an upgrade in place


class _Continued(NamedTuple):
    """The configuration with which this version would continue."""

    options: NsqdOptions
    """Those of the running nsqd, with this version's defaults for new ones."""
    found: "Reread"
    warnings: list[str]


def _read_settings(argv: Sequence[str], state: master_state.State) -> _Continued:
    """Read the configuration for a running nsqd, once: its clients may be waiting. Raises Stop if
    this version could not continue with it."""
    settings = loader.load(NSQD, argv)
    resolved = resolve(settings)
    launcher = state.parts["launcher"]
    path = resolved.data_path
    if not data_path_lock.DataPathLock.is_of(launcher["lock"], path):
        raise StartError(f"{path or '.'} is not the data path with which nsqd runs: restart nsqd")
    values = resolved.dump()
    kept = launcher["context"]["options"]
    options = NsqdOptions.restore(values | {name: kept[name] for name in values.keys() & kept})
    found = _reread(settings, resolved, options)
    return _Continued(options, found, settings.warnings)


def _take_over(argv: Sequence[str], state: master_state.State) -> int:
    """Continue an nsqd of another version, which has executed this one in its process. If that is
    not possible, execute the other one again."""
    try:
        upgrade_steps.reached("executed")
        state.check()
        options, found, warnings = _read_settings(argv, state)
        lines = startup.open_log("nsqd", options)
        startup.warn(lines, warnings)
        notifier = startup.join_system(lines)

        from nsqcy.nsqd.master.master import Master

        parts = state.parts
        context = parts["launcher"]["context"] | {"options": options.dump()}
        launcher = Launcher.restore(parts["launcher"], context, ENGINE, lines)
        bound = [listeners.Listener.restore(each) for each in parts["listeners"]]
        data_path = options.data_path
        saved = policy_file.SavedPolicies.restore(data_path, parts["policies"])
        reread = startup.rereading(_reader(argv, options, lines), lines)
        master = Master(launcher, bound, data_path, lines, reread, notifier, saved, argv)
        master.restore(state)
    except BaseException as error:
        state.go_back(str(error) or type(error).__name__)
        raise
    state.take_over()
    upgrade_steps.reached("adopted")
    return master.resume(found)


def _context(
    options: NsqdOptions,
    by_name: Policies,
    bound: list[listeners.Listener],
    tls: dict[str, Any] | None,
    users: str | None,
    copies: dict[str, str] | None,
) -> dict[str, Any]:
    """Return the context that every worker receives."""
    return {
        "options": options.dump(),
        "policies": by_name.to_json(),
        "log": {
            "prefix": options.log_prefix,
            "level": options.log_level,
            "format": options.log_format,
        },
        "listeners": {
            each.kind: {"address": each.text, "port": each.port or UNIX} for each in bound
        },
        "master": os.getpid(),
        "started": time.time_ns(),
        "tls": tls,
        "users": users,
        "copies": copies,
        "refusal": None,
        "draining": False,
    }


if __name__ == "__main__":
    sys.exit(main())
