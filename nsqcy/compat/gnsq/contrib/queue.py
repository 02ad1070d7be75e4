"""Messages in a queue; the code that takes a message answers it."""

import gevent.queue

from nsqcy.compat.gnsq.consumer import Consumer
from nsqcy.compat.gnsq.message import Message

__all__ = ["ChannelHandler", "QueueHandler"]


class QueueHandler(gevent.queue.Queue):  # type: ignore[misc]
    """A queue of messages, optionally bounded by `maxsize`."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self.put(message)


class ChannelHandler(gevent.queue.Channel):  # type: ignore[misc]
    """A queue that accepts the next message only after the previous one has been taken."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self.put(message)
