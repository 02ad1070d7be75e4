"""A FastAPI app that publishes orders and consumes them in the background.

    pip install fastapi uvicorn
    nsqcy up                                        # in another terminal
    uvicorn fastapi_app:app --app-dir examples
    curl -X POST 'http://127.0.0.1:8000/orders/7?total=25'
    curl 'http://127.0.0.1:8000/orders/7'

The producer and the consumer live as long as the app. A request returns when nsqd has accepted its
message, and the app waits for running handlers when it shuts down.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from nsqcy.client.aio import Consumer, Message, NsqdError, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
invoices: dict[int, int] = {}


async def send_invoice(message: Message) -> None:
    order = json.loads(message.body)
    invoices[order["id"]] = order["total"]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with (
        Producer(TCP) as app.state.producer,
        Consumer("web-orders", "billing", TCP, message_handler=send_invoice),
    ):
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def create_order(number: int, total: int) -> dict[str, int]:
    body = json.dumps({"id": number, "total": total}).encode()
    try:
        await app.state.producer.publish("web-orders", body)
    except NsqdError as error:
        raise HTTPException(503, "the order could not be accepted, try again") from error
    return {"id": number}


@app.get("/orders/{number}")
async def read_order(number: int) -> dict[str, int]:
    if number not in invoices:
        raise HTTPException(404, "no invoice yet")
    return {"id": number, "invoiced": invoices[number]}
