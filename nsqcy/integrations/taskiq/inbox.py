"""The messages that a worker process has received, and the answers to them.

A message is touched until it is finished, even while its task is waiting or running. It is requeued
if taskiq drops it without an acknowledgement, or if the process ends first.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

from taskiq import AckableMessage

from nsqcy.client import Message
from nsqcy.client.aio import Consumer
from nsqcy.integrations.unanswered import Unanswered

Handler = Callable[[Message], None]

WAKE_INTERVAL = 0.2  # maximum seconds until taskiq notices a signal


class Inbox:
    """Messages of one or more queues.

    - consumers: one for each queue; each must call the handler with which it is created
    - delay: returns the seconds until a message is due
    - msg_timeout: seconds until nsqd redelivers a message
    """

    def __init__(
        self,
        consumers: Iterable[Callable[[Handler], Consumer]],
        delay: Callable[[Message], float],
        msg_timeout: float,
    ) -> None:
        self._delay = delay
        self._msg_timeout = msg_timeout
        self._consumers = [create(self._receive) for create in consumers]
        self._waiting: asyncio.Queue[Message] = asyncio.Queue()
        self._unanswered = Unanswered(msg_timeout)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopped = False

    async def messages(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages that are due, until the generator is closed."""
        for work in (self._unanswered.touch_until_cancelled(), self._wake_until_cancelled()):
            self._tasks.append(asyncio.create_task(work))
        try:
            for consumer in self._consumers:
                await consumer.start()
            while True:
                message = await self._waiting.get()
                if message.is_lost():  # nsqd redelivers it
                    self._unanswered.requeue(message)
                    continue
                yield Delivery(data=message.body, ack=Answer(self, message))
        finally:
            self._stop()

    async def _wake_until_cancelled(self) -> None:
        """Wake the event loop regularly: taskiq's handler of SIGTERM does not."""
        while True:
            await asyncio.sleep(WAKE_INTERVAL)

    def _receive(self, message: Message) -> None:
        message.enable_async()
        if self._stopped:
            self._unanswered.requeue(message)
        elif (delay := self._delay(message)) > 0:
            self._unanswered.requeue(message, delay)
        else:
            self._unanswered.add(message)
            self._waiting.put_nowait(message)

    def finish(self, message: Message) -> None:
        self._unanswered.finish(message)

    def drop(self, message: Message) -> None:
        """Requeue a message, as if it had timed out."""
        self._unanswered.requeue(message, 0.0 if self._stopped else self._msg_timeout)

    def _stop(self) -> None:
        """Stop receiving messages, and release waiting ones to other workers."""
        self._stopped = True
        for consumer in self._consumers:
            if consumer.is_running:
                consumer.pause()  # otherwise, nsqd would redeliver the messages to this process
        while not self._waiting.empty():
            self._unanswered.requeue(self._waiting.get_nowait())

    async def close(self) -> None:
        """Release the unanswered messages to other workers, and close the connections."""
        self._stop()
        self._unanswered.requeue_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for consumer in self._consumers:
            await consumer.close()


class Answer:
    """Callable with which taskiq acknowledges a message; finishes the message."""

    __slots__ = ("_inbox", "_message")

    def __init__(self, inbox: Inbox, message: Message) -> None:
        self._inbox = inbox
        self._message = message

    def __call__(self) -> None:
        self._inbox.finish(self._message)

    def demand(self) -> None:
        """Drop the message if the current asyncio task ends without calling this object."""
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(self._ended)

    def _ended(self, _: asyncio.Task[Any]) -> None:
        self._inbox.drop(self._message)


class Delivery(AckableMessage):
    """A message for taskiq, which reads `ack` when it begins to process the message.

    taskiq drops a message silently if a middleware fails, or if a task with manual acknowledgement
    does not acknowledge. Such a message would otherwise be touched until the process ends.
    """

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "ack":
            found.demand()
        return found
