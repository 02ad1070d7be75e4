"""Settings that change while nsqd runs: over HTTP, or in files that are reloaded on SIGHUP.

Applies each change to the master and every worker, including workers that start later.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.nsqd.lookup.registration import Lookup
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.process_messages.to_worker import OptionChanged, RenewTls, RenewUsers


class Reread(NamedTuple):
    """Result of reloading the configuration and its files after a SIGHUP."""

    log_level: int
    tls: dict[str, Any] | None = None  # the fields of an nsqcy.nsqd.tls.Material
    lookupds: tuple[str, ...] | None = None
    users: str | None = None  # the text of the users file


class LiveOptions:
    """The running nsqd's options."""

    def __init__(
        self, context: dict[str, Any], workers: Workers, lookup: Lookup | None, log: Log
    ) -> None:
        """context: boot data for workers."""
        self._context = context
        self._workers = workers
        self._log = log
        self._lookup = lookup
        self._on_change: dict[str, Callable[[Any], None]] = {"log_level": self._set_log_level}
        self.lookupds: list[str] = []  # addresses as configured
        if lookup is not None:
            self.lookupds = list(context["options"]["lookupd_tcp_address"])
            self._on_change["lookupd_tcp_address"] = lookup.set_addresses

    def connect_lookupds(self) -> None:
        """Start registering with the configured nsqlookupds."""
        if self._lookup is not None:
            self._lookup.set_addresses(self.lookupds)

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version, which also gets the boot data."""
        return {"lookupds": self.lookupds}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version. An address that was set over HTTP stays
        in use, although the configuration has another."""
        self.lookupds = list(dumped["lookupds"])
        if self._lookup is not None:
            self._lookup.set_addresses(self._context["options"]["lookupd_tcp_address"])

    def change(self, name: str, value: Any) -> None:
        """Change an option in every process.

        Returns when all workers have applied the change. A worker that does not answer in time
        applies it before any later request.
        """
        self._context["options"][name] = value
        changed = self._on_change.get(name)
        if changed is not None:
            changed(value)
        self._workers.gather(OptionChanged(name, value))

    def adopt(self, found: Reread) -> None:
        """Apply the reloaded settings."""
        self.change("log_level", found.log_level)
        # Options set over HTTP stay in effect, unless the configuration has changed them as well.
        if found.lookupds is not None and list(found.lookupds) != self.lookupds:
            self.lookupds = list(found.lookupds)
            self.change("lookupd_tcp_address", self.lookupds)
        if found.tls is not None:
            self._context["tls"] = found.tls
            self._workers.notify(RenewTls(found.tls))
            events.tls_reloaded(self._log)
        # An nsqd that was started without a users file needs a restart to use one.
        if found.users is not None and self._context.get("users") is not None:
            self._context["users"] = found.users
            self._workers.notify(RenewUsers(found.users))
            events.auth_file_reloaded(self._log)

    def _set_log_level(self, level: int) -> None:
        self._log.level = level
        self._context["log"]["level"] = level
