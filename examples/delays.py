"""Deferred messages: a reminder in the future, and one that is cancelled.

    nsqcy up                      # in another terminal
    python examples/delays.py

Deferred messages survive a clean restart of nsqd. Cancelling is a feature of nsqcy's nsqd.
"""

import os
from datetime import timedelta

from nsqcy import Consumer, NsqdAdmin, Producer, cancel

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
admin = NsqdAdmin(HTTP)

# Only a channel has a list of deferred messages: create it before publishing.
admin.create_channel("reminders", "mail")

with Producer(TCP, headers=True) as producer:
    producer.publish("reminders", b"call the dentist", timedelta(seconds=0.5))
    producer.publish(
        "reminders", b"renew the passport", timedelta(hours=1), headers={"cancel-key": "passport"}
    )


def deferred() -> int:
    """Return the number of deferred messages."""
    return len(admin.peek("reminders", "mail", state="deferred"))


print(f"{deferred()} reminders are deferred")
print(f"{cancel('reminders', 'mail', 'passport', HTTP)} is cancelled")

with Consumer("reminders", "mail", TCP) as consumer:
    for message in consumer:
        print(f"due now: {message.body.decode()}")
        message.finish()
        break

print(f"{deferred()} reminders are deferred")
