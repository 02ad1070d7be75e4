"""Brokers for Celery: nsqd, Redis and RabbitMQ, each on a free port, with the same interface."""

import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from loadtest.bench import procfs
from loadtest.bench.daemon import Address, Daemon
from loadtest.bench.peers import servers
from loadtest.daemons import Nsqd
from nsqcy.testing.ports import Ports

REDELIVERY = 10  # seconds until the tasks of a killed worker are redelivered
START_BUDGET = 60.0


class Broker(Protocol):
    """A running broker."""

    url: str
    options: dict[str, Any]  # broker_transport_options

    def cpu_seconds(self) -> float:
        """Return the CPU time of the broker's processes, including killed ones."""

    def crash(self) -> None:
        """Kill the broker with SIGKILL, and restart it with its data."""


class _Nsqd:
    def __init__(self, nsqd: Nsqd) -> None:
        self._nsqd = nsqd
        self._killed = 0.0  # CPU seconds of killed processes
        self.url = f"nsqcy://{nsqd.tcp_address}"
        self.options: dict[str, Any] = {"msg_timeout": float(REDELIVERY)}

    def _running(self) -> float:
        return sum(procfs.cpu_seconds(pid) for pid in procfs.family(self._nsqd.process.pid))

    def cpu_seconds(self) -> float:
        return self._killed + self._running()

    def crash(self) -> None:
        self._killed += self._running()
        self._nsqd.crash()


class _Redis:
    def __init__(self, folder: str, port: int, *flags: str) -> None:
        words = [word.format(port=port, folder=folder) for word in servers.REDIS.words]
        self._command = [*words, *flags]  # Redis uses the second value of a repeated flag
        self._address = ("127.0.0.1", port)
        self._killed = 0.0  # CPU seconds of killed processes
        self.url = f"redis://127.0.0.1:{port}/0"
        self.options: dict[str, Any] = {"visibility_timeout": REDELIVERY}
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        _wait_until_reachable(self._address)

    def cpu_seconds(self) -> float:
        return self._killed + procfs.cpu_seconds(self._process.pid)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def crash(self) -> None:
        self._killed += procfs.cpu_seconds(self._process.pid)
        self.stop()
        self._start()


class _RabbitMQ:
    def __init__(self, server: Daemon) -> None:
        self._server = server
        self.url = f"amqp://guest:guest@127.0.0.1:{server.tcp[1]}//"
        self.options: dict[str, Any] = {"confirm_publish": True}

    def cpu_seconds(self) -> float:
        return self._server.cpu_seconds()

    def crash(self) -> None:
        raise NotImplementedError("only nsqd and Redis are killed")


def _wait_until_reachable(address: Address) -> None:
    deadline = time.monotonic() + START_BUDGET
    while True:
        try:
            socket.create_connection(address, 1.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@contextlib.contextmanager
def _nsqd(durability: str) -> Iterator[Broker]:
    with Nsqd(durability=durability) as nsqd:
        yield _Nsqd(nsqd)


@contextlib.contextmanager
def _redis(*flags: str) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="tasks-") as folder, Ports() as ports:
        redis = _Redis(folder, ports.take(), *flags)
        try:
            yield redis
        finally:
            redis.stop()


@contextlib.contextmanager
def _rabbitmq() -> Iterator[Broker]:
    from loadtest.bench.peers import drivers  # the import may compile an extension

    with drivers.Rabbitmq().start() as server:
        yield _RabbitMQ(server)


BROKERS: dict[str, Callable[[], AbstractContextManager[Broker]]] = {
    "nsqd": lambda: _nsqd("memory"),
    "nsqd-os": lambda: _nsqd("os"),
    "redis": _redis,
    "redis-aof": lambda: _redis("--appendonly", "yes", "--appendfsync", "everysec"),
    "rabbitmq": _rabbitmq,
}
PROGRAMS = {"redis": "redis-server", "redis-aof": "redis-server", "rabbitmq": "rabbitmq-server"}


def is_installed(name: str) -> bool:
    """Return whether the broker's program is on this machine. Raises SystemExit for an unknown
    name."""
    if name not in BROKERS:
        raise SystemExit(f"unknown broker {name!r}: choose from {', '.join(BROKERS)}")
    return name not in PROGRAMS or servers.program(PROGRAMS[name]) is not None
