"""Priorities: urgent messages overtake all others.

    nsqcy up                      # in another terminal
    python examples/priorities.py

Each priority has a topic. The worker handles a message from the second topic only if it has none
from the first. This works with NSQ's nsqd. With nsqcy's nsqd, the rule `urgent_first = true` needs
only one topic: examples/urgent_first.py.
"""

import os
import time

from nsqcy import Consumer, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
BULK, URGENT = 100, 5

with Producer(TCP) as producer:
    producer.multipublish("mail-bulk", [b"newsletter"] * BULK)
    producer.multipublish("mail-urgent", [b"password reset"] * URGENT)

with (
    # Keep more than one message in flight, so that the next urgent one is ready when one is
    # finished.
    Consumer("mail-urgent", "senders", TCP, max_in_flight=5) as urgent,
    Consumer("mail-bulk", "senders", TCP, max_in_flight=1) as bulk,
):
    for number in range(1, BULK + URGENT + 1):
        message = None
        while message is None:
            message = urgent.get(timeout=0) or bulk.get(timeout=0.05)
        time.sleep(0.01)  # the work
        message.finish()
        if number == BULK + URGENT or message.body == b"password reset":
            print(f"message {number}: {message.body.decode()}")
