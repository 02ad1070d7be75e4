"""The counted work: a worker's core and HTTP, and a client's codec. It uses recorded bytes and a
simulated clock.

Runs under callgrind (see `counting`). Each stretch of work is between two calls to getppid, at
which callgrind writes its counts since the previous call; nothing else here calls getppid. At the
end, it prints a line for each stretch: the number of dumps written by then, the stretch's name, and
its number of messages.
"""

import gc
import json
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from loadtest.perfcheck.http import connections
from loadtest.perfcheck.layers import layers
from loadtest.worker_core import SECOND, make_core, options
from nsqcy.channels.core import SchedulerState
from nsqcy.client.codec import Codec, finish
from nsqcy.ipc.core import Mesh, Shared, Stream, StreamEnd, format_shared, map_size
from nsqcy.protocol.core import SessionManager
from nsqcy.protocol.wire import command_with_body, finish_all, mpub_body
from nsqcy.server.core import BytesTransport, accept_stream
from nsqcy.storage.core import BlockPool

BODY = b"x" * 200
BATCH = 200  # messages per MPUB
PIPE = 100  # single commands that arrive together
CROWD = 10  # connections with one command each per turn
READY = 2500
ROUNDS = 4
IDLE = 200  # number of idle topics and of idle consumers
KEPT = 25  # HTTP connections with one request each per turn
RECEIVED = 65536  # maximum bytes that a client reads from its socket per call
TIMEOUT = SECOND
DELAY = 500  # ms
START = 1000 * SECOND
EPOCH = 1_700_000_000 * SECOND
OK = b"\0\0\0\6\0\0\0\0OK"

SIZED = struct.pack(">i", len(BODY)) + BODY
PUB = b"PUB topic\n" + SIZED
PUBS = PUB * PIPE
DPUBS = (b"DPUB topic %d\n" % DELAY + SIZED) * PIPE
HEAD = b"POST /%s?topic=topic HTTP/1.1\r\nHost: host\r\nContent-Length: %d\r\n\r\n"
MPUB = command_with_body(b"MPUB", (b"topic",), mpub_body([BODY] * BATCH))


class Stretches:
    """Record of the counted stretches. `counts` is False during the warm-up, which runs everything
    once."""

    def __init__(self) -> None:
        self.counts = False
        self.dumps = 0
        self.found: list[tuple[int, str, int]] = []

    @contextmanager
    def of(self, name: str, messages: int) -> Iterator[None]:
        if self.counts:
            os.getppid()
        yield
        if self.counts:
            os.getppid()
            self.dumps += 2
            self.found.append((self.dumps, name, messages))


class Client:
    """A connection to a worker; it reads everything that the worker sends."""

    def __init__(self, worker: "Worker") -> None:
        self.transport = BytesTransport(worker.manager)
        self.send = self.transport.feed
        self.received = self.transport.sent
        self.send(b"  V2")

    def expect_oks(self, count: int) -> None:
        got = self.received()
        assert got == OK * count, got[:200]

    def finish_lines(self, count: int) -> bytes:
        """Check that this number of messages was received; return the lines that finish them."""
        lines, _, found = finish_all(self.received())
        assert found == count, found
        return lines


def core(mesh: Mesh | None = None, index: int = 0) -> SessionManager:
    """Return a worker's core with limits that nothing here reaches."""
    scheduler = SchedulerState(
        BlockPool(1 << 40), mem_queue_size=1 << 40, max_msg_timeout=900 * SECOND
    )
    limits = options(max_input_bytes=1 << 30, msg_timeout=TIMEOUT)
    return make_core(scheduler, limits, mesh=mesh, index=index)


class Worker:
    """A session manager, its clock and its clients."""

    def __init__(self, home: SessionManager | None = None, mesh: Mesh | None = None) -> None:
        self.manager = home or core()
        self.mesh = mesh
        self.now = START
        self.settle()

    def turn(self) -> int:
        return self.manager.run_turn(self.now, EPOCH + self.now)

    def settle(self) -> None:
        while self.turn() <= self.now:
            pass

    def falls_asleep(self) -> bool:
        return self.mesh is None or self.mesh.prepare_sleep()

    def consumer(self, channel: bytes = b"channel", ready: int = READY) -> Client:
        client = Client(self)
        client.send(b"SUB topic %s\n" % channel)
        self.settle()
        client.expect_oks(1)
        client.send(b"RDY %d\n" % ready)
        self.settle()
        return client

    def fill(self, messages: int) -> None:
        producer = Client(self)
        for _ in range(messages // BATCH):
            producer.send(MPUB)
        self.settle()
        producer.expect_oks(messages // BATCH)
        producer.transport.end()


def publish(stretches: Stretches, name: str, commands: bytes, each: int, channels: int) -> None:
    """Repeat the same commands, with a turn for each repetition."""
    worker = Worker()
    producer = Client(worker)
    for number in range(channels):
        worker.consumer(b"channel%d" % number, ready=0)
    for _ in range(ROUNDS):
        times = READY // each
        with stretches.of(name, times * each):
            for _ in range(times):
                producer.send(commands)
                worker.turn()
        producer.expect_oks(times * commands.count(b"PUB topic"))


def consume(stretches: Stretches) -> None:
    """Two consumers that finish all their messages whenever they have the maximum in flight."""
    worker = Worker()
    worker.fill(2 * READY * (ROUNDS + 1))
    consumers = [worker.consumer(), worker.consumer()]
    for _ in range(ROUNDS):
        lines = [each.finish_lines(READY) for each in consumers]
        with stretches.of("finish", 2 * READY):
            for each, answers in zip(consumers, lines, strict=True):
                each.send(answers)
        with stretches.of("deliver", 2 * READY):
            worker.settle()


def redeliver(stretches: Stretches) -> None:
    """One consumer that touches and requeues messages, and then sends nothing more."""
    worker = Worker()
    worker.fill(2 * READY)
    consumer = worker.consumer()
    for _ in range(ROUNDS):
        lines = consumer.finish_lines(READY)
        touches = lines.replace(b"FIN ", b"TOUCH ")
        with stretches.of("touch", READY):
            consumer.send(touches)
            worker.settle()
        requeues = lines.replace(b"FIN ", b"REQ ").replace(b"\n", b" 0\n")
        with stretches.of("requeue", READY):
            consumer.send(requeues)
            worker.settle()
        consumer.finish_lines(READY)
        worker.now += TIMEOUT
        with stretches.of("timeout", READY):
            worker.settle()


def defer(stretches: Stretches) -> None:
    """Deferred messages that all become due at the same time."""
    worker = Worker()
    producer, consumer = Client(worker), worker.consumer()
    for _ in range(ROUNDS):
        with stretches.of("defer", READY):
            for _ in range(READY // PIPE):
                producer.send(DPUBS)
                worker.turn()
        producer.expect_oks(READY)
        worker.now += DELAY * SECOND // 1000 + READY  # the messages arrived one nanosecond apart
        with stretches.of("due", READY):
            worker.settle()
        consumer.send(consumer.finish_lines(READY))


def alone(stretches: Stretches) -> None:
    """Measure one turn per message: the cost of a turn that few messages share. Idle topics and
    consumers must not increase this cost."""
    worker = Worker()
    for number in range(IDLE):
        client = Client(worker)
        client.send(b"SUB idle%d channel\n" % number)
    worker.fill(2 * READY)
    producer, consumer = Client(worker), worker.consumer()
    turn, now, wall = worker.manager.run_turn, worker.now, EPOCH + worker.now
    lines = consumer.finish_lines(READY).splitlines(keepends=True)
    with stretches.of("alone: finish, deliver", READY):
        for line in lines:
            consumer.send(line)
            turn(now, wall)
    consumer.finish_lines(READY)
    with stretches.of("alone: publish", READY):
        for _ in range(READY):
            producer.send(PUB)
            turn(now, wall)
    producer.expect_oks(READY)


def post(stretches: Stretches) -> None:
    """Persistent HTTP connections that send one request after another."""
    worker = Worker()
    clients = connections(worker.manager, KEPT)
    for path in (b"pub", b"mpub"):
        request = HEAD % (path, len(BODY)) + BODY
        with stretches.of(f"http: {path.decode()}", READY):
            for _ in range(READY // KEPT):
                for each in clients:
                    each.send(request)
                    each.readable()
                    answer = each.received()
                worker.turn()
        assert answer.startswith(b"HTTP/1.1 200 OK") and answer.endswith(b"OK"), answer
    for each in clients:
        each.close()


class Streams(Mesh):
    """The mesh of one of two workers in this process. The workers run in turn, and wake no
    process."""

    home: SessionManager

    def on_open(self, stream: Stream, hello: bytes) -> StreamEnd:
        return accept_stream(self.manager, stream, hello)

    def wake(self, peer: int) -> int:
        return 0


class Pair:
    """Two workers: clients are connected to one, and the other owns the topic."""

    def __init__(self) -> None:
        memory = mmap.mmap(-1, map_size(2))
        format_shared(memory, 2)
        self.near, self.owner = (self._worker(Shared(memory, 2), index) for index in range(2))
        for worker in self.near, self.owner:
            worker.manager.placed(b"topic", 1)
            worker.manager.peer_up(1 - worker.manager.index, 0)

    def _worker(self, shared: Shared, index: int) -> Worker:
        mesh = Streams(shared, index, [-1, -1])
        mesh.manager = core(mesh, index)
        return Worker(mesh.manager, mesh)

    def turn(self) -> bool:
        """Move the clients' bytes to the owner, and its responses back; return whether there is
        more to do."""
        due = min(worker.turn() for worker in (self.near, self.owner, self.near))
        return due <= self.near.now or not (self.near.falls_asleep() and self.owner.falls_asleep())

    def settle(self) -> None:
        while self.turn():
            pass


def afar(stretches: Stretches) -> None:
    """Client traffic over streams; both workers are counted."""
    pair = Pair()
    producers = [Client(pair.near) for _ in range(CROWD)]
    for _ in range(ROUNDS):
        times = READY // CROWD
        with stretches.of("afar: publish", times * CROWD):
            for _ in range(times):
                for producer in producers:
                    producer.send(PUB)
                pair.turn()
        for producer in producers:
            producer.expect_oks(times)
    pair.owner.fill((ROUNDS + 1) * READY)
    consumer = Client(pair.near)
    consumer.send(b"SUB topic channel\n")
    pair.settle()
    consumer.expect_oks(1)
    consumer.send(b"RDY %d\n" % READY)
    pair.settle()
    for _ in range(ROUNDS):
        lines = consumer.finish_lines(READY)
        with stretches.of("afar: finish, deliver", READY):
            consumer.send(lines)
            pair.settle()


def encoded(stretches: Stretches) -> None:
    """One command and one response per encoded block, as for a client that waits for each OK."""
    for name, (layer, encode) in layers().items():
        for _ in range(ROUNDS):
            pieces = [encode(PUB) for _ in range(READY)]
            with stretches.of(f"{name}: receive", READY):
                for piece in pieces:
                    layer.feed(piece)
                    received = layer.read()
            assert received == PUB, received
            with stretches.of(f"{name}: send", READY):
                for _ in range(READY):
                    layer.write(OK)
                    layer.take()


def answer(stretches: Stretches) -> None:
    """The client's end of a connection."""
    worker = Worker()
    worker.fill(2 * READY)
    recorded = worker.consumer().received()
    parts = [recorded[at : at + RECEIVED] for at in range(0, len(recorded), RECEIVED)]
    codec = Codec("127.0.0.1:4150")
    for _ in range(ROUNDS):
        messages = []
        with stretches.of("client: receive", READY):
            for part in parts:
                messages += codec.feed(part)[0]
        with stretches.of("client: finish", READY):
            finish(messages)
            lines = codec.take()
        assert lines.count(b"FIN ") == len(messages) == READY
        with stretches.of("client: publish", READY):
            for _ in range(READY):
                codec.publish(b"PUB topic\n", BODY)
            codec.take()


def everything(stretches: Stretches) -> None:
    publish(stretches, "publish", PUBS, each=PIPE, channels=1)
    publish(stretches, "publish x200", MPUB, each=BATCH, channels=1)
    publish(stretches, "publish x200 to 10", MPUB, each=BATCH, channels=10)
    consume(stretches)
    redeliver(stretches)
    defer(stretches)
    alone(stretches)
    post(stretches)
    afar(stretches)
    encoded(stretches)
    answer(stretches)


def main() -> None:
    gc.disable()
    stretches = Stretches()
    everything(stretches)
    stretches.counts = True
    everything(stretches)
    json.dump(stretches.found, sys.stdout)


if __name__ == "__main__":
    main()
