"""The cluster under faults: nsqlookupds, nsqds behind proxies, and nsqadmin, on this machine.

Owns the processes, their directories and their options. One process of each kind is never killed,
so that its resources can be observed during the entire run.
"""

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from loadtest.bench import procfs
from loadtest.chaos import disks
from loadtest.chaos.disks import SlowDisk
from loadtest.chaos.proxy import Proxy
from loadtest.daemons import Nsqadmin, Nsqd
from nsqcy.testing import Daemon, DaemonError, Nsqlookupd, Option
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import Web, eventually

DURABILITIES = ("memory", "os", "fsync")
TOPICS = {f"{each}-{letter}": each for each in DURABILITIES for letter in "ab"}
CHANNELS = ("calm", "wild")
PLACES = [(topic, channel) for topic in TOPICS for channel in CHANNELS]
NAMES = len(TOPICS) * (1 + len(CHANNELS))  # number of names in a complete nsqd.dat
MSG_TIMEOUT = 2  # seconds
NODE_OPTIONS: dict[str, Option] = {
    "msg_timeout": f"{MSG_TIMEOUT}s",
    "max_bytes_per_file": 8 << 20,
    "mem_queue_size": 2000,
    "sync_timeout": "500ms",
    "max_output_buffer_timeout": "1s",
}

_environment = threading.Lock()


class ChaoticNsqd(Nsqd):
    """An nsqd with additional environment variables."""

    environ: Mapping[str, str] = {}

    def start(self) -> None:
        with added_to_environment(self.environ):
            super().start()


@contextlib.contextmanager
def added_to_environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for child processes started in this context; only one thread at a
    time may use it."""
    with _environment:
        before = {name: os.environ[name] for name in values if name in os.environ}
        os.environ.update(values)
        try:
            yield
        finally:
            for name in values:
                del os.environ[name]
            os.environ.update(before)


class Node:
    """One nsqd. `disk` is set if the disk can be slowed down, `small_disk` if it can be filled."""

    def __init__(self, number: int, folder: Path, library: Path | None, mounts: bool) -> None:
        self.number = number
        self.data = folder / f"nsqd-{number}"
        self.data.mkdir()
        self.small_disk = mounts and disks.small_disk(self.data)
        self.disk = SlowDisk(library, folder / f"nsqd-{number}.slow") if library else None
        self.killed = 0  # workers that the test killed

    async def start(self, workers: int, lookupds: list[str], options: Mapping[str, Option]) -> None:
        """Clients that are directed here by nsqlookupds connect through the proxy."""
        self.proxy = Proxy()
        await self.proxy.start()
        self.daemon = ChaoticNsqd(
            data_path=self.data,
            workers=workers,
            lookupd_tcp_address=lookupds,
            broadcast_tcp_port=self.proxy.port,
            **NODE_OPTIONS,
            **options,
        )
        self.daemon.environ = self.disk.environ if self.disk else {}
        self.daemon.start()
        self.proxy.target = self.daemon.tcp_port

    @property
    def web(self) -> Web:
        web = self.daemon.web
        web.timeout = 10.0
        return web

    @property
    def addresses(self) -> dict[str, str]:
        return {"direct": self.daemon.tcp_address, "proxied": f"127.0.0.1:{self.proxy.port}"}

    def make_channels(self) -> None:
        """Create all channels, and wait until nsqd.dat lists them."""
        for topic, channel in PLACES:
            self.web.create(topic, channel)
        eventually(lambda: (self.data / "nsqd.dat").read_text().count('"name"') >= NAMES)


class Cluster:
    """The last nsqd and the second of the two nsqlookupds are never killed."""

    def __init__(self, nsqds: int, workers: int) -> None:
        self._stack = contextlib.ExitStack()
        home = tempfile.TemporaryDirectory(prefix="nsqcy-chaos-", ignore_cleanup_errors=True)
        self._folder = Path(self._stack.enter_context(home))
        library = disks.slow_library(self._folder)
        mounts = disks.own_mounts()
        self._workers = workers
        self.lookupds = [Nsqlookupd(), Nsqlookupd()]
        last = nsqds - 1
        self.nodes = [
            Node(number, self._folder, library, mounts and number == last)
            for number in range(nsqds)
        ]
        self.admin: Nsqadmin
        self.certificate = make("localhost").save(self._folder)

    async def start(self) -> None:
        for lookupd in self.lookupds:
            self._stack.enter_context(lookupd)
        options: dict[str, Option] = {"config": self._config(), **self.certificate.options}
        for node in self.nodes:
            await node.start(self._workers, [each.tcp_address for each in self.lookupds], options)
            self._stack.callback(node.daemon.close)
            node.make_channels()
        self.admin = Nsqadmin(
            lookupd_http_address=self.lookup_addresses,
            # The history must be full before its memory is measured.
            history_interval="2s",
            history_length="1m",
        )
        self._stack.enter_context(self.admin)

    def _config(self) -> Path:
        path = self._folder / "nsqd.ini"
        sections = [f"[topic {each}-*]\ndurability = {each}\n" for each in DURABILITIES]
        path.write_text("\n".join(["[nsqd]\n", *sections]))
        return path

    def stop(self) -> dict[str, str]:
        """Stop everything as a service manager does; return failures."""
        failed = {}
        for name, daemon in self.daemons.items():
            try:
                daemon.stop()
            except Exception as error:
                failed[name] = str(error)
        return failed

    async def close(self) -> None:
        """Remove the cluster's files, even after a failure."""
        for node in self.nodes:
            if hasattr(node, "proxy"):
                await node.proxy.stop()
            if node.small_disk:
                disks.unmount(node.data)
        self._stack.close()

    # -- processes

    @property
    def daemons(self) -> dict[str, Daemon]:
        found: dict[str, Daemon] = {"nsqadmin": self.admin}
        found |= {f"nsqd {node.number}": node.daemon for node in self.nodes}
        found |= {f"nsqlookupd {at}": each for at, each in enumerate(self.lookupds)}
        return found

    @property
    def lookup_addresses(self) -> list[str]:
        return [each.http_address for each in self.lookupds]

    def processes(self) -> dict[int, str]:
        """Return the role of each process by process id."""
        found: dict[int, str] = {}
        for name, daemon in self.daemons.items():
            with contextlib.suppress(DaemonError):  # the daemon is down
                master, *others = procfs.family(daemon.process.pid)
                found |= dict.fromkeys(others, f"{name} worker")
                found[master] = f"{name} master" if name.startswith("nsqd ") else name
        return found
