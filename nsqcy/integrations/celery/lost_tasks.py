"""Tasks that a Celery worker has received but not begun when their connection to nsqd is lost.

nsqd redelivers them, so the worker's copies would make them run twice. Celery drops such copies
when its only connection is lost; here, the connections to other nsqds continue.
"""

import functools
from collections.abc import Collection
from typing import Any

from celery.worker import state


def drop(tags: Collection[str]) -> set[str]:
    """Drop the tasks with these delivery tags, except those already in the pool; return the tags
    of the dropped tasks."""
    scheduled = getattr(state, "scheduled_requests", ())  # since Celery 5.7
    dropped = set()
    for request in {*state.reserved_requests, *scheduled} - {*state.active_requests}:
        tag = request.message.delivery_tag
        if tag in tags and request._apply_result is None:
            # called when the task's turn comes
            request.revoked = functools.partial(_forget, request)
            _forget(request)
            dropped.add(tag)
    return dropped


def _forget(request: Any) -> bool:
    """Remove a task from the lists of `celery inspect`, which may already contain the next
    delivery. Returns True: the task must not run."""
    if state.requests.get(request.id) is request:
        del state.requests[request.id]
    state.reserved_requests.discard(request)
    return True
