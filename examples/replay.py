"""Replay: a new channel that begins with the history of a topic.

    nsqcy up --retention-time=24h     # in another terminal
    python examples/replay.py

A topic with retention keeps messages that every channel has finished. A channel can begin anywhere
in the retained log, and any NSQ client can consume it.
"""

import json
import os
from urllib.request import Request, urlopen

from nsqcy import Consumer, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


def request(method: str, path: str, body: bytes | None = None) -> bytes:
    with urlopen(Request(f"http://{HTTP}{path}", body, method=method), timeout=10) as answer:
        return bytes(answer.read())


def consume(channel: str, count: int) -> list[str]:
    bodies = []
    with Consumer("clicks", channel, TCP) as consumer:
        for message in consumer:
            bodies.append(message.body.decode())
            message.finish()
            if len(bodies) == count:
                break
    return bodies


# Set the retention of one topic; --retention-time sets it for all topics.
request("PUT", "/topic/config?topic=clicks", json.dumps({"retention_time": "24h"}).encode())
with Producer(TCP) as producer:
    producer.multipublish("clicks", [b"first", b"second", b"third"])
print("live:", consume("live", 3))

# All messages are finished, but still available to a channel that begins at the start ...
request("POST", "/channel/create?topic=clicks&channel=report&start=earliest")
print("report:", consume("report", 3))

# ... and to the same channel again, from the second message on.
request("POST", "/channel/seek?topic=clicks&channel=report&to=2")
print("again:", consume("report", 2))
