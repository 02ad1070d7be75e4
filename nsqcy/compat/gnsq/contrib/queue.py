"""Messages in a queue; the code that takes them answers them."""

import gevent.queue

from nsqcy.compat.gnsq.consumer import Consumer
from nsqcy.compat.gnsq.message import Message

__all__ = ["ChannelHandler", "QueueHandler"]


class QueueHandler(gevent.queue.Queue):  # type: ignore[misc]
    """A queue of messages; `maxsize` may bound it."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self.put(message)


class ChannelHandler(gevent.queue.Channel):  # type: ignore[misc]
    """A queue that accepts the next message only when the previous one has been taken."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self.put(message)
