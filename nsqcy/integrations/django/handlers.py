"""The handlers of a project, and where they are found."""

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any, Unpack

from django.db import close_old_connections
from django.utils.module_loading import autodiscover_modules

from nsqcy.integrations.django.configuration import given_setting, handler_modules
from nsqcy.integrations.web.subscriptions import H, Handler, HandlerKeywords, Subscriptions

MODULE = "consumers"  # module of each app

subscriptions = Subscriptions(blocking=True)


def consumer(
    topic: str, channel: str, *, concurrency: int = 1, **options: Unpack[HandlerKeywords]
) -> Callable[[H], H]:
    """Return a decorator: `manage.py nsqcy_consume` runs the function for messages of a channel.

    It runs in up to `concurrency` threads. Its result answers the message, as in Consumer. Options
    override those of the NSQCY setting. Raises ValueError, and TypeError for unknown options and
    for coroutine functions.
    """
    return subscriptions.registering(topic, channel, concurrency, options)


def discover() -> None:
    """Import `consumers.py` of each app, and the modules in NSQCY."""
    autodiscover_modules(MODULE)
    for name in handler_modules(given_setting()):
        import_module(name)


def with_connections(handler: Handler) -> Handler:
    """Wrap a handler so that its database connections are usable, as in a view."""

    @functools.wraps(handler)
    def handle(*received: Any) -> Any:
        close_old_connections()
        try:
            return handler(*received)
        finally:
            close_old_connections()

    return handle
