"""A worker with retries, dead letters and a graceful shutdown.

    nsqcy up                      # in another terminal
    python examples/worker.py
    curl -d '{"id": 1, "total": 25}' 'http://127.0.0.1:4151/pub?topic=orders'

nsqd delivers an order up to three times. An order that fails three times goes to the orders-dead
topic, where examples/dead_letters.py reads it. SIGTERM or Ctrl-C stops the worker once it has
finished the orders that it is working on.
"""

import json
import logging
import os
import signal

from nsqcy import Consumer, Message, NsqdAdmin

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


def configure_nsqd() -> None:
    """Set the policies, and create a second channel that keeps the dead letters."""
    admin = NsqdAdmin(HTTP)
    for topic in ("orders", "orders-dead"):
        admin.topic_policy(topic, durability="os")  # an accepted message survives `kill -9` of nsqd
    admin.create_channel("orders-dead", "inspect")
    admin.channel_policy("orders", "billing", max_attempts=3, dead_letter_topic="orders-dead")


def send_invoice(message: Message) -> None:
    """Handle one order. Raising an exception requeues the message; returning finishes it."""
    order = json.loads(message.body)
    if order["total"] < 0:
        raise ValueError(f"order {order['id']} has a negative total")
    print(f"order {order['id']}: invoice over {order['total']} sent", flush=True)


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    configure_nsqd()
    consumer = Consumer(
        "orders",
        "billing",
        TCP,
        message_handler=send_invoice,
        concurrency=4,
    )
    signal.signal(signal.SIGTERM, lambda *_: consumer.close(wait=False))
    signal.signal(signal.SIGINT, lambda *_: consumer.close(wait=False))
    consumer.run()
    print("stopped", flush=True)


if __name__ == "__main__":
    main()
