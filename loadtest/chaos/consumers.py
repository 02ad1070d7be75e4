"""Consumers: well-behaved ones on `calm` channels; on `wild` channels, badly behaved ones as well.

A message is recorded only when its consumer is about to finish it: a message that is kept too long,
requeued, or in flight to a consumer that dies must be delivered again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from loadtest.chaos.cluster import CHANNELS, MSG_TIMEOUT, TOPICS
from loadtest.chaos.load import FAILURES, Load
from loadtest.soak.ledger import Place
from nsqcy.client import Message, finish
from nsqcy.client.aio import Consumer

TOGETHER = 256  # maximum messages handled at a time
POLL = 2.0  # seconds between two queries of nsqlookupds
MIN_LIFE, MAX_LIFE = 3.0, 15.0  # lifetime of a wild consumer in seconds
WILD = 2  # number of concurrent wild consumers on each wild channel
MAX_REQUEUE = 2000  # milliseconds

Handler = Callable[[Load, Place, Message], Awaitable[None]]


def start(load: Load, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Return the consumers that stay until they are cancelled; the others leave when the run
    becomes quiet."""
    staying = []
    for number, topic in enumerate(TOPICS):
        calm, wild = ((topic, channel) for channel in CHANNELS)
        for place, way in ((calm, "direct"), (calm, "lookup"), (wild, "proxied")):
            staying.append(group.create_task(_finish_all(load, place, way, number)))
        for _ in range(WILD):
            group.create_task(_be_wild(load, wild))
    return staying


def consumer(load: Load, place: Place, way: str, number: int, **options: Any) -> Consumer:
    """Consume from all nsqds, by their addresses of the given kind or through nsqlookupds."""
    found: dict[str, Any] = {"lookupd_http_addresses": load.cluster.lookup_addresses}
    if way != "lookup":
        found = {"nsqd_tcp_addresses": [each.addresses[way] for each in load.cluster.nodes]}
    topic, channel = place
    return Consumer(
        topic,
        channel,
        **found,
        **{
            "max_tries": 0,
            "max_in_flight": 200,
            "lookupd_poll_interval": POLL,
            "close_timeout": 2.0,
            "max_backoff_duration": 0,
            **load.way(number),
            **options,
        },
    )


async def _finish_all(load: Load, place: Place, way: str, number: int) -> None:
    """Run until it is cancelled."""
    async with consumer(load, place, way, number) as messages:
        async for batch in messages.batches(TOGETHER):
            stamps = [load.received(place, each.body, each.attempts) for each in batch]
            for stamp in filter(None, stamps):
                load.finished(place, stamp)
            finish(batch)


# --- wild consumers
# ----------------------------------------------------------------------------------


async def _be_wild(load: Load, place: Place) -> None:
    """Run consumers one after another, each with its own behaviour and its own kind of end."""
    while not load.quiet.is_set():
        manner = load.chance.choice((_slow, _requeueing, _late, _touching, _dying))
        with contextlib.suppress(*FAILURES):
            await _live(load, place, manner)


async def _live(load: Load, place: Place, manner: Handler) -> None:
    async def handle(message: Message) -> None:
        message.enable_async()  # the behaviour alone answers messages
        await manner(load, place, message)

    messages = consumer(
        load,
        place,
        load.chance.choice(("direct", "proxied", "lookup")),
        load.chance.randrange(6),
        max_in_flight=load.chance.choice((3, 10, 50)),
        message_handler=handle,
    )
    await messages.start()
    await load.rest(load.chance.uniform(MIN_LIFE, MAX_LIFE))
    if manner is _dying:
        for transport in list(messages.transports):
            transport.abort()
    await messages.close(graceful=manner is not _dying)


async def _slow(load: Load, place: Place, message: Message) -> None:
    await asyncio.sleep(load.chance.uniform(0, 0.2))
    _finish(load, place, message)


async def _requeueing(load: Load, place: Place, message: Message) -> None:
    """Requeue some of the first deliveries."""
    if message.attempts == 1 and load.chance.random() < 0.5:
        message.requeue(time_ms=load.chance.randint(0, MAX_REQUEUE), backoff=False)
        load.ledger.count(place, "requeued")
    else:
        _finish(load, place, message)


async def _late(load: Load, place: Place, message: Message) -> None:
    """Keep some messages too long: nsqd redelivers them, and ignores the late responses."""
    if load.chance.random() < 0.2:
        await asyncio.sleep(1.5 * MSG_TIMEOUT)
        message.requeue(0, backoff=False)
    else:
        _finish(load, place, message)


async def _touching(load: Load, place: Place, message: Message) -> None:
    """Keep some messages longer than the timeout by sending TOUCH."""
    if load.chance.random() < 0.2:
        for _ in range(3):
            await asyncio.sleep(0.5 * MSG_TIMEOUT)
            message.touch()
    _finish(load, place, message)


async def _dying(load: Load, place: Place, message: Message) -> None:
    """Finish a few messages, and keep the others until the end."""
    if load.chance.random() < 0.5:
        _finish(load, place, message)


def _finish(load: Load, place: Place, message: Message) -> None:
    if stamp := load.received(place, message.body, message.attempts):
        load.finished(place, stamp)
    message.finish()
