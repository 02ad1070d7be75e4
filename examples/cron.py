"""A periodic job: each run defers a message for the next run.

    nsqcy up                      # in another terminal
    python examples/cron.py

The deferred message survives a clean restart of nsqd, and any restart of the workers. Any number
of workers can consume it; one of them gets each run. A key ensures that only one run is scheduled
at a time.
"""

import os
import time
from datetime import timedelta

from nsqcy import Consumer, Message, NsqdAdmin, Producer, cancel

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")
HTTP = os.environ.get("NSQD_HTTP_ADDRESS", "127.0.0.1:4151")
TOPIC, CHANNEL, JOB = "jobs", "workers", "report"
PERIOD = 0.5  # seconds


def schedule() -> None:
    """Schedule the next run at a multiple of the period; replaces the run scheduled so far."""
    now = time.time()
    due = (now // PERIOD + 1) * PERIOD
    cancel(TOPIC, CHANNEL, JOB, HTTP)
    producer.publish(TOPIC, JOB.encode(), timedelta(seconds=due - now), headers={"cancel-key": JOB})


def run(message: Message) -> None:
    """Do the job. If it fails, or its worker dies, nsqd delivers the same message again."""
    global runs
    runs += 1
    print(f"{message.body.decode()}: run {runs}")
    schedule()
    if runs == 3:
        consumer.close()


runs = 0
admin = NsqdAdmin(HTTP)
admin.create_channel(TOPIC, CHANNEL)
with Producer(TCP, headers=True) as producer:
    schedule()
    schedule()  # a second deployment changes nothing
    consumer = Consumer(TOPIC, CHANNEL, TCP, message_handler=run)
    consumer.run()
    print(f"scheduled: {len(admin.peek(TOPIC, CHANNEL, state='deferred'))}")
