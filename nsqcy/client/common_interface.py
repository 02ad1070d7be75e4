"""Code shared by the asyncio and the blocking client.

Contains the read-only properties of consumers and producers, and the batching of messages.
Independent of threads and event loops.
"""

import inspect
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sized
from typing import Any

from nsqcy.client.arguments import FUNCTION, check_argument, check_arguments
from nsqcy.client.codec import (
    Message,
    headered_body,
    headered_mpub_body,
    message_body,
    mpub_body,
)
from nsqcy.client.connection import Connection
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.errors import ConnectionFailed, NoConnection
from nsqcy.client.options import Answer
from nsqcy.client.producer import ProducerCore
from nsqcy.client.user_code import log

OK = b"OK"
INFINITE = float("inf")
Headers = Mapping[str, str]
Encode = Callable[[Any], bytes]
BATCH_MESSAGES = 1000  # per MPUB, when publishing many messages
BATCH_BYTES = 1 << 20  # per MPUB, when publishing many messages


def is_coroutine_function(function: object) -> bool:
    """Return whether calling `function` returns a coroutine; objects with an `async def __call__`
    count."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def refuse_coroutine_functions(**functions: object) -> None:
    """Raise TypeError for a coroutine function, because its result would never be awaited, and for
    an object that is not a function."""
    for name, function in functions.items():
        check_argument(name, function, FUNCTION)
        if is_coroutine_function(function):
            raise TypeError(f"{name} cannot be a coroutine function: use nsqcy.client.aio")


def default_in_flight(concurrency: int | None) -> int:
    """Return the max_in_flight that keeps `concurrency` handlers busy. Raises ValueError."""
    check_arguments(concurrency=concurrency)
    return 1 if concurrency is None else concurrency


def warn_of_idle_handlers(core: ConsumerCore, concurrency: int | None) -> None:
    """Log a warning if max_in_flight leaves handlers idle, unless it is 0 (paused)."""
    maximum = core.flow.max_in_flight
    if concurrency is not None and 0 < maximum < concurrency:
        log.warning(
            "[%s] max_in_flight=%d allows only %d handlers at a time, although concurrency=%d",
            core.name,
            maximum,
            maximum,
            concurrency,
        )


def state(core: ConsumerCore | ProducerCore) -> str:
    """Return a word for the state of a consumer or producer."""
    if core.running:
        return "closing" if core.closing else "running"
    return "closed" if core.closing else "not started"


class ConsumerView:
    """A consumer's read-only state."""

    core: ConsumerCore
    _queue: Sized  # messages delivered, but not yet taken by the program
    _decode: Callable[[Message], Any] | None  # the codec's decoder

    def __repr__(self) -> str:
        return (
            f"<Consumer {self.core.name} {state(self.core)}, "
            f"{len(self.connections)} connections, {self.total_in_flight} in flight>"
        )

    @property
    def is_running(self) -> bool:
        """Whether the consumer has been started and has not ended."""
        return self.core.running

    @property
    def is_starved(self) -> bool:
        """Whether at least one nsqd cannot send more messages until the program answers those it
        has.

        False while the queue still holds delivered messages.
        """
        return not self._queue and self.core.flow.is_starved

    @property
    def total_ready_count(self) -> int:
        """Sum of all connections' RDY counts."""
        return self.core.flow.total_ready

    @property
    def total_in_flight(self) -> int:
        """Number of messages delivered and not yet answered, across all connections."""
        return self.core.flow.total_in_flight

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics: those given by name or, with `topics_pattern`, those found so far."""
        found = {address.topic for address in list(self.core.nsqds)}
        return self.core.topics.names or tuple(sorted(found))

    @property
    def connections(self) -> Mapping[str, Connection]:
        """Connections that are open or being established, by address: `HOST:PORT`, or
        `HOST:PORT/TOPIC` if there are several topics."""
        return {str(each.address): each for each in self.core.connections}

    def _raise_failure(self) -> None:
        """Raise Closed if an internal error of the client has ended the consumer."""
        if self.core.failure is not None:
            raise self.core.closed_error

    def decode(self, message: Message) -> Any:
        """Return the message's body, decoded by the consumer's codec. Raises DecodeError, and
        TypeError if the consumer has no codec."""
        if self._decode is None:
            raise TypeError("decode() requires a consumer with the codec option")
        if not isinstance(message, Message):
            raise TypeError(f"decode() requires a Message, not {type(message).__name__}")
        return self._decode(message)


class ProducerView:
    """A producer's read-only state."""

    core: ProducerCore
    _encode: Encode | None  # the codec's encoder

    def __repr__(self) -> str:
        nsqds = ", ".join(map(str, list(self.core.nsqds))) or "no nsqd"
        return (
            f"<Producer to {nsqds} {state(self.core)}, {self.core.pending_bytes} bytes unanswered>"
        )

    @property
    def is_running(self) -> bool:
        """Whether the producer has been started and has not ended."""
        return self.core.running

    @property
    def is_connected(self) -> bool:
        """Whether at least one nsqd is ready for publishes."""
        return self.core.is_connected

    @property
    def is_full(self) -> bool:
        """Whether the `max_pending` limit on unanswered bytes has been reached."""
        return self.core.is_full

    def _body(self, data: object, headers: Headers | None) -> bytes:
        """Return the body of a PUB or DPUB, without its length. Raises ValueError and TypeError."""
        if self._encode is not None:
            data = self._encode(data)
        if self._has_headers(headers):
            return headered_body(data, headers)
        return message_body(data)

    def _several(self, messages: Iterable[object], headers: Headers | None) -> bytes:
        """Return the body of an MPUB. Raises ValueError and TypeError."""
        if self._encode is not None:
            messages = map(self._encode, messages)
        return self._mpub_body(messages, headers)

    def _mpub_body(self, messages: Iterable[object], headers: Headers | None) -> bytes:
        """Return the body of an MPUB of encoded messages."""
        if self._has_headers(headers):
            return headered_mpub_body(messages, headers)
        return mpub_body(messages)

    def _has_headers(self, headers: Headers | None) -> bool:
        if self.core.connection_options.headers:
            return True
        if headers is not None:
            raise ValueError("headers require a producer with headers=True")
        return False


def reason(error: BaseException) -> str:
    """Return why a connection could not be established."""
    if not isinstance(error, OSError):
        return str(error) or type(error).__name__
    # asyncio includes the address in `strerror`; name resolution errors have negative numbers.
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()


def lookup_query(core: ConsumerCore | ProducerCore) -> Callable[[], Answer] | None:
    """Return the function that queries a core's nsqlookupds; None if the core has none."""
    if not core.can_ask:
        return None
    # The module imports urllib3, which takes longer to import than the entire client.
    from nsqcy.client.lookups import Lookups

    addresses, options = core.lookupd_http_addresses, core.lookup_options
    if not isinstance(core, ConsumerCore):
        return Lookups(addresses, None, options, core.connection_options).ask
    return Lookups(
        addresses,
        core.topics,
        options,
        core.connection_options,
        every_nsqd=core.options.every_nsqd,
        nsqds=core.nsqd_http_addresses,
    ).ask


def asked(ask: Callable[[], Answer]) -> Answer:
    """Return the result of `ask`; log an exception and return it as an error string."""
    try:
        return ask()
    except BaseException as error:  # without an answer, no further query would begin
        log.error("querying lookupds failed", exc_info=error)
        return [], [repr(error)]


class Outcomes:
    """The outcomes of several publishes that belong together."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # the first one
        self._is_in_doubt = False  # something may have been published

    def add(self, error: BaseException | None) -> None:
        """Add an outcome; None for OK."""
        self._is_in_doubt |= not isinstance(error, NoConnection)
        self.error = self.error or error

    def raise_error(self) -> None:
        """Raise the first error, if any. NoConnection means that nothing was published, so it is
        raised only if that applies to all publishes."""
        if isinstance(self.error, NoConnection) and self._is_in_doubt:
            raise ConnectionFailed(
                f"some of the messages may have been published: {self.error}"
            ) from self.error
        if self.error is not None:
            raise self.error


class _Batcher:
    """Collects messages into lists of at most `count` messages and `size` bytes.

    A message larger than `size` is in its own list. `encode` converts values to messages.
    """

    def __init__(self, count: int, size: int, encode: Encode | None) -> None:
        self.batch: list[bytes] = []
        self._count = count
        self._size = size
        self._room = size
        self._encode = encode

    def add(self, value: Any) -> list[bytes]:
        """Add a message. Return the previous list if the message did not fit, otherwise an empty
        list."""
        message: bytes = value if self._encode is None else self._encode(value)
        full: list[bytes] = []
        if self.batch and (len(self.batch) == self._count or len(message) > self._room):
            full, self.batch, self._room = self.batch, [], self._size
        self.batch.append(message)
        self._room -= len(message)
        return full


def batched(
    messages: Iterable[Any], count: int, size: int, encode: Encode | None = None
) -> Iterable[list[bytes]]:
    """Split messages into lists of at most `count` messages and `size` bytes.

    A message larger than `size` is returned in its own list.
    """
    batcher = _Batcher(count, size, encode)
    for message in messages:
        if full := batcher.add(message):
            yield full
    if batcher.batch:
        yield batcher.batch


async def batched_async(
    messages: Iterable[Any] | AsyncIterable[Any],
    count: int,
    size: int,
    encode: Encode | None = None,
) -> AsyncIterator[list[bytes]]:
    """Like batched(), but also for asynchronous iterables."""
    if not isinstance(messages, AsyncIterable):
        for batch in batched(messages, count, size, encode):
            yield batch
        return
    batcher = _Batcher(count, size, encode)
    async for message in messages:
        if full := batcher.add(message):
            yield full
    if batcher.batch:
        yield batcher.batch
