"""pynsq's Reader on top of the asyncio client."""

import asyncio
import concurrent.futures
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from nsqcy import client
from nsqcy.client.aio import Consumer
from nsqcy.client.connection import Connection
from nsqcy.compat.pynsq.conn import AsyncConn, addresses, connected, connection_options
from nsqcy.compat.pynsq.loop import begin, current_loop, spawn
from nsqcy.compat.pynsq.message import Message

log = logging.getLogger("nsqcy.compat.pynsq")

DEFAULTS: dict[str, Any] = {"requeue_delay": 90.0, "requeue_strategy": "linear"}  # pynsq's


class Reader:
    """Consumes once the loop is running. `message_handler(message)` returns True to finish, False
    to requeue, or an awaitable of either; None finishes. An exception requeues."""

    def __init__(
        self,
        topic: str,
        channel: str,
        message_handler: Callable[[Message], Any] | None = None,
        name: str | None = None,
        nsqd_tcp_addresses: str | Iterable[str] | None = None,
        lookupd_http_addresses: str | Iterable[str] | None = None,
        max_tries: int = 5,
        max_in_flight: int = 1,
        lookupd_poll_interval: float = 60,
        low_rdy_idle_timeout: float = 10,
        max_backoff_duration: float = 128,
        lookupd_poll_jitter: float = 0.3,
        lookupd_connect_timeout: float = 1,
        lookupd_request_timeout: float = 2,
        **kwargs: Any,
    ) -> None:
        self.topic = topic
        self.channel = channel
        self.name = name or f"{topic}:{channel}"
        self.max_tries = max_tries
        self.message_handler: Callable[[Message], Any] | None = None
        if message_handler is not None:
            self.set_message_handler(message_handler)
        self._consumer = Consumer(
            topic,
            channel,
            addresses(nsqd_tcp_addresses),
            addresses(lookupd_http_addresses),
            self._handle,
            name=self.name,
            on_heartbeat=self._heartbeat,
            max_tries=0,
            max_in_flight=max_in_flight,
            lookupd_poll_interval=lookupd_poll_interval,
            low_rdy_idle_timeout=low_rdy_idle_timeout,
            max_backoff_duration=max_backoff_duration,
            lookupd_poll_jitter=lookupd_poll_jitter,
            lookupd_connect_timeout=lookupd_connect_timeout,
            lookupd_request_timeout=lookupd_request_timeout,
            **DEFAULTS | connection_options(kwargs),
        )
        self.io_loop = current_loop()
        begin(self.io_loop, self._consumer, self._check)

    def _check(self) -> None:
        assert self.message_handler, "you must specify the Reader's message_handler"

    # -- control

    def close(self) -> None:
        """Close the reader. Messages in flight may still be answered for a while."""
        spawn(self.io_loop, self._consumer.close())

    def set_message_handler(self, message_handler: Callable[[Message], Any]) -> None:
        assert callable(message_handler), "message_handler must be callable"
        self.message_handler = message_handler

    def is_starved(self) -> bool:
        """Return whether collected messages should be answered now."""
        return self._consumer.is_starved

    def set_max_in_flight(self, max_in_flight: int) -> None:
        """0 pauses."""
        assert isinstance(max_in_flight, int)
        self._consumer.set_max_in_flight(max_in_flight)

    def connect_to_nsqd(self, host: str, port: int) -> None:
        self._consumer.connect_to_nsqd(host, port)

    def query_lookupd(self) -> None:
        self._consumer.query_lookupd()

    @property
    def max_in_flight(self) -> int:
        return self._consumer.max_in_flight

    @property
    def total_rdy(self) -> int:
        return self._consumer.total_ready_count

    @property
    def conns(self) -> dict[str, AsyncConn]:
        """The current connections, by address."""
        return connected(self._consumer.connections.values())

    # -- for subclasses to override

    def process_message(self, message: Message) -> Any:
        assert self.message_handler is not None
        return self.message_handler(message)

    def preprocess_message(self, message: Message) -> Message:
        return message

    def validate_message(self, message: Message) -> bool:
        return True

    def giving_up(self, message: Message) -> Awaitable[None] | None:
        """Handle a message that has had too many attempts. It is finished if this method returns,
        and requeued if it raises."""
        log.warning(
            "[%s] giving up on message %r after %d tries (max:%d)",
            self.name,
            message.id,
            message.attempts,
            self.max_tries,
        )
        return None

    def heartbeat(self, conn: AsyncConn) -> None:
        """Handle a heartbeat from nsqd, which has already been answered."""

    # -- messages

    def _heartbeat(self, connection: Connection) -> None:
        self.heartbeat(AsyncConn(connection))

    def _handle(self, delivered: client.Message) -> None:
        delivered.enable_async()  # the handler's result is applied here
        message = Message.of(delivered)
        try:
            result = self._process(message)
        except Exception:
            log.exception("[%s] the handler failed for message %r", self.name, message.id)
            result = False
        if isinstance(result, concurrent.futures.Future):
            result = asyncio.wrap_future(result)
        if inspect.isawaitable(result):
            message.enable_async()
            spawn(self.io_loop, self._await(message, result))
        elif not message.is_async():
            self._answer(message, result is None or bool(result))

    def _process(self, message: Message) -> Any:
        if 0 < self.max_tries < message.attempts:
            result: Any = self.giving_up(message)
            return self._given_up(result) if inspect.isawaitable(result) else True
        prepared = self.preprocess_message(message)
        return self.process_message(message) if self.validate_message(prepared) else True

    async def _given_up(self, result: Awaitable[object]) -> bool:
        await result
        return True

    async def _await(self, message: Message, result: Any) -> None:
        good = False
        try:
            good = bool(await result)
        except Exception:
            log.exception("[%s] the handler failed for message %r", self.name, message.id)
        finally:  # any exception: nothing else would answer the message
            self._answer(message, good)

    def _answer(self, message: Message, good: bool) -> None:
        if message.has_responded():
            return
        if good:
            message.finish()
        else:
            message.requeue()
