"""Four ways to publish: one message, a batch, many batches, and many messages at once.

nsqcy up                      # in another terminal
python examples/publish.py
"""

import os

from nsqcy import NsqdError, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

with Producer(TCP) as producer:
    # publish() returns when nsqd has accepted the message.
    producer.publish("events", b"one")

    # A batch is one command: nsqd accepts all of it or none of it.
    producer.multipublish("events", [b"two", b"three"])

    # publish_all() sends any number of messages in batches of a sensible size.
    producer.publish_all("events", (f"event {number}".encode() for number in range(10_000)))

    # publish_nowait() returns a future: hundreds of publishes can be in progress.
    futures = [producer.publish_nowait("events", b"later") for _ in range(100)]
    for future in futures:
        future.result(timeout=10)

    try:
        producer.publish("not a topic", b"")
    except (NsqdError, ValueError) as error:
        print(f"refused: {error}")

print("published 10,103 messages")
