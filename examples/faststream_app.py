"""A FastStream application on nsqd: orders come in, invoices go out.

    nsqcy up                                        # in another terminal
    cd examples
    faststream run faststream_app:app               # in a third terminal
    python faststream_app.py                        # publishes two orders

Needs `pip install "nsqcy[faststream]"`.
"""

import asyncio
import os

from faststream import FastStream
from pydantic import BaseModel

from nsqcy.integrations.faststream import NsqBroker
from nsqcy.integrations.faststream.annotations import NsqMessage

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

broker = NsqBroker(TCP)
app = FastStream(broker)


class Order(BaseModel):
    id: int
    total: float


class Invoice(BaseModel):
    order: int
    total: float


@broker.subscriber("orders", "billing", max_workers=10)
@broker.publisher("invoices")
async def bill(order: Order, message: NsqMessage) -> Invoice:
    if message.raw_message.attempts == 1 and order.id == 2:
        await message.nack(delay=0.5)  # nsqd redelivers the order
        raise ConnectionError("the tax service does not respond")
    return Invoice(order=order.id, total=order.total * 1.2)


@broker.subscriber("invoices", "mail")
async def send(invoice: Invoice) -> None:
    print(f"invoice for order {invoice.order}: {invoice.total:.2f}", flush=True)


async def main() -> None:
    async with broker:
        await broker.publish(Order(id=1, total=10), "orders")
        await broker.publish(Order(id=2, total=20), "orders")
    print("published 2 orders")


if __name__ == "__main__":
    asyncio.run(main())
