"""Handlers that an app registers, each for one channel of a topic."""

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nsqcy.client.bodies import Codec
from nsqcy.client.common_interface import refuse_coroutine_functions
from nsqcy.client.options import ConsumerKeywords, consumer_options
from nsqcy.names import is_valid_name, quote

Handler = Callable[..., Any]  # handler of a message or, with a codec, of a value
H = TypeVar("H", bound=Handler)


class HandlerKeywords(ConsumerKeywords, total=False):
    """Keyword arguments for a handler: the consumer's options, and parameters of Consumer."""

    codec: Codec | None
    dead_letter_topic: str | None


PARAMETERS = HandlerKeywords.__annotations__.keys() - ConsumerKeywords.__annotations__.keys()


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler, its channel, and its own options. parameters: those of Consumer that are not
    options."""

    topic: str
    channel: str
    handler: Handler
    concurrency: int | None
    options: ConsumerKeywords
    parameters: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.topic}/{self.channel}"


class Subscriptions:
    """The handlers of an app, in the order in which they were registered.

    Handlers of the blocking client must not be coroutine functions (see `blocking`).
    """

    def __init__(self, *, blocking: bool) -> None:
        self._blocking = blocking
        self._by_name: dict[str, Subscription] = {}

    def __iter__(self) -> Iterator[Subscription]:
        return iter(self._by_name.values())

    def registering(
        self, topic: str, channel: str, concurrency: int | None, keywords: HandlerKeywords
    ) -> Callable[[H], H]:
        """Return a decorator that registers a handler, and returns it unchanged.

        Raises ValueError for an invalid name or option, and TypeError for an unknown option. The
        decorator raises ValueError if the channel has another handler, and TypeError for a
        coroutine function of a blocking client.
        """
        for what, each in (("topic", topic), ("channel", channel)):
            if not is_valid_name(each):
                raise ValueError(f"{quote(each)} is not a valid {what} name")
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency cannot be {concurrency} (allowed: 1 or more)")
        options: Any = {name: keywords[name] for name in keywords.keys() - PARAMETERS}  # type: ignore[literal-required]
        parameters: Any = {name: keywords[name] for name in keywords.keys() & PARAMETERS}  # type: ignore[literal-required]
        consumer_options(options)

        def register(handler: H) -> H:
            self._add(Subscription(topic, channel, handler, concurrency, options, parameters))
            return handler

        return register

    def _add(self, new: Subscription) -> None:
        if self._blocking:
            refuse_coroutine_functions(handler=new.handler)
        old = self._by_name.get(new.name)
        if old is not None and _path(old.handler) != _path(new.handler):
            raise ValueError(
                f"{new.name} has two handlers, {_path(old.handler)} and {_path(new.handler)}: "
                "give each handler its own channel"
            )
        self._by_name[new.name] = new

    def selected(self, names: Collection[str] = ()) -> list[Subscription]:
        """Return the handlers with these names (`TOPIC/CHANNEL`), or all of them.

        Raises LookupError if there is none, or if a name is unknown.
        """
        if not self._by_name:
            raise LookupError("no handler is registered")
        for name in names:
            if name not in self._by_name:
                close = difflib.get_close_matches(name, self._by_name, 1)
                meant = f"did you mean {close[0]}?" if close else ", ".join(self._by_name)
                raise LookupError(f"there is no handler for {name}: {meant}")
        return [each for name, each in self._by_name.items() if not names or name in names]


def _path(handler: Handler) -> str:
    named: Any = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{named.__module__}.{named.__qualname__}"
