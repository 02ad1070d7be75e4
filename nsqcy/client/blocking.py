"""The client for threads and for gevent; `nsqcy.client` is its public name.

    with Producer("127.0.0.1:4150") as producer:
        producer.publish("greetings", b"hello")

    with Consumer("greetings", "me", "127.0.0.1:4150") as consumer:
        for message in consumer:
            print(message.body)
            message.finish()

This module owns all waiting: for messages, responses, buffer space and shutdown. consumer.py and
producer.py make the decisions. blocking_loop.py handles bytes and time in its own thread, so
heartbeats are answered while handlers are busy. Messages may be answered in any thread.

Ctrl-C, a signal handler or a time limit may raise an exception in a caller's thread, between any
two instructions. Callers therefore change state only through single calls to mailbox.pyx and the
codec, and hold no locks.

Consumers and producers belong to the process that started them: in a forked child, the parent's
consumers and producers have ended.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import InvalidStateError
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from nsqcy.client.arguments import check_arguments
from nsqcy.client.blocking_loop import Loop
from nsqcy.client.bodies import Codec, decoder, encoder, handler_of
from nsqcy.client.codec import Message, Publish
from nsqcy.client.common_interface import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    INFINITE,
    OK,
    ConsumerView,
    Headers,
    Outcomes,
    ProducerView,
    batched,
    default_in_flight,
    lookup_query,
    refuse_coroutine_functions,
    warn_of_idle_handlers,
)
from nsqcy.client.connection import Connection
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.dead_letters import (
    dead_letter_headers,
    keep_dead_letters,
    producer_keywords,
    topic_of_dead_letter,
)
from nsqcy.client.errors import Closed, Error, PublishTimeout
from nsqcy.client.flow import MAX_IN_FLIGHT, demand
from nsqcy.client.keys import keyed, route_of
from nsqcy.client.mailbox import Batches, Deliveries, Event, Iteration, Waiters, call_in
from nsqcy.client.options import (
    CONSUMER_PARTS,
    PRODUCER_PARTS,
    Address,
    Addresses,
    ConsumerKeywords,
    ProducerKeywords,
    as_strings,
    with_options,
)
from nsqcy.client.producer import Heads, ProducerCore, dpub_head
from nsqcy.client.threads_or_greenlets import Future, Kind, runtime_of
from nsqcy.client.times import Duration, Milliseconds, seconds
from nsqcy.client.topics import Given, Pattern
from nsqcy.client.user_code import log, report

GRACE = 2.0  # seconds after close_timeout until the client ends on its own

# Result types that mypy accepts. Coroutines are excluded, because they would never be awaited.
# b"OK" is the result of a publish.
Result = bool | bytes | None
Handler = Callable[[Message], Result]
ValueHandler = Callable[[Any], Result] | Callable[[Any, Message], Result]  # with a codec
GivingUp = Callable[[Message], bytes | None]


@with_options(*CONSUMER_PARTS)
class Consumer(ConsumerView):
    """Consumer of one channel, from fixed nsqds, from nsqds found by lookupds, or from both.

    `topic` is one topic or several. With several, `max_in_flight` limits all of them together, and
    `message.topic` distinguishes their messages. `topics_pattern`, an alternative to `topic`, is a
    regular expression that matches entire topic names. Topics created later are also found: through
    lookupds, or through `nsqd_http_addresses`, the HTTP addresses of `nsqd_tcp_addresses` in the
    same order.

    The program takes messages by iteration, get() or batches(), and answers them in any thread. Or
    it passes a `message_handler`, which `concurrency` threads run. The handler's result answers the
    message: None or True finishes it, False requeues it, an exception requeues it and backs off.
    `max_in_flight` defaults to `concurrency`.

    `runtime` is `threads`, `gevent` or `auto`. `auto` selects gevent if it has patched the standard
    library.

    Callbacks are plain functions. They run in the client's threads and must not wait for the
    consumer:

    - on_error(error): a connection failed
    - on_exception(message, error): a handler or on_giving_up raised
    - on_heartbeat(connection): nsqd sent a heartbeat
    - on_ready(connection): a connection has subscribed
    - on_giving_up(message): a message has had too many attempts. It runs in its own thread, one
      message at a time. When it returns, the message is finished; if it raises, the message is
      requeued.

    With `codec`, the handler gets the decoded body instead of the message, converted to the type of
    its first parameter. A second parameter gets the message. A handler that declares
    `message: Message` still gets the message. `codec` is `json`, `msgpack` or an object with encode
    and decode methods.

    With `dead_letter_topic`, the consumer publishes a message that has had too many attempts to
    that topic instead of calling on_giving_up. `{topic}` in it stands for the message's topic.

    Raises ValueError and TypeError for invalid options.
    """

    _queue: Deliveries

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
        concurrency: int = 1,
        runtime: Kind = "auto",
        name: str | None = None,
        codec: Codec | None = None,
        dead_letter_topic: str | None = None,
        on_error: Callable[[Error], None] | None = None,
        on_exception: Callable[[Message, BaseException], None] | None = None,
        on_giving_up: GivingUp | None = None,
        on_heartbeat: Callable[[Connection], None] | None = None,
        on_ready: Callable[[Connection], None] | None = None,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        refuse_coroutine_functions(
            message_handler=message_handler,
            on_error=on_error,
            on_exception=on_exception,
            on_giving_up=on_giving_up,
            on_heartbeat=on_heartbeat,
            on_ready=on_ready,
        )
        nsqds, lookupds = as_strings(nsqd_tcp_addresses), as_strings(lookupd_http_addresses)
        in_flight = default_in_flight(concurrency)
        self._loop = Loop(runtime_of(runtime), self._deliver)
        self.core = ConsumerCore(
            self._loop,
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
        self.core.on_error = self._loop.told_later(on_error)
        self.core.on_exception = on_exception
        self.core.on_giving_up = on_giving_up
        self._dead_letters: Producer | None = None
        if dead_letter_topic is not None:
            keep_dead_letters(self.core, dead_letter_topic, on_giving_up)
            keywords: Any = producer_keywords(options)
            self._dead_letters = Producer(
                nsqds,
                lookupds,
                runtime=runtime,
                name=f"{self.core.name} dead letters",
                **keywords,
            )
            self.core.on_giving_up = self._publisher(self._dead_letters, dead_letter_topic)
        self.core.on_heartbeat = self._loop.told_later(on_heartbeat)
        self.core.on_ready = self._loop.told_later(on_ready)
        self._loop.core = self.core
        self._loop.on_hopeless = self._give_up
        self._loop.on_begin = self._begin
        self._loop.on_end = self._end
        self._loop.at_exit = partial(self._begin_end, graceful=True)
        self.message_handler: Handler | None = handler_of(message_handler, codec)
        self._decode = decoder(codec)
        self._concurrency = concurrency
        self._waiters = Waiters(self._loop.runtime.gate)
        self._queue = Deliveries(self._waiters, self._loop.runtime.current, self._raise_failure)
        # Threads that iterate, wait for messages, handle them, or await the end.
        self._inside = self._queue.callers
        self._hopeless: deque[Message] = deque()  # delivered messages, for on_giving_up
        self._gives_up = False  # whether a thread calls on_giving_up
        self._handlers: deque[Event] = deque()  # events of workers that are continuing
        self._max_in_flight = self.core.flow.max_in_flight  # the loop may not have applied it yet
        self._paused = 0  # max_in_flight before the pause

    def _publisher(self, producer: "Producer", topic: str) -> GivingUp:
        def publish(message: Message) -> None:
            headers = dead_letter_headers(self.core, message)
            to = topic_of_dead_letter(topic, message.topic)
            producer.publish(to, message.body, headers=headers)

        return publish

    # -- lifecycle

    def start(self, block: bool = False) -> None:
        """Start connecting and receiving messages. If `block` is true, behave like run()."""
        check_arguments(block=block)
        if not (self._loop.has_begun or self._queue.is_closed):
            self._loop.start(self.core.name, lookup_query(self.core))
        if block:
            self.run()

    def _begin(self) -> None:
        if self.message_handler is not None:
            for _ in range(self._concurrency):
                self._spawn_worker(self.message_handler)

    def run(self) -> None:
        """Start, and wait until the consumer is closed.

        An exception such as KeyboardInterrupt closes the consumer and is raised again.
        """
        try:
            self.start()
            self.join()
        except BaseException:
            self.close()
            raise

    def join(self, timeout: Duration | None = None) -> bool:
        """Wait up to `timeout` seconds for the consumer to end; return whether it has."""
        limit = seconds(timeout)
        if not self._loop.has_begun:
            return self._queue.is_closed
        me = self._loop.runtime.current()
        has_ended = call_in(self._inside, me, self._loop.ended.wait, limit)
        self._raise_failure()
        return has_ended

    def close(self, *, graceful: bool = True, wait: bool = True) -> None:
        """Close the consumer. May be called repeatedly and from anywhere.

        Requeues delivered messages that the program has not taken. If `graceful` is true, messages
        in flight can still be answered for close_timeout seconds; otherwise they cannot.

        With `wait`, waits for the consumer to end, except where that would deadlock: in a thread
        that iterates, in a handler, in a callback, and in a signal handler that has interrupted one
        of these, or get().
        """
        check_arguments(graceful=graceful, wait=wait)
        self._begin_end(graceful)
        if wait and self._loop.runtime.current() not in self._inside:
            self._await_end(graceful)

    def _begin_end(self, graceful: bool) -> None:
        self._loop.call(self._stop, graceful)
        self._queue.close()

    def _await_end(self, graceful: bool) -> None:
        if not self._loop.may_be_awaited:
            return
        deadline = self._loop.now() + self.core.options.close_timeout
        self._loop.ended.wait(self.core.options.close_timeout + GRACE)
        if graceful:  # handlers may still have work to do after they have answered
            for ended in list(self._handlers):
                ended.wait(max(0.0, deadline - self._loop.now()))

    def _stop(self, graceful: bool) -> None:
        self._queue.close()
        _requeue(self._queue.take_all())
        while (message := self._next_hopeless()) is not None:
            _requeue([message])
        self._loop.call(self._stop_core, graceful)  # runs after the messages have been requeued

    def _stop_core(self, graceful: bool) -> None:
        self.core.stop(self._loop.now(), graceful=graceful)

    def _end(self) -> None:
        self._queue.close()
        self._queue.take_all()  # in a forked child, the messages belong to the parent
        self._hopeless.clear()
        if self._dead_letters is not None:
            self._dead_letters.close(graceful=False, wait=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._begin_end(graceful=error is None)
        self._await_end(graceful=error is None)

    # -- messages

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until the consumer is closed. Several threads may iterate."""
        self.start()
        return Iteration(self._queue)

    def get(self, timeout: Duration | None = None) -> Message | None:
        """Return the next message, or None after `timeout` or after close().

        Raises Closed, with its cause, if an internal error of the client has ended the consumer; so
        do iterations, batches() and join().
        """
        self.start()
        return self._queue.get(seconds(timeout))

    def batches(
        self, max_messages: int, *, within: Duration = 0.0, timeout: Duration | None = None
    ) -> Iterator[list[Message]]:
        """Iterate over lists of up to `max_messages` messages.

        A list is complete `within` seconds after its first message. It is complete earlier if no
        more messages can arrive until the program answers some that are in flight. An empty list
        means that no message arrived within `timeout` seconds.
        """
        check_arguments(max_messages=max_messages)
        limits = seconds(within, "within"), seconds(timeout)
        self.start()
        return Batches(self._queue, max_messages, *limits, self)

    def _deliver(self, messages: list[Message]) -> None:
        """Queue the loop's messages for the program, and wake waiting threads."""
        if self._queue.is_closed:
            _requeue(messages)
        else:
            self._queue.put(messages)

    def _spawn_worker(self, handler: Handler) -> None:
        self._loop.spawn(f"nsqcy handler {self.core.name}", self._work, handler)

    def _work(self, handler: Handler) -> None:
        """Handle messages until the end."""
        self._handlers.append(ended := Event(self._loop.runtime.gate))
        try:
            for message in self:
                try:
                    result = handler(message)
                except BaseException as error:  # including sys.exit(), which ends a thread silently
                    self.core.raised(message, error)
                else:
                    self.core.handled(message, result)
        except Closed:
            pass  # the client has failed, which is already logged
        except BaseException as error:
            log.error("[%s] a handler thread failed", self.core.name, exc_info=error)
        finally:
            ended.set()
            self._handlers.remove(ended)
            if not self._queue.is_closed:
                self._loop.call(self._spawn_worker, handler)

    def _give_up(self, message: Message) -> None:
        """Pass a message from the loop to on_giving_up. The callback may block, so it runs in its
        own thread."""
        if self._queue.is_closed:
            _requeue([message])
            return
        self._hopeless.append(message)
        if not self._gives_up:
            self._begin_giving_up()

    def _begin_giving_up(self) -> None:
        self._gives_up = True
        self._loop.spawn(f"nsqcy giving up {self.core.name}", self._give_up_all)

    def _give_up_all(self) -> None:
        """Call on_giving_up until there are no more messages for it."""
        self._handlers.append(ended := Event(self._loop.runtime.gate))
        try:
            call_in(self._inside, self._loop.runtime.current(), self._give_up_each)
        finally:
            ended.set()
            self._handlers.remove(ended)
            self._loop.call(self._go_on_giving_up)

    def _give_up_each(self) -> None:
        hook = self.core.on_giving_up
        assert hook is not None
        while (message := self._next_hopeless()) is not None:
            try:
                result = hook(message)
            except BaseException as error:
                self.core.raised(message, error)
            else:
                self.core.given_up(message, result)

    def _go_on_giving_up(self) -> None:
        self._gives_up = False
        if self._hopeless:  # a message has arrived in the meantime
            self._begin_giving_up()

    def _next_hopeless(self) -> Message | None:
        with suppress(IndexError):
            return self._hopeless.popleft()
        return None

    # -- control

    @property
    def max_in_flight(self) -> int:
        """Maximum number of messages in flight, across all connections; 0 while paused."""
        return self._max_in_flight

    def set_max_in_flight(self, count: int) -> None:
        """Set the maximum number of messages in flight, across all nsqds; 0 pauses.

        Raises ValueError if `count` is not a non-negative integer.
        """
        demand("max_in_flight", count, MAX_IN_FLIGHT)
        self._max_in_flight = count
        self._loop.do(self.core.flow.set_max_in_flight, count)

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
        self._loop.do(self.core.add_nsqd, Address(host, port))

    def query_lookupd(self) -> None:
        """Query the lookupds now, not at the next poll."""
        self._loop.do(self.core.ask_now)


def _requeue(messages: Iterable[Message]) -> None:
    """Requeue messages that the program has not taken."""
    for message in messages:
        if not message.has_responded():
            message.requeue(0, backoff=False)


class _Awaited(Publish):
    """A publish whose caller is waiting at a gate."""

    __slots__ = ("failure",)

    failure: Error | None

    def done(self, error: Error | None) -> None:
        self.failure = error
        self.waiter.release()


class _Promised(Publish):
    """A publish with its waiter: the loop's `later`, and a future."""

    __slots__ = ()

    def done(self, error: Error | None) -> None:
        later, future = self.waiter
        later.append((_resolve, (future, error)))

    def is_awaited(self) -> bool:
        _, future = self.waiter
        return not future.done()  # cancelled


def _resolve(future: Future, error: Error | None) -> None:
    if future.done():  # cancelled, or timed out
        return
    try:
        if error is None:
            future.set_result(OK)
        else:
            future.set_exception(error)
    except InvalidStateError:  # cancelled just now
        pass
    except BaseException as failure:  # from a callback that the program added
        report("producer", failure)


@with_options(*PRODUCER_PARTS)
class Producer(ProducerView):
    """Producer for one nsqd, or for a pool of fixed nsqds and nsqds found by lookupds.

    publish() waits until nsqd has responded. Any number of threads may publish. With several nsqds,
    a failed publish is retried on another nsqd, up to `retries` times.

    With `codec`, the messages to publish are values instead of bytes. `codec` is `json`, `msgpack`
    or an object with encode and decode methods.

    Callbacks are plain functions: on_error(error) for failed connections, on_retry(publish, error)
    for retries. They run in one of the client's threads and must not wait for the producer.

    `runtime` is as for Consumer. Raises ValueError and TypeError for invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        runtime: Kind = "auto",
        name: str | None = None,
        codec: Codec | None = None,
        on_error: Callable[[Error], None] | None = None,
        on_retry: Callable[[Publish, Error], None] | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        refuse_coroutine_functions(on_error=on_error, on_retry=on_retry)
        self._loop = Loop(runtime_of(runtime))
        self.core = ProducerCore(
            self._loop,
            nsqd_tcp_addresses,
            lookupd_http_addresses,
            name=name,
            keywords=options,
        )
        self.core.on_error = self._loop.told_later(on_error)
        self.core.on_retry = self._loop.told_later(on_retry)
        self._loop.core = self.core
        self._loop.on_end = self._end
        self._loop.after_turn = self._offer_room
        self._loop.at_exit = partial(self._loop.call, self._stop, True)
        self._closed = False
        self._waiters = Waiters(self._loop.runtime.gate)  # for room
        self._encode = encoder(codec)
        self._pub, self._mpub = Heads(b"PUB"), Heads(b"MPUB")

    def start(self) -> None:
        """Start connecting. The first publish also does this."""
        if not (self._loop.has_begun or self._closed):
            self._loop.start(self.core.name, lookup_query(self.core))

    def close(self, *, graceful: bool = True, wait: bool = True) -> None:
        """Wait up to close_timeout seconds for pending responses, then close.

        If `graceful` is false, close immediately: pending publishes fail with Closed. If `wait` is
        false, return before the producer has closed.
        """
        check_arguments(graceful=graceful, wait=wait)
        self._loop.call(self._stop, graceful)
        self._closed = True
        self._waiters.wake_all()
        if not self._loop.has_begun:
            self.core.closing = True
        elif wait and self._loop.may_be_awaited:
            self._loop.ended.wait(self.core.options.close_timeout + GRACE)

    def _stop(self, graceful: bool) -> None:
        self._closed = True
        self.core.stop(self._loop.now(), graceful=graceful)

    def _end(self) -> None:
        self._closed = True
        self._waiters.wake_all()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def publish(
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
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        route = None
        if key is not None or dedup_id is not None or priority is not None:
            headers, route = keyed(headers, key, dedup_id, priority), route_of(key, dedup_id)
        return self._sent(topic, head, self._body(data, headers), timeout, route)

    def multipublish(
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
        route = None
        if key is not None or priority is not None:
            headers, route = keyed(headers, key, None, priority), route_of(key, None)
        body = self._several(messages, headers)
        return self._sent(topic, self._mpub[topic], body, timeout, route)

    def publish_all(
        self,
        topic: str,
        messages: Iterable[Any],
        *,
        batch_messages: int = BATCH_MESSAGES,
        batch_bytes: int = BATCH_BYTES,
        headers: Headers | None = None,
    ) -> int:
        """Publish any number of messages in batches and return their number.

        A batch has at most `batch_messages` messages and `batch_bytes` bytes; a larger message is
        sent as its own batch. Raises the same errors as publish(), once all batches already sent
        have been answered. Unless the error is NoConnection, some of the messages may have been
        published.
        """
        check_arguments(batch_messages=batch_messages, batch_bytes=batch_bytes)
        head = self._mpub[topic]
        sent: deque[Future] = deque()
        outcomes = Outcomes()
        count = 0
        try:
            for batch in batched(messages, batch_messages, batch_bytes, self._encode):
                self._have_room(INFINITE)
                while sent and sent[0].done():
                    outcomes.add(_error_of(sent.popleft()))
                if outcomes.error is not None:
                    break
                sent.append(self._send(topic, head, self._mpub_body(batch, headers), INFINITE))
                count += len(batch)
        finally:
            for future in sent:
                outcomes.add(_error_of(future))
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
    ) -> Future:
        """Like publish(), but return a future for the result without waiting.

        The future is a concurrent.futures.Future or a gevent AsyncResult. A program that never
        waits should check `is_full`.
        """
        head = self._pub[topic] if defer is None else dpub_head(topic, defer)
        route = None
        if key is not None or dedup_id is not None or priority is not None:
            headers, route = keyed(headers, key, dedup_id, priority), route_of(key, dedup_id)
        return self._send(topic, head, self._body(data, headers), self._deadline(timeout), route)

    def multipublish_nowait(
        self,
        topic: str,
        messages: Iterable[Any],
        timeout: Duration | None = None,
        *,
        headers: Headers | None = None,
        key: str | None = None,
        priority: int | None = None,
    ) -> Future:
        """Like multipublish(), but return a future for the result without waiting."""
        route = None
        if key is not None or priority is not None:
            headers, route = keyed(headers, key, None, priority), route_of(key, None)
        body = self._several(messages, headers)
        return self._send(topic, self._mpub[topic], body, self._deadline(timeout), route)

    pub = publish
    mpub = multipublish

    def dpub(self, topic: str, delay_ms: Milliseconds, data: Any) -> bytes:
        """Publish one message, deferred by `delay_ms` milliseconds. Raises the same errors as
        publish()."""
        return self.publish(topic, data, delay_ms)

    def _sent(
        self,
        topic: str,
        head: bytes,
        body: bytes,
        timeout: Duration | None,
        route: bytes | None,
    ) -> bytes:
        if self._loop.is_current:
            raise RuntimeError("a callback cannot wait for its own producer: use publish_nowait()")
        deadline = self._deadline(timeout)
        self._have_room(deadline)
        loop = self._loop
        gate = loop.runtime.gate()
        publish = _Awaited(topic, head, body, gate, deadline)
        if route is not None:
            publish.route = route
        if not (
            self._may_publish()
            and loop.mailbox.ask(self._publish, publish, len(body), gate, self._withdraw)
        ):
            raise self.core.closed_error
        if publish.failure is not None:
            raise publish.failure
        return OK

    def _deadline(self, timeout: Duration | None) -> float:
        return INFINITE if timeout is None else self._loop.now() + seconds(timeout)

    def _send(
        self, topic: str, head: bytes, body: bytes, deadline: float, route: bytes | None = None
    ) -> Future:
        loop = self._loop
        future = loop.runtime.future()
        publish = _Promised(topic, head, body, (loop.later, future), deadline)
        if route is not None:
            publish.route = route
        if not (self._may_publish() and loop.mailbox.post_sized(self._publish, publish, len(body))):
            raise self.core.closed_error
        return future

    def _may_publish(self) -> bool:
        """Start, unless the producer has been closed."""
        if not self._loop.has_begun:
            self.start()
        return not self._closed

    def _publish(self, publish: Publish) -> None:
        try:
            self.core.publish(publish)
        except Closed as error:  # just now
            publish.done(error)
        except Exception as error:
            self.core.fail(error, self._loop.now())
            with suppress(RuntimeError):  # the core has already called done()
                publish.done(self.core.closed_error)

    def _withdraw(self, publish: Publish) -> None:
        self.core.withdraw(publish, self._loop.now())

    @property
    def is_full(self) -> bool:
        """Whether the `max_pending` limit on unanswered bytes has been reached."""
        pending = self.core.pending_bytes + self._loop.mailbox.size
        return pending >= self.core.options.max_pending

    def _have_room(self, deadline: float) -> None:
        """Wait until the publishes have been answered. Raises PublishTimeout."""
        while not self._has_room():
            left = None if deadline == INFINITE else deadline - self._loop.now()
            if left is not None and left <= 0:
                raise PublishTimeout("timed out: too many unanswered publishes")
            self._waiters.wait(self._has_room, left)

    def _has_room(self) -> bool:
        return not self.is_full or self._closed

    def _offer_room(self) -> None:
        if self._waiters and not self.is_full:
            self._waiters.wake_all()


def _error_of(future: Future) -> Exception | None:
    """Wait for a future; return its error, or None."""
    try:
        future.result()
    except Exception as error:
        return error
    return None
