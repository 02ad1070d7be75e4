"""Handling of messages in batches."""

import logging
from collections.abc import Callable
from typing import Any

import gevent
from gevent.pool import Pool

from nsqcy.client.common_interface import refuse_coroutine_functions
from nsqcy.compat.gnsq.consumer import Consumer
from nsqcy.compat.gnsq.errors import NSQException
from nsqcy.compat.gnsq.message import Message

__all__ = ["BatchHandler"]


class BatchHandler:
    """Collects up to `batch_size` messages and handles them in one greenlet. A batch is complete
    after `timeout` seconds, or when no more messages can arrive until some are answered. Override
    handle_message, handle_batch and handle_*_error, or pass them as arguments.

    A message whose handle_message fails is requeued and omitted; if handle_batch fails, all
    messages are requeued.
    """

    def __init__(
        self,
        batch_size: int,
        handle_batch: Callable[[list[Any]], object] | None = None,
        handle_message: Callable[[Message], Any] | None = None,
        handle_batch_error: Callable[..., object] | None = None,
        handle_message_error: Callable[..., object] | None = None,
        timeout: float = 10,
        spawn: int | Callable[..., object] = gevent.spawn,
    ) -> None:
        self.logger = logging.getLogger("gnsq.contrib.batch")
        self.batch_size = batch_size
        self.timeout = timeout
        self.spawn = Pool(spawn).spawn if isinstance(spawn, int) else spawn
        given = {
            "handle_batch": handle_batch,
            "handle_message": handle_message,
            "handle_batch_error": handle_batch_error,
            "handle_message_error": handle_message_error,
        }
        for name, function in given.items():
            if function is not None:
                setattr(self, name, function)
        refuse_coroutine_functions(**{name: getattr(self, name) for name in given})
        self._messages: list[Message] = []
        self._timer: Any = None

    def __call__(self, consumer: Consumer, message: Message) -> None:
        message.enable_async()
        self._messages.append(message)
        if len(self._messages) >= self.batch_size or consumer.is_starved:
            self._flush()
        elif self._timer is None:
            self._timer = gevent.spawn_later(self.timeout, self._flush)

    def handle_message(self, message: Message) -> Any:
        """Return the item that handle_batch receives for the message."""
        return message

    def handle_batch(self, messages: list[Any]) -> object:
        raise RuntimeError("handle_batch must be overridden")

    def handle_message_error(self, error: Exception, message: Message) -> object:
        """Do nothing; called before the message of a failed handle_message is requeued."""

    def handle_batch_error(
        self, error: Exception, messages: list[Message], batch: list[Any]
    ) -> object:
        """Do nothing; called before the messages of a failed handle_batch are requeued."""

    def run_batch(self, messages: list[Message]) -> None:
        try:
            self._handle_all(messages)
        except BaseException:  # including sys.exit(): nothing else would answer the messages
            self._answer_all(messages, Message.requeue)
            raise
        self._answer_all(messages, Message.finish)

    def _handle_all(self, messages: list[Message]) -> None:
        batch = []
        for message in messages:
            try:
                batch.append(self.handle_message(message))
            except Exception as error:
                self.logger.exception("caught exception while handling message")
                self.handle_message_error(error, message)
                self._answer(message, Message.requeue)
        if batch:
            try:
                self.handle_batch(batch)
            except Exception as error:
                self.logger.exception("caught exception while handling batch")
                self.handle_batch_error(error, messages, batch)
                self._answer_all(messages, Message.requeue)

    def _flush(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer is not gevent.getcurrent():
            timer.kill(block=False)
        messages, self._messages = self._messages, []
        if messages:
            self.spawn(self.run_batch, messages)

    def _answer_all(self, messages: list[Message], answer: Callable[[Message], None]) -> None:
        for message in messages:
            self._answer(message, answer)

    def _answer(self, message: Message, answer: Callable[[Message], None]) -> None:
        if message.has_responded():
            return
        try:
            answer(message)
        except NSQException as error:
            self.logger.warning("error answering message (%r)", error)
