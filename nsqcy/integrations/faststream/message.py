"""Messages in the form that FastStream's handlers receive, their parsing and their answers."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from faststream.message import StreamMessage, decode_message

from nsqcy.client import Message
from nsqcy.names import printable

CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation-id"
REPLY_TO = "reply-to"
DELAY = "nsqcy-delay"  # seconds after the publish, if more than nsqd's limit


class NsqMessage(StreamMessage[Message]):
    """A message. `raw_message` contains its attempts, timestamp, id and nsqd."""

    async def ack(self) -> None:
        """Finish the message."""
        _finish([self.raw_message])
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Requeue the message: nsqd redelivers it after `delay` seconds. The default is the
        client's delay for the number of attempts."""
        _requeue([self.raw_message], delay)
        await super().nack()

    async def reject(self) -> None:
        """Finish the message, although its handler has failed."""
        _finish([self.raw_message])
        await super().reject()


class NsqBatchMessage(StreamMessage[Sequence[Message]]):
    """Several messages with a common answer."""

    async def ack(self) -> None:
        """Finish the messages."""
        _finish(self.raw_message)
        await super().ack()

    async def nack(self, delay: float | None = None) -> None:
        """Requeue the messages, as in NsqMessage."""
        _requeue(self.raw_message, delay)
        await super().nack()

    async def reject(self) -> None:
        """Finish the messages, although their handler has failed."""
        _finish(self.raw_message)
        await super().reject()


def _finish(messages: Iterable[Message]) -> None:
    for message in messages:
        if not message.has_responded():
            message.finish()


def _requeue(messages: Iterable[Message], delay: float | None) -> None:
    for message in messages:
        if not message.has_responded():
            message.requeue(delay, backoff=False)


def delay_of(message: Message) -> float:
    """Return a message's delay in seconds if it exceeds nsqd's limit; 0 if malformed."""
    with suppress(ValueError):
        return float(message.headers.get(DELAY, 0))
    return 0.0


async def parse_message(message: Message) -> NsqMessage:
    """Return FastStream's view of a message."""
    headers = message.headers
    return NsqMessage(
        raw_message=message,
        body=message.body,
        headers=dict(headers),
        reply_to=headers.get(REPLY_TO, ""),
        content_type=headers.get(CONTENT_TYPE),
        correlation_id=headers.get(CORRELATION_ID),
        message_id=printable(message.id),
    )


async def decode(message: StreamMessage[Any]) -> Any:
    """Decode a body by its content type; without one, as JSON if it is JSON."""
    return decode_message(message)


async def parse_batch(messages: Sequence[Message]) -> NsqBatchMessage:
    """Return FastStream's view of several messages, with the headers of the first."""
    first = messages[0].headers
    return NsqBatchMessage(
        raw_message=messages,
        body=[message.body for message in messages],
        headers=dict(first),
        batch_headers=[dict(message.headers) for message in messages],
        reply_to=first.get(REPLY_TO, ""),
        content_type=first.get(CONTENT_TYPE),
        correlation_id=first.get(CORRELATION_ID),
        message_id=printable(messages[0].id),
    )


async def decode_batch(message: StreamMessage[Sequence[Message]]) -> list[Any]:
    """Decode the bodies of a batch."""
    return [decode_message(await parse_message(each)) for each in message.raw_message]
