"""Many tenants: a mailer for 100 tenants, while one tenant floods.

    nsqcy up                      # in another terminal
    python examples/tenant_mailer.py

The tenants take turns. Each tenant has at most 3 mails in flight, and at most 100 a second. The
producer sets the tenant as the key of a mail; the workers need no change.
"""

import os
import threading
import time
from collections import Counter

from nsqcy import Consumer, Message, NsqdAdmin, Producer

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
OTHERS = [f"tenant-{number}" for number in range(1, 100)]
FLOOD = 200  # mails of tenant-0
TOTAL = FLOOD + len(OTHERS)

lock = threading.Lock()
sending: Counter[str] = Counter()
most: Counter[str] = Counter()  # maximum mails that were being sent at a time
sent: list[str] = []
done = threading.Event()


def send(message: Message) -> None:
    tenant = message.headers["key"]
    with lock:
        sending[tenant] += 1
        most[tenant] = max(most[tenant], sending[tenant])
    time.sleep(0.002)  # the work
    with lock:
        sending[tenant] -= 1
        sent.append(tenant)
        if len(sent) == TOTAL:
            done.set()


admin = NsqdAdmin(HTTP)
admin.channel_policy("mails", "mailer", fair=True, in_flight_per_key=3, key_rate=100)
admin.create_channel("mails", "mailer")

with Producer(TCP, headers=True) as producer:
    producer.multipublish("mails", [b"newsletter"] * FLOOD, key="tenant-0")
    for tenant in OTHERS:  # behind 200 mails of another tenant
        producer.publish("mails", b"password reset", key=tenant)

began = time.monotonic()
with Consumer("mails", "mailer", TCP, message_handler=send, concurrency=10, headers=True):
    done.wait(30)
seconds = time.monotonic() - began

last = max(sent.index(tenant) for tenant in OTHERS)
waiting = FLOOD - sent[:last].count("tenant-0")
few = "most" if waiting > FLOOD / 2 else "few"
print(f"mails of tenant-0 that still waited after the last of the others: {few}")
limit = "at most 3" if most["tenant-0"] <= 3 else "more"
print(f"mails of tenant-0 that were being sent at a time: {limit}")
print(f"mails of tenant-0 per second: {FLOOD / seconds:.0f}")
