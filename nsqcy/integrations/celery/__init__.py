"""Celery's side of the kombu transport: registration, and cancelling deferred tasks.

    import nsqcy.integrations.celery

    app = Celery("shop", broker="nsqcy://127.0.0.1:4150")

Celery does not need the import if nsqcy is installed as a distribution. kombu has no entry points
for transports, but it loads those of serializers, including `SERIALIZER`. Celery loads
them before it connects; a program that uses kombu alone must import this module.
"""

from typing import Any

from kombu.transport import TRANSPORT_ALIASES

ALIAS = "nsqcy"
TRANSPORT = "nsqcy.integrations.kombu:Transport"

# Arguments for kombu's register(): encoder, decoder, content type and encoding. Without an encoder
# and a decoder, the serializer cannot be used, and kombu refuses its content type.
SERIALIZER = (None, None, "application/x-nsqcy-transport", "utf-8")


def register() -> None:
    """Register `nsqcy://` and `nsqcy+lookupd://` as broker URLs. May be called repeatedly."""
    TRANSPORT_ALIASES[ALIAS] = TRANSPORT


def cancel(app: Any, task_id: str, queue: str | None = None) -> bool:
    """Remove a task with a countdown or an ETA from nsqd, and return whether it was there.

    A task that is already due is not removed: use `app.control.revoke()`. `queue` defaults
    to the application's default queue. The search, over HTTP, reads all deferred tasks of the
    queue. Raises ConnectionError if an nsqd does not respond, or has no such API (NSQ's nsqd).
    """
    name = queue or app.conf.task_default_queue
    with app.connection_for_write() as connection:
        return bool(connection.default_channel.cancel_deferred(name, task_id))


register()
