"""Idempotency: an order that is delivered twice is charged once.

    nsqcy up                      # in another terminal
    python examples/idempotency.py

The publisher chooses a key for each action that must happen once. The consumer stores the key in
the same transaction as the change.
"""

import os
import sqlite3
import threading

from nsqcy import Consumer, Message, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE charges (key TEXT PRIMARY KEY, euros INTEGER)")
ready = threading.Event()
finished = threading.Semaphore(0)


def charge(message: Message) -> None:
    key = message.headers["idempotency-key"]
    with database:  # a transaction
        statement = "INSERT OR IGNORE INTO charges VALUES (?, ?)"
        new = database.execute(statement, (key, int(message.body))).rowcount
    print(f"{key}: {'charged' if new else 'charged before'}")
    if new:
        raise ConnectionError("the worker fails before it has finished the message")
    finished.release()


with (
    Producer(TCP, headers=True) as producer,
    Consumer(
        "orders",
        "cashier",
        TCP,
        message_handler=charge,
        on_ready=lambda connection: ready.set(),
        headers=True,
        requeue_delay=0.1,
    ),
):
    ready.wait(30)  # messages that are published before the channel exists may miss it
    for _ in range(2):  # a publisher that received no answer publishes again
        producer.publish("orders", b"25", headers={"idempotency-key": "order-1"})
    for _ in range(2):
        finished.acquire(timeout=30)

print(f"total: {database.execute('SELECT sum(euros) FROM charges').fetchone()[0]} euros")
