"""A consumer and a producer using gnsq (gevent), which needs a monkey-patched standard library."""

from gevent import monkey

monkey.patch_all()

import argparse  # noqa: E402
import sys  # noqa: E402

import gevent  # noqa: E402
import gnsq  # noqa: E402
from common import answer, arguments, batches, emit, sources, upgrades  # noqa: E402
from gevent.select import select  # noqa: E402
from gevent.threadpool import ThreadPool  # noqa: E402

PAUSE = 0.3  # seconds between two TOUCHes


def consume(args: argparse.Namespace) -> None:
    def finish_later(message: gnsq.Message) -> None:
        for _ in range(args.touches):
            message.touch()
            gevent.sleep(PAUSE)
        message.finish()

    def handle(consumer: gnsq.Consumer, message: gnsq.Message) -> None:
        emit(message.timestamp, message.attempts, message.id, message.body)
        if args.requeue is not None and message.attempts == 1:
            message.requeue(time_ms=args.requeue, backoff=False)
        elif args.touches:
            message.enable_async()
            gevent.spawn(finish_later, message)

    consumer = gnsq.Consumer(
        args.topic,
        args.channel,
        **sources(args),
        message_handler=handle,
        max_in_flight=args.rdy,
        max_tries=0,
        heartbeat_interval=args.heartbeat,
        auth_secret=args.secret and args.secret.encode(),
        **upgrades(args),
    )
    consumer.start(block=False)
    select([sys.stdin], [], [])
    consumer.close()


def publish(args: argparse.Namespace) -> None:
    producer = gnsq.Producer(
        [args.address],
        heartbeat_interval=args.heartbeat,
        auth_secret=args.secret and args.secret.encode(),
        **upgrades(args),
        max_backoff_duration=0.2,
    )
    producer.start()
    jobs = batches(args.batch)
    reader = ThreadPool(1)
    while batch := reader.apply(next, (jobs, None)):
        try:
            if args.batch == 1:
                said = producer.publish(args.topic, batch[0], defer=args.defer)
            else:
                said = producer.multipublish(args.topic, batch)
            answer(said.decode())
        except (gnsq.errors.NSQException, KeyError) as error:
            answer(f"failed: {error!r}")
    producer.close()


if __name__ == "__main__":
    options = arguments()
    if options.mode == "consume":
        consume(options)
    else:
        publish(options)
