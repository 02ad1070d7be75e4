"""The producer of a process, and publishing after a transaction."""

from django.db import transaction

from nsqcy.client import Producer
from nsqcy.client.common_interface import Headers
from nsqcy.client.producer import dpub_head
from nsqcy.integrations.django.configuration import current_settings
from nsqcy.integrations.process_producer import ProcessProducer


def _new() -> Producer:
    settings = current_settings()
    return Producer(settings.nsqds, settings.lookupds, **settings.producer)


process_producer = ProcessProducer(_new)


def producer() -> Producer:
    """Return this process's producer, which all threads share.

    It is created on first use, and therefore after a server has forked. Raises
    ImproperlyConfigured.
    """
    return process_producer.get()


def publish_on_commit(
    topic: str,
    data: bytes,
    defer: int | None = None,
    timeout: float | None = None,
    *,
    headers: Headers | None = None,
    using: str | None = None,
    robust: bool = False,
) -> None:
    """Publish a message once the current transaction has been committed, or now if there is none.

    Arguments are those of Producer.publish, plus `using` and `robust` as in transaction.on_commit.
    The block that commits raises the errors of Producer.publish; with `robust`, Django logs them. A
    process that dies after the commit does not publish the message.

    Raises ValueError and TypeError for invalid arguments now, so that the transaction fails.
    """
    dpub_head(topic, defer or 0)
    producer()._body(data, headers)

    def publish() -> None:  # not a partial: Django logs its name
        producer().publish(topic, data, defer, timeout, headers=headers)

    transaction.on_commit(publish, using=using, robust=robust)


def forget_settings() -> None:
    """Close the producer, so that the next one uses the new settings."""
    process_producer.close()
