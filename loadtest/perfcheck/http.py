"""A worker's HTTP connections without an event loop: watchers are triggered manually."""

import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from loadtest.worker_core import refuse
from nsqcy.http.server import HttpServer
from nsqcy.nsqd.http.api import Api
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import Publisher, TopicSink, nothing

ANSWER = 4096  # bytes; larger than any response


class Watcher:
    """`started` is whether the loop would report the watcher's event."""

    def __init__(self) -> None:
        self.started = False
        self.sent = False
        self.callback: Callable[[], None] = refuse

    def start(self, callback: Callable[[], None]) -> None:
        self.started = True
        self.callback = callback

    def stop(self) -> None:
        self.started = False

    def close(self) -> None:
        self.started = False

    def send(self) -> None:
        self.sent = True


class Watchers:
    """The part of a hub's loop that `HttpServer` uses."""

    def __init__(self) -> None:
        self.of_sockets: list[tuple[int, int, Watcher]] = []  # descriptor, events

    def io(self, fd: int, events: int) -> Watcher:
        watcher = Watcher()
        self.of_sockets.append((fd, events, watcher))
        return watcher

    def timer(self, after: float, repeat: float) -> Watcher:
        return Watcher()

    def async_(self) -> Watcher:
        return Watcher()


class Backend:
    """Publishes to one session manager's topics, and does nothing else."""

    def __init__(self, home: SessionManager) -> None:
        self._publisher = Publisher(home)

    def publish(
        self, topic: str, bodies: Any, delay_ms: int, durability: str, done: Any, headers: bytes
    ) -> None:
        self._publisher.publish(topic.encode(), bodies, delay_ms, durability, done, headers)

    def sink(self, topic: str, headers: bytes) -> TopicSink:
        return self._publisher.sink(topic.encode(), nothing, headers)


class Connection:
    """The client's end of a connection. `readable` lets the server receive the sent requests and
    respond to them."""

    def __init__(self, server: HttpServer, watchers: Watchers) -> None:
        ours, theirs = socket.socketpair()
        server.adopt(theirs, "@")
        self.send = ours.send
        self.readable = watchers.of_sockets[-1][2].callback
        self._sock = ours

    def received(self) -> bytes:
        return self._sock.recv(ANSWER)

    def close(self) -> None:
        self._sock.close()


def connections(home: SessionManager, count: int) -> list[Connection]:
    watchers = Watchers()
    options: Any = SimpleNamespace(
        max_msg_size=1 << 20,
        max_body_size=5 << 20,
        max_req_timeout=3600 * 10**9,
        max_input_bytes=1 << 30,
        http_idle_timeout=600 * 10**9,
    )
    backend: Any = Backend(home)
    log: Any = SimpleNamespace(error=print, info=print, warn=print)
    server = HttpServer(watchers, Api(backend, options, log))
    return [Connection(server, watchers) for _ in range(count)]
