"""NSQ client for asyncio.

    async with Producer("127.0.0.1:4150") as producer:
        await producer.publish("greetings", b"hello")

    async with Consumer("greetings", "me", "127.0.0.1:4150") as consumer:
        async for message in consumer:
            print(message.body)
            message.finish()

A consumer or producer belongs to one event loop: call it only from the loop's thread. This module
handles sockets, timers and tasks; consumer.py and producer.py contain the logic.
"""

import asyncio
import inspect
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack, cast

from nsqcy.client import cancelling
from nsqcy.client.aio_administration import NsqdAdmin
from nsqcy.client.aio_threads import Threads, connect
from nsqcy.client.arguments import check_arguments
from nsqcy.client.bodies import Codec, decoder, encoder, handler_of
from nsqcy.client.codec import Message, Publish, finish
from nsqcy.client.common_interface import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    INFINITE,
    OK,
    ConsumerView,
    Headers,
    Outcomes,
    ProducerView,
    asked,
    batched_async,
    default_in_flight,
    is_coroutine_function,
    lookup_query,
    reason,
    warn_of_idle_handlers,
)
from nsqcy.client.connection import Connection, State
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.dead_letters import (
    dead_letter_headers,
    keep_dead_letters,
    producer_keywords,
    topic_of_dead_letter,
)
from nsqcy.client.errors import (
    AlreadyAnswered,
    Closed,
    ConnectionFailed,
    DeadLetter,
    DecodeError,
    Error,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
    RequestError,
    Requeue,
)
from nsqcy.client.forks import close_in_child
from nsqcy.client.keys import keyed, route_of
from nsqcy.client.options import (
    CONSUMER_PARTS,
    PRODUCER_PARTS,
    Address,
    Addresses,
    Answer,
    ConsumerKeywords,
    ProducerKeywords,
    as_strings,
    with_options,
)
from nsqcy.client.peeked_message import PeekedMessage
from nsqcy.client.producer import Heads, ProducerCore, dpub_head
from nsqcy.client.times import Duration, Milliseconds, seconds
from nsqcy.client.topics import Given, Pattern
from nsqcy.client.user_code import report
from nsqcy.errors import LayerError
from nsqcy.util.self_connect import reaches_itself, refusal

__all__ = [
    "AlreadyAnswered",
    "Closed",
    "Connection",
    "ConnectionFailed",
    "Consumer",
    "DeadLetter",
    "DecodeError",
    "Error",
    "Message",
    "NoConnection",
    "NsqdAdmin",
    "NsqdError",
    "PeekedMessage",
    "Producer",
    "ProtocolError",
    "Publish",
    "PublishTimeout",
    "RequestError",
    "Requeue",
    "cancel",
    "finish",
]

MAX_CALLS = 64  # maximum concurrent queries and name resolutions of one consumer or producer
ENDS = (SystemExit, KeyboardInterrupt, GeneratorExit)
MAX_STRETCH = 0.01  # maximum seconds for which handlers that never await may occupy the loop

Outcome = object | Awaitable[object]  # result of a function or coroutine function
Handler = Callable[[Message], Outcome]
ValueHandler = Callable[[Any], Outcome] | Callable[[Any, Message], Outcome]  # with a codec


class _Driver(asyncio.Protocol):
    """Sends and receives the bytes of one connection."""

    def __init__(self, face: "_Face", connection: Connection) -> None:
        self._face = face
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._flushing = False
        self._paused = False  # the transport has enough to send
        self.connecting: asyncio.Task[None] | None = None
        connection.driver = self
        connection.codec.wake = self.wake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._face.transports.add(self._transport)
        if self._connection.state is State.CLOSED:  # just now
            self._transport.abort()
            return
        if reaches_itself(transport.get_extra_info("socket")):
            self._transport.abort()
            self.fail(ConnectionFailed(f"{self._connection.address}: {reason(refusal())}"))
            return
        self._face.enter(self._face.core.connected, self._connection)

    def data_received(self, data: bytes) -> None:
        try:
            self._face.core.received(self._connection, data, self._face.now())
        except Exception as error:
            self._face.fail(error)
        self._face.rearm()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._face.transports.discard(self._transport)
            self._face.released.set()
        why = f"lost: {exc}" if exc else "nsqd closed the connection"
        self.fail(ConnectionFailed(f"{self._connection.address}: {why}"))

    def fail(self, error: Error) -> None:
        """Handle a connection that failed or was lost."""
        self._face.enter(self._face.core.lost, self._connection, error)

    def wake(self) -> None:
        """Send pending output at the end of this event-loop iteration."""
        if not self._flushing:
            self._flushing = True
            self._face.loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self._transport is None or self._transport.is_closing():
            return
        try:
            while not self._paused and (data := self._connection.take()):
                self._transport.write(data)
            self._face.core.answered(self._face.now())
        except LayerError as error:
            self.close()
            self.fail(error)
            return
        except Exception as error:
            self._face.fail(error)
        self._face.rearm()

    def close(self) -> None:
        """Send pending output, and close."""
        if self.connecting is not None:
            self.connecting.cancel()
        if self._transport is not None and not self._transport.is_closing():
            with suppress(LayerError):
                while data := self._connection.take():
                    self._transport.write(data)
            self._transport.close()


class _Face:
    """A core's Net."""

    core: Any  # a Core; each public class chooses its type
    loop: asyncio.AbstractEventLoop
    now: Callable[[], float]  # the loop's clock, once a loop exists

    def __init__(self) -> None:
        self.now = float
        self._timer: asyncio.Handle | None = None
        self._timer_due = INFINITE  # not all of uvloop's handles support it
        self._query: Callable[[], Answer] | None = None
        self._threads = Threads(MAX_CALLS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._own: weakref.WeakSet[asyncio.Task[None]] = weakref.WeakSet()  # internal ones
        self._ended = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None  # set by the first close()
        self.transports: set[asyncio.Transport] = set()  # open transports
        self.released = asyncio.Event()  # set when a transport has closed

    # -- Net

    def connect(self, connection: Connection) -> None:
        driver = _Driver(self, connection)
        driver.connecting = self._spawn(self._connect(driver, connection))
        self._own.add(driver.connecting)

    def disconnect(self, connection: Connection) -> None:
        connection.driver.close()

    def look_up(self) -> None:
        self._own.add(self._spawn(self._look_up()))

    def stopped(self) -> None:
        self._ended.set()

    # -- the rest

    def _begin(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.now = self.loop.time
        self._query = lookup_query(self.core)
        close_in_child(self)
        self.core.start(self.now())
        self.rearm()

    def abandon(self) -> None:
        """End in a forked child process, which does not run the parent's event loop."""
        self.core.abandon()
        self._ended = asyncio.Event()  # the parent's event has waiters in the parent's loop
        self._ended.set()

    def enter(self, change: Callable[..., object], *about: object) -> None:
        """Make a change to the core now."""
        try:
            change(*about, self.now())
        except Exception as error:
            self.fail(error)
        self.rearm()

    def fail(self, error: Exception) -> None:
        """End because of an internal error of the client: a half-changed core would wait
        forever."""
        self.core.fail(error, self.now())
        self.stopped()

    def rearm(self) -> None:
        """Call the core's tick when it is due."""
        due = INFINITE if self._ended.is_set() else self.core.due
        if due == self._timer_due:
            return
        self._timer_due = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if due != INFINITE:
            self._timer = self.loop.call_at(due, self._tick)

    def _tick(self) -> None:
        self._timer, self._timer_due = None, INFINITE
        self.enter(self.core.tick)

    def _spawn(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)  # an event loop keeps only weak references to its tasks
        task.add_done_callback(self._tasks.discard)
        return task

    async def _connect(self, driver: _Driver, connection: Connection) -> None:
        address, options = connection.address, connection.options
        try:
            async with asyncio.timeout(options.timeout):
                sock = await connect(self._threads, address.host, address.port, options.local)
                await self.loop.create_connection(lambda: driver, sock=sock)
        except TimeoutError:
            driver.fail(ConnectionFailed(f"{address}: not connected within {options.timeout:g} s"))
        except Exception as error:  # such as MemoryError
            driver.fail(ConnectionFailed(f"{address}: {reason(error)}"))
        finally:
            driver.connecting = None

    async def _look_up(self) -> None:
        assert self._query is not None
        try:
            addresses, errors = await self._threads.call(asked, self._query)
        except Exception as error:  # no thread could be started
            addresses, errors = [], [str(error)]
        self.enter(self.core.found, addresses, errors)

    def _hook(self, hook: Callable[..., Outcome] | None) -> Callable[..., object] | None:
        """Return a callback for the core; if the callback's result is awaitable, a task awaits
        it."""
        if hook is None:
            return None

        def call(*about: object) -> None:
            result = called(*about)
            if inspect.isawaitable(result):
                self._spawn(self._awaited(result))

        called = self._interruptible(hook)
        return call

    def _interruptible(self, hook: Callable[..., Outcome]) -> Callable[..., Outcome]:
        """Return a callback for the core that raises KeyboardInterrupt in the event loop, once the
        core is done."""

        def call(*about: object) -> Outcome:
            try:
                return hook(*about)
            except KeyboardInterrupt as error:
                self.loop.call_soon(_raise, error)
                return None

        return call

    async def _awaited(self, result: Awaitable[object]) -> None:
        """Await a callback's result. Logs its exceptions."""
        try:
            await result
        except BaseException as error:
            if _is_cancelled(error) or isinstance(error, KeyboardInterrupt | GeneratorExit):
                raise
            report(self.core.name, error)

    async def _close(self, *, graceful: bool) -> None:
        """Stop, and wait until everything has ended.

        Does not wait in a task that shutdown itself waits for. Shutdown does not depend on
        the caller: it completes even if close() is cancelled.
        """
        now = self.now()
        self.core.stop(now, graceful=graceful)
        self.rearm()
        if not graceful:
            self._cancel_tasks()
        if self._ending is None:
            deadline = now + self.core.options.close_timeout if graceful else None
            self._ending = self.loop.create_task(self._end(deadline))
        if not self._waits_for(asyncio.current_task()):
            await asyncio.shield(self._ending)

    def _waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether shutdown depends on this task."""
        return task in self._tasks

    async def _end(self, deadline: float | None) -> None:
        """Wait until the core has ended and all bytes have been sent. Callbacks may run until
        `deadline`, because they may still have work to do after the last response."""
        await self._ended.wait()
        self.rearm()
        if deadline is not None:
            if running := self._tasks - set(self._own):
                await asyncio.wait(running, timeout=max(0.0, deadline - self.now()))
            self._cancel_tasks()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.core.connection_options.timeout):
                while self.transports:
                    self.released.clear()
                    await self.released.wait()
        for transport in list(self.transports):
            transport.abort()

    def _cancel_tasks(self) -> None:
        for task in self._tasks - {asyncio.current_task()}:
            task.cancel()


def _raise(error: BaseException) -> None:
    raise error


def _is_cancelled(error: BaseException) -> bool:
    """Return whether the current task itself has been cancelled, and not one that it awaits."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


class _Iteration:
    """An `async for` over a consumer; exists while the statement runs."""

    def __init__(self, consumer: "Consumer") -> None:
        self.task = asyncio.current_task()
        self._consumer = consumer

    def __aiter__(self) -> Self:
        return self


class _Messages(_Iteration):
    """Iterates one message at a time."""

    async def __anext__(self) -> Message:
        if queue := self._consumer._queue:
            return queue.popleft()
        return await self._consumer.__anext__()


class _Batches(_Iteration):
    """Iterates several messages at a time."""

    def __init__(
        self, consumer: "Consumer", maximum: int, within: float, timeout: float | None
    ) -> None:
        super().__init__(consumer)
        self._maximum = maximum
        self._within = within
        self._timeout = timeout

    async def __anext__(self) -> list[Message]:
        return await self._consumer._batch(self._maximum, self._within, self._timeout)


@with_options(*CONSUMER_PARTS)
class Consumer(ConsumerView, _Face):
    """Consumer of one channel, from fixed nsqds, from nsqds found by lookupds, or from both.

    `topic` is one topic or several. With several, `max_in_flight` limits all of them together, and
    `message.topic` distinguishes their messages. `topics_pattern`, an alternative to `topic`, is a
    regular expression that matches entire topic names. Topics created later are also found: through
    lookupds, or through `nsqd_http_addresses`, the HTTP addresses of `nsqd_tcp_addresses` in the
    same order.

    The program takes messages by iteration (`async for`, `batches`) and answers them. Or it passes
    a `message_handler`, a function or coroutine function. The handler's result answers the message:
    None or True finishes it, False requeues it, an exception requeues it and backs off. A plain
    function must not block.

    At most `concurrency` handlers run at a time. The default is max_in_flight for a coroutine
    function and 1 otherwise. `max_in_flight` defaults to `concurrency`.

    Callbacks are functions or coroutine functions:

    - on_error(error): a connection failed
    - on_exception(message, error): a handler or on_giving_up raised; awaited before the message is
      requeued
    - on_heartbeat(connection): nsqd sent a heartbeat
    - on_ready(connection): a connection has subscribed
    - on_giving_up(message): a message has had too many attempts. The callback is awaited. When it
    returns, the message is finished; if it raises, the message is requeued.

    With `codec`, the handler gets the decoded body instead of the message, converted to the type of
    its first parameter. A second parameter gets the message. A handler that declares
    `message: Message` still gets the message. `codec` is `json`, `msgpack` or an object with encode
    and decode methods.

    With `dead_letter_topic`, the consumer publishes a message that has had too many attempts to
    that topic instead of calling on_giving_up. `{topic}` in it stands for the message's topic.

    Raises ValueError and TypeError for invalid options.
    """

    _queue: deque[Message]

    def __init__(
        self,
        topic: Given = (),
        channel: str = "",
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        message_handler: Handler | ValueHandler | None = None,
        *,
        topics_pattern: Pattern | None = None,
        nsqd_http_addresses: Addresses = (),
        concurrency: int | None = None,
        name: str | None = None,
        codec: Codec | None = None,
        dead_letter_topic: str | None = None,
        on_error: Callable[[Error], Outcome] | None = None,
        on_exception: Callable[[Message, BaseException], Outcome] | None = None,
        on_giving_up: Callable[[Message], Outcome] | None = None,
        on_heartbeat: Callable[[Connection], Outcome] | None = None,
        on_ready: Callable[[Connection], Outcome] | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        super().__init__()
        check_arguments(
            message_handler=message_handler,
            on_error=on_error,
            on_exception=on_exception,
            on_giving_up=on_giving_up,
            on_heartbeat=on_heartbeat,
            on_ready=on_ready,
        )
        nsqds, lookupds = as_strings(nsqd_tcp_addresses), as_strings(lookupd_http_addresses)
        in_flight = default_in_flight(concurrency)
        self.core: ConsumerCore = ConsumerCore(
            self,
            topic,
            channel,
            nsqds,
            lookupds,
            topics_pattern=topics_pattern,
            nsqd_http_addresses=nsqd_http_addresses,
            name=name,
            keywords={"max_in_flight": in_flight} | options,
        )
        warn_of_idle_handlers(self.core, concurrency)
        self.core.on_error = self._hook(on_error)
        self.core.on_exception = on_exception and self._interruptible(on_exception)
        self.core.on_giving_up = on_giving_up
        self._dead_letters: Producer | None = None
        if dead_letter_topic is not None:
            keep_dead_letters(self.core, dead_letter_topic, on_giving_up)
            keywords: Any = producer_keywords(options)
            self._dead_letters = Producer(
                nsqds, lookupds, name=f"{self.core.name} dead letters", **keywords
            )
            self.core.on_giving_up = self._publisher(self._dead_letters, dead_letter_topic)
        self.core.on_heartbeat = self._hook(on_heartbeat)
        self.core.on_ready = self._hook(on_ready)
        self.message_handler: Handler | None = handler_of(message_handler, codec)
        self._decode = decoder(codec)
        self._concurrency = concurrency
        self._queue = deque()
        self._waiters: deque[asyncio.Future[None]] = deque()  # waiting for a message
        self._workers: set[asyncio.Task[None]] = set()  # tasks that run handlers
        self._iterations: weakref.WeakSet[_Iteration] = weakref.WeakSet()
        self._paused = 0  # max_in_flight before the pause

    def _publisher(self, producer: "Producer", topic: str) -> Handler:
        async def publish(message: Message) -> None:
            headers = dead_letter_headers(self.core, message)
            to = topic_of_dead_letter(topic, message.topic)
            await producer.publish(to, message.body, headers=headers)

        return publish

    # -- lifecycle

    async def start(self) -> None:
        """Start connecting and receiving messages."""
        if self.core.running or self._ended.is_set():
            return
        self._begin()

    async def run(self) -> None:
        """Start, and wait until the consumer is closed.

        Cancelling run() closes the consumer: it ends once the messages in flight have been
        answered, or after close_timeout seconds.
        """
        await self.start()
        try:
            await self.join()
        except (asyncio.CancelledError, Closed):
            await self.close()
            raise
        await self.close()  # already closed; wait for handlers to finish, and for bytes to be sent

    async def join(self, timeout: Duration | None = None) -> bool:
        """Wait up to `timeout` seconds for the consumer to end; return whether it has."""
        limit = seconds(timeout)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), limit)
        self._raise_failure()
        return self._ended.is_set()

    async def close(self, *, graceful: bool = True) -> None:
        """Close the consumer. May be called repeatedly.

        Requeues delivered messages that the program has not taken. If `graceful` is true, messages
        in flight can still be answered for close_timeout seconds; otherwise they cannot.

        Waits for the consumer to end, except where that would deadlock: in a handler, in a
        callback, and in an `async for` over the consumer while messages are in flight.
        """
        check_arguments(graceful=graceful)
        if not (self.core.running or self._ending):  # never started
            self._ended.set()
            self._wake_all()
            return
        queued, self._queue = self._queue, deque()
        for message in queued:
            message.requeue(0, backoff=False)
        self._wake_all()
        await self._close(graceful=graceful)

    async def _end(self, deadline: float | None) -> None:
        await super()._end(deadline)
        if self._dead_letters is not None:
            await self._dead_letters.close(graceful=False)

    def _waits_for(self, task: asyncio.Task[Any] | None) -> bool:
        iterates = any(each.task is task for each in self._iterations)
        in_flight = any(each.in_flight for each in self.core.connections)
        return super()._waits_for(task) or (iterates and in_flight)

    def stopped(self) -> None:
        super().stopped()
        self._wake_all()

    def abandon(self) -> None:
        super().abandon()
        self._queue.clear()  # the messages belong to the parent

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
        messages = _Messages(self)
        self._iterations.add(messages)
        return messages

    async def __anext__(self) -> Message:
        queue = self._queue
        while not queue:
            await self.start()
            if self._closed:
                self._raise_failure()
                raise StopAsyncIteration
            await self._wait()
            queue = self._queue
        return queue.popleft()

    async def get(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message, or None after `timeout` or after close().

        Raises Closed, with its cause, if an internal error of the client has ended the consumer; so
        do iterations, batches() and join().
        """
        await self.start()
        deadline = None if timeout is None else self.now() + seconds(timeout)
        while not self._queue:
            if self._closed:
                self._raise_failure()
                return None
            if not await self._wait(deadline):
                return None
        return self._queue.popleft()

    def batches(
        self, max_messages: int, *, within: Duration = 0.0, timeout: Duration | None = None
    ) -> AsyncIterator[list[Message]]:
        """Iterate over lists of up to `max_messages` messages.

        A list is complete `within` seconds after its first message. It is complete earlier if no
        more messages can arrive until the program answers some of them. A list is empty if there
        was no message for `timeout` seconds.
        """
        check_arguments(max_messages=max_messages)
        batches = _Batches(self, max_messages, seconds(within, "within"), seconds(timeout))
        self._iterations.add(batches)
        return batches

    async def _batch(self, maximum: int, within: float, timeout: float | None) -> list[Message]:
        first = await self.get(timeout)
        if first is None:
            if self._closed:
                raise StopAsyncIteration
            return []
        batch = [first]
        deadline = self.now() + within
        try:
            while len(batch) < maximum:
                if self._queue:
                    batch.append(self._queue.popleft())
                elif self._closed or self.is_starved or not await self._wait(deadline):
                    break
        except asyncio.CancelledError:
            self._put_back(batch)
            raise
        return batch

    def _put_back(self, messages: list[Message]) -> None:
        """Put back messages that a cancelled caller has not received."""
        if self._closed:
            for message in messages:
                message.requeue(0, backoff=False)
            return
        self._queue.extendleft(reversed(messages))
        for _ in messages:
            self._wake_one()

    def deliver(self, messages: list[Message]) -> None:
        if self.core.closing:
            for message in messages:
                message.requeue(0, backoff=False)
            return
        self._queue.extend(messages)
        self._add_workers()
        for _ in range(min(len(self._waiters), len(messages))):
            self._wake_one()

    def _add_workers(self) -> None:
        """Run handlers for the messages in the queue, as far as `concurrency` permits."""
        if self.message_handler is not None:
            maximum = self._max_workers(self.message_handler)
            for _ in range(min(len(self._queue), maximum - len(self._workers))):
                self._workers.add(self._spawn(self._work(self.message_handler)))

    def give_up(self, message: Message) -> None:
        if self.core.closing:
            message.requeue(0, backoff=False)
            return
        self._spawn(self._give_up(message))

    async def _wait(self, deadline: float | None = None) -> bool:
        """Wait until there may be a message; return False after the timeout."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        came = False
        try:
            async with asyncio.timeout_at(deadline):
                await waiter
                came = True
        except TimeoutError:
            return bool(self._queue)
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            elif self._queue and not came:
                self._wake_one()  # another waiter has taken the message
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

    def _max_workers(self, handler: Handler) -> int:
        if self._concurrency is not None:
            return self._concurrency
        if is_coroutine_function(handler):
            return max(1, self.core.flow.max_in_flight)
        return 1

    async def _work(self, handler: Handler) -> None:
        """Handle messages until there are none."""
        me = asyncio.current_task()
        assert me is not None
        try:
            began = self.now()
            while self._queue:
                message = self._queue.popleft()
                try:
                    result = handler(message)
                    if inspect.isawaitable(result):
                        result = await result
                        began = self.now()
                except BaseException as error:
                    await self._failed(message, error)
                else:
                    self.core.handled(message, result)
                if self.now() - began > MAX_STRETCH:
                    await asyncio.sleep(0)
                    began = self.now()
        finally:
            self._workers.discard(me)
            if self._queue and not self.loop.is_closed():  # sys.exit() has ended this worker
                self.loop.call_soon(self._add_workers)

    async def _give_up(self, message: Message) -> None:
        """Await on_giving_up. If it is cancelled during shutdown, nsqd requeues the message."""
        hook = self.core.on_giving_up
        assert hook is not None
        try:
            result = hook(message)
            if inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            await self._failed(message, error)
        else:
            self.core.given_up(message, result)

    async def _failed(self, message: Message, error: BaseException) -> None:
        """Handle the exception of a handler or of on_giving_up. Raises it again if it ends the
        task or the program."""
        if _is_cancelled(error):
            raise error
        await self._raised(message, error)
        if isinstance(error, ENDS):
            raise error

    async def _raised(self, message: Message, error: BaseException) -> None:
        was_answered = message.has_responded()
        try:
            told = self.core.report(message, error)
            if inspect.isawaitable(told):
                await self._awaited(told)
        finally:  # also if the task is cancelled
            self.core.log_failure(message, error, was_answered=was_answered)
        self.core.take_back(message, error)

    # -- control

    @property
    def max_in_flight(self) -> int:
        """Maximum number of messages in flight, across all connections; 0 while paused."""
        return self.core.flow.max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Set the maximum number of messages in flight, across all nsqds; 0 pauses.

        Raises ValueError if `count` is not a non-negative integer.
        """
        self.core.flow.set_max_in_flight(count, self.now())
        self._rearm_if_running()

    def pause(self) -> None:
        """Stop receiving messages until resume() is called."""
        self._paused = self.max_in_flight or self._paused
        self.set_max_in_flight(0)

    def resume(self) -> None:
        """Continue after pause(), with the previous max_in_flight."""
        if self._paused:
            self.set_max_in_flight(self._paused)
            self._paused = 0

    def connect_to_nsqd(self, host: str, port: int) -> None:
        """Also consume from the nsqd at `host` and TCP port `port`.

        Raises ValueError for a consumer with `topics_pattern`.
        """
        check_arguments(host=host, port=port)
        self.core.topics.require_names()
        self.core.add_nsqd(Address(host, port), self.now())
        self._rearm_if_running()

    def query_lookupd(self) -> None:
        """Query the lookupds now, not at the next poll."""
        self.core.ask_now(self.now())
        self._rearm_if_running()

    def _rearm_if_running(self) -> None:
        if self.core.running:
            self.rearm()


class _Awaited(Publish):
    """A publish with a future for its result."""

    __slots__ = ()

    def done(self, error: Error | None) -> None:
        future: asyncio.Future[bytes] = self.waiter
        if future.done():  # cancelled, or timed out
            return
        if error is None:
            future.set_result(OK)
        else:
            future.set_exception(error)

    def is_awaited(self) -> bool:
        future: asyncio.Future[bytes] = self.waiter
        return not future.done()  # cancelled


@with_options(*PRODUCER_PARTS)
class Producer(ProducerView, _Face):
    """Producer for one nsqd, or for a pool of fixed nsqds and nsqds found by lookupds.

    publish() waits until nsqd has responded. Any number of publishes may be pending. With several
    nsqds, a failed publish is retried on another nsqd, up to `retries` times.

    With `codec`, the messages to publish are values instead of bytes. `codec` is `json`, `msgpack`
    or an object with encode and decode methods.

    Callbacks are functions or coroutine functions: on_error(error) for failed connections,
    on_retry(publish, error) for retries. Raises ValueError and TypeError for invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        name: str | None = None,
        codec: Codec | None = None,
        on_error: Callable[[Error], Outcome] | None = None,
        on_retry: Callable[[Publish, Error], Outcome] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        super().__init__()
        check_arguments(on_error=on_error, on_retry=on_retry)
        self.core: ProducerCore = ProducerCore(
            self,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name,
            keywords=options,
        )
        self.core.on_error = self._hook(on_error)
        self.core.on_retry = self._hook(on_retry)
        self._room = asyncio.Event()
        self._encode = encoder(codec)
        self._pub, self._mpub = Heads(b"PUB"), Heads(b"MPUB")

    async def start(self) -> None:
        """Start connecting. The first publish also does this."""
        self._start()

    def _start(self) -> None:
        if self.core.running:
            return
        if self.core.closing:
            raise self.core.closed_error
        self._begin()

    async def close(self, *, graceful: bool = True) -> None:
        """Wait up to close_timeout seconds for pending responses, then close.

        If `graceful` is false, close immediately: pending publishes fail with Closed.
        """
        check_arguments(graceful=graceful)
        self.core.closing = True
        if not (self.core.running or self._ending):  # never started
            return
        await self._close(graceful=graceful)

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def publish(
        self,
        topic: str,
        data: Any,
        defer: Milliseconds | None = None,
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> bytes:
        """Publish one message and return b"OK".

        `data` is bytes or, for a producer with a codec, any value that the codec can encode. nsqd
        delivers it after `defer`, in milliseconds or as a timedelta. `headers` require a
        producer with the `headers` option, and so do `key`, `dedup_id` and `priority` (0 to 9),
        which set the headers of these names. With several nsqds, the key, or else the id, chooses
        the nsqd; see the option `strict_key`.

        Raises NsqdError if nsqd refuses the message, ConnectionFailed if the connection fails, and
        NoConnection or PublishTimeout after `timeout`. Raises ValueError and TypeError for
        invalid arguments, before anything is sent.
        """
        if self.core.is_full:
            timeout = await self._have_room(timeout)
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        route = None
        if key is not None or dedup_id is not None or priority is not None:
            headers, route = keyed(headers, key, dedup_id, priority), route_of(key, dedup_id)
        return await self._send(topic, head, self._body(data, headers), timeout, route)

    async def multipublish(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> bytes:
        """Publish several messages atomically, each with `headers`, and return b"OK".

        Raises the same errors as publish().
        """
        if self.core.is_full:
            timeout = await self._have_room(timeout)
        route = None
        if key is not None or priority is not None:
            headers, route = keyed(headers, key, None, priority), route_of(key, None)
        body = self._several(messages, headers)
        return await self._send(topic, self._mpub[topic], body, timeout, route)

    async def publish_all(
        self,
        topic: str,
        messages: Iterable[Any] | AsyncIterable[Any],
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        headers: Headers | None = None,
    ) -> int:
        """Publish any number of messages in batches and return their number.

        `messages` may also be an asynchronous iterable, such as an async generator.

        A batch has at most `batch_messages` messages and `batch_bytes` bytes; a larger message is
        sent as its own batch. Raises the same errors as publish(), once all batches already sent
        have been answered. Unless the error is NoConnection, some of the messages may have been
        published.
        """
        check_arguments(batch_messages=batch_messages, batch_bytes=batch_bytes)
        sent: deque[asyncio.Future[bytes]] = deque()
        outcomes = Outcomes()
        count = 0
        try:
            async for batch in batched_async(messages, batch_messages, batch_bytes, self._encode):
                await self._have_room()
                while sent and sent[0].done():
                    outcomes.add(sent.popleft().exception())
                if outcomes.error is not None:
                    break
                sent.append(
                    self._send(topic, self._mpub[topic], self._mpub_body(batch, headers), None)
                )
                count += len(batch)
        finally:
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                outcomes.add(answer if isinstance(answer, BaseException) else None)
        outcomes.raise_error()
        return count

    def publish_nowait(
        self,
        topic: str,
        data: Any,
        defer: Milliseconds | None = None,
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        dedup_id: str | None = None,
        priority: int | None = None,
    ) -> asyncio.Future[bytes]:
        """Like publish(), but return a future for the result without waiting.

        A program that never waits should check `is_full`.
        """
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        route = None
        if key is not None or dedup_id is not None or priority is not None:
            headers, route = keyed(headers, key, dedup_id, priority), route_of(key, dedup_id)
        return self._send(topic, head, self._body(data, headers), timeout, route)

    def multipublish_nowait(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> asyncio.Future[bytes]:
        """Like multipublish(), but return a future for the result without waiting."""
        route = None
        if key is not None or priority is not None:
            headers, route = keyed(headers, key, None, priority), route_of(key, None)
        return self._send(
            topic, self._mpub[topic], self._several(messages, headers), timeout, route
        )

    pub = publish
    mpub = multipublish

    async def dpub(self, topic: str, delay_ms: Milliseconds, data: Any) -> bytes:
        """Publish one message, deferred by `delay_ms` milliseconds. Raises the same errors as
        publish()."""
        return await self.publish(topic, data, delay_ms)

    def _send(
        self,
        topic: str,
        head: bytes,
        body: bytes,
        timeout: Duration | None,
        route: bytes | None = None,
    ) -> asyncio.Future[bytes]:
        core = self.core
        if not core.running:
            self._start()
        future: asyncio.Future[bytes] = self.loop.create_future()
        deadline = INFINITE if timeout is None else self.now() + seconds(timeout)
        publish = _Awaited(topic, head, body, future, deadline)
        if route is not None:
            publish.route = route
        core.publish(publish)
        if core.waiting or timeout is not None:
            self.rearm()
        return future

    async def _have_room(self, timeout: Duration | None = None) -> float | None:
        """Wait until the publishes have been answered; return the remaining time."""
        deadline = None if timeout is None else self.now() + seconds(timeout)
        try:
            async with asyncio.timeout_at(deadline):
                while self.core.is_full and not self.core.closing:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            text = f"{self.core.pending_bytes} bytes of publishes are unanswered"
            raise PublishTimeout(text) from None
        return None if deadline is None else max(0.0, deadline - self.now())

    def rearm(self) -> None:
        super().rearm()
        if not self.core.is_full or self.core.closing:
            self._room.set()


async def cancel(
    topic: str,
    channel: str,
    key: str,
    nsqd_http_addresses: Addresses,
    *,
    header: str = cancelling.CANCEL_KEY,
    auth_secret: str | None = None,
    timeout: Duration = 5.0,
) -> int:
    """Drop a channel's deferred messages that have this key in a header; return their number.

    Runs nsqcy.client.cancel(), which describes the arguments and errors, in a thread.
    """
    return await Threads(1).call(
        cancelling.cancel,
        topic,
        channel,
        key,
        nsqd_http_addresses,
        header=header,
        auth_secret=auth_secret,
        timeout=timeout,
    )
