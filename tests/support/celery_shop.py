"""Celery application for tests/integrations: tasks that record their runs in a file.

The environment configures it: SHOP_BROKER, SHOP_BACKEND, SHOP_OPTIONS (JSON), SHOP_FILE, and
SHOP_BEAT, the seconds between two tasks of the schedule.
"""

import json
import os
import threading

from celery import Celery
from celery.exceptions import Reject

import nsqcy.integrations.celery
from nsqcy.integrations.celery.dead_letters import DeadLetterTask
from support import shop_notes
from support.shop_notes import note

nsqcy.integrations.celery.register()

app = Celery("shop", broker=os.environ["SHOP_BROKER"], backend=os.environ.get("SHOP_BACKEND"))
app.conf.update(
    broker_transport_options=json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
    task_acks_late=True,
    task_publish_retry=True,
    worker_prefetch_multiplier=int(os.environ.get("SHOP_MULTIPLIER", "4")),
)
if "SHOP_BEAT" in os.environ:
    app.conf.beat_schedule = {
        "add": {
            "task": f"{__name__}.add",
            "schedule": float(os.environ["SHOP_BEAT"]),
            "args": (1, 2),
        }
    }


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
    shop_notes.hang(gate)


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
    """Fail until the file exists."""
    if os.path.exists(gate):
        note(task="fail", how=how)
    elif how == "raise":
        raise ValueError("never works")
    elif how == "exit":
        os._exit(1)
    else:
        threading.Event().wait()
