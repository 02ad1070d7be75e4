"""Unacknowledged messages of a kombu channel, and how they are answered. The channel sends the
answers."""

from typing import Any

from kombu.transport import virtual

from nsqcy.client import Message
from nsqcy.integrations.kombu.rejected import ERROR_HEADER


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel. nsqd keeps them until they are answered."""

    restore_at_shutdown = False

    def __init__(self, channel: Any, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._messages: dict[str, Any] = {}

    def can_consume(self) -> bool:
        """Return True: nsqd enforces the prefetch count, as RDY."""
        return True

    @property
    def is_full(self) -> bool:
        """Return whether the program has reached its prefetch count."""
        return 0 < self.prefetch_count <= len(self._messages)

    def append(self, message: Any, delivery_tag: str) -> None:
        self._messages[delivery_tag] = message

    def get(self, delivery_tag: str) -> Any:
        return self._messages[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        self._messages.pop(delivery_tag, None)
        self.channel.answer(delivery_tag, Message.finish)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        message = self._messages.pop(delivery_tag, None)
        if requeue:
            self.channel.answer(delivery_tag, requeue_now)
            return
        try:
            if message is not None:
                self.channel.keep_rejected(delivery_tag, message.headers.get(ERROR_HEADER))
        except BaseException:
            self.channel.answer(delivery_tag, Message.requeue)
            raise
        self.channel.answer(delivery_tag, Message.finish)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        for tag in list(self._messages):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()


def requeue_now(message: Message) -> None:
    message.requeue(0, backoff=False)
