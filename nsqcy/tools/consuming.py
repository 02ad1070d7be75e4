"""A tool's consumers, from the first connection to graceful shutdown.

Owns signals, fatal errors at startup, and the client's log lines on stderr. The tool handles the
messages.
"""

import asyncio
import signal
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Protocol, Self

from nsqcy.client.aio import Consumer
from nsqcy.client.connection import Connection
from nsqcy.names import is_valid_name
from nsqcy.tools.client_lines import ClientLines
from nsqcy.tools.common import ToolError


class Sources(Protocol):
    """The options for the message sources."""

    @property
    def nsqd_tcp_address(self) -> tuple[str, ...]: ...
    @property
    def lookupd_http_address(self) -> tuple[str, ...]: ...


class _Start:
    """A consumer's first connections to nsqds that are given by address."""

    def __init__(self) -> None:
        self.over = asyncio.get_running_loop().create_future()
        self.error: Exception | None = None
        self._missing: set[str] = set()

    def expect(self, addresses: Iterable[str]) -> None:
        self._missing = set(addresses)
        self._end_if_all_are_there()

    def ready(self, connection: Connection) -> None:
        self._missing.discard(str(connection.address))
        self._end_if_all_are_there()

    def failed(self, error: Exception) -> None:
        if not self.over.done():
            self.error = error
            self.over.set_result(None)

    def _end_if_all_are_there(self) -> None:
        if not self._missing and not self.over.done():
            self.over.set_result(None)


class Consuming:
    """Consumers that start one by one and stop together.

    async with Consuming(options) as consuming:
        await consuming.add("topic", "channel", ...)
        await consuming.stopped()

    SIGINT, SIGTERM or stop() ends them: consumers are closed, which waits for the messages in
    flight; then the tasks are awaited, and the first failure is raised.
    """

    def __init__(self, sources: Sources) -> None:
        self.lines = ClientLines()
        self._sources = sources
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._consumers: list[Consumer] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop)
        self.lines.attach()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
        for task in self._tasks:
            # nsqd redelivers the messages of tasks that are still running.
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.lines.detach()
        if error is None and self._failure is not None:
            raise self._failure

    async def add(self, topic: str, channel: str, **keywords: Any) -> Consumer:
        """Start a consumer with these client keywords. Raises ToolError if an argument is invalid
        or an nsqd given by address is unreachable."""
        for what, name in (("topic", topic), ("channel", channel)):
            if not is_valid_name(name):
                raise ToolError(f"invalid {what} name")
        start = _Start()
        try:
            consumer = Consumer(
                topic,
                channel,
                self._sources.nsqd_tcp_address,
                self._sources.lookupd_http_address,
                name=f"{topic}/{channel}",
                on_error=start.failed,
                on_ready=start.ready,
                **keywords,
            )
        except (ValueError, TypeError) as error:
            raise ToolError(str(error)) from None
        self._consumers.append(consumer)
        self.lines.introduce(consumer.core.name)
        start.expect(map(str, consumer.core.nsqds))
        if not self._stopping.is_set():
            await consumer.start()
            stopping = asyncio.ensure_future(self._stopping.wait())
            await asyncio.wait([start.over, stopping], return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if start.error is not None:
                raise ToolError(f"failed to connect to nsqd - {start.error}")
        return consumer

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task. If the task fails, the tool exits."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def stop(self, failure: BaseException | None = None) -> None:
        """Start shutting down. The first failure is reported at the end."""
        self._failure = self._failure or failure
        self._stopping.set()

    async def stopped(self) -> None:
        await self._stopping.wait()

    async def close(self) -> None:
        """Stop, and wait for the messages in flight."""
        self.stop()
        await asyncio.gather(*(consumer.close() for consumer in self._consumers))

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.stop(error)
