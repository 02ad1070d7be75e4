"""A Flask app that publishes orders, and a worker command that consumes them.

    pip install "nsqcy[flask]"
    nsqcy up                                              # in another terminal
    flask --app examples/flask_app run                    # the web server
    flask --app examples/flask_app nsqcy consume          # the worker
    curl -X POST 'http://127.0.0.1:5000/orders/7'

Each web process has one producer, which every thread shares.
"""

import os

from flask import Flask

from nsqcy import Error, Message
from nsqcy.integrations.flask import Nsq

app = Flask(__name__)
app.config["NSQCY_NSQD_TCP_ADDRESSES"] = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
nsq = Nsq(app)


@app.post("/orders/<int:number>")
def create_order(number: int) -> tuple[dict[str, object], int]:
    try:
        nsq.producer.publish("flask-orders", str(number).encode())
    except Error:
        return {"error": "the order could not be accepted, try again"}, 503
    return {"id": number}, 202


@nsq.consumer("flask-orders", "billing")
def send_invoice(message: Message) -> None:
    print(f"order {message.body.decode()}: invoice sent", flush=True)
