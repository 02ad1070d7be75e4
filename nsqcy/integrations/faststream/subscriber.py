"""Subscribers of FastStream: consumers of one channel."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any

from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.utils import process_msg
from faststream.message import StreamMessage

from nsqcy.client import Message
from nsqcy.client.aio import Consumer
from nsqcy.client.user_code import log
from nsqcy.integrations.delays import remaining
from nsqcy.integrations.faststream.config import (
    Connections,
    NsqBrokerConfig,
    NsqSubscriberConfig,
    valid_name,
)
from nsqcy.integrations.faststream.message import (
    decode,
    decode_batch,
    delay_of,
    parse_batch,
    parse_message,
)
from nsqcy.integrations.faststream.publisher import NsqReplyPublisher
from nsqcy.integrations.unanswered import Unanswered

START_LIMIT = 5.0  # maximum seconds to wait for subscriptions; slower nsqds follow later
CLOSE_TIMEOUT = 1.0  # seconds; graceful_timeout has already passed


class ChannelSubscriber(SubscriberUsecase[Any]):
    """Subscriber to a channel: manages the consumer's lifecycle, and touches its messages."""

    _outer_config: NsqBrokerConfig

    def __init__(
        self,
        config: NsqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        super().__init__(config, specification, calls)
        self._config = config
        self._consumer: Consumer | None = None
        self._unanswered: Unanswered | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def topic(self) -> str:
        return valid_name(f"{self._outer_config.prefix}{self._config.topic}")

    @property
    def channel(self) -> str:
        return valid_name(self._config.channel)

    async def start(self) -> None:
        """Start consuming, if there are handlers."""
        if self._consumer is not None and self._consumer.is_running:
            return
        self._consumer = None
        await super().start()
        self._post_start()
        if self.calls:
            await self._consume_with_handlers()

    async def stop(self) -> None:
        """Wait for running handlers, and release the other messages to other consumers."""
        if self._consumer is not None:
            self._consumer.pause()  # nsqd would redeliver the requeued messages to this subscriber
        await super().stop()
        if self._unanswered is not None:
            self._unanswered.requeue_all()
        if self._consumer is not None:
            await self._consumer.close()
        tasks = set(self._tasks) - {asyncio.current_task()}  # a handler may stop its subscriber
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task

    @abstractmethod
    async def _consume_with_handlers(self) -> None:
        """Create the consumer, and pass its messages to the handlers."""

    @property
    def _connections(self) -> Connections:
        connections: Connections = self._outer_config.connections  # type: ignore[assignment]
        return connections

    def _takes(self, message: Message) -> bool:
        """Return whether to process a message now; otherwise, requeue it. nsqd redelivers a message
        whose connection was lost while it waited."""
        delay = remaining(message, delay_of(message), self._connections.max_defer)
        if self.running and not delay and not message.is_lost():
            assert self._unanswered is not None
            self._unanswered.add(message)
            return True
        message.requeue(delay, backoff=False)
        return False

    async def _start_consumer(self, max_in_flight: int, handler: Any = None) -> Consumer:
        connections = self._connections
        self._unanswered = Unanswered(connections.msg_timeout)
        attempts = asyncio.Semaphore(0)
        self._consumer = Consumer(
            self.topic,
            self.channel,
            connections.nsqds,
            connections.lookupds,
            handler,
            concurrency=self._config.max_workers if handler else None,
            max_in_flight=max_in_flight,
            max_tries=0,
            msg_timeout=connections.msg_timeout,
            close_timeout=CLOSE_TIMEOUT,
            on_ready=lambda connection: attempts.release(),
            on_error=lambda error: attempts.release(),
            **connections.consumer_options,
        )
        await self._consumer.start()
        # From this point on, the channel receives the messages that the program publishes.
        with suppress(TimeoutError):
            async with asyncio.timeout(START_LIMIT):
                for _ in connections.nsqds:
                    await attempts.acquire()
        self._tasks.append(asyncio.create_task(self._unanswered.touch_until_cancelled()))
        return self._consumer

    async def _fetching_consumer(self) -> Consumer:
        """Return a consumer for get_one() and iteration."""
        assert not self.calls, "a subscriber with handlers passes all messages to them"
        if not self.running:
            await self.start()
        return self._consumer or await self._start_consumer(max_in_flight=1)

    async def get_one(self, *, timeout: float = 5.0) -> Any:
        """Return the next message, or None after `timeout` seconds."""
        consumer = await self._fetching_consumer()
        try:
            async with asyncio.timeout(timeout):
                while not self._takes(message := await anext(aiter(consumer))):
                    pass
        except TimeoutError:
            return None
        return await self._processed(message)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in await self._fetching_consumer():
            if self._takes(message):
                yield await self._processed(message)

    async def _processed(self, message: Message) -> Any:
        context = self._outer_config.context
        parser, decoder = self._get_parser_and_decoder()
        raw = self._as_raw(message)
        middlewares = (each(raw, context=context) for each in self._broker_middlewares)
        return await process_msg(msg=raw, middlewares=middlewares, parser=parser, decoder=decoder)

    @abstractmethod
    def _as_raw(self, message: Message) -> Any:
        """Return a message in the form that the parser expects."""

    def _make_response_publisher(self, message: StreamMessage[Any]) -> Iterable[NsqReplyPublisher]:
        return (NsqReplyPublisher(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: StreamMessage[Any] | None) -> dict[str, str]:
        return {
            "topic": self.topic,
            "channel": self.channel,
            "message_id": getattr(message, "message_id", ""),
        }


class NsqSubscriber(ChannelSubscriber):
    """Subscriber whose handlers get one message at a time."""

    def __init__(
        self,
        config: NsqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
    ) -> None:
        config.parser, config.decoder = parse_message, decode
        super().__init__(config, specification, calls)

    async def _consume_with_handlers(self) -> None:
        await self._start_consumer(self._config.max_in_flight, self._handle)

    async def _handle(self, message: Message) -> None:
        assert self._unanswered is not None
        message.enable_async()
        if self._takes(message):
            await self.consume(message)
            self._unanswered.forget_answered([message])

    def _as_raw(self, message: Message) -> Message:
        return message


class NsqBatchSubscriber(ChannelSubscriber):
    """Subscriber whose handlers get a list of messages."""

    def __init__(
        self,
        config: NsqSubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Any],
        *,
        within: float,
    ) -> None:
        config.parser, config.decoder = parse_batch, decode_batch
        super().__init__(config, specification, calls)
        self._within = within

    async def _consume_with_handlers(self) -> None:
        consumer = await self._start_consumer(self._config.max_in_flight)
        self._tasks.append(asyncio.create_task(self._consume_batches(consumer)))

    async def _consume_batches(self, consumer: Consumer) -> None:
        assert self._unanswered is not None
        async for batch in consumer.batches(self._config.max_in_flight, within=self._within):
            if taken := [message for message in batch if self._takes(message)]:
                await self._consume_batch(taken)
                self._unanswered.forget_answered(taken)

    async def _consume_batch(self, batch: list[Message]) -> None:
        """Pass a batch to the handlers. The next batch follows even if they raise."""
        assert self._unanswered is not None
        try:
            await self.consume(batch)
        except BaseException as error:
            for message in batch:
                self._unanswered.requeue(message)
            task = asyncio.current_task()
            if isinstance(error, KeyboardInterrupt | GeneratorExit) or (task and task.cancelling()):
                raise
            log.error("a batch of %s failed", self.topic, exc_info=error)

    def _as_raw(self, message: Message) -> Sequence[Message]:
        return [message]
