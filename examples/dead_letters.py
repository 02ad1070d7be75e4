"""Read dead letters, and put them back into the channel that they came from.

    nsqcy up                      # in another terminal
    python examples/worker.py     # in a third terminal; orders that fail become dead letters
    python examples/dead_letters.py

The headers of a dead letter state its origin, its number of attempts, and why it was moved.
"""

import base64
import json
import os
from urllib.request import Request, urlopen

HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")


def request(method: str, path: str) -> bytes:
    with urlopen(Request(f"http://{HTTP}{path}", method=method), timeout=10) as answer:
        return bytes(answer.read())


# Look at the messages without consuming them.
peeked = json.loads(request("GET", "/channel/peek?topic=orders-dead&channel=inspect&state=queued"))
for message in peeked["messages"]:
    headers = message["headers"]
    print(
        f"from {headers['origin-topic']}/{headers['origin-channel']}: "
        f"{headers['attempts']} attempts, reason {headers['reason']}: "
        f"{base64.b64decode(message['body'])!r}"
    )

# Once the cause is fixed, put all of them back.
answer = request("POST", "/channel/redrive?topic=orders-dead&channel=inspect")
print(f"redriven: {json.loads(answer)['redriven']}")
