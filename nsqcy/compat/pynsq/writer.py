"""pynsq's Writer on top of the asyncio client."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from nsqcy.client import ConnectionFailed, NsqdError
from nsqcy.client.aio import Producer
from nsqcy.compat.pynsq.conn import AsyncConn, addresses, connected, connection_options
from nsqcy.compat.pynsq.loop import begin, current_loop, spawn
from nsqcy.compat.pynsq.protocol import ConnectionClosedError, Error, SendError

log = logging.getLogger("nsqcy.compat.pynsq")

Callback = Callable[[Any, Any], object]


class Writer:
    """Publishes while the loop is running. `callback(conn, data)` is called with b"OK" or an Error.
    The future that a publish returns has the same result or exception; it is done once nsqd has
    responded."""

    def __init__(
        self,
        nsqd_tcp_addresses: str | Iterable[str],
        reconnect_interval: float = 15.0,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.nsqd_tcp_addresses = addresses(nsqd_tcp_addresses)
        assert self.nsqd_tcp_addresses
        self.name = name or self.nsqd_tcp_addresses[0]
        kwargs.pop("requeue_delay", None)  # pynsq accepts it for readers and writers
        self._producer = Producer(
            self.nsqd_tcp_addresses,
            name=self.name,
            retries=0,
            reconnect_interval=reconnect_interval,
            max_reconnect_interval=reconnect_interval,
            **connection_options(kwargs),
        )
        self.io_loop = current_loop()
        begin(self.io_loop, self._producer, lambda: None)

    @property
    def conns(self) -> dict[str, AsyncConn]:
        """The current connections, by address."""
        return connected(self._producer.core.connections)

    def pub(
        self, topic: str, msg: bytes, callback: Callback | None = None
    ) -> "asyncio.Future[bytes]":
        """Publish one message."""
        return self._publish(partial(self._producer.publish, topic, msg), callback)

    def mpub(
        self, topic: str, msg: bytes | Iterable[bytes], callback: Callback | None = None
    ) -> "asyncio.Future[bytes]":
        """Publish several messages, all of them or none."""
        messages = [msg] if isinstance(msg, bytes) else list(msg)
        return self._publish(partial(self._producer.multipublish, topic, messages), callback)

    def dpub(
        self, topic: str, delay_ms: int, msg: bytes, callback: Callback | None = None
    ) -> "asyncio.Future[bytes]":
        """Publish one message with deferred delivery."""
        return self._publish(partial(self._producer.publish, topic, msg, delay_ms), callback)

    def _publish(
        self, publish: Callable[[], Awaitable[bytes]], callback: Callback | None
    ) -> "asyncio.Future[bytes]":
        answer = spawn(self.io_loop, self._answer(publish))
        answer.add_done_callback(partial(self._tell, callback))
        return answer

    async def _answer(self, publish: Callable[[], Awaitable[bytes]]) -> bytes:
        core = self._producer.core
        if core.running and not core.connections:  # and none is being established
            raise SendError("no open connections")
        try:
            return await publish()
        except NsqdError as error:
            raise Error(str(error).encode()) from error
        except ConnectionFailed as error:
            raise ConnectionClosedError(str(error)) from error
        except Exception as error:
            raise SendError("send error", error) from error

    def _tell(self, callback: Callback | None, answer: "asyncio.Future[bytes]") -> None:
        if answer.cancelled():
            return
        data = answer.exception() or answer.result()
        if callback is None:
            if isinstance(data, Error):
                log.error("[%s] a publish failed: %s", self.name, data)
            return
        # With several nsqds, the one that responded is unknown.
        conns = list(self.conns.values())
        callback(conns[0] if len(conns) == 1 else None, data)
