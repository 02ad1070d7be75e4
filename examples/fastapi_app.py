"""A FastAPI app that publishes orders and consumes them in the background.

    pip install "nsqcy[fastapi]" uvicorn
    nsqcy up                                        # in another terminal
    uvicorn fastapi_app:app --app-dir examples
    curl -X POST 'http://127.0.0.1:8000/orders/7?total=25'
    curl 'http://127.0.0.1:8000/orders/7'

The producer and the consumer live as long as the app. A request returns when nsqd has accepted its
message, and the app waits for running handlers when it shuts down.
"""

import json
import os
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from nsqcy.aio import Error, Message, Producer
from nsqcy.integrations.fastapi import NsqLifespan, get_producer

nsq = NsqLifespan(os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150"))
app = FastAPI(lifespan=nsq)
invoices: dict[int, int] = {}


@nsq.consumer("web-orders", "billing")
async def send_invoice(message: Message) -> None:
    order = json.loads(message.body)
    invoices[order["id"]] = order["total"]


@app.post("/orders/{number}", status_code=202)
async def create_order(
    number: int, total: int, producer: Annotated[Producer, Depends(get_producer)]
) -> dict[str, int]:
    body = json.dumps({"id": number, "total": total}).encode()
    try:
        await producer.publish("web-orders", body, timeout=5)
    except Error as error:
        raise HTTPException(503, "the order could not be accepted, try again") from error
    return {"id": number}


@app.get("/orders/{number}")
async def read_order(number: int) -> dict[str, int]:
    if number not in invoices:
        raise HTTPException(404, "no invoice yet")
    return {"id": number, "invoiced": invoices[number]}
