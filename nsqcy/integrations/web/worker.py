"""Worker process: consumers with the handlers of an app, until a signal stops them."""

import signal
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

from nsqcy.client import Consumer
from nsqcy.integrations.web.settings import Settings
from nsqcy.integrations.web.subscriptions import Handler, Subscription

STOPPING = (signal.SIGTERM, signal.SIGINT)


def consumers_of(
    subscriptions: Iterable[Subscription],
    settings: Settings,
    wrapped: Callable[[Handler], Handler],
) -> list[Consumer]:
    """Return a consumer for each handler, which `wrapped` may extend. Raises ValueError."""
    return [
        Consumer(
            each.topic,
            each.channel,
            settings.nsqds,
            settings.lookupds,
            wrapped(each.handler),
            concurrency=each.concurrency or 1,
            **_merged(settings, each),
        )
        for each in subscriptions
    ]


def _merged(settings: Settings, subscription: Subscription) -> Any:
    return {**settings.consumer, **subscription.options, **subscription.parameters}


def consume(consumers: Sequence[Consumer]) -> None:
    """Run consumers until SIGTERM or SIGINT. Only for the main thread.

    Handlers that are running may finish their messages within close_timeout. nsqd redelivers the
    other messages.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for consumer in consumers:
            consumer.close(wait=False)

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        for consumer in consumers:
            consumer.start()
        for consumer in consumers:
            consumer.join()
    finally:
        for consumer in consumers:
            consumer.close()
        for number, action in before.items():
            signal.signal(number, action)
