"""Several topics: one consumer reads all topics that match a pattern, including topics created
later.

    nsqcy up                      # in another terminal
    python examples/several_topics.py

At most 20 messages are in flight, across all topics. A topic with a backlog uses the capacity that
idle topics do not need.
"""

import os
from collections import Counter

from nsqcy import Consumer, Message, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
counts: Counter[str] = Counter()


def handle(message: Message) -> None:
    counts[message.topic] += 1
    if message.topic == "shop.orders" and counts["shop.orders"] == 1:
        producer.publish("shop.refunds", b"order 1")  # a new topic
    if counts.total() == 102:
        consumer.close()


with Producer(TCP) as producer:
    producer.multipublish("shop.orders", [b"order"] * 100)
    producer.publish("shop.returns", b"order 2")
    consumer = Consumer(
        topics_pattern=r"shop\..*",  # a regular expression for the entire name
        channel="billing",
        nsqd_tcp_addresses=TCP,
        nsqd_http_addresses=HTTP,  # lists the topics, as nsqlookupds do
        lookupd_poll_interval=1,  # seconds until a new topic is found
        message_handler=handle,
        max_in_flight=20,
    )
    consumer.run()
for topic, count in sorted(counts.items()):
    print(f"{topic}: {count}")
