"""What the faces of the client, aio and blocking, have in common.

Owns what a face tells of its core, and how messages are gathered into batches. Knows neither
threads nor an event loop.
"""

import inspect
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from nsqcy.client.codec import (
    Message,
    headered_body,
    headered_mpub_body,
    message_body,
    mpub_body,
)
from nsqcy.client.connection import Connection
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.options import Address
from nsqcy.client.producer import ProducerCore

OK = b"OK"
INFINITE = float("inf")
Answer = tuple[list[Address], list[str]]
Headers = Mapping[str, str]
BATCH_MESSAGES, BATCH_BYTES = 1000, 1 << 20  # of one MPUB, when many are published

log = logging.getLogger("nsqcy.client")


def is_coroutine_function(function: object) -> bool:
    """Whether calling it returns a coroutine; an object may have an `async def __call__`."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(type(function), "__call__", None)  # noqa: B004
    )


def refuse_coroutine_functions(**functions: object) -> None:
    """Raises TypeError where nothing would await what a function returns."""
    for name, function in functions.items():
        if is_coroutine_function(function):
            raise TypeError(f"{name} cannot be a coroutine function: use nsqcy.client.aio")


def default_in_flight(concurrency: int | None) -> int:
    """Return the max_in_flight that keeps `concurrency` handlers busy. Raises ValueError."""
    if concurrency is None:
        return 1
    if concurrency < 1:
        raise ValueError(f"concurrency cannot be {concurrency} (allowed: 1 or more)")
    return concurrency


def warn_of_idle_handlers(core: ConsumerCore, concurrency: int | None) -> None:
    """Log that max_in_flight keeps handlers idle; 0 is a pause."""
    maximum = core.flow.max_in_flight
    if concurrency is not None and 0 < maximum < concurrency:
        log.warning(
            "[%s] max_in_flight=%d allows only %d of concurrency=%d handlers at a time",
            core.name,
            maximum,
            maximum,
            concurrency,
        )


class ConsumerView:
    """What can be seen of a consumer."""

    core: ConsumerCore
    _queue: deque[Message]  # delivered, and not yet handed to anybody

    @property
    def is_running(self) -> bool:
        return self.core.running

    @property
    def is_starved(self) -> bool:
        """Whether all that was delivered is in somebody's hands, and some nsqd may send no more
        until messages are answered."""
        return not self._queue and self.core.flow.is_starved

    @property
    def max_in_flight(self) -> int:
        return self.core.flow.max_in_flight

    @property
    def total_ready_count(self) -> int:
        return self.core.flow.total_ready

    @property
    def total_in_flight(self) -> int:
        return self.core.flow.total_in_flight

    @property
    def connections(self) -> Mapping[str, Connection]:
        """Those that are there or being made, by address."""
        with self.core.lock:
            return {str(each.address): each for each in self.core.connections}


class ProducerView:
    """What can be seen of a producer."""

    core: ProducerCore

    @property
    def is_running(self) -> bool:
        return self.core.running

    @property
    def is_connected(self) -> bool:
        """Whether some nsqd can be published to now."""
        return self.core.is_connected

    @property
    def is_full(self) -> bool:
        """Whether max_pending bytes are without an answer."""
        return self.core.is_full

    def _body(self, data: object, headers: Headers | None) -> bytes:
        """What a PUB or DPUB sends behind the length. Raises ValueError and TypeError."""
        if self._has_headers(headers):
            return headered_body(data, headers)
        return message_body(data)

    def _mpub_body(self, messages: Iterable[object], headers: Headers | None) -> bytes:
        if self._has_headers(headers):
            return headered_mpub_body(messages, headers)
        return mpub_body(messages)

    def _has_headers(self, headers: Headers | None) -> bool:
        if self.core.connection_options.headers:
            return True
        if headers is not None:
            raise ValueError("headers need a producer with the option headers=True")
        return False


# What connecting to an address raises: that it cannot be reached, or that it is none.
UNREACHABLE = (OSError, ValueError, OverflowError)


def reason(error: Exception) -> str:
    """Why a connection could not be made."""
    if not isinstance(error, OSError):
        return str(error)
    # asyncio puts the address where the reason should be; names that are not found have numbers of
    # their own, below 0.
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()


def asked(ask: Callable[[], Answer]) -> Answer:
    """What lookupds say; whatever goes wrong, whoever waits for that hears something."""
    try:
        return ask()
    except Exception as error:
        log.exception("lookupds could not be asked")
        return [], [repr(error)]


def batched(messages: Iterable[bytes], count: int, size: int) -> Iterable[list[bytes]]:
    """Lists of at most `count` messages and, of more than one, `size` bytes."""
    batch: list[bytes] = []
    room = size
    for message in messages:
        if batch and (len(batch) == count or len(message) > room):
            yield batch
            batch, room = [], size
        batch.append(message)
        room -= len(message)
    if batch:
        yield batch
