"""The client-side protocols of the peers: the bytes for each operation.

A driver creates queues and connections. A connection receives bytes and returns the bytes to send;
after its creation, it never waits. It sends the bytes that the peer's own client libraries send for
the same calls, prepared in advance as far as possible.
"""

import contextlib
import itertools
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from loadtest.bench import daemon, load
from loadtest.bench.daemon import Address, Cluster, Daemon
from loadtest.bench.peers import servers
from loadtest.bench.peers.compiled import answers
from nsqcy import __version__
from nsqcy.protocol.wire import finish_all, skip_frames
from nsqcy.testing.ports import Ports

_numbers = itertools.count(1)
ANSWER_BUDGET = 5.0  # seconds
WAIT = 0.1  # seconds that a request for messages waits for the first one


class Taken(NamedTuple):
    send: bytes
    used: int
    messages: int


@dataclass
class Publisher:
    """A publishing connection. `command` contains `batch` messages."""

    sock: socket.socket
    command: bytes
    answered: Callable[[memoryview], Taken]


@dataclass
class Consumer:
    """A connection that consumes, and acknowledges each message."""

    sock: socket.socket
    first: bytes
    take: Callable[[memoryview], Taken]


class Driver(Protocol):
    """One contestant. `share`: its share of the messages, so that slow contestants also finish in
    time."""

    name: str
    package: str  # Debian package; if empty, `version` gives the version
    program: str
    share: float
    durability: str
    settings: str
    publishes: str
    consumes: str

    def start(self) -> contextlib.AbstractContextManager[Daemon]: ...
    def create(self, address: Address, queue: str) -> None: ...
    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher: ...
    def consumer(self, address: Address, queue: str, window: int) -> Consumer: ...
    def left(self, server: Daemon, queue: str) -> int:
        """Return the number of messages waiting for delivery or acknowledgement."""

    def drop(self, server: Daemon, queue: str) -> None: ...


def unique(pattern: bytes) -> bytes:
    """Connections are created in forked processes."""
    return pattern % (os.getpid(), next(_numbers))


def receive(sock: socket.socket, more: bytes = b"") -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise ConnectionResetError(f"closed after {more[-200:]!r}")
    return more + data


def receive_until(sock: socket.socket, end: bytes) -> bytes:
    data = receive(sock)
    while not data.endswith(end):
        data = receive(sock, data)
    return data


class Asking:
    """Requests for one message each, several at a time while there are messages.

    If there are none, a single request waits for a message, after all acknowledgements have been
    sent.
    """

    def __init__(self, waiting: bytes, polling: bytes, maximum: int) -> None:
        self._waiting, self._polling, self._maximum = waiting, polling, maximum
        self._wanted = 1
        self._under_way = 0

    def more(self, answers: int = 0, messages: int = 0) -> bytes:
        self._under_way -= answers
        if answers:
            self._wanted = 1 if answers > messages else min(2 * self._wanted, self._maximum)
        if not self._under_way and answers > messages:
            self._under_way = 1
            return self._waiting
        count = max(0, self._wanted - self._under_way)
        self._under_way += count
        return self._polling * count


# -- NSQ


class Nsq:
    """nsqd from this tree."""

    package = ""
    version = __version__
    program = ""
    share = 2.0
    durability = "memory"
    publishes = "`PUB`, or `MPUB` of 200; each answered `OK`"
    consumes = "`RDY 2500`; a `FIN` for each message"

    def __init__(self, workers: int = 1) -> None:
        self.name = "nsqcy" if workers == 1 else f"nsqcy, {workers} workers"
        self.settings = f"{workers} worker{'s' * (workers > 1)}, `--mem-queue-size=1000000000`"
        self._workers = workers

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return daemon.private(self._workers, mem_queue_size=1_000_000_000)

    def create(self, address: Address, queue: str) -> None:
        load.consumer(address, queue, "bench", 0).close()

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        command = load.pub(queue, body) if batch == 1 else load.mpub(queue, [body] * batch)

        def answered(received: memoryview) -> Taken:
            used, count = skip_frames(received, load.RESPONSE)
            if not count and len(received) >= 10:
                raise ValueError(f"unexpected answer {bytes(received[:100])!r}")
            return Taken(b"", used, count * batch)

        return Publisher(load.producer(address), command, answered)

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        sock = load.consumer(address, queue, "bench", 0)

        def take(received: memoryview) -> Taken:
            lines, used, count = finish_all(received)
            if not count and len(received) >= 8 and bytes(received[4:8]) == bytes(4):
                used = load.other_frame(sock, bytes(received))
            return Taken(lines, used, count)

        return Consumer(sock, b"RDY %d\n" % window, take)

    def left(self, server: Daemon, queue: str) -> int:
        if server.http is None:
            return 0
        topic = server.web.topic(queue)
        assert topic is not None
        return sum(each["depth"] + each["in_flight_count"] for each in topic["channels"])

    def drop(self, server: Daemon, queue: str) -> None:
        if server.http is not None:
            server.web.do("delete", queue)


class Target(Nsq):
    """A running nsqd, such as NSQ's own."""

    durability = "as it was started"

    def __init__(self, running: Daemon) -> None:
        super().__init__()
        self.settings = "as it was started"
        self.version = self._version(running.tcp)
        self.name = f"nsqd {self.version}"
        self._running = running

    @staticmethod
    def _version(address: Address) -> str:
        sock = load.plain(address)
        body = b'{"feature_negotiation": true}'
        sock.sendall(b"  V2IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        data = receive(sock)
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data = receive(sock, data)
        sock.close()
        return str(json.loads(data[8:])["version"])

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return contextlib.nullcontext(self._running)


# -- Redis


def resp(*words: bytes) -> bytes:
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


class Redis:
    """Common base of the drivers for Redis streams and lists."""

    package = "redis-server"
    program = "redis-server"
    share = 0.4
    durability = "memory"
    settings = servers.REDIS.settings

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return servers.started(servers.REDIS, lambda address: self.ask(address, b"PING"))

    @staticmethod
    def ask(address: Address, *words: bytes) -> bytes:
        with load.plain(address) as sock:
            sock.sendall(resp(*words))
            answer = receive(sock)
            while answers.replies(answer)[1] == 0:
                answer = receive(sock, answer)
            return answer

    def drop(self, server: Daemon, queue: str) -> None:
        self.ask(server.tcp, b"DEL", queue.encode(), queue.encode() + b":taken")


class RedisStreams(Redis):
    name = "Redis streams"
    publishes = "`XADD q * body …`, each answered; a batch is 200 of them in one write"
    consumes = (
        "`XREADGROUP … COUNT 1000 BLOCK 100`, then an `XACK` with one id for each message, all in "
        "one write with the next `XREADGROUP`; entries stay in the stream"
    )

    def create(self, address: Address, queue: str) -> None:
        self.ask(address, b"XGROUP", b"CREATE", queue.encode(), b"group", b"0", b"MKSTREAM")

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        command = resp(b"XADD", queue.encode(), b"*", b"body", body) * batch

        def answered(received: memoryview) -> Taken:
            return Taken(b"", *answers.replies(received))

        return Publisher(load.plain(address), command, answered)

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        name = queue.encode()
        maximum = min(window, 1000)
        request = resp(
            *(b"XREADGROUP", b"GROUP", b"group", unique(b"c%d-%d")),
            *(b"COUNT", b"%d" % maximum, b"BLOCK", b"%d" % int(WAIT * 1000)),
            *(b"STREAMS", name, b">"),
        )
        head = b"*4\r\n" + resp(b"XACK", name, b"group").partition(b"\r\n")[2]

        def take(received: memoryview) -> Taken:
            acks, used, messages, replies = answers.entries(received, head)
            return Taken(acks + request * replies, used, messages)

        return Consumer(load.plain(address), request, take)

    def left(self, server: Daemon, queue: str) -> int:
        groups = self.ask(server.tcp, b"XINFO", b"GROUPS", queue.encode())
        words = groups.split(b"\r\n")
        pending = words[words.index(b"pending") + 1]
        lag = words[words.index(b"lag") + 1]
        return int(pending[1:]) + int(lag[1:])


class RedisLists(Redis):
    name = "Redis lists"
    publishes = "`LPUSH q body`, or one `LPUSH` of 200 bodies; each answered"
    consumes = (
        "up to 200 pipelined `LMOVE q q:taken RIGHT LEFT` (one `BLMOVE` if the list is empty), and "
        "an `LREM q:taken -1 body` for each message, in one write with the next `LMOVE`s; all "
        "bodies are equal and are finished in order, so `LREM` finds its message immediately"
    )

    def create(self, address: Address, queue: str) -> None:
        """Do nothing: the first element of a list creates it."""

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        def answered(received: memoryview) -> Taken:
            used, count = answers.replies(received)
            return Taken(b"", used, count * batch)

        return Publisher(
            load.plain(address), resp(b"LPUSH", queue.encode(), *[body] * batch), answered
        )

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        name, moved = queue.encode(), queue.encode() + b":taken"
        waiting = resp(b"BLMOVE", name, moved, b"RIGHT", b"LEFT", str(WAIT).encode())
        moving = resp(b"LMOVE", name, moved, b"RIGHT", b"LEFT")
        asking = Asking(waiting, moving, min(window, 200))
        head = b"*4\r\n" + resp(b"LREM", moved, b"-1").partition(b"\r\n")[2]

        def take(received: memoryview) -> Taken:
            acks, used, messages, replies = answers.values(received, head)
            return Taken(acks + asking.more(replies, messages), used, messages)

        return Consumer(load.plain(address), asking.more(), take)

    def left(self, server: Daemon, queue: str) -> int:
        names = queue.encode(), queue.encode() + b":taken"
        return sum(int(self.ask(server.tcp, b"LLEN", name)[1:]) for name in names)


# -- beanstalkd


class Beanstalkd:
    name = "beanstalkd"
    package = "beanstalkd"
    program = "beanstalkd"
    share = 0.2
    durability = "memory"
    settings = servers.BEANSTALKD.settings
    publishes = "`put`, each answered; a batch is 200 of them in one write"
    consumes = (
        "up to 200 pipelined `reserve-with-timeout` (one that waits if the tube is empty), and a "
        "`delete` for each job, in one write with the next `reserve-with-timeout`s"
    )

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return servers.started(servers.BEANSTALKD, lambda address: load.plain(address).close())

    def create(self, address: Address, queue: str) -> None:
        """Do nothing: the first job of a tube creates it."""

    @staticmethod
    def _use(address: Address, words: bytes, answer: bytes) -> socket.socket:
        sock = load.plain(address)
        sock.sendall(words)
        load.expect(sock, answer)
        return sock

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        sock = self._use(address, b"use %s\r\n" % queue.encode(), b"USING %s\r\n" % queue.encode())

        def answered(received: memoryview) -> Taken:
            return Taken(b"", *answers.inserted(received))

        return Publisher(sock, b"put 0 0 120 %d\r\n%s\r\n" % (len(body), body) * batch, answered)

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        words = b"watch %s\r\nignore default\r\n" % queue.encode()
        sock = self._use(address, words, b"WATCHING 2\r\nWATCHING 1\r\n")
        waiting, polling = b"reserve-with-timeout 1\r\n", b"reserve-with-timeout 0\r\n"
        asking = Asking(waiting, polling, min(window, 200))

        def take(received: memoryview) -> Taken:
            acks, used, messages, replies = answers.jobs(received)
            return Taken(acks + asking.more(replies, messages), used, messages)

        return Consumer(sock, asking.more(), take)

    def left(self, server: Daemon, queue: str) -> int:
        with load.plain(server.tcp) as sock:
            sock.sendall(b"stats-tube %s\r\n" % queue.encode())
            text = receive_until(sock, b"\r\n")
        if text.startswith(b"NOT_FOUND"):
            return 0  # a tube without jobs and clients does not exist
        words = text.split()
        names = (b"current-jobs-ready:", b"current-jobs-reserved:")
        return sum(int(words[words.index(name) + 1]) for name in names)

    def drop(self, server: Daemon, queue: str) -> None:
        """Do nothing: a tube disappears with its last job."""


# -- NATS


STREAM = {
    "storage": "memory",
    "retention": "workqueue",
    "discard": "old",
    "num_replicas": 1,
    "max_age": 0,
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
}
PULL_CONSUMER = {
    "durable_name": "bench",
    "ack_policy": "explicit",
    "ack_wait": 60_000_000_000,
    "deliver_policy": "all",
    "replay_policy": "instant",
    "max_ack_pending": 20_000,
    "max_deliver": -1,
    "max_waiting": 512,
}


class Nats:
    name = "NATS JetStream"
    package = "nats-server"
    program = "nats-server"
    share = 0.2
    durability = "memory"
    settings = servers.NATS.settings + ", work-queue retention"
    publishes = "`PUB` with a reply subject, each answered; a batch is 200 of them in one write"
    consumes = (
        "a pull consumer with explicit acknowledgement: requests for 500 messages, two at a time; "
        "a `PUB` of `+ACK` for each message; `max_ack_pending` 20,000"
    )
    stream: ClassVar[dict[str, object]] = {}  # settings that differ from STREAM

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return servers.started(servers.NATS, self._ready)

    @classmethod
    def _ready(cls, address: Address) -> None:
        if b'"error"' in cls._api(address, "INFO", {}):
            raise ConnectionRefusedError("JetStream is not ready")

    @staticmethod
    def connect(address: Address, inbox: bytes) -> socket.socket:
        sock = load.plain(address)
        receive_until(sock, b"\r\n")
        options = b'{"verbose":false,"pedantic":false,"protocol":0,"lang":"bench","version":"1"}'
        sock.sendall(b"CONNECT %s\r\nSUB %s.* 1\r\nPING\r\n" % (options, inbox))
        receive_until(sock, b"PONG\r\n")
        return sock

    @classmethod
    def _api(cls, address: Address, call: str, question: object) -> bytes:
        inbox = unique(b"_INBOX.%d.%d")
        body = json.dumps(question).encode()
        with cls.connect(address, inbox) as sock:
            sock.settimeout(ANSWER_BUDGET)  # a server without a leader does not answer
            subject = b"$JS.API." + call.encode()
            sock.sendall(b"PUB %s %s.1 %d\r\n%s\r\n" % (subject, inbox, len(body), body))
            return receive_until(sock, b"}\r\n")

    @classmethod
    def api(cls, address: Address, call: str, question: object) -> bytes:
        answer = cls._api(address, call, question)
        if b'"error":' in answer:
            raise RuntimeError(answer.decode())
        return answer

    def create(self, address: Address, queue: str) -> None:
        stream = {"name": queue, "subjects": [queue], **STREAM, **self.stream}
        self.api(address, f"STREAM.CREATE.{queue}", stream)
        wanted = {"stream_name": queue, "config": PULL_CONSUMER}
        self.api(address, f"CONSUMER.DURABLE.CREATE.{queue}.bench", wanted)

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        inbox = unique(b"_INBOX.%d.%d")
        one = b"PUB %s %s.1 %d\r\n%s\r\n" % (queue.encode(), inbox, len(body), body)

        def answered(received: memoryview) -> Taken:
            used, count, pings = answers.stored(received)
            return Taken(b"PONG\r\n" * pings, used, count)

        return Publisher(self.connect(address, inbox), one * batch, answered)

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        inbox = unique(b"_INBOX.%d.%d")
        maximum = min(window, 500)
        body = b'{"batch":%d,"expires":600000000000}' % maximum
        subject = b"$JS.API.CONSUMER.MSG.NEXT.%s.bench" % queue.encode()
        request = b"PUB %s %s.1 %d\r\n%s\r\n" % (subject, inbox, len(body), body)
        wanted = maximum

        def take(received: memoryview) -> Taken:
            nonlocal wanted
            acks, used, messages, pings = answers.pulled(received)
            wanted -= messages
            more = 0
            while wanted <= 0:
                wanted += maximum
                more += 1
            return Taken(acks + request * more + b"PONG\r\n" * pings, used, messages)

        return Consumer(self.connect(address, inbox), request * (2 if maximum > 1 else 1), take)

    @classmethod
    def info(cls, address: Address, call: str) -> dict[str, Any]:
        answer = cls.api(address, call, {})
        return dict(json.loads(answer[answer.index(b"{") :]))

    def left(self, server: Daemon, queue: str) -> int:
        info = self.info(server.tcp, f"CONSUMER.INFO.{queue}.bench")
        return int(info["num_pending"]) + int(info["num_ack_pending"])

    def drop(self, server: Daemon, queue: str) -> None:
        self.api(server.tcp, f"STREAM.DELETE.{queue}", {})


class ReplicatedNats(Nats):
    """A cluster of three servers."""

    durability = "os"  # each server syncs every two minutes
    stream: ClassVar[dict[str, object]] = {"storage": "file", "num_replicas": servers.REPLICAS}

    @contextlib.contextmanager
    def replicated(self, place: Path) -> Iterator[Cluster]:
        with (
            Ports() as ports,
            servers.cluster(
                servers.replicated_nats(ports), lambda address: load.plain(address).close(), place
            ) as cluster,
        ):
            deadline = time.monotonic() + servers.START_BUDGET
            while True:
                try:
                    self.create(cluster.tcp, "probe")
                    break
                except (OSError, RuntimeError):  # too few servers are connected yet
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.1)
            self.drop(cluster, "probe")
            yield cluster

    def home(self, cluster: Cluster, queue: str) -> Address:
        """Return the address of the server that leads a stream."""
        info = self.info(cluster.tcp, f"STREAM.INFO.{queue}")
        return cluster.members[int(info["cluster"]["leader"])].tcp


# -- RabbitMQ

PASSIVE, DURABLE = 1, 2  # flags of `queue.declare`


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"


def method(channel: int, group: int, number: int, arguments: bytes = b"") -> bytes:
    return frame(1, channel, struct.pack(">HH", group, number) + arguments)


class Rabbitmq:
    name = "RabbitMQ"
    package = "rabbitmq-server"
    program = "rabbitmq-server"
    share = 0.1
    durability = "memory"
    settings = servers.RABBITMQ.settings
    publishes = (
        "`basic.publish` of a transient message with publisher confirms; a batch is 200 of them "
        "in one write"
    )
    consumes = "`basic.qos` 2500, `basic.consume`; a `basic.ack` for each message"
    flags = 0  # of a queue
    kind = b""  # arguments of a queue
    mode = 1  # delivery mode: not persistent

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return servers.started(servers.RABBITMQ, lambda address: self.connect(address).close())

    @staticmethod
    def call(sock: socket.socket, data: bytes, answer: tuple[int, int]) -> bytes:
        """Send a method and return the arguments of its response."""
        sock.sendall(data)
        got = b""
        while len(got) < 8 or len(got) < 8 + int.from_bytes(got[3:7], "big"):
            got = receive(sock, got)
        if got[7:11] != struct.pack(">HH", *answer):
            raise RuntimeError(f"unexpected answer {got[:200]!r}")
        return got[11:-1]

    @classmethod
    def connect(cls, address: Address) -> socket.socket:
        """Open a connection, and channel 1 on it."""
        sock = load.plain(address)
        sock.settimeout(30)
        cls.call(sock, b"AMQP\0\0\x09\x01", (10, 10))
        login = long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US")
        tune = cls.call(sock, method(0, 10, 11, login), (10, 30))
        maximum, size, _ = struct.unpack(">HIH", tune)
        sock.sendall(method(0, 10, 31, struct.pack(">HIH", maximum, size, 0)))
        cls.call(sock, method(0, 10, 40, short("/") + short("") + b"\0"), (10, 41))
        cls.call(sock, method(1, 20, 10, short("")), (20, 11))
        sock.settimeout(None)
        return sock

    @classmethod
    def _declare(cls, sock: socket.socket, queue: str, passive: bool = False) -> bytes:
        flags = PASSIVE if passive else cls.flags
        arguments = bytes(2) + short(queue) + bytes([flags]) + long(cls.kind)
        return cls.call(sock, method(1, 50, 10, arguments), (50, 11))

    def create(self, address: Address, queue: str) -> None:
        with self.connect(address) as sock:
            self._declare(sock, queue)

    def publisher(self, address: Address, queue: str, body: bytes, batch: int) -> Publisher:
        sock = self.connect(address)
        self.call(sock, method(1, 85, 10, b"\0"), (85, 11))
        one = self.publish(queue, body)
        confirmed = 0
        ahead: set[int] = set()

        def answered(received: memoryview) -> Taken:
            nonlocal confirmed
            before = confirmed + len(ahead)
            used, confirmed, single = answers.confirms(received, confirmed)
            ahead.update(single)
            while confirmed + 1 in ahead:
                confirmed += 1
            ahead.difference_update([tag for tag in ahead if tag <= confirmed])
            return Taken(b"", used, confirmed + len(ahead) - before)

        return Publisher(sock, one * batch, answered)

    def publish(self, queue: str, body: bytes) -> bytes:
        one = method(1, 60, 40, bytes(2) + short("") + short(queue) + b"\0")
        one += frame(2, 1, struct.pack(">HHQHB", 60, 0, len(body), 0x1000, self.mode))
        for start in range(0, len(body), 100_000):
            one += frame(3, 1, body[start : start + 100_000])
        return one

    def consumer(self, address: Address, queue: str, window: int) -> Consumer:
        sock = self.connect(address)
        self.call(sock, method(1, 60, 10, struct.pack(">IHB", 0, window, 0)), (60, 11))
        no_wait = b"\x08"
        first = method(1, 60, 20, bytes(2) + short(queue) + short("c") + no_wait + long(b""))
        head = method(1, 60, 80, bytes(9))[:-10]

        def take(received: memoryview) -> Taken:
            return Taken(*answers.deliveries(received, head))

        return Consumer(sock, first, take)

    def left(self, server: Daemon, queue: str) -> int:
        """Count queued messages, including those that a consumer has not acknowledged."""
        with self.connect(server.tcp) as sock:
            counts = self._declare(sock, queue, passive=True)[-8:]
        return int.from_bytes(counts[:4], "big")

    def drop(self, server: Daemon, queue: str) -> None:
        with self.connect(server.tcp) as sock:
            self.call(sock, method(1, 50, 40, bytes(2) + short(queue) + b"\0"), (50, 41))


class ReplicatedRabbitmq(Rabbitmq):
    """Quorum queues on a cluster of three nodes."""

    durability = "fsync"
    flags = DURABLE
    kind = short("x-queue-type") + b"S" + long(b"quorum")
    mode = 2

    @contextlib.contextmanager
    def replicated(self, place: Path) -> Iterator[Cluster]:
        with (
            Ports() as ports,
            servers.cluster(
                servers.replicated_rabbitmq(ports),
                lambda address: self.connect(address).close(),
                place,
            ) as cluster,
        ):
            yield cluster

    def home(self, cluster: Cluster, queue: str) -> Address:
        """Return the address of the node that leads a queue: the one that declared it."""
        return cluster.tcp


class ReplicatedDriver(Driver, Protocol):
    """A contestant with replicas on several servers."""

    def replicated(self, place: Path) -> contextlib.AbstractContextManager[Cluster]: ...
    def home(self, cluster: Cluster, queue: str) -> Address: ...


# -- messages in files


class Exchange(NamedTuple):
    """A command, and a text that its responses contain `count` times."""

    command: bytes
    mark: bytes
    count: int


Exchanges = tuple[socket.socket, list[Exchange]]


class StoredDriver(Driver, Protocol):
    """A contestant that keeps messages in files, in durability class os or fsync."""

    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[servers.Server | daemon.Private]: ...
    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        """Return a connection and the commands that create queues with a message each, in
        parts."""


class StoredNsq(Nsq):
    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[daemon.Private]:
        folder = place / f"nsqd-{time.time_ns()}"
        folder.mkdir()
        return daemon.private(1, durability=durability, data_path=folder)

    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        return load.producer(address), [
            Exchange(b"".join(load.pub(each, body) for each in part), b"OK", len(part))
            for part in queues
        ]


class StoredRedis(Redis):
    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[servers.Server]:
        return servers.started(servers.stored_redis(durability), self._loaded, place)

    @classmethod
    def _loaded(cls, address: Address) -> None:
        with load.plain(address) as sock:
            sock.sendall(resp(b"PING"))
            if receive(sock).startswith(b"-LOADING"):
                raise ConnectionRefusedError("the append-only file is not loaded yet")

    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        def add(queue: str) -> bytes:
            return resp(b"XADD", queue.encode(), b"*", b"body", body)

        return load.plain(address), [
            Exchange(b"".join(map(add, part)), b"\r\n", 2 * len(part)) for part in queues
        ]


class StoredStreams(StoredRedis, RedisStreams):
    """Redis streams with an append-only file."""


class StoredLists(StoredRedis, RedisLists):
    """Redis lists with an append-only file."""


class StoredNats(Nats):
    stream: ClassVar[dict[str, object]] = {"storage": "file"}

    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[servers.Server]:
        return servers.started(servers.stored_nats(durability), self._ready, place)

    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        inbox = unique(b"_INBOX.%d.%d")

        def pub(subject: str, data: bytes) -> bytes:
            return b"PUB %s %s.1 %d\r\n%s\r\n" % (subject.encode(), inbox, len(data), data)

        def create(queue: str) -> bytes:
            stream = {"name": queue, "subjects": [queue], **STREAM, **self.stream}
            return pub(f"$JS.API.STREAM.CREATE.{queue}", json.dumps(stream).encode())

        found = []
        for part in queues:
            commands = b"".join(map(create, part))
            found.append(Exchange(commands, b"stream_create_response", len(part)))
            commands = b"".join(pub(each, body) for each in part)
            found.append(Exchange(commands, b'"seq":', len(part)))
        return self.connect(address, inbox), found


class StoredBeanstalkd(Beanstalkd):
    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[servers.Server]:
        recipe = servers.stored_beanstalkd(durability)
        return servers.started(recipe, lambda address: load.plain(address).close(), place)

    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        def put(queue: str) -> bytes:
            return b"use %s\r\nput 0 0 120 %d\r\n%s\r\n" % (queue.encode(), len(body), body)

        return load.plain(address), [
            Exchange(b"".join(map(put, part)), b"INSERTED", len(part)) for part in queues
        ]


class StoredRabbitmq(Rabbitmq):
    """Durable classic queues, which sync before they confirm persistent messages."""

    durability = "fsync"
    flags = DURABLE
    mode = 2

    def stored(
        self, place: Path, durability: str
    ) -> contextlib.AbstractContextManager[servers.Server]:
        return servers.started(
            servers.RABBITMQ, lambda address: self.connect(address).close(), place
        )

    def one_each(self, address: Address, queues: list[list[str]], body: bytes) -> Exchanges:
        def declare(queue: str) -> bytes:
            arguments = bytes(2) + short(queue) + bytes([self.flags]) + long(self.kind)
            return method(1, 50, 10, arguments) + self.publish(queue, body)

        mark = struct.pack(">HH", 50, 11)
        return self.connect(address), [
            Exchange(b"".join(map(declare, part)), mark, len(part)) for part in queues
        ]


STORED: list[type[StoredDriver]] = [
    StoredNsq,
    StoredStreams,
    StoredLists,
    StoredNats,
    StoredBeanstalkd,
    StoredRabbitmq,
]
REPLICATED: list[type[ReplicatedDriver]] = [ReplicatedNats, ReplicatedRabbitmq]
PEERS: list[type[Driver]] = [RedisStreams, RedisLists, Nats, Beanstalkd, Rabbitmq]
