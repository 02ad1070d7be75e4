"""FastAPI application for tests/integrations. SHOP_NSQD contains the address of nsqd."""

import os
from typing import Annotated

from fastapi import Depends, FastAPI

from nsqcy.client.aio import Message, Producer
from nsqcy.integrations.fastapi import NsqLifespan, get_producer
from support.shop_notes import hang_on_loop, note

nsq = NsqLifespan(os.environ["SHOP_NSQD"], msg_timeout=2.0)
app = FastAPI(lifespan=nsq)


@app.post("/publish/{topic}")
async def publish(
    topic: str, body: str, producer: Annotated[Producer, Depends(get_producer)]
) -> int:
    await producer.publish(topic, body.encode())
    return os.getpid()


@nsq.consumer("orders", "billing")
async def order(message: Message) -> None:
    note(task="order", body=message.body.decode())


@nsq.consumer("slow", "billing")
async def slow(message: Message) -> None:
    await hang_on_loop(message.body.decode())
    await nsq.producer.publish("orders", b"after the stop")
