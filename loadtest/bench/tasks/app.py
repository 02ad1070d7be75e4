"""Celery application of the workers and of the publisher. The environment configures it:
TASKS_BROKER (URL), TASKS_OPTIONS (JSON, broker_transport_options) and TASKS_FILE.

A task appends a fixed-size record to the file, in one write, so that records of killed workers are
complete.
"""

import json
import os
import time

from celery import Celery

import nsqcy.integrations.celery  # noqa: F401  (registers nsqcy://)
from loadtest.bench.tasks import RECORD

app = Celery("tasks", broker=os.environ["TASKS_BROKER"])
app.conf.update(
    broker_transport_options=json.loads(os.environ["TASKS_OPTIONS"]),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_acks_late=os.environ.get("TASKS_ACKS_LATE") == "1",
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
)
file = os.open(os.environ["TASKS_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


@app.task
def record(number: int) -> None:
    os.write(file, RECORD.pack(number, time.time()))


@app.task
def record_lateness(number: int, due: float) -> None:
    os.write(file, RECORD.pack(number, time.time() - due))
