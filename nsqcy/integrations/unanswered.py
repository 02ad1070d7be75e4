"""Messages that a framework has received and not answered yet.

nsqd redelivers a message that is neither answered nor touched within its timeout. These messages
are touched while the process is alive, so a task may take longer, and may wait in a queue before it
begins.
"""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress

from nsqcy.client import AlreadyAnswered, Message

TOUCHES = 3  # per message timeout


class Unanswered:
    """Set of messages to touch. Thread-safe."""

    def __init__(self, msg_timeout: float) -> None:
        """msg_timeout: seconds until nsqd redelivers a message."""
        self._messages: set[Message] = set()
        self._interval = msg_timeout / TOUCHES
        self._closing = threading.Event()

    def add(self, message: Message) -> None:
        self._messages.add(message)

    def forget_answered(self, messages: Iterable[Message]) -> None:
        """Remove those of the messages that have been answered elsewhere."""
        self._messages.difference_update([each for each in messages if each.has_responded()])

    def finish(self, message: Message) -> None:
        """Finish a message, unless it has been answered."""
        self._messages.discard(message)
        with suppress(AlreadyAnswered):
            message.finish()

    def requeue(self, message: Message, delay: float = 0.0) -> None:
        """Requeue a message for redelivery after `delay` seconds, unless it has been answered."""
        self._messages.discard(message)
        with suppress(AlreadyAnswered):
            message.requeue(delay, backoff=False)

    def requeue_all(self) -> None:
        """Let other consumers have the messages now."""
        for message in list(self._messages):
            self.requeue(message)

    def touch_all(self) -> None:
        """Restart the timeouts of the messages."""
        for message in list(self._messages):
            try:
                message.touch()
            except AlreadyAnswered:
                self._messages.discard(message)

    async def touch_until_cancelled(self) -> None:
        """Touch the messages regularly, in an event loop."""
        while True:
            await asyncio.sleep(self._interval)
            self.touch_all()

    def start_thread(self) -> None:
        """Touch the messages regularly, in a thread, until close()."""
        threading.Thread(target=self._touch_until_closed, name="nsqcy touch", daemon=True).start()

    def _touch_until_closed(self) -> None:
        while not self._closing.wait(self._interval):
            self.touch_all()

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
