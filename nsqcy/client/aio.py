"""The client for asyncio.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("greetings", b"hello")

    async with Consumer("greetings", "me", "127.0.0.1:4150") as consumer:
        async for message in consumer:
            print(message.body)
            message.finish()

Owns sockets, timers and tasks; what happens is decided by consumer.py and producer.py. Everything
belongs to one event loop and is called from its thread.
"""

import asyncio
import inspect
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol, Self, Unpack

from nsqcy._client import Message, Publish, message_body, mpub_body
from nsqcy.client.connection import Connection
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.errors import ConnectionFailed, Error
from nsqcy.client.lookups import Lookups
from nsqcy.client.options import (
    Address,
    Addresses,
    ConnectionOptions,
    ConsumerKeywords,
    ProducerKeywords,
)
from nsqcy.client.producer import Heads, ProducerCore, dpub_head
from nsqcy.errors import LayerError

OK = b"OK"
INFINITE = float("inf")
LONGEST_STRETCH = 0.01  # seconds handlers that never wait may keep the loop
BATCH_MESSAGES, BATCH_BYTES = 1000, 1 << 20  # of one MPUB, when many are published

Handler = Callable[[Message], object | Awaitable[object]]


class _Core(Protocol):
    """What a Face drives: a ConsumerCore or a ProducerCore."""

    connection_options: ConnectionOptions

    @property
    def due(self) -> float: ...
    def tick(self, now: float) -> None: ...
    def connected(self, connection: Connection, now: float) -> None: ...
    def received(self, connection: Connection, data: bytes, now: float) -> None: ...
    def lost(self, connection: Connection, error: Error, now: float) -> None: ...
    def found(self, addresses: Iterable[Address], errors: Iterable[str], now: float) -> None: ...
    def answered(self, now: float) -> None: ...


class _Driver(asyncio.Protocol):
    """Moves the bytes of one connection."""

    def __init__(self, face: "_Face", connection: Connection) -> None:
        self._face = face
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self.connecting: asyncio.Task[None] | None = None
        connection.driver = self
        connection.codec.wake = self.wake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._face.core.connected(self._connection, self._face.now())
        self._face.rearm()

    def data_received(self, data: bytes) -> None:
        self._face.core.received(self._connection, data, self._face.now())
        self._face.rearm()

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"lost: {exc}" if exc else "nsqd has closed the connection"
        self.fail(ConnectionFailed(f"{self._connection.address}: {why}"))

    def fail(self, error: Error) -> None:
        """There is no connection, or no longer."""
        self._face.core.lost(self._connection, error, self._face.now())
        self._face.rearm()

    def wake(self) -> None:
        """Something waits to be sent: at the end of this turn of the loop, with what comes."""
        if not self._flushing:
            self._flushing = True
            self._face.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._transport.is_closing():
            return
        try:
            data = self._connection.take()
        except LayerError as error:
            self.close()
            self.fail(error)
            return
        if data:
            self._transport.write(data)
        self._face.core.answered(self._face.now())
        self._face.rearm()

    def close(self) -> None:
        """Send what waits, and close."""
        if self.connecting is not None:
            self.connecting.cancel()
        if self._transport is not None and not self._transport.is_closing():
            with suppress(LayerError):
                self._transport.write(self._connection.take())
            self._transport.close()


class _Face:
    """The Net of a core."""

    core: Any  # a _Core; each kind of face says which
    loop: asyncio.AbstractEventLoop

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._lookups: Lookups | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()

    # -- Net

    def now(self) -> float:
        return self.loop.time()

    def connect(self, connection: Connection) -> None:
        driver = _Driver(self, connection)
        driver.connecting = self._spawn(self._connect(driver, connection))

    def disconnect(self, connection: Connection) -> None:
        connection.driver.close()

    def look_up(self) -> None:
        self._spawn(self._look_up())

    def stopped(self) -> None:
        self._ended.set()

    # -- the rest

    def rearm(self) -> None:
        """Have the core ticked when it wants to be."""
        due = self.core.due
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
            self._timer = None
        if due != INFINITE:
            self._timer = self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.core.tick(self.now())
        self.rearm()

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)  # a loop alone does not keep its tasks alive
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, driver: _Driver, connection: Connection) -> None:
        address, options = connection.address, connection.options
        try:
            async with asyncio.timeout(options.timeout):
                await self.loop.create_connection(
                    lambda: driver, address.host, address.port, local_addr=_local(options)
                )
        except TimeoutError:
            driver.fail(ConnectionFailed(f"{address}: no connection in {options.timeout:g} s"))
        except OSError as error:
            driver.fail(ConnectionFailed(f"{address}: {_why(error)}"))
        finally:
            driver.connecting = None

    async def _look_up(self) -> None:
        assert self._lookups is not None
        addresses, errors = await asyncio.to_thread(self._lookups.ask)
        self.core.found(addresses, errors, self.now())
        self.rearm()

    async def _end(self) -> None:
        await self._ended.wait()
        for task in list(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()


def _why(error: OSError) -> str:
    # asyncio puts the address where the reason should be; names that are not found have numbers of
    # their own, below 0.
    number = error.errno or 0
    return (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()


def _local(options: ConnectionOptions) -> tuple[str, int] | None:
    if options.local_address is None:
        return None
    host, _, port = options.local_address.rpartition(":")
    return (host or port, int(port) if host else 0)


class Consumer(_Face):
    """A consumer of one channel, from fixed nsqds, from those lookupds name, or from both.

    Messages are had by iteration (`async for`, `batches`) and answered by whoever has them, or go
    to a `message_handler`, a function or coroutine function whose end answers: None or True
    finishes, False requeues, an exception requeues and backs off. At most `concurrency` handlers
    run at a time (default: as many as max_in_flight if they are coroutines). A handler that is a
    plain function must not block.

    Callbacks: on_error(error) of connections, on_exception(message, error) of handlers,
    on_giving_up(message) before one with too many attempts is finished, on_heartbeat(connection),
    on_ready(connection) when one has subscribed.
    Raises ValueError and TypeError for options that make no sense.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        message_handler: Handler | None = None,
        *,
        concurrency: int | None = None,
        name: str | None = None,
        on_error: Callable[[Error], object] | None = None,
        on_exception: Callable[[Message, BaseException], object] | None = None,
        on_giving_up: Callable[[Message], object] | None = None,
        on_heartbeat: Callable[[Connection], object] | None = None,
        on_ready: Callable[[Connection], object] | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        super().__init__()
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency cannot be {concurrency} (allowed: 1 or more)")
        self.core: ConsumerCore = ConsumerCore(
            self,
            topic,
            channel,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name,
            keywords=options,
        )
        self.core.on_error = on_error
        self.core.on_exception = on_exception
        self.core.on_giving_up = on_giving_up
        self.core.on_heartbeat = on_heartbeat
        self.core.on_ready = on_ready
        self.message_handler = message_handler
        self._concurrency = concurrency
        self._queue: deque[Message] = deque()  # delivered, and not yet handed to anybody
        self._waiters: deque[asyncio.Future[None]] = deque()  # who wait for one
        self._workers = 0  # tasks that run handlers
        self._paused = 0  # max_in_flight before the pause

    # -- its life

    async def start(self) -> None:
        """Begin to connect. Messages come as soon as they can."""
        if self.core.running or self._ended.is_set():
            return
        self.loop = asyncio.get_running_loop()
        self._lookups = Lookups(
            self.core.lookupd_http_addresses,
            self.core.topic,
            self.core.lookup_options,
            self.core.connection_options,
        )
        self.core.start(self.now())
        self.rearm()

    async def run(self) -> None:
        """Start, and wait for the end."""
        await self.start()
        await self.join()

    async def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; whether it has."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), timeout)
        return self._ended.is_set()

    async def close(self, *, graceful: bool = True) -> None:
        """End. Messages that nobody has taken yet go back to nsqd; those that were taken can be
        answered for close_timeout seconds, or not at all. Closed is closed: it can be called
        again."""
        if not self.core.running:
            self._ended.set()
            return
        queued, self._queue = self._queue, deque()
        for message in queued:
            message.requeue(0, backoff=False)
        self.core.stop(self.now(), graceful=graceful)
        self.rearm()
        self._wake_all()  # who iterates may have to answer what he has before this can end
        await self._end()

    def stopped(self) -> None:
        super().stopped()
        self._wake_all()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close(graceful=error is None)

    # -- messages

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        queue = self._queue
        while not queue:
            if self._closed:
                raise StopAsyncIteration
            await self._wait()
            queue = self._queue
        return queue.popleft()

    async def batches(self, most: int, *, within: float = 0.0) -> AsyncIterator[list[Message]]:
        """Lists of up to `most` messages: what is there, and what comes `within` seconds of the
        first. A list is given at once when no more can come before it is answered."""
        while True:
            try:
                batch = [await anext(self)]
            except StopAsyncIteration:
                return
            deadline = self.now() + within
            while len(batch) < most:
                if self._queue:
                    batch.append(self._queue.popleft())
                elif self._closed or self.is_starved or not await self._wait(deadline):
                    break
            yield batch

    def deliver(self, messages: list[Message]) -> None:
        if self.core.closing:
            for message in messages:
                message.requeue(0, backoff=False)
            return
        self._queue.extend(messages)
        if self.message_handler is not None:
            most = self._most_workers(self.message_handler)
            for _ in range(min(len(self._queue), most - self._workers)):
                self._workers += 1
                self._spawn(self._work(self.message_handler))
        for _ in range(min(len(self._waiters), len(messages))):
            self._wake_one()

    async def _wait(self, deadline: float | None = None) -> bool:
        """Until there may be a message; False when that took too long."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._queue and waiter.cancelled():
                self._wake_one()  # its message is somebody else's
        return True

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _wake_all(self) -> None:
        while self._waiters:
            self._wake_one()

    @property
    def _closed(self) -> bool:
        return self.core.closing or self._ended.is_set() or not self.core.running

    def _most_workers(self, handler: Handler) -> int:
        if self._concurrency is not None:
            return self._concurrency
        coroutine = inspect.iscoroutinefunction
        if coroutine(handler) or coroutine(type(handler).__call__):
            return max(1, self.core.flow.max_in_flight)
        return 1

    async def _work(self, handler: Handler) -> None:
        """Handle messages until there are none."""
        try:
            began = self.now()
            while self._queue:
                message = self._queue.popleft()
                try:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        result = await result
                        began = self.now()
                except Exception as error:
                    self.core.raised(message, error)
                else:
                    self.core.handled(message, result)
                if self.now() - began > LONGEST_STRETCH:
                    await asyncio.sleep(0)
                    began = self.now()
        finally:
            self._workers -= 1

    # -- control

    def set_max_in_flight(self, count: int) -> None:
        """The most messages in flight, over all nsqds; 0 pauses."""
        self.core.flow.set_max_in_flight(count, self.now())
        self.rearm()

    def pause(self) -> None:
        """No more messages until resume()."""
        self._paused = self.core.flow.max_in_flight or self._paused
        self.set_max_in_flight(0)

    def resume(self) -> None:
        if self._paused:
            self.set_max_in_flight(self._paused)
            self._paused = 0

    def connect_to_nsqd(self, host: str, port: int) -> None:
        """Consume from this nsqd too."""
        self.core.add_nsqd(Address(host, port), self.now())
        self.rearm()

    def query_lookupd(self) -> None:
        """Ask lookupds now."""
        self.core.ask_now(self.now())
        self.rearm()

    @property
    def is_running(self) -> bool:
        return self.core.running

    @property
    def is_starved(self) -> bool:
        """Whether some nsqd may send no more until messages are answered."""
        return self.core.flow.is_starved

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
        return {str(each.address): each for each in self.core.connections}


class _Awaited(Publish):
    """A publish that a future waits for."""

    __slots__ = ()

    def done(self, error: Error | None) -> None:
        future: asyncio.Future[bytes] = self.waiter
        if future.done():  # cancelled, or its time was over
            return
        if error is None:
            future.set_result(OK)
        else:
            future.set_exception(error)


class Producer(_Face):
    """Publishes to one nsqd, or to a pool: fixed ones and those lookupds know.

    Each publish is awaited until nsqd has said OK; any number may be under way. With several nsqds
    one that fails is tried on another, `retries` times; on_retry(publish, error) is told. Raises
    ValueError and TypeError for options that make no sense.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        name: str | None = None,
        on_error: Callable[[Error], object] | None = None,
        on_retry: Callable[[Publish, Error], object] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__()
        self.core: ProducerCore = ProducerCore(
            self,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name,
            keywords=options,
        )
        self.core.on_error = on_error
        self.core.on_retry = on_retry
        self._room = asyncio.Event()
        self._pub, self._mpub = Heads(b"PUB"), Heads(b"MPUB")

    async def start(self) -> None:
        """Begin to connect; the first publish does so too."""
        self._start()

    def _start(self) -> None:
        if self.core.running or self.core.closing:
            return
        self.loop = asyncio.get_running_loop()
        self._lookups = Lookups(
            self.core.lookupd_http_addresses,
            None,
            self.core.lookup_options,
            self.core.connection_options,
        )
        self.core.start(self.now())
        self.rearm()

    async def close(self, *, graceful: bool = True) -> None:
        """Wait for the answers that are outstanding, at most close_timeout seconds, and end."""
        self.core.closing = True
        if not self.core.running:
            return
        self.core.stop(self.now(), graceful=graceful)
        self.rearm()
        await self._end()

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def publish(
        self, topic: str, data: bytes, defer: int | None = None, timeout: float | None = None
    ) -> bytes:
        """Publish one message, deferred by `defer` milliseconds; gives b"OK".

        Raises NsqdError if nsqd refuses it; ConnectionFailed, NoConnection, or PublishTimeout
        after `timeout` seconds; ValueError and TypeError before anything is sent.
        """
        if self.core.is_full:
            await self._have_room()
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        return await self._send(topic, head, message_body(data), timeout)

    async def multipublish(
        self, topic: str, messages: Iterable[bytes], timeout: float | None = None
    ) -> bytes:
        """Publish several messages as one: all of them or none. Raises as publish() does."""
        if self.core.is_full:
            await self._have_room()
        return await self._send(topic, self._mpub[topic], mpub_body(messages), timeout)

    async def publish_all(
        self,
        topic: str,
        messages: Iterable[bytes],
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
    ) -> int:
        """Publish any number of messages, as many at a time as fit; gives how many. Raises as
        publish() does, once what is under way has been answered; then some have been published."""
        sent: list[asyncio.Future[bytes]] = []
        count = 0
        try:
            for batch in batched(messages, batch_messages, batch_bytes):
                await self._have_room()
                sent = [each for each in sent if not each.done() or each.result() != OK]
                sent.append(self._send(topic, self._mpub[topic], mpub_body(batch), None))
                count += len(batch)
        finally:
            answers = await asyncio.gather(*sent, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return count

    def publish_nowait(
        self, topic: str, data: bytes, defer: int | None = None
    ) -> asyncio.Future[bytes]:
        """As publish(), without waiting: the result comes by the future. Whoever never waits
        should look at `is_full`."""
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        return self._send(topic, head, message_body(data), None)

    pub = publish
    mpub = multipublish

    async def dpub(self, topic: str, delay_ms: int, data: bytes) -> bytes:
        """publish() with `defer`."""
        return await self.publish(topic, data, delay_ms)

    def _send(
        self, topic: str, head: bytes, body: bytes, timeout: float | None
    ) -> asyncio.Future[bytes]:
        core = self.core
        if not core.running:
            self._start()
        future: asyncio.Future[bytes] = self.loop.create_future()
        deadline = INFINITE if timeout is None else self.now() + timeout
        core.publish(_Awaited(topic, head, body, future, deadline))
        if core.waiting or timeout is not None:
            self.rearm()
        return future

    async def _have_room(self) -> None:
        """Wait until publishes have been answered."""
        while self.core.is_full:
            self._room.clear()
            await self._room.wait()

    def rearm(self) -> None:
        super().rearm()
        if not self.core.is_full:
            self._room.set()

    @property
    def is_running(self) -> bool:
        return self.core.running

    @property
    def is_full(self) -> bool:
        """Whether max_pending bytes are without an answer."""
        return self.core.is_full


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
