"""A worker on asyncio with retries, dead letters and a graceful shutdown.

    nsqcy up                      # in another terminal
    python examples/async_worker.py
    nsqcy pub pictures cat broken dog

The worker handles up to 20 pictures at a time. nsqd moves a picture that fails three times to the
pictures-dead topic. SIGTERM or Ctrl-C stops the worker once it has finished the pictures that it is
working on.
"""

import asyncio
import logging
import os
import signal

from nsqcy.aio import Consumer, Message, NsqdAdmin, Requeue

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


async def configure_nsqd() -> None:
    """Set the policies, and create a second channel that keeps the dead letters."""
    admin = NsqdAdmin(HTTP)
    for topic in ("pictures", "pictures-dead"):
        await admin.topic_policy(topic, durability="os")  # messages survive `kill -9` of nsqd
    await admin.create_channel("pictures-dead", "inspect")
    await admin.channel_policy(
        "pictures", "resize", max_attempts=3, dead_letter_topic="pictures-dead"
    )


async def resize(message: Message) -> None:
    """Handle one picture. Returning finishes the message; raising an exception requeues it."""
    if message.body == b"broken":
        raise ValueError("not a picture")
    if message.body == b"busy" and message.attempts == 1:
        raise Requeue(delay=0.5)  # retry it in half a second
    await asyncio.sleep(0.01)  # the work
    print(f"{message.body.decode()}: resized, attempt {message.attempts}", flush=True)


async def main() -> None:
    logging.basicConfig(level=logging.INFO)
    await configure_nsqd()
    consumer = Consumer(
        "pictures",
        "resize",
        TCP,
        message_handler=resize,
        concurrency=20,
        requeue_delay=0.2,  # seconds, doubled for each further attempt
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with consumer:  # starts the consumer, and closes it after the block
        await stop.wait()
    print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
