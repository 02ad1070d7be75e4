"""Publishing for FastStream."""

import json
import math
from typing import Any

from faststream._internal.constants import ContentTypes
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.exceptions import FeatureNotSupportedException, IncorrectState

from nsqcy.client.aio import Producer
from nsqcy.integrations.faststream.message import CONTENT_TYPE, decode, parse_message
from nsqcy.integrations.faststream.response import NsqPublishCommand


class NsqProducer(ProducerProto[NsqPublishCommand]):
    """FastStream's side of a producer of nsqcy.client.aio."""

    def __init__(self, parser: Any, decoder: Any, *, with_headers: bool) -> None:
        self._parser = ParserComposition(parser, parse_message)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: Any = DefaultCodec()
        self._serializer: Any = None
        self._with_headers = with_headers
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
        body, content_type = await self.encoded(cmd.body)
        defer = math.ceil(cmd.delay * 1000) if cmd.delay else None
        headers = self._headers(cmd, content_type)
        await self._connected.publish(cmd.destination, body, defer, headers=headers)

    async def publish_batch(self, cmd: NsqPublishCommand) -> None:
        """Publish all messages, or none. They share their headers."""
        encoded = [await self.encoded(each) for each in cmd.batch_bodies]
        if not encoded:
            return
        if cmd.delay:
            raise FeatureNotSupportedException("nsqd cannot defer a batch: publish one by one")
        if len({content_type for _, content_type in encoded}) > 1 and self._with_headers:
            raise ValueError("all messages of a batch must have the same content type")
        headers = self._headers(cmd, encoded[0][1])
        bodies = [body for body, _ in encoded]
        await self._connected.multipublish(cmd.destination, bodies, headers=headers)

    async def request(self, cmd: NsqPublishCommand) -> Any:
        raise FeatureNotSupportedException("NsqBroker does not support requests: use reply_to")

    async def encoded(self, body: Any) -> tuple[bytes, str | None]:
        """Return a body as bytes, and its content type.

        NSQ has no empty messages: None and the empty string become JSON.
        """
        encoded, content_type = await self.codec.encode(body, self._serializer)
        if not encoded and (body is None or body == ""):
            return json.dumps(body).encode(), ContentTypes.JSON.value
        return encoded, content_type

    def _headers(self, cmd: NsqPublishCommand, content_type: str | None) -> dict[str, str] | None:
        if not self._with_headers:
            return None
        return cmd.message_headers() | ({CONTENT_TYPE: content_type} if content_type else {})
