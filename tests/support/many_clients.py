"""Many connections at the same time: which workers serve them, and threads that publish and
consume."""

from collections import Counter
from collections.abc import Iterable
from socket import socket as Socket

import psutil

from loadtest.bench import procfs
from loadtest.many_clients import publish
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import RESPONSE, Conn, Frame, Hangup, Message, Silence
from support.nsqd_process import Nsqd


def homes(daemon: Nsqd, conns: Iterable[Conn], pids: list[int] | None = None) -> list[int]:
    """Return which worker has the socket of each connection: its index in `pids`, or by age."""
    return homes_of(daemon, [conn.socket for conn in conns], pids)


def homes_of(daemon: Nsqd, sockets: Iterable[Socket], pids: list[int] | None = None) -> list[int]:
    """Return which worker has each of these sockets; see homes()."""
    ports = [each.getsockname()[1] for each in sockets]
    pids = pids or daemon.workers()

    def found() -> dict[int, int]:
        held = {
            each.raddr.port: index
            for index, pid in enumerate(pids)
            for each in psutil.Process(pid).net_connections("tcp")
            if each.raddr
        }
        return held if all(port in held for port in ports) else {}

    held = eventually(found)
    return [held[port] for port in ports]


def pss(daemon: Nsqd) -> int:
    """Return the memory of all processes in bytes; shared memory counts once."""
    return procfs.memory([daemon.process.pid, *daemon.workers()])["Pss"]


class Producer:
    """Publishes numbered bodies to topics in turn, several commands ahead of the answers."""

    def __init__(
        self, conn: Conn, name: str, topics: list[str], *, size: int = 100, ahead: int = 20
    ) -> None:
        self.conn, self.name, self.topics = conn, name, topics
        self.size, self.ahead = size, ahead
        self.sent: list[tuple[str, bytes]] = []
        self.answered = 0

    def step(self) -> bool:
        """Publish `ahead` bodies and read their answers; return False once the connection has
        ended."""
        commands = []
        for _ in range(self.ahead):
            number = len(self.sent)
            topic = self.topics[number % len(self.topics)]
            body = f"{self.name} {number} ".encode().ljust(self.size, b".")
            self.sent.append((topic, body))
            commands.append(publish(topic, body))
        try:
            self.conn.send(*commands)
            while self.answered < len(self.sent):
                assert self.conn.frame() == (RESPONSE, b"OK")
                self.answered += 1
        except (Hangup, OSError):
            return False
        return True

    def acknowledged(self) -> Counter[tuple[str, bytes]]:
        return Counter(self.sent[: self.answered])


class Taker:
    """Finishes and keeps every message that arrives."""

    def __init__(self, conn: Conn, topic: str) -> None:
        self.conn, self.topic = conn, topic
        self.taken: list[Message] = []

    def step(self) -> bool:
        try:
            message = self.conn.message(timeout=0.2)
            self.conn.fin(message)
        except Silence:
            return True
        except (Hangup, OSError):
            return False
        self.taken.append(message)
        return True

    def bodies(self) -> list[tuple[str, bytes]]:
        return [(self.topic, message.body) for message in self.taken]


def frames_until_end(conn: Conn) -> list[Frame]:
    """Return everything that arrives until the daemon closes."""
    frames = []
    while True:
        try:
            frames.append(conn.frame())
        except Hangup:
            return frames
