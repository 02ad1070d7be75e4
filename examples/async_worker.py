"""A worker on asyncio that handles up to 20 messages at a time.

    nsqcy up                      # in another terminal
    python examples/async_worker.py

SIGTERM or Ctrl-C stops the worker once it has finished the messages that it is working on.
"""

import asyncio
import os
import signal

from nsqcy.aio import Consumer, Message, Requeue

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")


async def resize(message: Message) -> None:
    """Handle one picture. Returning finishes the message."""
    if message.body == b"busy" and message.attempts == 1:
        raise Requeue(delay=0.5, backoff=False)  # retry it later; continue with others
    await asyncio.sleep(0.01)  # the work
    print(f"{message.body.decode()}: resized, attempt {message.attempts}", flush=True)


async def main() -> None:
    consumer = Consumer("pictures", "resize", TCP, message_handler=resize, concurrency=20)
    running = asyncio.create_task(consumer.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        print("stopped", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
