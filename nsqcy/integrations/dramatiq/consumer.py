"""The messages of one queue: receiving them for a worker, and answering them."""

import dataclasses
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from dramatiq import DecodeError, MessageProxy
from dramatiq import Message as Task
from dramatiq.broker import Consumer as DramatiqConsumer
from dramatiq.errors import BrokerError, ConnectionClosed
from dramatiq.logging import get_logger

from nsqcy.client import Consumer, Message
from nsqcy.integrations.delays import EARLY
from nsqcy.integrations.unanswered import Unanswered

ETA = "eta"  # option of a message: milliseconds since 1970, as in Dramatiq's other brokers
AGAIN = 5.0  # seconds until a message is processed again because nsqd refused a follow-up message


class NsqMessage(MessageProxy):
    """A task with the nsqd message that contained it."""

    def __init__(self, task: "Task[Any]", received: Message) -> None:
        super().__init__(task)
        self.received = received
        self.is_incomplete = False  # whether a follow-up message was not published


class NsqConsumer(DramatiqConsumer):
    """Iterator over the messages of a queue, for a thread of a Dramatiq worker."""

    def __init__(
        self,
        queue_name: str,
        consumer: Consumer,
        unanswered: Unanswered,
        bury: Callable[[bytes], None],
        *,
        timeout: float,
        max_defer: float,
    ) -> None:
        """bury: publishes the body of a failed message; raises BrokerError. timeout: seconds to
        wait for a message. max_defer: nsqd's limit for deferred messages, in seconds."""
        self.logger = get_logger(__name__, type(self))
        self._queue_name = queue_name
        self._consumer = consumer
        self._unanswered = unanswered
        self._bury = bury
        self._timeout = timeout
        self._max_defer = max_defer

    def __next__(self) -> NsqMessage | None:
        received = self._consumer.get(self._timeout)
        if received is None or received.is_lost():
            return None
        self._unanswered.add(received)
        task = self._decoded(received.body)
        if task is None:
            self._reject(received)
        elif (left := seconds_left(task)) > 0:
            self._unanswered.requeue(received, min(left, self._max_defer))
        else:
            return NsqMessage(self._due(task), received)
        return None

    def _decoded(self, body: bytes) -> "Task[Any] | None":
        try:
            task: Task[Any] = Task.decode(body)
        except DecodeError as error:
            self.logger.error("Failed to decode a message on queue %r: %r", self._queue_name, error)
            return None
        if isinstance(task.actor_name, str) and isinstance(task.options, dict):
            return task
        self.logger.error("Received a malformed message on queue %r.", self._queue_name)
        return None

    def _reject(self, received: Message) -> None:
        try:
            self._bury(received.body)
        except BrokerError as error:
            self.logger.warning("Failed to publish a dead letter: %s", error)
            self._unanswered.requeue(received, AGAIN)
        else:
            self._unanswered.finish(received)

    def _due(self, task: "Task[Any]") -> "Task[Any]":
        """Return a task for the worker: without an ETA, because the worker would delay the task in
        its memory; with the queue's name, by which the worker finds the consumer."""
        options = task.options
        if _has_eta(task):
            options = {name: value for name, value in options.items() if name != ETA}
        return dataclasses.replace(task, queue_name=self._queue_name, options=options)

    def ack(self, message: MessageProxy) -> None:
        """Finish a message."""
        if self._is_answerable(message, "ack"):
            self._unanswered.finish(message.received)

    def nack(self, message: MessageProxy) -> None:
        """Publish a message to the dead-letter queue, then finish it.

        Raises ConnectionClosed if that fails; the worker tries again.
        """
        if self._is_answerable(message, "nack"):
            try:
                self._bury(_body(message))
            except BrokerError as error:
                raise ConnectionClosed(error) from None
            self._unanswered.finish(message.received)

    def _is_answerable(self, message: MessageProxy, how: str) -> TypeGuard[NsqMessage]:
        """Return whether to answer a message. It is processed again if a follow-up message,
        for example its retry, was not published."""
        if not isinstance(message, NsqMessage):
            self.logger.warning("Failed to %s message: it was not received from nsqd.", how)
            return False
        if message.is_incomplete:
            self.logger.warning(
                "Processing message %r again in %g seconds: a follow-up message could not "
                "be published.",
                message.message_id,
                AGAIN,
            )
            self._unanswered.requeue(message.received, AGAIN)
            return False
        return True

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Release unprocessed messages to other workers."""
        for message in messages:
            if isinstance(message, NsqMessage):
                self._unanswered.requeue(message.received)

    def close(self) -> None:
        """Stop receiving. A paused worker may answer its remaining messages later."""
        self._consumer.close(wait=False)


def seconds_left(task: "Task[Any]") -> float:
    """Return the seconds until a task is due; 0 if it is, or if its ETA is invalid."""
    left = task.options[ETA] / 1000 - time.time() if _has_eta(task) else 0.0
    return left if left > EARLY else 0.0


def _has_eta(task: "Task[Any]") -> bool:
    return isinstance(task.options.get(ETA), int | float)


def _body(message: NsqMessage) -> bytes:
    """Return the body of a dead letter, with the options that describe its failure."""
    try:
        return bytes(message.encode())
    except Exception:  # middleware may have set an option that the encoder does not support
        return message.received.body
