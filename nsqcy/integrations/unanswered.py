"""Messages that a framework has received and not answered yet.

nsqd redelivers a message that is neither answered nor touched within its timeout. These messages
are touched while the process is alive, so a task may take longer, and may wait in a queue before it
begins.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from nsqcy.client import AlreadyAnswered, Message
from nsqcy.client.user_code import log

TOUCHES = 3  # per message timeout


class Unanswered:
    """Set of messages to touch. Thread-safe."""

    def __init__(self, msg_timeout: float) -> None:
        """msg_timeout: seconds until nsqd redelivers a message."""
        self._messages: set[Message] = set()
        self._interval = msg_timeout / TOUCHES
        self._lock = threading.Lock()
        self._closing: threading.Event | None = None  # ends the thread

    def add(self, message: Message) -> None:
        self._messages.add(message)

    def forget_answered(self, messages: Iterable[Message]) -> None:
        """Remove the messages that have been answered elsewhere."""
        self._messages.difference_update([each for each in messages if each.has_responded()])

    def answer(self, message: Message, how: Callable[[Message], None]) -> None:
        """Finish or requeue a message, unless it has been answered. If an exception interrupts
        this, the message is still touched."""
        with suppress(AlreadyAnswered):
            how(message)
        self._messages.discard(message)

    def finish(self, message: Message) -> None:
        """Finish a message, unless it has been answered."""
        self.answer(message, lambda each: each.finish())

    def requeue(self, message: Message, delay: float = 0.0) -> None:
        """Requeue a message for redelivery after `delay` seconds, unless it has been answered."""
        self.answer(message, lambda each: each.requeue(delay, backoff=False))

    def requeue_all(self) -> None:
        """Release the messages to other consumers now."""
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
        """Touch the messages regularly, in a thread, until close(). May be called repeatedly: if no
        thread can start, the next call retries."""
        if self._closing is not None:
            return
        with self._lock:
            if self._closing is None:
                closing = threading.Event()
                thread = threading.Thread(
                    target=self._touch_until, args=(closing,), name="nsqcy touch", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError as error:
                    log.warning("failed to touch messages: %s", error)
                else:
                    self._closing = closing

    def _touch_until(self, closing: threading.Event) -> None:
        while not closing.wait(self._interval):
            self.touch_all()

    def close(self) -> None:
        """Stop the thread, if there is one."""
        with self._lock:
            closing, self._closing = self._closing, None
        if closing is not None:
            closing.set()
