"""Loads with keys: backlogs of many keys, publishers that say when each message is due, consumers
that take a while for each message.

The same functions load nsqd and other brokers. A body that is timed begins with a mark and the time
when it was due.
"""

import json
import random
import re
import select
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon
from loadtest.bench.speed import BATCH, Result, Settings, body, measure
from nsqcy.protocol.wire import command

if TYPE_CHECKING:
    import socket

    from loadtest.bench.peers.drivers import Consumer

KEYS = 10_000
CONNECTIONS = 25  # of each of two filling processes
DUE = re.compile(rb"due=(\d{19});")
NOT_DUE = b"due=%019d;" % 0  # in a body that is not timed
UNIQUE = b"#number#"  # replaced by the number of the batch, in hexadecimal


# -- messages


def headers(**values: bytes) -> bytes:
    """Return a message's headers, as they precede its body."""
    parts = b"".join(
        bytes([len(name)]) + name.encode() + struct.pack(">H", len(value)) + value
        for name, value in values.items()
    )
    return struct.pack(">H", len(parts)) + parts


def keyed(key: bytes, content: bytes, **values: bytes) -> bytes:
    """Return a message with a key, for a connection that sends headers."""
    return headers(key=key, **values) + content


def producer(address: Address) -> "socket.socket":
    """Return a connection that sends headers."""
    sock = load.connect(address)
    wanted = {"heartbeat_interval": -1, "feature_negotiation": True, "headers": True}
    sock.sendall(load.command_with_body(b"IDENTIFY", (), json.dumps(wanted).encode()))
    load.frame(sock)
    return sock


pipelined = partial(load.pipelined, open=producer)
waiting = partial(load.waiting, open=producer)


def timed(size: int) -> bytes:
    """Return a body with a mark for the time when it is due."""
    return NOT_DUE + body(size)[len(NOT_DUE) :]


def batches(topic: str, size: int, keys: int = KEYS) -> list[bytes]:
    """Return MPUBs that together have one message of each key, in random order."""
    names = [b"k%06d" % number for number in range(keys)]
    random.Random(keys).shuffle(names)
    content = body(size)
    return [
        load.mpub(topic, [keyed(name, content) for name in names[start : start + BATCH]])
        for start in range(0, keys, BATCH)
    ]


def add_filling(
    team: load.Team, address: Address, topic: str, messages: int, size: int, keys: int = KEYS
) -> None:
    """Add two publishers of messages that belong to many keys."""
    several = batches(topic, size, keys)
    connections = min(CONNECTIONS, messages // BATCH // 2)
    for number in range(2):
        ones = several[number::2] or several
        commands = messages // BATCH // 2
        team.add(waiting, address, ones, BATCH, commands, connections)


def fill(
    settings: Settings,
    nsqd: Daemon,
    topic: str,
    messages: int,
    scenario: str = "",
    keys: int = KEYS,
) -> Result:
    with load.Team(2) as team:
        add_filling(team, nsqd.tcp, topic, messages, settings.size, keys)
        return measure(scenario, nsqd, team)[0]


# -- publishers


def unique(
    address: Address, one: bytes, start: int, commands: int, depth: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Like load.pipelined, but each command has its own number in the place of UNIQUE."""
    sock = producer(address)

    def run() -> load.Report:
        under_way = 0
        for number in range(start, start + commands):
            if under_way == depth:
                load.expect(sock, load.OK)
                under_way -= 1
            sock.sendall(one.replace(UNIQUE, b"%08x" % number))
            under_way += 1
        load.expect(sock, load.OK * under_way)
        return {"messages": commands * BATCH}

    return run


def paced(
    open: Callable[[], "tuple[socket.socket, list[bytes]]"],
    rate: float,
    count: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """Publish single messages on a schedule. `open` returns a connection, and commands that are
    sent in turn, each with its due time. Responses are discarded."""
    sock, commands = open()
    ones = [bytearray(one) for one in commands]
    marks = [one.index(NOT_DUE) + 4 for one in commands]
    load.wake_precisely()

    def run() -> load.Report:
        step = 1_000_000_000 / rate
        start = time.monotonic_ns()
        late = []
        for number in range(count):
            due = start + int(number * step)
            while (now := time.monotonic_ns()) < due:
                load.drop_answers(sock)
                time.sleep(max(0, due - now) / 1e9)
            place = number % len(ones)
            ones[place][marks[place] : marks[place] + 19] = b"%019d" % due
            sock.sendall(ones[place])
            late.append(now - due)
        while load.drop_answers(sock):
            pass
        return {"messages": count, "late": late}

    return run


# -- consumers


class _Worker:
    """A connection that takes one message at a time."""

    def __init__(self, consumer: "Consumer") -> None:
        from loadtest.bench.peers.work import Received

        self.consumer = consumer
        self.received = Received(1 << 17)

    def read(self) -> tuple[bytes, int, list[int]]:
        """Return what to send, the number of messages, and when the timed ones were due."""
        view = self.received.read(self.consumer.sock)
        taken = self.consumer.take(view)
        dues = [int(due) for due in DUE.findall(bytes(view[: taken.used])) if int(due)]
        self.received.used(taken.used)
        return taken.send, taken.messages, dues


def working(
    make: Callable[[], "Consumer"],
    connections: int,
    hold: float,
    seconds: float,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """Consumers that take one message at a time, and finish it after `hold` seconds; they begin one
    after the other. Report how long after they were due the timed messages arrived (`delivered`),
    and were finished."""
    workers = {}
    poll = select.epoll()
    for _ in range(connections):
        worker = _Worker(make())
        workers[worker.consumer.sock.fileno()] = worker
        poll.register(worker.consumer.sock.fileno(), select.EPOLLIN)
    load.wake_precisely()

    def run() -> load.Report:
        held: deque[tuple[float, _Worker, bytes, list[int]]] = deque()
        begin = time.monotonic()
        for number, worker in enumerate(workers.values()):
            moment = begin + hold * number / connections
            held.append((moment, worker, worker.consumer.first, []))
        delivered: list[int] = []
        finished: list[int] = []
        messages = -connections
        end = begin + seconds
        while (now := time.monotonic()) < end:
            while held and held[0][0] <= now:
                _, worker, reply, dues = held.popleft()
                worker.consumer.sock.sendall(reply)
                finished += [time.monotonic_ns() - due for due in dues]
                messages += 1
            wait = held[0][0] - now if held else 0.05
            for fd, _ in poll.poll(min(wait, 0.05)):
                worker = workers[fd]
                reply, count, dues = worker.read()
                if count:
                    moment = time.monotonic()
                    delivered += [int(moment * 1e9) - due for due in dues]
                    held.append((moment + hold, worker, reply, dues))
                elif reply:
                    worker.consumer.sock.sendall(reply)
        return {
            "messages": messages,
            "delivered": delivered,
            "finished": finished,
            "busy": messages * hold / seconds / connections,
        }

    return run


def requeueing(
    address: Address, topic: str, messages: int, delay: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """A consumer that requeues this number of messages once, with a delay in ms."""
    sock = load.consumer(address, topic, "bench", 0)
    room = memoryview(bytearray(2 * load.RECEIVE))

    def run() -> load.Report:
        have = taken = 0
        sock.sendall(command(b"RDY", b"2500"))
        while taken < messages:
            have += sock.recv_into(room[have:])
            lines, used, count = load.finish_all(room[:have])
            if count:
                sock.sendall(lines.replace(b"FIN", b"REQ").replace(b"\n", b" %d\n" % delay))
            elif have >= 8:
                used = load.other_frame(sock, bytes(room[:have]))
            taken += count
            room[: have - used] = room[used:have]
            have -= used
        sock.sendall(command(b"RDY", b"0"))
        return {"messages": taken}

    return run


def first_message(address: Address, topic: str) -> None:
    """Wait for a message of a channel; it is not finished."""
    with load.consumer(address, topic, "bench", 1) as sock:
        while load.frame(sock) == b"_heartbeat_":
            sock.sendall(b"NOP\n")
