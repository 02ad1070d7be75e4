"""Private daemons for tests, each on free ports and with its own temporary data.

    from nsqcy.testing import nsqd

    with nsqd(mem_queue_size=100) as daemon:
        producer = gnsq.Producer(daemon.tcp_address)

Options are the daemon's flags with underscores. Values are bools, numbers or strings; a list
repeats a flag, and None omits it. A daemon is a separate process, so it works with threads, gevent
and asyncio alike; asyncio code blocks for the third of a second that starting a daemon takes. The
daemon stops when the test process ends, for any reason.

`nsqcy.testing.plugin` provides pytest fixtures.

Owns the daemons' processes. Errors include the last lines of the daemon's log.
"""

import contextlib
import difflib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Self, cast

from nsqcy.config.options import OptionTable
from nsqcy.errors import DaemonError
from nsqcy.nsqd.options import NSQD
from nsqcy.nsqlookupd.options import NSQLOOKUPD
from nsqcy.process.children import Child, how_it_ended
from nsqcy.testing.ports import Ports

__all__ = ["Daemon", "DaemonError", "Nsqd", "Nsqlookupd", "Option", "nsqd", "nsqlookupd"]

Option = bool | int | float | str | os.PathLike[str] | Sequence[str] | Sequence[float] | None

START_LIMIT = 60.0  # maximum seconds; on an idle machine, startup takes a third of a second
STOP_LIMIT = 60.0
_POLL = 0.05  # seconds between checks of whether a starting daemon has exited


class Daemon:
    """Common base class of Nsqd and Nsqlookupd.

    A `with` block or `start()` starts the daemon. The end of the block, or `close()`,
    stops it and deletes its data.
    """

    table: OptionTable
    module: str

    def __init__(self, **options: Option) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="nsqcy-", ignore_cleanup_errors=True)
        self._ports = Ports()
        self._options = self._defaults() | options
        self._child: Child | None = None
        for name in options:
            if name not in self.table.by_name:
                near = difflib.get_close_matches(name, self.table.by_name, 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{self.table.daemon} has no option {name!r}{meant}")

    def _defaults(self) -> dict[str, Option]:
        return {
            "tcp_address": self._free_address(),
            "http_address": self._free_address(),
            "broadcast_address": "127.0.0.1",
        }

    def _free_address(self) -> str:
        return f"127.0.0.1:{self._ports.take()}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._child is not None:
                self.stop()
        finally:
            self.close()

    # life

    def start(self) -> None:
        """Start the daemon and wait until it serves. Raises DaemonError."""
        if self.alive:
            raise DaemonError(f"{self.table.daemon} is already running")
        with open(self._log_path, "ab") as log:
            self._child = Child(self.table.daemon, self.module, self._flags(), stderr=log.fileno())
        deadline = time.monotonic() + START_LIMIT
        while not self._child.ready:
            if (code := self._child.process.poll()) is not None:
                raise self._error(f"{how_it_ended(code)} before it was ready")
            if time.monotonic() > deadline:
                self.kill()
                raise self._error(f"was not ready within {START_LIMIT:g} s")
            self._child.hear(_POLL)
        # keeps the ports across restarts
        for title, address in self._child.addresses.items():
            self._options[f"{title.lower()}_address"] = address

    def stop(self) -> None:
        """Stop the daemon with SIGTERM, and keep its data. Raises DaemonError if that fails, or if
        the daemon had already exited for a reason other than `kill()`."""
        if self._child is None:
            return
        process = self._child.process
        self._child.hear()  # make room in the pipe for the daemon's last messages
        process.terminate()
        try:
            code = process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._error(f"did not stop within {STOP_LIMIT:g} s") from None
        self._forget()
        if code != 0:
            raise self._error(how_it_ended(code))

    def kill(self) -> None:
        """Send SIGKILL to all processes of the daemon, to simulate its crash."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.process.pid, signal.SIGKILL)
            self._child.process.wait()
            self._forget()

    def restart(self) -> None:
        """Stop the daemon if it is running, and start it with the same ports and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Kill the daemon if it is running, and delete its data and log."""
        self.kill()
        self._home.cleanup()
        self._ports.close()

    def _forget(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    # state

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The daemon's process; for nsqd, the master."""
        if self._child is None:
            raise DaemonError(f"{self.table.daemon} is not running")
        return self._child.process

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.process.poll() is None

    @property
    def tcp_address(self) -> str:
        """`127.0.0.1:port`, even while the daemon is stopped."""
        return str(self._options["tcp_address"])

    @property
    def http_address(self) -> str:
        return str(self._options["http_address"])

    @property
    def log(self) -> str:
        """Return the complete log since the first start."""
        try:
            with open(self._log_path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 30) -> str:
        """Return the last lines of the log."""
        return "\n".join(self.log.splitlines()[-lines:])

    # inside

    @property
    def _log_path(self) -> str:
        return os.path.join(self._home.name, "log")

    def _flags(self) -> list[str]:
        flags = []
        for name, value in self._options.items():
            several = isinstance(value, Sequence) and not isinstance(value, str)
            for each in cast(Sequence[object], value) if several else [value]:
                if each is not None:
                    flags.append(f"--{self.table.by_name[name].flag}={_text(each)}")
        return flags

    def _error(self, what: str) -> DaemonError:
        return DaemonError(f"{self.table.daemon} {what}; its log ends with\n{self.tail()}")


class Nsqd(Daemon):
    """An nsqd, with one worker unless `workers` is set."""

    table = NSQD
    module = "nsqcy.nsqd.main"

    def _defaults(self) -> dict[str, Option]:
        data_path = os.path.join(self._home.name, "data")
        os.mkdir(data_path)
        return super()._defaults() | {
            "https_address": self._free_address(),
            "data_path": data_path,
            "workers": 1,
        }

    @property
    def https_address(self) -> str:
        """Address of the HTTPS port, which is open only with `tls_cert` and `tls_key`."""
        return str(self._options["https_address"])

    @property
    def data_path(self) -> str:
        return str(self._options["data_path"])


class Nsqlookupd(Daemon):
    """An nsqlookupd. `nsqd(lookupd_tcp_address=lookupd.tcp_address)` registers with it."""

    table = NSQLOOKUPD
    module = "nsqcy.nsqlookupd.main"


def nsqd(**options: Option) -> Nsqd:
    """Return an nsqd for `with nsqd() as daemon`."""
    return Nsqd(**options)


def nsqlookupd(**options: Option) -> Nsqlookupd:
    """Return an nsqlookupd for `with nsqlookupd() as lookupd`."""
    return Nsqlookupd(**options)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
