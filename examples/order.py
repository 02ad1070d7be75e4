"""Order: apply the events of each account in the order of their numbers.

    nsqcy up                      # in another terminal
    python examples/order.py

Works with NSQ's nsqd, which delivers messages in any order, and some of them twice. The publisher
numbers the events of an account; the consumer applies an event only after the previous one, and
only once. With nsqcy's nsqd, the rule `order = key` does this: examples/account_events.py.
"""

import os
from typing import Any

from nsqcy import Consumer, Producer, Requeue

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

# The last number applied to each account. A real program keeps it in a column of the account's row,
# and changes it in the same transaction as the account.
applied: dict[str, int] = {}


def apply(event: Any) -> None:
    last = applied.get(event["account"], 0)
    if event["number"] <= last:
        return  # a duplicate
    if event["number"] > last + 1:
        raise Requeue(delay=0.2, backoff=False)  # in 0.2 s: the previous event is missing
    applied[event["account"]] = event["number"]
    print(f"{event['account']}: {event['text']}")
    if applied == {"ada": 3, "bob": 2}:
        consumer.close()


with Producer(TCP, codec="json") as producer:
    for account, number, text in [
        ("ada", 1, "opened"),
        ("ada", 3, "withdrew 5"),
        ("bob", 2, "paid in 20"),
        ("ada", 2, "paid in 10"),
        ("ada", 2, "paid in 10"),
        ("bob", 1, "opened"),
    ]:
        producer.publish("accounts", {"account": account, "number": number, "text": text})

consumer = Consumer("accounts", "ledger", TCP, message_handler=apply, codec="json")
consumer.run()
