"""Who consumes: on `calm` channels those that finish everything, on `wild` ones others as well.

A message is written down when it is finished, and by nobody who does not mean to: what is held too
long, handed back or in the hands of one who dies has to come again.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from loadtest.chaos.cluster import CHANNELS, MSG_TIMEOUT, TOPICS
from loadtest.chaos.load import FAILURES, Load
from loadtest.swarm.ledger import Place
from nsqcy.client import Message, finish
from nsqcy.client.aio import Consumer

TOGETHER = 256  # messages that are taken in one go
POLL = 2.0  # seconds between two questions to lookupds
MIN_LIFE, MAX_LIFE = 3.0, 15.0  # seconds of one who is wild
WILD = 2  # of them at a time, on each wild channel
MAX_REQUEUE = 2000  # milliseconds

Handler = Callable[[Load, Place, Message], Awaitable[None]]


def start(load: Load, group: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
    """Gives those that stay until they are cancelled; the others leave when it is quiet."""
    staying = []
    for number, topic in enumerate(TOPICS):
        calm, wild = ((topic, channel) for channel in CHANNELS)
        for place, way in ((calm, "direct"), (calm, "lookup"), (wild, "proxied")):
            staying.append(group.create_task(_finish_all(load, place, way, number)))
        for _ in range(WILD):
            group.create_task(_be_wild(load, wild))
    return staying


def consumer(load: Load, place: Place, way: str, number: int, **options: Any) -> Consumer:
    """Of all nsqds, by addresses of that way or as lookupds know them."""
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
    """Until it is cancelled."""
    async with consumer(load, place, way, number) as messages:
        async for batch in messages.batches(TOGETHER):
            stamps = [load.received(place, each.body, each.attempts) for each in batch]
            for stamp in filter(None, stamps):
                load.finished(place, stamp)
            finish(batch)


# --- wild ones ----------------------------------------------------------------------------------


async def _be_wild(load: Load, place: Place) -> None:
    """One life after the other: each has a manner, and an end of its own."""
    while not load.quiet.is_set():
        manner = load.chance.choice((_slow, _requeueing, _late, _touching, _dying))
        with contextlib.suppress(*FAILURES):
            await _live(load, place, manner)


async def _live(load: Load, place: Place, manner: Handler) -> None:
    async def handle(message: Message) -> None:
        message.enable_async()  # the manner answers, or nobody
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
    """Some of what comes for the first time."""
    if message.attempts == 1 and load.chance.random() < 0.5:
        message.requeue(time_ms=load.chance.randint(0, MAX_REQUEUE), backoff=False)
        load.ledger.count(place, "requeued")
    else:
        _finish(load, place, message)


async def _late(load: Load, place: Place, message: Message) -> None:
    """Hold some too long: nsqd gives it to somebody else, and does not hear us any more."""
    if load.chance.random() < 0.2:
        await asyncio.sleep(1.5 * MSG_TIMEOUT)
        message.requeue(0, backoff=False)
    else:
        _finish(load, place, message)


async def _touching(load: Load, place: Place, message: Message) -> None:
    """Hold some longer than the timeout, and say so."""
    if load.chance.random() < 0.2:
        for _ in range(3):
            await asyncio.sleep(0.5 * MSG_TIMEOUT)
            message.touch()
    _finish(load, place, message)


async def _dying(load: Load, place: Place, message: Message) -> None:
    """Answer little, and hold the rest to the end."""
    if load.chance.random() < 0.5:
        _finish(load, place, message)


def _finish(load: Load, place: Place, message: Message) -> None:
    if stamp := load.received(place, message.body, message.attempts):
        load.finished(place, stamp)
    message.finish()
