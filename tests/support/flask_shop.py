"""Flask application for tests/integrations. SHOP_NSQD contains the address of nsqd."""

import os

from flask import Flask, current_app

from nsqcy.client import Message
from nsqcy.integrations.flask import Nsq
from support.shop_notes import hang, note

app = Flask(__name__)
app.config["NSQCY_NSQD_TCP_ADDRESSES"] = [os.environ["SHOP_NSQD"]]
app.config["NSQCY_OPTIONS"] = {"msg_timeout": 2.0}
nsq = Nsq(app)

if os.environ.get("SHOP_PRELOAD"):
    with app.app_context():
        nsq.producer.publish("orders", b"before the fork")


@app.post("/publish/<topic>/<body>")
def publish(topic: str, body: str) -> dict[str, int]:
    nsq.producer.publish(topic, body.encode())
    return {"pid": os.getpid()}


@nsq.consumer("orders", "billing", concurrency=2)
def order(message: Message) -> None:
    note(task="order", body=message.body.decode(), app=current_app.name)


@nsq.consumer("slow", "billing")
def slow(message: Message) -> None:
    hang(message.body.decode())
    nsq.producer.publish("orders", b"after the stop")
