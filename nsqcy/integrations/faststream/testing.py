"""Test broker: passes published messages to subscribers in memory, without an nsqd."""

import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast, overload
from unittest.mock import AsyncMock

from faststream._internal.testing.broker import EnterType, TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from nsqcy.client import AlreadyAnswered
from nsqcy.integrations.faststream.broker import NsqBroker
from nsqcy.integrations.faststream.config import valid_name
from nsqcy.integrations.faststream.producer import NsqProducer, Outgoing
from nsqcy.integrations.faststream.publisher import NsqTopicPublisher
from nsqcy.integrations.faststream.response import NsqPublishCommand
from nsqcy.integrations.faststream.subscriber import ChannelSubscriber, NsqBatchSubscriber

_ids = count(1)


class FakeMessage:
    """A message without an nsqd, with the interface of nsqcy.client.Message."""

    nsqd_address = "127.0.0.1:4150"
    attempts = 1

    def __init__(self, outgoing: Outgoing) -> None:
        self.body = outgoing.body
        self.headers = outgoing.headers or {}
        self.id = f"{next(_ids):016x}".encode()
        self.timestamp = time.time_ns()
        self._answered = False

    def _answer(self) -> None:
        if self._answered:
            raise AlreadyAnswered("the message has been answered")
        self._answered = True

    def finish(self) -> None:
        self._answer()

    def requeue(self, *args: Any, **kwargs: Any) -> None:
        self._answer()

    def touch(self) -> None:
        """Do nothing: there is no timeout."""

    def has_responded(self) -> bool:
        return self._answered


class _FakeProducer(NsqProducer):
    """Passes messages to the subscribers of their topics, one per channel."""

    def __init__(self, broker: NsqBroker, brokers: Sequence[NsqBroker]) -> None:
        config = broker.config.broker_config
        real: NsqProducer = config.producer
        super().__init__(
            broker._parser,
            broker._decoder,
            with_headers=real.with_headers,
            max_defer=real.max_defer,
        )
        self.connect(AsyncMock(), config.fd_config._serializer, config.broker_codec)
        self._brokers = brokers

    async def publish(self, cmd: NsqPublishCommand) -> None:
        message = FakeMessage(await self._outgoing(cmd, cmd.body))
        for subscriber in self._subscribers(cmd.destination):
            await self._pass([message], subscriber)

    async def publish_batch(self, cmd: NsqPublishCommand) -> None:
        messages = [FakeMessage(each) for each in await self._outgoing_batch(cmd)]
        for subscriber in self._subscribers(cmd.destination):
            await self._pass(messages, subscriber)

    async def request(self, cmd: NsqPublishCommand) -> FakeMessage:
        """Return the result of the first subscriber. Raises SubscriberNotFound."""
        message = FakeMessage(await self._outgoing(cmd, cmd.body))
        for subscriber in self._subscribers(cmd.destination):
            is_batch = isinstance(subscriber, NsqBatchSubscriber)
            result = await subscriber.process_message([message] if is_batch else message)
            command = NsqPublishCommand.from_cmd(result.as_publish_command())
            return FakeMessage(await self._outgoing(command, command.body))
        raise SubscriberNotFound

    async def _pass(self, messages: list[FakeMessage], subscriber: ChannelSubscriber) -> None:
        if isinstance(subscriber, NsqBatchSubscriber):
            await subscriber.process_message(messages)
            return
        for message in messages:
            await subscriber.process_message(message)

    def _subscribers(self, topic: str) -> Iterable[ChannelSubscriber]:
        topic = valid_name(topic)
        channels = set()
        for broker in self._brokers:
            for each in broker.subscribers:
                subscriber = cast(ChannelSubscriber, each)
                if subscriber.topic == topic and subscriber.channel not in channels:
                    channels.add(subscriber.channel)
                    yield subscriber


class TestNsqBroker(TestBroker[NsqBroker, EnterType], broker=NsqBroker):
    """Broker in memory for tests; with `with_real=True`, a real nsqd and FastStream's mocks."""

    @overload
    def __init__(
        self: "TestNsqBroker[NsqBroker]",
        broker: NsqBroker,
        /,
        *,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self: "TestNsqBroker[tuple[NsqBroker, ...]]",
        *brokers: NsqBroker,
        with_real: bool = False,
        connect_only: bool | None = None,
    ) -> None: ...

    def __init__(
        self, *brokers: NsqBroker, with_real: bool = False, connect_only: bool | None = None
    ) -> None:
        super().__init__(*brokers, with_real=with_real, connect_only=connect_only)

    def create_publisher_fake_subscriber(
        self, broker: NsqBroker, publisher: NsqTopicPublisher
    ) -> tuple[ChannelSubscriber, bool]:
        """Return the subscriber to a publisher's topic, and whether it is the program's own."""
        for each in (each for one in self.brokers for each in one.subscribers):
            subscriber = cast(ChannelSubscriber, each)
            if subscriber.topic == publisher.topic:
                return subscriber, True
        return broker.subscriber(publisher.topic, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: NsqBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, _FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: NsqBroker, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no connection."""
