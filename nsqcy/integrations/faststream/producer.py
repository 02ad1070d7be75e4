"""Publishing for FastStream."""

import json
from dataclasses import dataclass
from typing import Any

from faststream._internal.constants import ContentTypes
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState

from nsqcy.client.aio import Producer
from nsqcy.integrations.delays import milliseconds
from nsqcy.integrations.faststream.config import valid_name
from nsqcy.integrations.faststream.message import CONTENT_TYPE, DELAY, decode, parse_message
from nsqcy.integrations.faststream.response import NsqPublishCommand


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message as the client sends it; no headers if nsqd has none."""

    body: bytes
    headers: dict[str, str] | None


class NsqProducer(ProducerProto[NsqPublishCommand]):
    """FastStream's side of a producer of nsqcy.client.aio."""

    def __init__(
        self,
        parser: Any,
        decoder: Any,
        *,
        with_headers: bool,
        max_defer: float,
    ) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self.with_headers = with_headers
        self.max_defer = max_defer
        self._producer: Producer | None = None

    def connect(self, producer: Producer, serializer: Any, codec: Any) -> None:
        """Publish through a producer, which the caller closes."""
        self._producer = producer
        self._serializer = serializer
        self.codec = codec or DefaultCodec()

    def disconnect(self) -> None:
        self._producer = None

    @property
    def _connected(self) -> Producer:
        if self._producer is None:
            raise IncorrectState("the broker is not connected: call `await broker.connect()` first")
        return self._producer

    async def publish(self, cmd: NsqPublishCommand) -> None:
        """Publish a message; return once nsqd has confirmed it. Raises the client's errors."""
        outgoing = await self._outgoing(cmd, cmd.body)
        await self._connected.publish(
            valid_name(cmd.destination),
            outgoing.body,
            milliseconds(cmd.delay or 0.0, self.max_defer),
            headers=outgoing.headers,
            key=cmd.key,
            dedup_id=cmd.dedup_id,
        )

    async def publish_batch(self, cmd: NsqPublishCommand) -> None:
        """Publish all messages, or none. They share their headers."""
        if batch := await self._outgoing_batch(cmd):
            await self._connected.multipublish(
                valid_name(cmd.destination),
                [each.body for each in batch],
                headers=batch[0].headers,
                key=cmd.key,
            )

    async def request(self, cmd: NsqPublishCommand) -> Any:
        raise FeatureNotSupportedException(
            "NsqBroker supports requests only with TestNsqBroker: use reply_to"
        )

    async def _outgoing_batch(self, cmd: NsqPublishCommand) -> list[Outgoing]:
        """Encode the messages of a batch. Raises ValueError and FeatureNotSupportedException."""
        if cmd.delay:
            raise FeatureNotSupportedException(
                "nsqd cannot defer a batch: publish the messages one by one"
            )
        if cmd.dedup_id is not None:
            raise FeatureNotSupportedException(
                "nsqd would keep only one message of the batch: publish the messages one by one"
            )
        batch = [await self._outgoing(cmd, each) for each in cmd.batch_bodies]
        if any(each.headers != batch[0].headers for each in batch):
            raise ValueError("all messages of a batch must have the same content type")
        return batch

    async def _outgoing(self, cmd: NsqPublishCommand, message: Any) -> Outgoing:
        """Encode a message. Raises ValueError for one that nsqd cannot transport."""
        body, content_type = await self.encoded(message)
        if not body:
            raise ValueError("a message cannot be empty")
        if not self.with_headers:
            self._check_without_headers(cmd)
            return Outgoing(body, None)
        headers = cmd.message_headers() | ({CONTENT_TYPE: content_type} if content_type else {})
        if cmd.delay and cmd.delay > self.max_defer:
            headers[DELAY] = f"{cmd.delay:.3f}"
        return Outgoing(body, headers)

    async def encoded(self, body: Any) -> tuple[bytes, str | None]:
        """Return a body as bytes, and its content type.

        NSQ has no empty messages: None and the empty string become JSON.
        """
        encoded, content_type = await self.codec.encode(body, self._serializer)
        if not encoded and (body is None or body == ""):
            return json.dumps(body).encode(), ContentTypes.JSON.value
        return encoded, content_type

    def _check_without_headers(self, cmd: NsqPublishCommand) -> None:
        if cmd.has_keys:
            raise ValueError("key, dedup_id and priority require a broker with headers=True")
        if cmd.reply_to:
            raise ValueError("reply_to requires a broker with headers=True")
        if cmd.delay and cmd.delay > self.max_defer:
            raise ValueError(
                f"a delay of more than {self.max_defer:g} s (max_defer) requires a broker with "
                "headers=True"
            )
