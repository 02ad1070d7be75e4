"""Deferred messages: a reminder in the future, and one that is cancelled.

    nsqcy up                      # in another terminal
    python examples/delays.py

Deferred messages survive a restart of nsqd. Cancelling is a feature of nsqcy's nsqd.
"""

import json
import os
from base64 import b64decode
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

from nsqcy import Consumer, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


def request(method: str, path: str) -> bytes:
    with urlopen(Request(f"http://{HTTP}{path}", method=method), timeout=10) as answer:
        return bytes(answer.read())


# Only a channel has a list of deferred messages: create it before publishing.
request("POST", "/topic/create?topic=reminders")
request("POST", "/channel/create?topic=reminders&channel=mail")

with Producer(TCP) as producer:
    producer.publish("reminders", b"call the dentist", defer=500)  # milliseconds
    producer.publish("reminders", b"renew the passport", defer=3_600_000)


def deferred() -> Iterator[dict[str, Any]]:
    """Yield the deferred messages of the channel, page by page, with their ids and bodies."""
    path = "/channel/peek?topic=reminders&channel=mail&state=deferred"
    page = json.loads(request("GET", path))
    yield from page["messages"]
    while page["next"] is not None:
        page = json.loads(request("GET", f"{path}&start={page['next']}"))
        yield from page["messages"]


print(f"{len(list(deferred()))} reminders are deferred")

# Cancel a reminder. Its publish returned no id, so find it by its body.
for each in deferred():
    if b64decode(each["body"]) == b"renew the passport":
        request("POST", f"/message/cancel?topic=reminders&channel=mail&id={each['id']}")

with Consumer("reminders", "mail", TCP) as consumer:
    for message in consumer:
        print(f"due now: {message.body.decode()}")
        message.finish()
        break

print(f"{len(list(deferred()))} reminders are deferred")
