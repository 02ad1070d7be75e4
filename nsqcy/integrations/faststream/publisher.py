"""Publishers of FastStream."""

import asyncio
from collections.abc import Iterable
from typing import Any

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from nsqcy.integrations.faststream.config import NsqBrokerConfig, NsqPublisherConfig, valid_name
from nsqcy.integrations.faststream.response import NsqPublishCommand


class NsqTopicPublisher(PublisherUsecase):
    """Publisher to one topic; also decorates handlers, whose results it publishes."""

    _outer_config: NsqBrokerConfig

    def __init__(
        self, config: NsqPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._config = config

    @property
    def topic(self) -> str:
        return valid_name(f"{self._outer_config.prefix}{self._config.topic}")

    async def publish(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        delay: float | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Publish a message; return once nsqd has confirmed it. See NsqBroker.publish()."""
        command = NsqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=self._config.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to or self._config.reply_to,
            delay=self._config.delay if delay is None else delay,
            key=key,
            dedup_id=dedup_id,
            priority=self._config.priority if priority is None else priority,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )

    async def publish_batch(
        self,
        *messages: Any,
        topic: str = "",
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> None:
        """Publish all messages, or none."""
        command = NsqPublishCommand(
            *(messages or (None,)),
            topic=topic or self.topic,
            headers=self._config.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            key=key,
            priority=self._config.priority if priority is None else priority,
            _publish_type=PublishType.PUBLISH,
        )
        await self._basic_publish_batch(
            command, producer=self._outer_config.producer, _extra_middlewares=()
        )

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publish a handler's result."""
        command = NsqPublishCommand.from_cmd(cmd, batch=self._config.batch)
        command.destination = self.topic
        command.reply_to = command.reply_to or self._config.reply_to
        command.add_headers(self._config.headers, override=False)
        if command.delay is None:
            command.delay = self._config.delay
        if command.priority is None:
            command.priority = self._config.priority
        publish = self._basic_publish_batch if self._config.batch else self._basic_publish
        await publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )

    async def request(
        self,
        message: Any,
        topic: str = "",
        *,
        headers: dict[str, str] | None = None,
        correlation_id: str | None = None,
        timeout: float = 0.5,
    ) -> Any:
        """Return the handler's result; for tests. See NsqBroker.request()."""
        command = NsqPublishCommand(
            message,
            topic=topic or self.topic,
            headers=self._config.headers | (headers or {}),
            correlation_id=correlation_id or self._outer_config.id_generator(),
            _publish_type=PublishType.REQUEST,
        )
        async with asyncio.timeout(timeout):
            return await self._basic_request(command, producer=self._outer_config.producer)


class NsqReplyPublisher(FakePublisher):
    """Publishes a handler's result to the topic in the message's reply_to."""

    def __init__(self, producer: Any, topic: str) -> None:
        super().__init__(producer=producer)
        self._topic = topic

    def patch_command(self, cmd: PublishCommand) -> NsqPublishCommand:
        command = NsqPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._topic
        return command
