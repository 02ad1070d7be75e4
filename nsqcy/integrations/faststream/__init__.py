"""FastStream broker on nsqd.

    broker = NsqBroker("127.0.0.1:4150")

    @broker.subscriber("orders", channel="billing")
    @broker.publisher("invoices")
    async def bill(order: Order) -> Invoice: ...

A subscriber is a consumer of one channel of a topic. Each message is acknowledged when its handler
has returned, and requeued when it fails.
"""

from nsqcy.integrations.faststream.broker import NsqBroker
from nsqcy.integrations.faststream.message import NsqBatchMessage, NsqMessage
from nsqcy.integrations.faststream.response import NsqResponse
from nsqcy.integrations.faststream.router import NsqPublisher, NsqRoute, NsqRouter
from nsqcy.integrations.faststream.testing import TestNsqBroker

__all__ = [
    "NsqBatchMessage",
    "NsqBroker",
    "NsqMessage",
    "NsqPublisher",
    "NsqResponse",
    "NsqRoute",
    "NsqRouter",
    "TestNsqBroker",
]
