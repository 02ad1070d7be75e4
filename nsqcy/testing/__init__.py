"""Private daemons for tests: each on free ports, with data of its own that go when it goes.

    from nsqcy.testing import nsqd

    with nsqd(mem_queue_size=100) as daemon:
        producer = gnsq.Producer(daemon.tcp_address)

Options are the daemon's flags with underscores; True and False, numbers and texts are what they
look like, a list gives a flag several times, None leaves it out. A daemon is a process like any
other: it does not matter whether the test runs threads, gevent or asyncio, which waits a third of a
second while one starts. It ends with the test's process, however that ends.

With pytest there are fixtures: `nsqcy.testing.plugin`.

Owns the daemons' processes, and says what went wrong with them in words of their own logs.
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

START_LIMIT = 60.0  # seconds; on a quiet machine it takes a third of one
STOP_LIMIT = 60.0
_POLL = 0.05  # seconds between looks at whether a daemon has ended before it was ready


class Daemon:
    """What nsqd and nsqlookupd have in common.

    It starts when the `with` begins, or by `start()`, and goes with everything it has kept when the
    `with` ends, or by `close()`.
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
        """Start it, and come back when it serves; DaemonError if it does not."""
        if self.alive:
            raise DaemonError(f"{self.table.daemon} is running already")
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
        # Those it has now are those it will have when it is started again.
        for title, address in self._child.addresses.items():
            self._options[f"{title.lower()}_address"] = address

    def stop(self) -> None:
        """SIGTERM: it ends as a service does, and keeps everything. DaemonError if that fails.

        A daemon that has ended already, other than by `kill()`, has failed.
        """
        if self._child is None:
            return
        process = self._child.process
        self._child.hear()  # so that there is room for what it will say
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
        """SIGKILL to all of its processes, as if the machine had crashed."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.process.pid, signal.SIGKILL)
            self._child.process.wait()
            self._forget()

    def restart(self) -> None:
        """Start it again with the ports and data it had; it is stopped first if it runs."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End it, if it runs, and throw its data and its log away."""
        self.kill()
        self._home.cleanup()
        self._ports.close()

    def _forget(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    # what there is to see

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process that was started; of nsqd the master."""
        if self._child is None:
            raise DaemonError(f"{self.table.daemon} is not running")
        return self._child.process

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.process.poll() is None

    @property
    def tcp_address(self) -> str:
        """`127.0.0.1:port`, also while it is down."""
        return str(self._options["tcp_address"])

    @property
    def http_address(self) -> str:
        return str(self._options["http_address"])

    @property
    def log(self) -> str:
        """All it has logged, from its first start to `close()`."""
        try:
            with open(self._log_path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def tail(self, lines: int = 30) -> str:
        """The end of the log."""
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
    """One nsqd, of one worker unless `workers` says otherwise."""

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
        """Only with `tls_cert` and `tls_key` does anything listen there."""
        return str(self._options["https_address"])

    @property
    def data_path(self) -> str:
        return str(self._options["data_path"])


class Nsqlookupd(Daemon):
    """One nsqlookupd: `nsqd(lookupd_tcp_address=lookupd.tcp_address)` registers with it."""

    table = NSQLOOKUPD
    module = "nsqcy.nsqlookupd.main"


def nsqd(**options: Option) -> Nsqd:
    """`with nsqd() as daemon`: an nsqd that serves."""
    return Nsqd(**options)


def nsqlookupd(**options: Option) -> Nsqlookupd:
    """`with nsqlookupd() as lookupd`: an nsqlookupd that serves."""
    return Nsqlookupd(**options)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)
