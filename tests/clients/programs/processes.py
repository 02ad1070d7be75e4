"""Programs that use the blocking client, for tests of processes: exit, fork, monkey-patching.

    processes.py PROGRAM ADDRESS TOPIC

It prints each event as one word on its own line.
"""

import os
import signal
import sys

if len(sys.argv) > 4:  # before anything else is imported
    from gevent import monkey

    monkey.patch_all()

import asyncio
import threading
import time
from collections.abc import Callable

from nsqcy.client import Closed, Consumer, Producer, aio

PROGRAM, ADDRESS, TOPIC, *RUNTIME = sys.argv[1:]


def say(*words: object) -> None:
    print(*words, flush=True)


def say_once(condition: Callable[[], object], word: str) -> None:
    def watch() -> None:
        while not condition():
            time.sleep(0.01)
        say(word)

    threading.Thread(target=watch, daemon=True).start()


def forgotten() -> None:
    """Exit without closing anything."""
    consumer = Consumer(TOPIC, "c", ADDRESS, max_in_flight=10)
    producer = Producer(ADDRESS)
    for _ in range(3):
        producer.publish_nowait(TOPIC, b"x")
    for _ in range(2):
        message = consumer.get()
        assert message
        message.finish()
    producer.publish_nowait(TOPIC, b"last")


def iterates() -> None:
    consumer = Consumer(TOPIC, "c", ADDRESS)
    with consumer:
        say_once(lambda: consumer._waiters, "waits")
        for message in consumer:
            message.finish()


def publishes() -> None:
    """Publish to an address without a listener."""
    producer = Producer("127.0.0.1:1", retries=1000)
    say_once(lambda: producer.core.waiting, "waits")
    producer.publish(TOPIC, b"x")


def runs() -> None:
    consumer = Consumer(TOPIC, "c", ADDRESS, message_handler=lambda message: say("handled"))
    say_once(lambda: consumer._inside, "waits")
    consumer.run()


def closed_by_signal() -> None:
    """Close from a signal handler while a message is being handled, and again while waiting for
    one."""
    consumer = Consumer(TOPIC, "c", ADDRESS, max_in_flight=2)
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    Producer(ADDRESS).multipublish(TOPIC, [b"1", b"2"])
    for message in consumer:
        os.kill(os.getpid(), signal.SIGTERM)
        message.finish()
        say("finished", message.body.decode())
    say("ended", consumer.join(10))


def closed_while_waiting() -> None:
    consumer = Consumer(TOPIC, "c", ADDRESS)
    signal.signal(signal.SIGTERM, lambda *_: consumer.close())
    say_once(lambda: consumer._inside, "waits")
    consumer.run()
    say("ended", consumer.is_running)


def forked() -> None:
    producer, unused = Producer(ADDRESS), Producer(ADDRESS)
    consumer = Consumer(TOPIC, "c", ADDRESS)
    consumer.start()
    producer.publish(TOPIC, b"1")
    while not consumer.total_in_flight:
        time.sleep(0.01)
    child = os.fork()
    if child == 0:
        try:
            producer.publish(TOPIC, b"x")
        except Closed as error:
            say(error, len(list(consumer)))
        say(unused.publish(TOPIC, b"2").decode())
        return
    assert os.waitpid(child, 0)[1] == 0
    say(producer.publish(TOPIC, b"3").decode())
    bodies = []
    for message in consumer:
        bodies.append(message.body.decode())
        message.finish()
        if len(bodies) == 3:
            break
    say(*sorted(bodies))


async def forked_in_a_loop() -> None:
    async with aio.Producer(ADDRESS) as producer, aio.Consumer(TOPIC, "c", ADDRESS) as consumer:
        await producer.publish(TOPIC, b"1")
        while not consumer.total_in_flight:
            await asyncio.sleep(0.01)
        child = os.fork()
        if child == 0:
            asyncio.run(use_of_parent(producer, consumer))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        say((await producer.publish(TOPIC, b"2")).decode())
        async for message in consumer:
            say(message.body.decode())
            message.finish()
            break


async def use_of_parent(producer: aio.Producer, consumer: aio.Consumer) -> None:
    try:
        await producer.publish(TOPIC, b"x")
    except Closed as error:
        say(error, len([message async for message in consumer]))
    await consumer.close()
    await producer.close()


def forked_aio() -> None:
    asyncio.run(forked_in_a_loop())


def patched() -> None:
    """While a greenlet is waiting, the others run."""
    kind = RUNTIME[0]
    ready = threading.Barrier(3)  # all three greenlets must reach the barrier

    def handle(message: object) -> None:
        ready.wait(10)

    consumer = Consumer(
        TOPIC, "c", ADDRESS, (), handle, concurrency=2, max_in_flight=2, runtime=kind
    )
    with consumer, Producer(ADDRESS, runtime=kind) as producer:
        say(producer.publish_nowait(TOPIC, b"1").result(10).decode())
        say(producer.publish(TOPIC, b"2").decode())
        ready.wait(10)
    say("ended", consumer.is_running)
    say(type(consumer._loop.runtime).__name__)


if __name__ == "__main__":
    globals()[PROGRAM]()
