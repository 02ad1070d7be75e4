"""Fairness: a customer with few jobs does not wait for one with many.

    nsqcy up                      # in another terminal
    python examples/fairness.py

Each customer has a topic, and each topic has its own handler. This works with NSQ's nsqd. With
nsqcy's nsqd, the rule `fair = true` needs only one topic: examples/tenant_mailer.py.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

from nsqcy import Consumer, Message, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
CUSTOMERS = {"big": 100, "small": 3}  # number of jobs


def handler_of(customer: str, done: threading.Event) -> Callable[[Message], None]:
    left = CUSTOMERS[customer]

    def handle(message: Message) -> None:
        nonlocal left
        time.sleep(0.01)  # the work
        left -= 1
        if left == 0:
            print(f"{customer} is done")
            done.set()

    return handle


with Producer(TCP) as producer:
    for customer, jobs in CUSTOMERS.items():  # all jobs of one customer come first
        producer.multipublish(f"jobs-{customer}", [b"job"] * jobs)

with ExitStack() as stack:
    ends = []
    for customer in CUSTOMERS:
        ends.append(threading.Event())
        handle = handler_of(customer, ends[-1])
        stack.enter_context(Consumer(f"jobs-{customer}", "workers", TCP, message_handler=handle))
    for end in ends:
        end.wait(30)
