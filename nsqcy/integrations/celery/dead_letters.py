"""Celery tasks that become dead letters, with their error, when they fail permanently.

    app = Celery("shop", broker="nsqcy://127.0.0.1:4150", task_cls=DeadLetterTask)
    app.conf.broker_transport_options = {"rejected_queue": "{queue}.dead"}

Owns the rules by which a failed task is rejected. The transport publishes rejected messages.
"""

from typing import Any

from celery import Task
from celery.exceptions import TimeLimitExceeded
from celery.worker.request import Request

from nsqcy.integrations.kombu.rejected import ERROR_HEADER

MAX_ERROR = 500  # characters; encoded in UTF-8, they fit into nsqd's limit for headers


class DeadLetterRequest(Request):
    """A delivery of a task whose failure is written to the task's headers."""

    _failure: BaseException | None = None

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft:
            self._failure = TimeLimitExceeded(timeout)
        super().on_timeout(soft, timeout)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        error = exc_info.exception
        # the error without the wrapper of another process
        self._failure = getattr(error, "exc", error)
        return super().on_failure(exc_info, *args, **kwargs)

    def reject(self, requeue: bool = False) -> None:
        """Reject the message. Celery would endlessly requeue a task that exceeds its hard time
        limit."""
        if self._failure is not None:
            self.message.headers[ERROR_HEADER] = _description(self._failure)
        super().reject(requeue and not isinstance(self._failure, TimeLimitExceeded))


class DeadLetterTask(Task):
    """Base class of tasks that go to the transport's `rejected_queue` when they fail permanently.

    A failure is final after the last retry, for an exception that is not retried, after the hard
    time limit, and if the process of the task dies (unless the task has `reject_on_worker_lost`,
    which requeues it). Without `rejected_queue`, the task is finished.
    """

    abstract = True
    acks_late = True
    acks_on_failure_or_timeout = False
    Request = "nsqcy.integrations.celery.dead_letters:DeadLetterRequest"


def _description(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_ERROR]
