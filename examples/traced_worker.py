"""OpenTelemetry: one trace from publishing an order to handling it, including a retry.

    pip install "nsqcy[otel]" opentelemetry-sdk
    nsqcy up                      # in another terminal
    python examples/traced_worker.py

The program prints the trace id and the name of each span. To send spans to a tracing system,
replace ConsoleSpanExporter with OTLPSpanExporter from the package opentelemetry-exporter-otlp.
"""

import os

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from nsqcy import Consumer, Message, Producer, Requeue
from nsqcy.integrations.opentelemetry import traced, traced_handler

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")


def line(span: ReadableSpan) -> str:
    """Return the text that the exporter prints for a span."""
    text = f"{trace.format_trace_id(span.context.trace_id)} {span.name}"
    attributes = span.attributes or {}
    if "nsqcy.message.attempts" in attributes:
        attempts, outcome = (
            attributes[f"nsqcy.message.{name}"] for name in ("attempts", "outcome")
        )
        text += f": attempt {attempts!s}, {outcome!s}"
    return f"{text}\n"


def handle(message: Message) -> None:
    """Handle one order. The first attempt fails."""
    if message.attempts == 1:
        raise Requeue(delay=0.1, backoff=False)  # in 0.1 s
    consumer.close(wait=False)


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
trace.set_tracer_provider(provider)

with traced(Producer(TCP, headers=True)) as producer:
    producer.publish("orders", b'{"id": 1, "total": 25}')

consumer = Consumer(
    "orders",
    "billing",
    TCP,
    headers=True,
    message_handler=traced_handler(handle, "orders", "billing"),
)
consumer.run()
