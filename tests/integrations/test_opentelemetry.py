"""Spans and metrics of producers and handlers, with a real nsqd and exporters in memory."""

import asyncio
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry import baggage, context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from nsqcy import client, testing
from nsqcy.client import ConnectionFailed, NsqdError, Requeue
from nsqcy.client.bodies import decoding
from nsqcy.integrations.opentelemetry import Telemetry, processing, traced, traced_handler
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import FACES, Aio, Face
from support.fake_nsqd import MockNsqd

pytestmark = pytest.mark.slow

TIMEOUT = 30.0
MAX_SIZE = 1000  # bytes of a message
TOO_LARGE = b"x" * (MAX_SIZE + 1)
POLICY = """
[channel *-failing/billing]
max_attempts = 2
dead_letter_topic = dead
"""


class Recorder:
    """Telemetry that keeps its spans and metrics in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.telemetry = Telemetry(
            tracer_provider=self.tracers,
            meter_provider=MeterProvider([self._reader]),
            propagator=CompositePropagator(
                [TraceContextTextMapPropagator(), W3CBaggagePropagator()]
            ),
        )

    def spans(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Wait for this number of spans, and return them in the order in which they began."""

        def found() -> list[ReadableSpan]:
            return [each for each in self._exporter.get_finished_spans() if each.name == name]

        eventually(lambda: len(found()) >= count, TIMEOUT)
        spans = sorted(found(), key=lambda each: each.start_time or 0)
        assert len(spans) == count
        return spans

    def span(self, name: str) -> ReadableSpan:
        return self.spans(name)[0]

    def points(self, metric: str) -> list[Any]:
        """Return the data points of a metric."""
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else [])
            for scope in resource.scope_metrics
            for each in scope.metrics
            if each.name == metric
            for point in each.data.data_points
        ]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = request.param()
    yield face
    face.end()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Nsqd]:
    path = tmp_path_factory.mktemp("policy") / "nsqd.ini"
    path.write_text(POLICY)
    with testing.nsqd(config=path, max_msg_size=MAX_SIZE) as daemon:
        yield daemon


@pytest.fixture
def topic() -> str:
    return f"t{uuid.uuid4().hex[:8]}"


class Program:
    """A producer and consumers of one interface, which report to one recorder."""

    def __init__(self, face: Face, daemon: testing.Nsqd, recorder: Recorder) -> None:
        self.face = face
        self.recorder = recorder
        self._address = daemon.tcp_address

    def producer(self, *, headers: bool = True, **options: Any) -> Any:
        producer = self.face.producer(self._address, headers=headers, **options)
        return traced(producer, telemetry=self.recorder.telemetry)

    def publish(self, topic: str, body: bytes = b"hello", **options: Any) -> None:
        assert self.face.call(self.producer().publish, topic, body, **options) == b"OK"

    def consume(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Any], Any],
        *,
        headers: bool = True,
        **options: Any,
    ) -> Any:
        """Start a consumer; with asyncio, its handler is a coroutine function."""

        async def coroutine(message: Any) -> Any:
            await asyncio.sleep(0)  # another task may run
            return handler(message)

        wrapped = coroutine if isinstance(self.face, Aio) else handler
        telemetry = self.recorder.telemetry
        return self.face.consumer(
            topic,
            channel,
            self._address,
            message_handler=traced_handler(wrapped, topic, channel, telemetry=telemetry),
            headers=headers,
            **{"max_tries": 0, "requeue_delay": 0, "max_backoff_duration": 0} | options,
        )


@pytest.fixture
def program(face: Face, daemon: testing.Nsqd, recorder: Recorder) -> Program:
    return Program(face, daemon, recorder)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> int:
    return span.get_span_context().trace_id


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def id_of(span: ReadableSpan) -> int:
    return span.get_span_context().span_id


def test_spans_follow_the_conventions(
    program: Program, daemon: testing.Nsqd, recorder: Recorder, topic: str
) -> None:
    seen: list[bytes] = []
    program.consume(topic, "billing", lambda message: seen.append(message.id))
    program.publish(topic, b"hello", defer=1)
    publish, process = recorder.span(f"publish {topic}"), recorder.span(f"process {topic}")
    host, port = daemon.tcp_address.split(":")
    common = {
        "messaging.system": "nsq",
        "messaging.destination.name": topic,
        "messaging.message.body.size": 5,
        "server.address": host,
        "server.port": int(port),
    }
    assert publish.kind is SpanKind.PRODUCER
    assert attributes_of(publish) == common | {
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "nsqcy.message.defer_ms": 1,
    }
    assert process.kind is SpanKind.CONSUMER
    assert attributes_of(process) == common | {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "billing",
        "messaging.message.id": seen[0].decode(),
        "nsqcy.message.attempts": 1,
        "nsqcy.message.outcome": "finished",
    }
    assert trace_of(process) == trace_of(publish)
    assert parent_of(process) == id_of(publish)
    assert links_of(process) == [id_of(publish)]
    assert publish.status.status_code is process.status.status_code is StatusCode.UNSET


def test_one_trace_over_a_requeue_and_a_dead_letter(
    program: Program, recorder: Recorder, topic: str
) -> None:
    """nsqd requeues the message once, then moves it to the dead-letter topic, where a second
    consumer receives it."""
    topic += "-failing"

    def fail(message: Any) -> None:
        if message.attempts == 1:
            raise Requeue(delay=0, backoff=False)
        raise ValueError("no such customer")

    program.consume("dead", topic, lambda message: None)
    program.consume(topic, "billing", fail)
    with recorder.tracers.get_tracer("test").start_as_current_span("order") as order:
        program.publish(topic, b"25")
    publish = recorder.span(f"publish {topic}")
    first, second = recorder.spans(f"process {topic}", 2)
    dead = recorder.span("process dead")
    assert {trace_of(each) for each in (publish, first, second, dead)} == {
        order.get_span_context().trace_id
    }
    assert parent_of(publish) == order.get_span_context().span_id
    assert {parent_of(each) for each in (first, second, dead)} == {id_of(publish)}
    attempts = [
        [attributes_of(each)[f"nsqcy.message.{name}"] for name in ("attempts", "outcome")]
        for each in (first, second, dead)
    ]
    assert attempts == [[1, "requeued"], [2, "requeued"], [1, "finished"]]
    assert first.status.status_code is StatusCode.UNSET
    assert second.status.status_code is StatusCode.ERROR
    found = attributes_of(dead)
    assert {name: found[name] for name in found if name.startswith("nsqcy.dead_letter.")} == {
        "nsqcy.dead_letter.origin.topic": topic,
        "nsqcy.dead_letter.origin.channel": "billing",
        "nsqcy.dead_letter.origin.id": attributes_of(second)["messaging.message.id"],
        "nsqcy.dead_letter.attempts": "2",
        "nsqcy.dead_letter.reason": "attempts",
    }


def test_publishing_in_a_handler_continues_the_trace(
    program: Program, recorder: Recorder, topic: str
) -> None:
    """A handler that forwards all headers replaces the context of the first publish with its
    own."""
    producer = program.producer()

    def forward(message: Any) -> None:
        producer.publish_nowait(f"{topic}-next", message.body, headers=message.headers)

    program.consume(f"{topic}-next", "c", lambda message: None)
    program.consume(topic, "c", forward)
    program.publish(topic, headers={"customer": "7"})
    first, process = recorder.span(f"publish {topic}"), recorder.span(f"process {topic}")
    second, last = recorder.span(f"publish {topic}-next"), recorder.span(f"process {topic}-next")
    assert len({trace_of(each) for each in (first, process, second, last)}) == 1
    assert parent_of(second) == id_of(process)
    assert parent_of(last) == id_of(second)


def test_an_error_is_recorded(program: Program, recorder: Recorder, topic: str) -> None:
    def fail(message: Any) -> bool:
        if message.attempts == 1:
            raise ValueError("no such customer")
        return message.attempts > 2

    program.consume(topic, "c", fail)
    program.publish(topic)
    failed, refused, last = recorder.spans(f"process {topic}", 3)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "no such customer"
    assert attributes_of(failed)["error.type"] == "ValueError"
    assert [event.name for event in failed.events] == ["exception"]
    outcomes = [attributes_of(each)["nsqcy.message.outcome"] for each in (failed, refused, last)]
    assert outcomes == ["requeued", "requeued", "finished"]
    assert refused.status.status_code is last.status.status_code is StatusCode.UNSET


def test_a_failure_behind_a_requeue_is_recorded(
    program: Program, recorder: Recorder, topic: str
) -> None:
    def fail(message: Any) -> None:
        if message.attempts == 1:
            try:
                raise ValueError("no such customer")
            except ValueError as error:
                raise Requeue(delay=0, backoff=False) from error

    program.consume(topic, "c", fail)
    program.publish(topic)
    failed, last = recorder.spans(f"process {topic}", 2)
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "no such customer"
    assert attributes_of(failed)["error.type"] == "ValueError"
    assert attributes_of(failed)["nsqcy.message.outcome"] == "requeued"
    assert [event.name for event in failed.events] == ["exception"]
    assert last.status.status_code is StatusCode.UNSET


def test_a_refused_publish_is_recorded(program: Program, recorder: Recorder, topic: str) -> None:
    face, producer = program.face, program.producer()
    with pytest.raises(NsqdError, match="E_BAD_MESSAGE"):
        face.call(producer.publish, topic, TOO_LARGE)
    with pytest.raises(ValueError, match="not a valid topic name"):
        face.call(producer.multipublish, "no topic", [b"1", b"2"])
    with pytest.raises(TypeError):
        face.call(producer.publish_nowait, topic, 25)
    with pytest.raises(NsqdError, match="E_BAD_MESSAGE"):
        face.call(waited, producer.publish_nowait, topic, TOO_LARGE, is_async=isinstance(face, Aio))
    spans = [*recorder.spans(f"publish {topic}", 3), recorder.span("publish no topic")]
    assert {each.status.status_code for each in spans} == {StatusCode.ERROR}
    kinds = [attributes_of(each)["error.type"] for each in spans]
    assert kinds == ["E_BAD_MESSAGE", "TypeError", "E_BAD_MESSAGE", "ValueError"]


def waited(publish: Callable[..., Any], *args: object, is_async: bool) -> Any:
    """Call the function, and wait for its future's result."""

    async def result() -> Any:
        return await publish(*args)

    return result() if is_async else publish(*args).result(TIMEOUT)


@pytest.mark.parametrize("headers", [True, False], ids=["headers", "no headers"])
def test_every_way_of_publishing(
    program: Program, recorder: Recorder, topic: str, headers: bool
) -> None:
    face, producer = program.face, program.producer(headers=headers)
    is_async = isinstance(face, Aio)
    program.consume(topic, "c", lambda message: None, headers=headers)
    assert face.call(producer.multipublish, topic, iter([b"1", b"2"])) == b"OK"
    assert face.call(producer.mpub, topic, [b"3"]) == b"OK"
    assert face.call(producer.pub, topic, b"4") == b"OK"
    assert face.call(producer.dpub, topic, 1, b"5") == b"OK"
    assert face.call(producer.publish_all, topic, iter([b"6", b"7"]), batch_messages=1) == 2
    assert face.call(waited, producer.publish_nowait, topic, b"8", is_async=is_async) == b"OK"
    several = producer.multipublish_nowait
    assert face.call(waited, several, topic, [b"9", b"10"], is_async=is_async) == b"OK"
    publishes = recorder.spans(f"publish {topic}", 7)
    counts = [attributes_of(each).get("messaging.batch.message_count") for each in publishes]
    assert counts == [2, 1, None, None, 2, None, 2]
    processes = recorder.spans(f"process {topic}", 10)
    parents = {parent_of(each) for each in processes}
    assert parents == ({id_of(each) for each in publishes} if headers else {None})
    assert producer.is_running and producer.is_connected and not producer.is_full


def test_an_nsqd_without_headers(face: Face, recorder: Recorder, topic: str) -> None:
    """Like NSQ's nsqd, this nsqd offers no headers in its IDENTIFY response, so there are spans but
    no context."""
    with MockNsqd() as nsqd:
        producer = face.producer(nsqd.address)
        wrapped = traced(producer, telemetry=recorder.telemetry)
        assert face.call(wrapped.publish, topic, b"hello") == b"OK"
        assert nsqd.link().bodies[-1] == b"hello"
        handler = traced_handler(lambda message: None, topic, "c", telemetry=recorder.telemetry)
        face.consumer(topic, "c", nsqd.address, message_handler=handler)
        with nsqd.subscriber(1) as link:
            link.deliver(b"hello")
        publish, process = recorder.span(f"publish {topic}"), recorder.span(f"process {topic}")
        assert process.parent is None and process.links == ()
        assert trace_of(process) != trace_of(publish)
        with pytest.raises(ConnectionFailed, match="does not support headers"):
            strict = face.producer(nsqd.address, headers=True, retries=0)
            face.call(traced(strict, telemetry=recorder.telemetry).publish, topic, b"hello")


def test_one_side_without_headers(program: Program, recorder: Recorder, topic: str) -> None:
    """A consumer that does not request headers has its own traces."""
    program.consume(topic, "c", lambda message: None, headers=False)
    program.publish(topic)
    assert recorder.span(f"process {topic}").parent is None


def test_metrics(program: Program, recorder: Recorder, topic: str) -> None:
    face, producer = program.face, program.producer()

    def handle(message: Any) -> None:
        if message.body == b"bad" and message.attempts == 1:
            raise KeyError("price")

    program.consume(topic, "billing", handle)
    face.call(producer.multipublish, topic, [b"1", b"2", b"bad"])
    with pytest.raises(NsqdError):
        face.call(producer.publish, topic, TOO_LARGE)
    recorder.spans(f"process {topic}", 4)

    def by_error(metric: str, value: str) -> dict[Any, int]:
        points = recorder.points(metric)
        assert {point.attributes["messaging.destination.name"] for point in points} == {topic}
        assert {point.attributes["messaging.system"] for point in points} == {"nsq"}
        return {each.attributes.get("error.type"): getattr(each, value) for each in points}

    wanted = {None: 3, "E_BAD_MESSAGE": 1}
    assert by_error("messaging.client.sent.messages", "value") == wanted
    wanted = {None: 1, "E_BAD_MESSAGE": 1}
    assert by_error("messaging.client.operation.duration", "count") == wanted
    assert by_error("messaging.client.consumed.messages", "value") == {None: 4}
    assert by_error("messaging.process.duration", "count") == {None: 3, "KeyError": 1}
    for point in recorder.points("messaging.process.duration"):
        assert point.attributes["messaging.consumer.group.name"] == "billing"
        assert point.sum >= 0 and point.explicit_bounds[0] == 0.005


def test_answers_of_the_handler(program: Program, recorder: Recorder, topic: str) -> None:
    kept: list[Any] = []

    def handle(message: Any) -> None:
        if message.body == b"later":
            message.enable_async()
            kept.append(message)
        else:
            message.finish()

    program.consume(topic, "c", handle)
    program.publish(topic, b"now")
    program.publish(topic, b"later")
    spans = recorder.spans(f"process {topic}", 2)
    outcomes = [attributes_of(each)["nsqcy.message.outcome"] for each in spans]
    assert outcomes == ["answered", "unanswered"]
    program.face.call(kept[0].finish)


def test_baggage_reaches_the_handler(program: Program, recorder: Recorder, topic: str) -> None:
    found: list[Any] = []
    program.consume(topic, "c", lambda message: found.append(baggage.get_all()))
    token = context.attach(baggage.set_baggage("tenant", "7"))
    try:
        program.publish(topic)
    finally:
        context.detach(token)
    recorder.span(f"process {topic}")
    assert [dict(each) for each in found] == [{"tenant": "7"}]


def test_baggage_that_does_not_fit_is_left_out(
    program: Program, recorder: Recorder, topic: str
) -> None:
    """A message's headers are limited to 4096 bytes, and the trace context still fits."""
    found: list[Any] = []
    program.consume(topic, "c", lambda message: found.append(message.headers))
    token = context.attach(baggage.set_baggage("large", "x" * 3000))
    try:
        program.publish(topic, headers={"own": "y" * 2000})
    finally:
        context.detach(token)
    assert parent_of(recorder.span(f"process {topic}")) == id_of(recorder.span(f"publish {topic}"))
    assert sorted(found[0]) == ["own", "traceparent"]


def test_a_loop_without_a_handler(daemon: testing.Nsqd, recorder: Recorder, topic: str) -> None:
    address, telemetry = daemon.tcp_address, recorder.telemetry
    with traced(client.Producer(address, headers=True), telemetry=telemetry) as producer:
        for body in (b"1", b"2", b"3"):
            producer.publish(topic, body)
    publishes = recorder.spans(f"publish {topic}", 3)
    with client.Consumer(topic, "c", address, headers=True, max_in_flight=10) as consumer:
        first = consumer.get(TIMEOUT)
        assert first is not None
        with (
            pytest.raises(ValueError, match="wrong"),
            processing(first, topic, "c", telemetry=telemetry),
        ):
            first.finish()
            raise ValueError("wrong")
        batch = [message for message in (consumer.get(TIMEOUT), consumer.get(TIMEOUT)) if message]
        with processing(batch, topic, "c", telemetry=telemetry) as span:
            span.set_attribute("rows", 2)
            client.finish(batch)
    one, several = recorder.spans(f"process {topic}", 2)
    assert trace_of(one) in {trace_of(each) for each in publishes}
    assert attributes_of(one)["error.type"] == "ValueError"
    assert several.parent is None
    assert sorted([*links_of(one), *links_of(several)]) == sorted(map(id_of, publishes))
    assert attributes_of(several)["messaging.batch.message_count"] == 2
    assert attributes_of(several)["rows"] == 2


def test_several_topics(daemon: testing.Nsqd, recorder: Recorder, topic: str) -> None:
    """A span contains the topic of its message, or the given text for a mixed batch."""
    topics = [f"{topic}.a", f"{topic}.b"]
    address, telemetry = daemon.tcp_address, recorder.telemetry
    seen: list[str] = []
    handler = traced_handler(
        lambda message: seen.append(message.topic), "any", "c", telemetry=telemetry
    )
    with client.Producer(address) as producer:
        for each in topics:
            producer.multipublish(each, [b"1", b"2"])
    with client.Consumer(topics, "c", address, max_in_flight=2) as consumer:
        batch = [message for message in (consumer.get(TIMEOUT), consumer.get(TIMEOUT)) if message]
        with processing(batch, "any", "c", telemetry=telemetry):
            client.finish(batch)
    names = {"any"} if len({each.topic for each in batch}) == 2 else {batch[0].topic}
    with client.Consumer(topics, "c", address, message_handler=handler):
        eventually(lambda: len(seen) == 2)
    for each in {*names, *seen}:
        for span in recorder.spans(f"process {each}", [*names, *seen].count(each)):
            assert attributes_of(span)["messaging.destination.name"] == each


def test_a_message_without_context_belongs_to_the_current_trace(
    daemon: testing.Nsqd, recorder: Recorder, topic: str
) -> None:
    address, tracer = daemon.tcp_address, recorder.tracers.get_tracer("test")
    with client.Producer(address, headers=True) as producer:
        producer.publish(topic, b"hello", headers={"customer": "7"})
    with client.Consumer(topic, "c", address, headers=True) as consumer:
        message = consumer.get(TIMEOUT)
        assert message is not None
        with (
            tracer.start_as_current_span("job") as job,
            processing(message, topic, "c", telemetry=recorder.telemetry),
        ):
            message.finish()
    process = recorder.span(f"process {topic}")
    assert parent_of(process) == job.get_span_context().span_id
    assert process.links == ()


def test_handlers_stay_functions_or_coroutine_functions() -> None:
    def function(message: Any) -> None:
        """Handle the message."""

    async def coroutine(message: Any) -> None: ...

    assert asyncio.iscoroutinefunction(traced_handler(coroutine, "t", "c"))
    wrapped = traced_handler(function, "t", "c")
    assert not asyncio.iscoroutinefunction(wrapped)
    assert (wrapped.__name__, wrapped.__doc__) == ("function", "Handle the message.")
    with pytest.raises(TypeError, match="cannot be a coroutine function"):
        client.Consumer(
            "t", "c", "127.0.0.1:1", message_handler=traced_handler(coroutine, "t", "c")
        )


def test_handlers_with_a_codec() -> None:
    """The consumer passes the message, not its value, to the function that makes the span."""

    def handle(message: Any) -> None: ...
    async def handle_later(message: Any) -> None: ...

    for each in (handle, handle_later, decoding(handle, "json")):
        wrapped = traced_handler(each, "t", "c")
        assert decoding(wrapped, "json") is wrapped


GEVENT = """
import sys
from gevent import monkey
monkey.patch_all()
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry import trace
from nsqcy.client import Consumer, Producer
from nsqcy.integrations.opentelemetry import traced, traced_handler

exporter = InMemorySpanExporter()
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
with traced(Producer(sys.argv[1], headers=True)) as producer:
    assert producer.publish_nowait("greenlets", b"hello").get() == b"OK"
consumer = Consumer("greenlets", "c", sys.argv[1], headers=True, message_handler=traced_handler(
    lambda message: consumer.close(wait=False), "greenlets", "c"))
consumer.run()
publish, process = exporter.get_finished_spans()
assert process.parent.span_id == publish.context.span_id
"""


def test_greenlets(daemon: testing.Nsqd) -> None:
    """gevent's futures differ from those of threads; the default telemetry is the global one."""
    command = [sys.executable, "-c", GEVENT, daemon.tcp_address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr


class Failing(SpanProcessor):
    """A span processor that fails at the end of each span."""

    def on_end(self, span: ReadableSpan) -> None:
        raise SystemExit


def test_a_failing_span_processor_fails_no_publish_and_no_message(
    program: Program, recorder: Recorder, topic: str
) -> None:
    recorder.tracers.add_span_processor(Failing())
    handled: list[Any] = []
    program.publish(topic)
    program.consume(topic, "c", handled.append)
    eventually(lambda: len(handled) == 1, TIMEOUT)
    eventually(lambda: handled[0].has_responded(), TIMEOUT)
    assert handled[0].attempts == 1
