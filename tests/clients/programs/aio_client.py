"""A consumer using nsqcy.client.aio."""

import argparse
import asyncio

from common import arguments, emit, sources, upgrades

from nsqcy.client.aio import Consumer


async def consume(args: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    async with Consumer(
        args.topic,
        args.channel,
        max_in_flight=args.rdy,
        max_tries=0,
        heartbeat_interval=args.heartbeat,
        auth_secret=args.secret,
        **sources(args),
        **upgrades(args),
    ) as consumer:
        end = asyncio.Event()
        loop.add_reader(0, end.set)
        reading = asyncio.create_task(read(consumer))
        await end.wait()
        loop.remove_reader(0)
        reading.cancel()


async def read(consumer: Consumer) -> None:
    async for message in consumer:
        emit(message.timestamp, message.attempts, message.id, message.body)
        message.finish()


asyncio.run(consume(arguments()))
