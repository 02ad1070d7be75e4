"""Celery application of tests/integrations: tasks that write what they do to a file.

The environment configures it: SHOP_BROKER, SHOP_BACKEND, SHOP_OPTIONS (JSON) and
SHOP_FILE.
"""

import json
import os
import threading
import time

from celery import Celery
from celery.exceptions import Reject

import nsqcy.integrations.celery
from nsqcy.integrations.celery.dead_letters import DeadLetterTask

nsqcy.integrations.celery.register()

FILE = os.environ["SHOP_FILE"]

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_acks_late=True,
    task_publish_retry=True,
    worker_prefetch_multiplier=int(os.environ.get("SHOP_MULTIPLIER", "4")),
)


def note(**about: object) -> None:
    """Append one line to the file, in a single write."""
    line = json.dumps({"pid": os.getpid(), "time": time.time()} | about) + "\n"
    descriptor = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@app.task
def add(left: int, right: int) -> int:
    note(task="add", result=left + right)
    return left + right


@app.task(bind=True, max_retries=3)
def again(self, number: int) -> None:  # type: ignore[no-untyped-def]
    note(task="again", number=number, retries=self.request.retries)
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)


@app.task
def hang(gate: str) -> None:
    """Run until there is a file."""
    note(task="hang", state="begun")
    while not os.path.exists(gate):
        time.sleep(0.02)
    note(task="hang", state="done")


@app.task(bind=True)
def refuse(self, requeue: bool) -> None:  # type: ignore[no-untyped-def]
    redelivered = self.request.delivery_info["redelivered"]
    note(task="refuse", requeue=requeue, redelivered=redelivered)
    if requeue and redelivered:
        return
    raise Reject("not now", requeue=requeue)


@app.task(bind=True, max_retries=2, base=DeadLetterTask)
def give_up(self, number: int) -> None:  # type: ignore[no-untyped-def]
    note(task="give_up", number=number, retries=self.request.retries)
    raise self.retry(countdown=0.1, exc=ValueError("never works"))


@app.task(base=DeadLetterTask)
def fail(how: str, gate: str) -> None:
    """Fail until there is a file."""
    if os.path.exists(gate):
        note(task="fail", how=how)
    elif how == "raise":
        raise ValueError("never works")
    elif how == "exit":
        os._exit(1)
    else:
        threading.Event().wait()
