"""OpenTelemetry spans and metrics for the Python client (guide: docs/guides/tracing.md).

    producer = traced(Producer("127.0.0.1:4150", headers=True))
    consumer = Consumer(
        "orders",
        "billing",
        "127.0.0.1:4150",
        headers=True,
        message_handler=traced_handler(handle, "orders", "billing"),
    )

Each publish gets a span `publish TOPIC`, and each handler call a span `process TOPIC`. Message
headers carry the trace context, so both spans belong to one trace. Without the option headers=True,
there are spans but no common trace. Names follow the semantic conventions for messaging.

Wraps producers and handlers of both clients without changing them. Requires opentelemetry-api, not
the SDK: without an SDK, all calls do nothing.
"""

import asyncio
import functools
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, cast, overload

from opentelemetry import context as contexts
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Histogram, MeterProvider, get_meter
from opentelemetry.propagators.textmap import Getter, TextMapPropagator
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

from nsqcy import __version__, client
from nsqcy.client import DeadLetter, Message, NsqdError, aio
from nsqcy.client.common_interface import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Headers,
    is_coroutine_function,
)
from nsqcy.client.errors import Verdict
from nsqcy.client.options import Address
from nsqcy.client.threads_or_greenlets import Future
from nsqcy.client.user_code import call
from nsqcy.names import printable

__all__ = [
    "Telemetry",
    "TracedAioProducer",
    "TracedProducer",
    "processing",
    "traced",
    "traced_handler",
]

SCHEMA = "https://opentelemetry.io/schemas/1.36.0"
# Bounds in seconds, from the semantic conventions.
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)

# nsqd's limits for the headers of a message (docs/PROTOCOL.md).
MAX_HEADERS, MAX_HEADER_BYTES = 32, 4096
HEADER_NAME = re.compile(r"[a-z0-9-]{1,255}")
# Headers of a dead letter, with the attributes that show them.
ORIGIN = {
    "origin-topic": "nsqcy.dead_letter.origin.topic",
    "origin-channel": "nsqcy.dead_letter.origin.channel",
    "origin-id": "nsqcy.dead_letter.origin.id",
    "attempts": "nsqcy.dead_letter.attempts",
    "reason": "nsqcy.dead_letter.reason",
}
OUTCOME = "nsqcy.message.outcome"

Attributes = dict[str, str | int]
H = TypeVar("H", bound=Callable[[Message], Any])
P = TypeVar("P", client.Producer, aio.Producer)
T = TypeVar("T")


class Telemetry:
    """The destination of spans and metrics.

    The defaults are OpenTelemetry's global providers and global propagator.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        propagator: TextMapPropagator | None = None,
    ) -> None:
        self._propagator = propagator
        self.tracer = trace.get_tracer(__name__, __version__, tracer_provider, SCHEMA)
        meter = get_meter(__name__, __version__, meter_provider, SCHEMA)
        self.sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Number of messages that the producer tried to publish",
        )
        self.consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Number of messages delivered to the program",
        )
        self.operation_duration = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of a publish, including nsqd's response",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )
        self.process_duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of processing a message",
            explicit_bucket_boundaries_advisory=BOUNDS,
        )

    @property
    def propagator(self) -> TextMapPropagator:
        """The propagator that reads and writes message headers."""
        return self._propagator or propagate.get_global_textmap()


@functools.cache
def _default() -> Telemetry:
    return Telemetry()


class _Operation:
    """One publish, or the processing of one or more messages: its span and its measurements.

    As a context manager, it activates the span, and records an exception as the result. Otherwise,
    the operation continues until done() is called.
    """

    def __init__(self, span: Span, context: Context, labels: Attributes, duration: Histogram):
        self.span = span
        self.context = trace.set_span_in_context(span, context)
        self.labels = labels  # attributes of the metrics
        self._duration = duration
        self._began = time.perf_counter()
        self._is_done = False

    def __enter__(self) -> Self:
        self._token = contexts.attach(self.context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        contexts.detach(self._token)
        if error is not None:
            self.done(error)

    def done(self, error: BaseException | None = None) -> None:
        """End the span and record the duration. Only the first call has an effect."""
        if not self._is_done:
            self._is_done = True
            # failing to record is not a failure of the operation
            call("opentelemetry", self._record, error)

    def _record(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(error)
        self._duration.record(time.perf_counter() - self._began, self.labels)
        self.span.end()

    def _fail(self, error: BaseException) -> None:
        self.labels["error.type"] = kind = _error_type(error)
        self.span.set_attribute("error.type", kind)
        self.span.record_exception(error)
        self.span.set_status(Status(StatusCode.ERROR, str(error)))


def _error_type(error: BaseException) -> str:
    """Return the error's code or class, which has few distinct values."""
    if isinstance(error, NsqdError):
        return error.code
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return module + kind.__qualname__


def _labels(operation: str, topic: str, address: Address | None) -> Attributes:
    labels: Attributes = {
        "messaging.system": "nsq",
        "messaging.operation.name": operation,
        "messaging.destination.name": str(topic),
    }
    if address is not None:
        labels |= {"server.address": address.host, "server.port": address.port}
    return labels


# -- publishing


class _Publish(_Operation):
    """One publish command, or all commands of publish_all()."""

    def __init__(
        self,
        telemetry: Telemetry,
        topic: str,
        address: Address | None,
        attributes: Attributes,
        count: int = 1,
        *,
        is_batch: bool = False,
    ) -> None:
        labels = _labels("publish", topic, address)
        context = contexts.get_current()
        span = telemetry.tracer.start_span(
            f"publish {topic}",
            context,
            SpanKind.PRODUCER,
            labels | {"messaging.operation.type": "send"} | attributes,
        )
        super().__init__(span, context, labels, telemetry.operation_duration)
        self._count = count  # number of messages
        self._is_batch = is_batch
        self._sent: Counter = telemetry.sent
        self._propagator = telemetry.propagator

    def headers(self, headers: Headers | None) -> Headers:
        """Return the headers with this span's context."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self.context)
        return _joined(headers or {}, carrier)

    def counted(self, messages: Iterable[Any]) -> Iterator[Any]:
        """Iterate over messages and count them."""
        for message in messages:
            self._count += 1
            yield message

    def _record(self, error: BaseException | None) -> None:
        if self._is_batch:
            self.span.set_attribute("messaging.batch.message_count", self._count)
        super()._record(error)
        self._sent.add(self._count, self.labels)

    def result(self, result: T) -> T:
        """End successfully, and return the result of the publish."""
        self.done()
        return result

    def answered(self, future: Any) -> None:
        """End with the result of a completed future."""
        try:
            future.result()
        except BaseException as error:
            self.done(error)
        else:
            self.done()


def _joined(headers: Headers, carrier: Mapping[str, str]) -> Headers:
    """Return the headers, plus those of the carrier that nsqd accepts and that fit.

    Large baggage must not cause nsqd to refuse the message.
    """
    joined = dict(headers)
    for title, value in carrier.items():
        name = title.lower()
        wider = {**joined, name: value}
        size = sum(3 + _size(each) + _size(text) for each, text in wider.items())
        if HEADER_NAME.fullmatch(name) and len(wider) <= MAX_HEADERS and size <= MAX_HEADER_BYTES:
            joined = wider
    return joined


def _size(text: object) -> int:
    return len(str(text).encode("utf-8", "replace"))


def _body_size(data: object) -> Attributes:
    """Return the size of a body; the client rejects other types."""
    if isinstance(data, bytes | bytearray):
        return {"messaging.message.body.size": len(data)}
    return {}


class _Traced(Generic[P]):
    """A producer whose publishes have spans. Other attributes are the producer's own."""

    def __init__(self, producer: P, telemetry: Telemetry | None = None) -> None:
        self.producer: P = producer
        self._telemetry = telemetry or _default()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.producer, name)

    def _one(self, topic: str, data: object, defer: int | None) -> _Publish:
        attributes = _body_size(data)
        if defer is not None:
            attributes["nsqcy.message.defer_ms"] = defer
        return _Publish(self._telemetry, topic, self._address, attributes)

    def _several(self, topic: str, count: int = 0) -> _Publish:
        return _Publish(self._telemetry, topic, self._address, {}, count, is_batch=True)

    def _headers(self, operation: _Publish, headers: Headers | None) -> Headers | None:
        if self.producer.core.connection_options.headers:
            return operation.headers(headers)
        return headers

    @property
    def _address(self) -> Address | None:
        """The producer's nsqd, unless it has several."""
        nsqds = list(self.producer.core.nsqds)
        return nsqds[0] if len(nsqds) == 1 else None


def _listed(messages: Iterable[Any]) -> tuple[Iterable[Any], int]:
    """Return the messages and their number."""
    known = messages if isinstance(messages, Sized) else list(messages)
    return known, len(known)


class TracedProducer(_Traced[client.Producer]):
    """A blocking producer whose publishes have spans; `traced()` returns it.

    It has the methods and properties of its `producer`.
    """

    def __enter__(self) -> Self:
        self.producer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.producer.close()

    def publish(
        self,
        topic: str,
        data: Any,
        defer: int | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> bytes:
        """Publish one message, in a span."""
        with self._one(topic, data, defer) as one:
            headers = self._headers(one, headers)
            return one.result(self.producer.publish(topic, data, defer, timeout, headers=headers))

    def multipublish(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> bytes:
        """Publish several messages atomically, in one span."""
        messages, count = _listed(messages)
        with self._several(topic, count) as several:
            headers = self._headers(several, headers)
            publish = self.producer.multipublish
            return several.result(publish(topic, messages, timeout, headers=headers))

    def publish_all(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        headers: Headers | None = None,
    ) -> int:
        """Publish any number of messages in batches, in one span."""
        with self._several(topic) as several:
            return several.result(
                self.producer.publish_all(
                    topic,
                    several.counted(messages),
                    batch_messages=batch_messages,
                    batch_bytes=batch_bytes,
                    headers=self._headers(several, headers),
                )
            )

    def publish_nowait(
        self,
        topic: str,
        data: Any,
        defer: int | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> Future:
        """Publish one message without waiting. Its span ends with the response."""
        with self._one(topic, data, defer) as one:
            headers = self._headers(one, headers)
            publish = self.producer.publish_nowait
            return _followed(publish(topic, data, defer, timeout, headers=headers), one)

    def multipublish_nowait(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> Future:
        """Publish several messages without waiting. Their span ends with the response."""
        messages, count = _listed(messages)
        with self._several(topic, count) as several:
            headers = self._headers(several, headers)
            publish = self.producer.multipublish_nowait
            return _followed(publish(topic, messages, timeout, headers=headers), several)

    pub = publish
    mpub = multipublish

    def dpub(self, topic: str, delay_ms: int, data: Any) -> bytes:
        """Publish one message, deferred by `delay_ms` milliseconds, in a span."""
        return self.publish(topic, data, delay_ms)


class TracedAioProducer(_Traced[aio.Producer]):
    """A producer for asyncio whose publishes have spans; `traced()` returns it.

    It has the methods and properties of its `producer`.
    """

    async def __aenter__(self) -> Self:
        await self.producer.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.producer.close()

    async def publish(
        self,
        topic: str,
        data: Any,
        defer: int | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> bytes:
        """Publish one message, in a span."""
        with self._one(topic, data, defer) as one:
            headers = self._headers(one, headers)
            publish = self.producer.publish
            return one.result(await publish(topic, data, defer, timeout, headers=headers))

    async def multipublish(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> bytes:
        """Publish several messages atomically, in one span."""
        messages, count = _listed(messages)
        with self._several(topic, count) as several:
            headers = self._headers(several, headers)
            publish = self.producer.multipublish
            return several.result(await publish(topic, messages, timeout, headers=headers))

    async def publish_all(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        headers: Headers | None = None,
    ) -> int:
        """Publish any number of messages in batches, in one span."""
        with self._several(topic) as several:
            return several.result(
                await self.producer.publish_all(
                    topic,
                    several.counted(messages),
                    batch_messages=batch_messages,
                    batch_bytes=batch_bytes,
                    headers=self._headers(several, headers),
                )
            )

    def publish_nowait(
        self,
        topic: str,
        data: Any,
        defer: int | None = None,
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> asyncio.Future[bytes]:
        """Publish one message without waiting. Its span ends with the response."""
        with self._one(topic, data, defer) as one:
            headers = self._headers(one, headers)
            publish = self.producer.publish_nowait
            return _followed(publish(topic, data, defer, timeout, headers=headers), one)

    def multipublish_nowait(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: float | None = None,
        *,
        headers: Headers | None = None,
    ) -> asyncio.Future[bytes]:
        """Publish several messages without waiting. Their span ends with the response."""
        messages, count = _listed(messages)
        with self._several(topic, count) as several:
            headers = self._headers(several, headers)
            publish = self.producer.multipublish_nowait
            return _followed(publish(topic, messages, timeout, headers=headers), several)

    pub = publish
    mpub = multipublish

    async def dpub(self, topic: str, delay_ms: int, data: Any) -> bytes:
        """Publish one message, deferred by `delay_ms` milliseconds, in a span."""
        return await self.publish(topic, data, delay_ms)


def _followed(future: T, operation: _Publish) -> T:
    """Return the future; its result ends the operation.

    This counts as retrieving the result: asyncio does not log an error that the program ignores,
    because the span shows it.
    """
    # concurrent.futures and asyncio have add_done_callback; gevent's AsyncResult has rawlink.
    follow = getattr(future, "add_done_callback", None) or getattr(future, "rawlink")  # noqa: B009
    follow(operation.answered)
    return future


@overload
def traced(producer: client.Producer, *, telemetry: Telemetry | None = None) -> TracedProducer: ...
@overload
def traced(producer: aio.Producer, *, telemetry: Telemetry | None = None) -> TracedAioProducer: ...
def traced(
    producer: client.Producer | aio.Producer, *, telemetry: Telemetry | None = None
) -> TracedProducer | TracedAioProducer:
    """Wrap the producer so that each publish creates a span.

    If the producer has the option headers=True, each message carries the context of its span.
    """
    if isinstance(producer, aio.Producer):
        return TracedAioProducer(producer, telemetry)
    return TracedProducer(producer, telemetry)


# -- processing


class _HeaderGetter(Getter[Mapping[str, str]]):
    """Reads message headers, whose names are lower case."""

    def get(self, carrier: Mapping[str, str], key: str) -> list[str] | None:
        value = carrier.get(key.lower())
        return None if value is None else [value]

    def keys(self, carrier: Mapping[str, str]) -> list[str]:
        return list(carrier)


_GETTER = _HeaderGetter()


class _Process(_Operation):
    """The processing of one or more messages."""

    def __init__(
        self,
        telemetry: Telemetry,
        messages: Sequence[Message],
        topic: str,
        channel: str,
        *,
        is_batch: bool,
    ) -> None:
        topics = {message.topic for message in messages}
        topic = topics.pop() if len(topics) == 1 else topic
        addresses = {message.nsqd_address for message in messages}
        address = Address.parse(addresses.pop()) if len(addresses) == 1 else None
        labels = _labels("process", topic, address)
        labels["messaging.consumer.group.name"] = channel
        context = contexts.get_current()
        origins = [
            telemetry.propagator.extract(message.headers, context, _GETTER)
            for message in messages
            if message.headers
        ]
        attributes = labels | {"messaging.operation.type": "process"}
        if is_batch:
            attributes["messaging.batch.message_count"] = len(messages)
        else:
            attributes |= _message_attributes(messages[0])
            context = origins[0] if origins else context
        creators = [trace.get_current_span(each).get_span_context() for each in origins]
        span = telemetry.tracer.start_span(
            f"process {topic}",
            context,
            SpanKind.CONSUMER,
            attributes,
            [Link(creator) for creator in creators if creator.is_valid and creator.is_remote],
        )
        super().__init__(span, context, labels, telemetry.process_duration)
        telemetry.consumed.add(len(messages), dict(labels))

    def done(self, error: BaseException | None = None) -> None:
        """End. Requeue alone is not an error: the handler has decided to retry later."""
        if isinstance(error, Verdict):
            error = error.failure or (error if isinstance(error, DeadLetter) else None)
        super().done(error)


def _message_attributes(message: Message) -> Attributes:
    attributes = _body_size(message.body)
    attributes["messaging.message.id"] = printable(message.id)
    attributes["nsqcy.message.attempts"] = message.attempts
    headers = message.headers
    if "origin-topic" in headers and "reason" in headers:
        attributes |= {each: headers[name] for name, each in ORIGIN.items() if name in headers}
    return attributes


class _HandlerCall(_Process):
    """One call of a handler, which decides what the client answers."""

    def __init__(self, telemetry: Telemetry, message: Message, topic: str, channel: str) -> None:
        super().__init__(telemetry, [message], topic, channel, is_batch=False)
        self._message = message
        self._result: object = None

    def returned(self, result: T) -> T:
        """End with the handler's result, and return it."""
        self._result = result
        self.done()
        return result

    def done(self, error: BaseException | None = None) -> None:
        if not self._is_done:
            self.labels[OUTCOME] = outcome = self._outcome(error)
            self.span.set_attribute(OUTCOME, outcome)
        super().done(error)

    def _outcome(self, error: BaseException | None) -> str:
        """Return how the client answers the message, as decided by ConsumerCore."""
        if self._message.has_responded():
            return "answered"
        if isinstance(error, DeadLetter):
            return "dead_lettered"
        if error is not None:
            # A cancelled handler does not answer its message: nsqd redelivers it.
            return "requeued" if isinstance(error, Exception) else "unanswered"
        if self._message.is_async():
            return "unanswered"
        return "requeued" if self._result is False else "finished"


@contextmanager
def processing(
    messages: Message | Sequence[Message],
    topic: str,
    channel: str,
    *,
    telemetry: Telemetry | None = None,
) -> Iterator[Span]:
    """Process a message, or a batch of messages, in a span; for programs without a handler.

    The span of one message belongs to the trace of its publish. The span of a batch belongs to the
    current trace and has a link to the publish of each message. An exception is recorded and raised
    again; the program answers the messages itself.

    The span contains the topic of the messages, or `topic` for a batch of several topics.
    """
    is_batch = not isinstance(messages, Message)
    several = [messages] if isinstance(messages, Message) else messages
    process = _Process(telemetry or _default(), several, topic, channel, is_batch=is_batch)
    with process:
        yield process.span
    process.done()


def traced_handler(
    handler: H, topic: str, channel: str, *, telemetry: Telemetry | None = None
) -> H:
    """Wrap the handler so that each call creates a span.

    `channel` is the consumer's channel, which messages do not contain. The span contains the topic
    of the message, which is `topic` unless the consumer has several. If the consumer has the option
    headers=True, the span belongs to the trace of the publish, for every delivery of the message
    and of its dead letter. Functions remain functions, and coroutine functions remain coroutine
    functions.
    """
    used = telemetry or _default()

    def call(message: Message) -> Any:
        process = _HandlerCall(used, message, topic, channel)
        with process:
            result = handler(message)
        return finish(process, result) if inspect.isawaitable(result) else process.returned(result)

    async def finish(process: _HandlerCall, result: Awaitable[object]) -> object:
        with process:
            return process.returned(await result)

    async def call_coroutine(message: Message) -> Any:
        return await call(message)

    wrapper: Any = call_coroutine if is_coroutine_function(handler) else call
    # A consumer with a codec must see that this function gets messages.
    wrapper.__signature__ = inspect.signature(wrapper)
    functools.update_wrapper(wrapper, handler)
    return cast(H, wrapper)
