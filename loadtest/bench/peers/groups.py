"""Brokers and groups of messages: fair shares, order within a group, urgent messages first.

A contestant does one of these works with what its broker offers, or with what its users write by
hand. Groups have numbers; a broker without keys has PARTITIONS queues or subjects, and a group
belongs to one of them.
"""

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon
from loadtest.bench.keyed_load import keyed, producer
from loadtest.bench.peers import drivers
from loadtest.bench.peers.compiled import answers
from loadtest.bench.peers.drivers import Consumer, Taken, long, method, resp, short, unique
from loadtest.bench.scenarios.keys import prepare

if TYPE_CHECKING:
    import socket

FLOOD, ORDER, URGENT = "flood", "order", "urgent"  # works
PARTITIONS = 100
URGENCY = 9
PARTITION_WINDOW = 25  # messages in flight of a queue of RabbitMQ with a single active consumer


class Sender(NamedTuple):
    """A publishing connection. `one` makes a command from a group, a body and a level."""

    sock: "socket.socket"
    answered: Callable[[memoryview], Taken]
    one: Callable[[int, bytes, int], bytes]


@dataclass
class Grouped:
    """A contestant in one kind of work. `how`: what does it."""

    name: str
    how: str
    driver: drivers.Driver

    def start(self) -> contextlib.AbstractContextManager[Daemon]:
        return self.driver.start()

    def prepare(self, server: Daemon, queue: str, work: str) -> None:
        raise NotImplementedError

    def sender(self, address: Address, queue: str, work: str) -> Sender:
        raise NotImplementedError

    def consumer(self, address: Address, queue: str, work: str, window: int, part: int) -> Consumer:
        """`part`: the number of this connection, if each has its own partitions."""
        raise NotImplementedError


# -- NSQ


class Keyed(Grouped):
    RULES: ClassVar = {
        FLOOD: {"fair": True},
        ORDER: {"order": "key"},
        URGENT: {"urgent_first": True},
    }

    def __init__(self, work: str, is_plain: bool = False) -> None:
        rules = {} if is_plain else self.RULES[work]
        how = "no rules" if is_plain else f"`{next(iter(rules))}`"
        super().__init__("nsqcy", how, drivers.Nsq())
        self._rules = rules

    def prepare(self, server: Daemon, queue: str, work: str) -> None:
        prepare(server, queue, self._rules)

    def sender(self, address: Address, queue: str, work: str) -> Sender:
        def one(group: int, body: bytes, level: int) -> bytes:
            return load.pub(queue, keyed(b"%d" % group, body, priority=b"%d" % level))

        answered = self.driver.publisher(address, queue, b"x", 1).answered
        return Sender(producer(address), answered, one)

    def consumer(self, address: Address, queue: str, work: str, window: int, part: int) -> Consumer:
        return self.driver.consumer(address, queue, window)


# -- Redis


# KEYS[1]: the groups that wait, a list. ARGV: the group, a body.
PUT = b"""
local group = KEYS[1] .. ':' .. ARGV[1]
local count = redis.call('RPUSH', group, ARGV[2])
if count == 1 and redis.call('HEXISTS', KEYS[1] .. ':held', ARGV[1]) == 0 then
  redis.call('RPUSH', KEYS[1], ARGV[1])
end
return count
"""
# ARGV[1]: the id of a message that is finished, or nothing. Return an id and a body.
NEXT = {
    FLOOD: b"""
if ARGV[1] ~= '' then redis.call('HDEL', KEYS[1] .. ':held', ARGV[1]) end
local name = redis.call('LPOP', KEYS[1])
if not name then return false end
local group = KEYS[1] .. ':' .. name
local body = redis.call('LPOP', group)
if redis.call('EXISTS', group) == 1 then redis.call('RPUSH', KEYS[1], name) end
local id = 'm' .. redis.call('INCR', KEYS[1] .. ':id')
redis.call('HSET', KEYS[1] .. ':held', id, body)
return {id, body}
""",
    ORDER: b"""
if ARGV[1] ~= '' then
  redis.call('HDEL', KEYS[1] .. ':held', ARGV[1])
  if redis.call('EXISTS', KEYS[1] .. ':' .. ARGV[1]) == 1 then
    redis.call('RPUSH', KEYS[1], ARGV[1])
  end
end
local name = redis.call('LPOP', KEYS[1])
if not name then return false end
local body = redis.call('LPOP', KEYS[1] .. ':' .. name)
redis.call('HSET', KEYS[1] .. ':held', name, body)
return {name, body}
""",
    URGENT: b"""
if ARGV[1] ~= '' then redis.call('HDEL', KEYS[1] .. ':held', ARGV[1]) end
for _, level in ipairs({'9', '0'}) do
  local body = redis.call('LPOP', KEYS[1] .. ':' .. level)
  if body then
    local id = 'm' .. redis.call('INCR', KEYS[1] .. ':id')
    redis.call('HSET', KEYS[1] .. ':held', id, body)
    return {id, body}
  end
end
return false
""",
}


class RedisScripts(Grouped):
    def __init__(self) -> None:
        super().__init__("Redis", "a list for each group, Lua scripts", drivers.RedisStreams())

    def prepare(self, server: Daemon, queue: str, work: str) -> None:
        for script in (PUT, NEXT[work]):
            drivers.Redis.ask(server.tcp, b"SCRIPT", b"LOAD", script)

    @staticmethod
    def _call(script: bytes, queue: str, *words: bytes) -> bytes:
        digest = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        return resp(b"EVALSHA", digest, b"1", queue.encode(), *words)

    def sender(self, address: Address, queue: str, work: str) -> Sender:
        def one(group: int, body: bytes, level: int) -> bytes:
            name = level if work == URGENT else group
            return self._call(PUT, queue, b"%d" % name, body)

        def answered(received: memoryview) -> Taken:
            return Taken(b"", *answers.replies(received))

        return Sender(load.plain(address), answered, one)

    def consumer(self, address: Address, queue: str, work: str, window: int, part: int) -> Consumer:
        def request(done: bytes) -> bytes:
            return self._call(NEXT[work], queue, done)

        head, empty = request(b"x").removesuffix(b"$1\r\nx\r\n"), request(b"")

        def take(received: memoryview) -> Taken:
            data = bytes(received)
            send = []
            at = messages = 0
            while at < len(data):
                if data.startswith(b"$-1\r\n", at):
                    send.append(empty)
                    at += 5
                    continue
                if data.startswith(b"-", at):
                    raise ValueError(f"unexpected answer {data[at : at + 200]!r}")
                ends = _end(data, at + 4)  # after *2
                whole = _end(data, ends) if ends > 0 else 0
                if whole <= 0:
                    break
                send.append(head + data[at + 4 : ends])
                messages += 1
                at = whole
            return Taken(b"".join(send), at, messages)

        return Consumer(load.plain(address), empty * window, take)


def _end(data: bytes, at: int) -> int:
    """Return the end of the bulk string that starts here; 0 if it is not complete."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return 0
    end = line + 2 + int(data[at + 1 : line]) + 2
    return end if end <= len(data) else 0


# -- RabbitMQ


class RabbitmqQueues(Grouped):
    HOW: ClassVar = {
        FLOOD: f"{PARTITIONS} queues, `basic.qos` 1 for all of them together",
        ORDER: f"{PARTITIONS} queues with a single active consumer",
        URGENT: "`x-max-priority`",
    }
    ARGUMENTS: ClassVar = {
        FLOOD: b"",
        ORDER: short("x-single-active-consumer") + b"t\x01",
        URGENT: short("x-max-priority") + b"b" + bytes([URGENCY]),
    }

    def __init__(self, work: str) -> None:
        super().__init__("RabbitMQ", self.HOW[work], drivers.Rabbitmq())

    @staticmethod
    def _queues(queue: str, work: str) -> list[str]:
        return [f"{queue}.{each}" for each in range(1 if work == URGENT else PARTITIONS)]

    def prepare(self, server: Daemon, queue: str, work: str) -> None:
        with drivers.Rabbitmq.connect(server.tcp) as sock:
            for name in self._queues(queue, work):
                arguments = bytes(2) + short(name) + b"\0" + long(self.ARGUMENTS[work])
                drivers.Rabbitmq.call(sock, method(1, 50, 10, arguments), (50, 11))

    def sender(self, address: Address, queue: str, work: str) -> Sender:
        names = self._queues(queue, work)

        def one(group: int, body: bytes, level: int) -> bytes:
            name = names[group % len(names)]
            properties = struct.pack(">HHQHBB", 60, 0, len(body), 0x1800, 1, level)
            return (
                method(1, 60, 40, bytes(2) + short("") + short(name) + b"\0")
                + drivers.frame(2, 1, properties)
                + drivers.frame(3, 1, body)
            )

        publisher = self.driver.publisher(address, queue, b"x", 1)
        return Sender(publisher.sock, publisher.answered, one)

    def consumer(self, address: Address, queue: str, work: str, window: int, part: int) -> Consumer:
        sock = drivers.Rabbitmq.connect(address)
        together = work == FLOOD
        count = PARTITION_WINDOW if work == ORDER else window
        settings = struct.pack(">IHB", 0, count, together)
        drivers.Rabbitmq.call(sock, method(1, 60, 10, settings), (60, 11))
        first = b"".join(
            method(1, 60, 20, bytes(2) + short(name) + short(name) + b"\x08" + long(b""))
            for name in self._queues(queue, work)
        )
        head = method(1, 60, 80, bytes(9))[:-10]
        return Consumer(sock, first, lambda received: Taken(*answers.deliveries(received, head)))


# -- NATS


class NatsSubjects(Grouped):
    HOW: ClassVar = {
        FLOOD: "a subject for each group, one consumer",
        ORDER: f"{PARTITIONS} subjects, a consumer with `max_ack_pending` 1 for each",
    }

    def __init__(self, work: str) -> None:
        super().__init__("NATS JetStream", self.HOW[work], drivers.Nats())

    def prepare(self, server: Daemon, queue: str, work: str) -> None:
        stream = {"name": queue, "subjects": [f"{queue}.*"], **drivers.STREAM}
        drivers.Nats.api(server.tcp, f"STREAM.CREATE.{queue}", stream)
        if work == FLOOD:
            self._make(server, queue, {})
            return
        for each in range(PARTITIONS):
            settings = {
                "durable_name": f"p{each}",
                "filter_subject": f"{queue}.{each}",
                "max_ack_pending": 1,
            }
            self._make(server, queue, settings)

    @staticmethod
    def _make(server: Daemon, queue: str, settings: dict[str, object]) -> None:
        config = drivers.PULL_CONSUMER | settings
        call = f"CONSUMER.DURABLE.CREATE.{queue}.{config['durable_name']}"
        drivers.Nats.api(server.tcp, call, {"stream_name": queue, "config": config})

    def sender(self, address: Address, queue: str, work: str) -> Sender:
        inbox = unique(b"_INBOX.%d.%d")

        def one(group: int, body: bytes, level: int) -> bytes:
            subject = f"{queue}.{group % PARTITIONS}".encode()
            return b"PUB %b %b.1 %d\r\n%b\r\n" % (subject, inbox, len(body), body)

        def answered(received: memoryview) -> Taken:
            used, count, pings = answers.stored(received)
            return Taken(b"PONG\r\n" * pings, used, count)

        return Sender(drivers.Nats.connect(address, inbox), answered, one)

    def consumer(self, address: Address, queue: str, work: str, window: int, part: int) -> Consumer:
        if work == FLOOD:
            return self.driver.consumer(address, queue, window)
        inbox = unique(b"_INBOX.%d.%d")
        body = json.dumps({"batch": 1_000_000, "expires": 600_000_000_000}).encode()
        first = b"".join(
            b"PUB $JS.API.CONSUMER.MSG.NEXT.%b.p%d %b.1 %d\r\n%b\r\n"
            % (queue.encode(), each, inbox, len(body), body)
            for each in range(part, PARTITIONS, 2)
        )

        def take(received: memoryview) -> Taken:
            acks, used, messages, pings = answers.pulled(received)
            return Taken(acks + b"PONG\r\n" * pings, used, messages)

        return Consumer(drivers.Nats.connect(address, inbox), first, take)


def contestants(work: str) -> list[Grouped]:
    found: list[Grouped] = [Keyed(work), RedisScripts(), RabbitmqQueues(work)]
    if work != ORDER:
        found.insert(1, Keyed(work, is_plain=True))
    if work != URGENT:
        found.append(NatsSubjects(work))
    return found
