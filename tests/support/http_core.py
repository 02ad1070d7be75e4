"""nsqd's HTTP on top of a core in this process: socket pairs, and watchers that a test triggers."""

import re
import select
import socket
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gevent

from loadtest.perfcheck.http import Watcher, Watchers
from nsqcy.config.publish_limits import PublishLimits
from nsqcy.http.server import HttpConnection, HttpServer
from nsqcy.nsqd.http.api import Api
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages.master_verbs import ForgetPolicies, MasterVerb
from nsqcy.nsqd.process_messages.topic_verbs import CreateTopic, DeleteTopic, TopicVerb
from nsqcy.server.core import Publisher, TopicSink, nothing
from support.worker_core import Core, Log

MAX_MSG_SIZE = 200
DATE = re.compile(rb"Date: [^\r]*")
ELAPSED = re.compile(r" [\d.]+(µs|ms|s)$")


class Backend:
    """Backend that can publish messages, and create and delete topics. Any other call is a bug."""

    def __init__(self, core: Core, short: bool) -> None:
        self._core = core
        self._short = short
        self.publisher = Publisher(core.manager)

    def publish(
        self, topic: str, bodies: Any, delay_ms: int, durability: str, done: Any, headers: bytes
    ) -> None:
        if bodies:
            self.publisher.publish(topic.encode(), bodies, delay_ms, durability, done, headers)
        else:
            self._core.create(topic)
            done(None)

    def limits_of(self, topic: str) -> PublishLimits:
        return self._core.manager.limits_of(topic.encode())

    def sink(self, topic: str, headers: bytes) -> TopicSink | None:
        return self.publisher.sink(topic.encode(), nothing, headers) if self._short else None

    def at_owner(self, verb: TopicVerb[Any]) -> None:
        name = verb.topic
        match verb:
            case CreateTopic():
                if self._core.create(name) is None:
                    raise Refused("TOO_MANY_TOPICS")
            case DeleteTopic():
                if not self._core.topic(name) or not self._core.shard.delete_topic(name.encode()):
                    raise Refused("TOPIC_NOT_FOUND")
            case _:
                raise NotImplementedError(verb)

    def at_master(self, verb: MasterVerb[Any]) -> None:
        if not isinstance(verb, ForgetPolicies):
            raise NotImplementedError(verb)


class Loop(Watchers):
    def __init__(self) -> None:
        super().__init__()
        self.asyncs: list[Watcher] = []

    def async_(self) -> Watcher:
        self.asyncs.append(super().async_())
        return self.asyncs[-1]

    def ready(self) -> list[Callable[[], None]]:
        """Return the callbacks that are due now."""
        calls = [each.callback for each in self.asyncs if each.sent]
        for each in self.asyncs:
            each.sent = False
        for fd, events, watcher in self.of_sockets:
            if watcher.started:
                asked = ([fd], [], []) if events == 1 else ([], [fd], [])
                if any(select.select(*asked, 0)):
                    calls.append(watcher.callback)
        return calls


class Connection(HttpConnection):
    """`general`: the requests that did not take the fast path."""

    __slots__ = ("general",)

    def __init__(self, *args: Any) -> None:
        self.general: list[bytes] = []
        super().__init__(*args)

    def received(self, data: bytes) -> None:
        self.general.append(data)
        super().received(data)


class Client:
    """A connection, seen from both of its ends."""

    def __init__(self, web: "Web") -> None:
        self._web = web
        self._sock, theirs = socket.socketpair()
        self._sock.setblocking(False)
        self.output = b""
        self.ended = False
        made: list[Connection] = []

        def make(*args: Any) -> Connection:
            made.append(Connection(*args))
            return made[0]

        web.server.adopt(theirs, "127.0.0.1:1", make)
        self.connection = made[0]

    def send(self, data: bytes) -> "Client":
        try:
            assert self._sock.send(data) == len(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the connection has ended
        return self

    def half_close(self) -> None:
        self._sock.shutdown(socket.SHUT_WR)

    def read(self) -> bool:
        """Return whether there was any data."""
        try:
            data = self._sock.recv(1 << 16)
        except (BlockingIOError, ConnectionResetError):
            return False
        self.output += data
        progress = bool(data) or not self.ended
        self.ended = not data
        return progress

    def ask(self, data: bytes) -> bytes:
        """Send data and return the answer without its date."""
        self.send(data)
        self._web.settle()
        output, self.output = self.output, b""
        return DATE.sub(b"Date: x", output)

    def close(self) -> None:
        self._sock.close()


class Web:
    def __init__(
        self, path: Path | None = None, *, short: bool = True, send_buffer: int = 0, **core: Any
    ) -> None:
        self.core = Core(path, max_msg_size=MAX_MSG_SIZE, **core)
        self.log = Log()
        self.loop = Loop()
        self.clients: list[Client] = []
        options: Any = SimpleNamespace(
            max_msg_size=MAX_MSG_SIZE,
            max_body_size=1000,
            max_req_timeout=3600 * 10**9,
            max_defer_timeout=0,
            max_input_bytes=1 << 20,
            http_idle_timeout=600 * 10**9,
            debug_remote=False,
        )
        backend: Any = Backend(self.core, short)
        self.server = HttpServer(
            self.loop, Api(backend, options, self.log), send_buffer=send_buffer
        )

    def client(self) -> Client:
        self.clients.append(Client(self))
        return self.clients[-1]

    def settle(self, *, reading: bool = True) -> None:
        """Continue until nothing more happens."""
        busy = True
        while busy:
            calls = self.loop.ready()
            for call in calls:
                call()
            gevent.sleep(0)  # runs handlers in greenlets
            self.core.settle()
            busy = bool(calls)
            if reading:
                read = [client.read() for client in self.clients]
                busy |= any(read)

    def lines(self) -> list[str]:
        """Return the log, without durations and tracebacks."""
        return [ELAPSED.sub(" x", line.partition(" - ")[0]) for line in self.log.lines]

    def messages(self) -> dict[str, list[tuple[str, bytes]]]:
        """Return the ids and bodies of all topics' messages, and consume the messages."""
        found = {}
        for name in sorted(topic.name for topic in self.core.shard.topics.values()):
            consumer = self.core.client()
            consumer.subscribe(name, "all", ready=2500)
            self.core.settle()
            found[name] = [(each.id, each.body) for each in consumer.messages()]
        return found

    def close(self) -> None:
        self.server.close()
        for client in self.clients:
            client.close()
        self.core.close()


def seen(web: Web, client: Client) -> list[object]:
    """Return all values that must be the same for both paths of publishes."""
    counters = {topic.name: topic.counters() for topic in web.core.shard.topics.values()}
    return [
        DATE.sub(b"", client.output),
        client.ended,
        web.lines(),
        counters,
        web.server.connections,
        web.server.held,
    ]


def same_both_ways(pieces: Iterable[bytes], **options: Any) -> None:
    """Send the same pieces to a Web with the fast path for publishes and to one without it: both
    must be in the same state after each piece."""
    webs = [Web(short=short, **options) for short in (True, False)]
    clients = [web.client() for web in webs]
    for piece in pieces:
        for web, client in zip(webs, clients, strict=True):
            client.send(piece)
            web.settle()
        assert seen(webs[0], clients[0]) == seen(webs[1], clients[1])
    for web, client in zip(webs, clients, strict=True):
        client.half_close()
        web.settle()
    assert seen(webs[0], clients[0]) == seen(webs[1], clients[1])
    assert webs[0].messages() == webs[1].messages()
    for web in webs:
        web.close()
