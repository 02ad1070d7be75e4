"""Temporary topics and channels, and clients that misbehave.

Nothing here is in the ledger: these topics may be emptied or deleted, and their messages dropped.
Other clients must not be affected, and no byte of these topics may appear elsewhere.
"""

import asyncio
import contextlib
import itertools
import json
import struct
import time
from collections.abc import Awaitable, Callable
from urllib.request import urlopen

from loadtest.chaos.cluster import Node
from loadtest.chaos.consumers import consumer
from loadtest.chaos.load import FAILURES, Load
from loadtest.chaos.register import Publisher
from loadtest.soak.bodies import Stamp
from nsqcy.client import Message
from nsqcy.client.codec import mpub_body

MIN_BYTES, MAX_BYTES = 5, 200  # number of messages to publish at a time
NAMES = 30  # topics per nsqd; few, because nsqlookupd never forgets a name
CONNECTS = 3.0  # seconds
FRAME = struct.Struct(">i")


def start(load: Load, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Start the clients; return those that leave when the run becomes quiet."""
    works = [_look_around(load)]
    for node in load.cluster.nodes:
        works += [_come_and_go(load, node), _misbehave(load, node)]
    return [group.create_task(each) for each in works]


async def clean_up(load: Load, node: Node) -> None:
    """Delete the remaining temporary topics."""
    for topic in await load.call(node.web.topics):
        if topic.startswith("churn-"):
            await load.call(node.web.do, "delete", topic)


# --- topics and channels ------------------------------------------------------------------------


async def _come_and_go(load: Load, node: Node) -> None:
    names = [f"churn-{node.number}-{n}{'#ephemeral' * (n % 3 == 0)}" for n in range(NAMES)]
    publishers = {name: load.register.enter(name, node.number, "memory") for name in names}
    for topic in itertools.cycle(names):
        if load.quiet.is_set():
            return
        with contextlib.suppress(*FAILURES, AssertionError):
            await _life_of_a_topic(load, node, topic, publishers[topic])
        await load.rest(load.chance.uniform(0.2, 1.5))


async def _life_of_a_topic(load: Load, node: Node, topic: str, publisher: Publisher) -> None:
    """Create a topic, publish to it, consume some of its messages, then pause, empty and delete
    it."""
    web, chance = node.web, load.chance
    channels = ["kept", "gone", "short#ephemeral"][: chance.randint(1, 3)]
    place = topic, channels[0]
    await load.call(web.create, topic, *channels)

    async def publish() -> None:
        numbers = load.register.attempt(publisher, chance.randint(MIN_BYTES, MAX_BYTES))
        due = time.time_ns()
        bodies = [load.bodies.make(Stamp(publisher.number, n, due)) for n in numbers]
        await load.call(web.post, "/mpub", mpub_body(bodies), topic=topic, binary="true")

    async def handle(message: Message) -> None:
        load.received(place, message.body, message.attempts)

    await publish()
    reader = consumer(load, place, "lookup", number=0, message_handler=handle)
    async with reader:
        await load.rest(chance.uniform(0.5, 3))
        if chance.random() < 0.5:
            await load.call(web.do, "pause", *place)
            await publish()
            await load.call(web.do, "unpause", *place)
        if chance.random() < 0.5:
            await load.call(web.do, "empty", *place)
        if chance.random() < 0.3:
            await load.call(web.do, "delete", topic, channels[-1])
    await load.call(web.do, "delete", topic)


async def _look_around(load: Load) -> None:
    """Simulate a user of nsqadmin."""
    pages = ("/api/topics", "/api/nodes", "/api/counter", "/", "/topics/memory-a")
    admin = load.cluster.admin.http_address
    while not load.quiet.is_set():
        with contextlib.suppress(*FAILURES):
            await load.call(_get, admin, load.chance.choice(pages))
        await load.rest(1.0)


def _get(address: str, path: str) -> None:
    with urlopen(f"http://{address}{path}", timeout=15) as answer:
        answer.read()


# --- misbehaviour -------------------------------------------------------------------------------

Misbehaviour = Callable[[Load, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def _misbehave(load: Load, node: Node) -> None:
    address = node.daemon.tcp_address.split(":")
    while not load.quiet.is_set():
        how: Misbehaviour = load.chance.choice(
            (_half_a_body, _half_a_line, _never_reads, _too_much, _gibberish, _silent)
        )
        with contextlib.suppress(*FAILURES):
            async with asyncio.timeout(CONNECTS):
                reader, writer = await asyncio.open_connection(*address)
            try:
                await how(load, reader, writer)
            finally:
                writer.transport.abort()
        await load.rest(load.chance.uniform(0.5, 3))


async def _half_a_body(load: Load, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"  V2PUB memory-a\n" + FRAME.pack(100_000) + bytes(50_000))
    await load.rest(load.chance.uniform(0, 5))


async def _half_a_line(load: Load, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"  V2SUB memory-a ca")
    await load.rest(load.chance.uniform(0, 5))


async def _never_reads(load: Load, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Keep the received messages until they time out or the topic is gone."""
    identity = json.dumps({"heartbeat_interval": 1000}).encode()
    writer.write(b"  V2IDENTIFY\n" + FRAME.pack(len(identity)) + identity)
    writer.write(b"SUB os-a wild\nRDY 100\n")
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await load.rest(load.chance.uniform(1, 5))


async def _too_much(load: Load, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"  V2PUB memory-a\n" + FRAME.pack(0x7FFFFFFF) + bytes(1000))
    async with asyncio.timeout(CONNECTS):
        await reader.read()


async def _gibberish(
    load: Load, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    writer.write(b"  V2" + load.chance.randbytes(load.chance.randint(1, 5000)))
    async with asyncio.timeout(CONNECTS):
        await reader.read()


async def _silent(load: Load, _: asyncio.StreamReader, __: asyncio.StreamWriter) -> None:
    await load.rest(load.chance.uniform(0, 10))
