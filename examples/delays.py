"""Deferred messages: a reminder in the future, and one that is cancelled.

    nsqcy up                      # in another terminal
    python examples/delays.py

Deferred messages survive a restart of nsqd. Cancelling is a feature of nsqcy's nsqd.
"""

import json
import os
from urllib.request import Request, urlopen

from nsqcy import Consumer, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


def request(method: str, path: str) -> bytes:
    with urlopen(Request(f"http://{HTTP}{path}", method=method), timeout=10) as answer:
        return bytes(answer.read())


request("POST", "/topic/create?topic=reminders")
request("POST", "/channel/create?topic=reminders&channel=mail")

with Producer(TCP) as producer:
    producer.publish("reminders", b"call the dentist", defer=500)  # milliseconds
    producer.publish("reminders", b"renew the passport", defer=3_600_000)

# Deferred messages of a channel, with their ids and due times.
path = "/channel/deferred?topic=reminders&channel=mail"
waiting = json.loads(request("GET", path))["deferred"]
print(f"{len(waiting)} reminders are deferred")

# Cancel the reminder that is due last.
last = max(waiting, key=lambda each: each["due"])
request("POST", f"/message/cancel?topic=reminders&channel=mail&id={last['id']}")

with Consumer("reminders", "mail", TCP) as consumer:
    for message in consumer:
        print(f"due now: {message.body.decode()}")
        message.finish()
        break

print(f"{len(json.loads(request('GET', path))['deferred'])} reminders are deferred")
