"""A consumer and a producer using pynsq (tornado)."""

import argparse
import asyncio
import threading
from typing import Any

import nsq
import tornado.ioloop
from common import answer, arguments, batches, emit, sources, upgrades

PAUSE = 0.3  # seconds between two TOUCHes


def consume(args: argparse.Namespace) -> None:
    loop = tornado.ioloop.IOLoop.current()

    def finish_later(message: nsq.Message, touches: int) -> None:
        if touches == 0:
            message.finish()
            return
        message.touch()
        loop.call_later(PAUSE, finish_later, message, touches - 1)

    def handle(message: nsq.Message) -> bool:
        emit(message.timestamp, message.attempts, message.id, message.body)
        if args.requeue is None and not args.touches:
            return True
        message.enable_async()
        if args.requeue is not None and message.attempts == 1:
            message.requeue(time_ms=args.requeue, backoff=False)
        else:
            finish_later(message, args.touches)
        return True

    nsq.Reader(
        args.topic,
        args.channel,
        message_handler=handle,
        max_in_flight=args.rdy,
        max_tries=0,
        heartbeat_interval=args.heartbeat,
        auth_secret=args.secret,
        **sources(args),
        **upgrades(args),
    )
    loop.add_handler(0, lambda fd, events: loop.stop(), loop.READ)
    nsq.run()


async def publish(args: argparse.Namespace) -> None:
    writer = nsq.Writer(
        [args.address],
        reconnect_interval=0.2,
        heartbeat_interval=args.heartbeat,
        auth_secret=args.secret,
        **upgrades(args),
    )
    jobs: asyncio.Queue[list[bytes] | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def feed() -> None:
        for batch in batches(args.batch):
            loop.call_soon_threadsafe(jobs.put_nowait, batch)
        loop.call_soon_threadsafe(jobs.put_nowait, None)

    threading.Thread(target=feed, daemon=True).start()
    while batch := await jobs.get():
        while not writer.conns:
            await asyncio.sleep(0.01)
        answered: asyncio.Future[Any] = loop.create_future()

        def answer_is(conn: object, data: Any, answered: asyncio.Future[Any] = answered) -> None:
            if not answered.done():
                answered.set_result(data)

        if args.defer is not None:
            writer.dpub(args.topic, args.defer, batch[0], callback=answer_is)
        elif args.batch == 1:
            writer.pub(args.topic, batch[0], callback=answer_is)
        else:
            writer.mpub(args.topic, batch, callback=answer_is)
        data = await answered
        answer(data.decode() if isinstance(data, bytes) else f"failed: {data!r}")


if __name__ == "__main__":
    options = arguments()
    if options.mode == "consume":
        consume(options)
    else:
        asyncio.run(publish(options))
