"""Messages in a queue, to be answered by whoever takes them."""

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
    """A queue that hands over each message before the next is taken from nsqd's."""

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self.put(message)
