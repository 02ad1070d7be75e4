"""A Celery application on nsqd: a task, a countdown, and a retry.

    nsqcy up                                        # in another terminal
    cd examples
    celery -A celery_app worker                     # in a third terminal
    python celery_app.py                            # publishes three tasks

Needs `pip install "nsqcy[celery]"`.
"""

import os

from celery import Celery, Task

import nsqcy.integrations.celery  # noqa: F401  (registers nsqcy://)

TCP = os.environ.get("NSQD_TCP_ADDRESS", "127.0.0.1:4150")

app = Celery("celery_app", broker=f"nsqcy://{TCP}")
app.conf.task_acks_late = True  # nsqd redelivers the tasks of a worker that dies
app.conf.broker_connection_retry_on_startup = True


@app.task  # type: ignore[untyped-decorator]
def greet(name: str) -> None:
    print(f"hello, {name}", flush=True)


@app.task(bind=True, max_retries=3)  # type: ignore[untyped-decorator]
def send_mail(self: Task, to: str) -> None:
    if self.request.retries == 0:
        raise self.retry(countdown=0.5)  # nsqd holds the task until then
    print(f"mail for {to} sent after {self.request.retries} retry", flush=True)


if __name__ == "__main__":
    greet.delay("Ada")
    greet.apply_async(("the future",), countdown=2)  # deferred in nsqd, not in a worker
    send_mail.delay("grace@example.org")
    print("published 3 tasks")
