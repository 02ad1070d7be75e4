"""Many connections at once: where their homes are, and threads that publish and consume."""

import select
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from socket import socket as Socket

import psutil

from nsqcy.nsqd.master.placement import Placement
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import RESPONSE, Conn, Frame, Hangup, Message, Silence, sized
from support.nsqd_process import Nsqd


def homes(daemon: Nsqd, conns: Iterable[Conn], pids: list[int] | None = None) -> list[int]:
    """Which worker holds the socket of each connection: its index in `pids`, or by age."""
    return homes_of(daemon, [conn.socket for conn in conns], pids)


def homes_of(daemon: Nsqd, sockets: Iterable[Socket], pids: list[int] | None = None) -> list[int]:
    """The same of any sockets."""
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


def owners(workers: int, names: Iterable[str]) -> dict[str, int]:
    """The worker of each topic, when they are created in this order in a new daemon."""
    placement = Placement(workers)
    return {name: placement.place(name) for name in names}


def pss(daemon: Nsqd) -> int:
    """Bytes of memory of all its processes, what they share counted once."""
    total = 0
    for pid in [daemon.process.pid, *daemon.workers()]:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += next(int(line.split()[1]) for line in text.splitlines() if line[:4] == "Pss:")
    return total * 1024


def publish(topic: str, body: bytes) -> bytes:
    return b"PUB " + topic.encode() + b"\n" + sized(body)


class Loop:
    """A thread that runs `step` until told to stop; what it raised is raised by `stop`."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._halt = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._halt and self._step() is not False:
                pass
        except BaseException as failure:
            self._failure = failure

    def stop(self) -> None:
        self._halt = True
        self.join()

    def join(self, timeout: float = 60.0) -> None:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "a thread does not end"
        if self._failure is not None:
            raise self._failure


class Producer:
    """Publishes numbered bodies to topics in turn, some commands ahead of the answers."""

    def __init__(
        self, conn: Conn, name: str, topics: list[str], *, size: int = 100, ahead: int = 20
    ) -> None:
        self.conn, self.name, self.topics = conn, name, topics
        self.size, self.ahead = size, ahead
        self.sent: list[tuple[str, bytes]] = []
        self.answered = 0

    def step(self) -> bool:
        """Publish `ahead` bodies and read their answers; False once the connection has ended."""
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
    """Finishes whatever comes, and keeps it."""

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
    """All that comes until the daemon closes."""
    frames = []
    while True:
        try:
            frames.append(conn.frame())
        except Hangup:
            return frames


def send_as_far_as_it_goes(conn: Conn, data: bytes, quiet: float = 0.5) -> int:
    """Send until the socket takes nothing for a while; returns how much it took."""
    sent = 0
    conn.socket.setblocking(False)
    while sent < len(data) and select.select([], [conn.socket], [], quiet)[1]:
        sent += conn.socket.send(data[sent : sent + 262144])
    return sent
