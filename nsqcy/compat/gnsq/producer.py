"""gnsq's Producer on top of the blocking client."""

import logging
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from gevent.event import AsyncResult

from nsqcy import client
from nsqcy.client.threads_or_greenlets import Future
from nsqcy.compat.gnsq.errors import NSQException, NSQNoConnections, error_of
from nsqcy.compat.gnsq.options import addresses, connection_options
from nsqcy.compat.gnsq.signals import Signal

FOREVER = 1 << 30


class Producer:
    """Publishes to one of several nsqds. If the connection is lost and there is another nsqd, the
    message is published there. on_response and on_auth are never sent."""

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str] = (),
        max_backoff_duration: float = 128,
        **kwargs: Any,
    ) -> None:
        self.nsqd_tcp_addresses = addresses(nsqd_tcp_addresses)
        self.max_backoff_duration = max_backoff_duration
        self.logger = logging.getLogger("gnsq.producer")
        longest = max_backoff_duration or 1.0
        self._producer = client.Producer(
            self.nsqd_tcp_addresses,
            runtime="gevent",
            on_error=self._error,
            retries=FOREVER,
            reconnect_interval=min(0.5, longest),
            max_reconnect_interval=longest,
            **connection_options(kwargs),
        )
        self._is_started = False
        self._is_closed = False

    @cached_property
    def on_response(self) -> Signal:
        return Signal("Never sent.")

    @cached_property
    def on_error(self) -> Signal:
        return Signal("Sent when nsqd returns an error. Argument: `error`.")

    @cached_property
    def on_auth(self) -> Signal:
        return Signal("Never sent.")

    @cached_property
    def on_close(self) -> Signal:
        return Signal("Sent when the producer has been closed.")

    def start(self) -> None:
        """Begin to connect."""
        if self._is_closed:
            raise NSQException("producer already closed")
        if self._is_started:
            self.logger.warning("producer already started")
        self._is_started = True
        self._producer.start()

    def close(self) -> None:
        """Stop once the outstanding responses have arrived."""
        if self.is_running:
            self._is_closed = True
            self._producer.close()
            self.on_close.send(self)

    def join(self, timeout: float | None = None, raise_error: bool = False) -> None:
        """Do nothing: close() has already waited."""

    @property
    def is_running(self) -> bool:
        return self._is_started and not self._is_closed

    def publish(
        self,
        topic: str,
        data: bytes,
        defer: int | None = None,
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
    ) -> Any:
        """Publish one message, deferred by `defer` ms.

        Returns b"OK" or raises; without `raise_error`, returns an AsyncResult of either. Raises
        NSQNoConnections if no nsqd can accept it within `timeout` seconds, or, without `block`,
        if none can accept it now: nothing was published. Raises NSQSocketError if nsqd has not
        answered within `timeout` seconds.
        """
        return self._publish(
            lambda: self._producer.publish_nowait(topic, data, defer, timeout=timeout),
            block,
            raise_error,
        )

    def multipublish(
        self,
        topic: str,
        messages: Iterable[bytes],
        block: bool = True,
        timeout: float | None = None,
        raise_error: bool = True,
    ) -> Any:
        """Publish several messages, all of them or none; otherwise like publish()."""
        return self._publish(
            lambda: self._producer.multipublish_nowait(topic, messages, timeout=timeout),
            block,
            raise_error,
        )

    def _publish(self, publish: Callable[[], Future], block: bool, raise_error: bool) -> Any:
        if not self.is_running:
            raise NSQException("producer not running")
        if not block and not self._producer.is_connected:
            raise NSQNoConnections
        result = AsyncResult()
        publish().rawlink(lambda future: _pass(future, result))  # type: ignore[attr-defined]
        return result.get() if raise_error else result

    def _error(self, error: client.Error) -> None:
        if isinstance(error, client.NsqdError):
            self.on_error.send(self, error=error_of(error))


def _pass(future: Any, result: Any) -> None:
    """Return the result; convert errors to gnsq's."""
    if future.exception is None:
        result.set(future.value)
    else:
        result.set_exception(error_of(future.exception))
