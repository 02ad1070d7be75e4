"""Ordered processing: three workers apply the events of many accounts, each account in order.

    nsqcy up                      # in another terminal
    python examples/account_events.py

nsqd delivers one event of an account at a time, to any worker. If a handler fails, the later events
of the account wait until the event succeeds; other accounts continue. The key comes from the JSON
body, so the producer can be any NSQ client.
"""

import os
import sqlite3
import threading
from contextlib import ExitStack
from typing import Any

from nsqcy import Consumer, NsqdAdmin, Producer, Requeue

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
ACCOUNTS, EVENTS = 5, 20  # events of each account

database = sqlite3.connect(":memory:", check_same_thread=False)
database.execute("CREATE TABLE accounts (id TEXT PRIMARY KEY, balance INTEGER)")
database.execute("CREATE TABLE applied (event TEXT PRIMARY KEY)")
lock = threading.Lock()  # sqlite3 needs it; a database server does not
applied: dict[str, list[int]] = {f"account-{number}": [] for number in range(ACCOUNTS)}
failed: set[str] = set()
done = threading.Event()


def apply(event: Any) -> None:
    """Apply an event once: the event's id and its effect are written in one transaction."""
    if event["number"] % 7 == 3 and event["id"] not in failed:
        failed.add(event["id"])
        raise Requeue(delay=0.05, backoff=False)  # for example, the database does not respond
    with lock, database:
        statement = "INSERT OR IGNORE INTO applied VALUES (?)"
        if not database.execute(statement, (event["id"],)).rowcount:
            return  # delivered before
        statement = "INSERT OR IGNORE INTO accounts VALUES (?, 0)"
        database.execute(statement, (event["account"],))
        statement = "UPDATE accounts SET balance = balance + ? WHERE id = ?"
        database.execute(statement, (event["amount"], event["account"]))
        applied[event["account"]].append(event["number"])
        if sum(map(len, applied.values())) == ACCOUNTS * EVENTS:
            done.set()


admin = NsqdAdmin(HTTP)
admin.topic_policy("account-events", key="json:/account")
admin.channel_policy("account-events", "ledger", order="key")

with ExitStack() as stack:
    for number in range(3):  # in practice, three processes on three machines
        worker = Consumer(
            "account-events",
            "ledger",
            TCP,
            message_handler=apply,
            codec="json",
            client_id=f"worker-{number}",
            concurrency=4,
        )
        stack.enter_context(worker)
    with Producer(TCP, codec="json") as producer:
        for number in range(EVENTS):
            for account in applied:
                event = {"id": f"{account}/{number}", "account": account, "number": number}
                producer.publish("account-events", event | {"amount": 1})
    done.wait(30)

print(f"events that failed first: {len(failed)}")
print(f"each account in order: {all(each == sorted(each) for each in applied.values())}")
for account, balance in database.execute("SELECT id, balance FROM accounts ORDER BY id"):
    print(f"{account}: {balance}")
