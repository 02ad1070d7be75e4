"""The broker: queues and messages of Dramatiq as topics and messages of nsqd."""

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import dramatiq
from dramatiq import Message, Middleware, QueueJoinTimeout
from dramatiq.common import current_millis, q_name
from dramatiq.errors import BrokerError, ConnectionClosed, ConnectionFailed
from dramatiq.middleware import SkipMessage

from nsqcy.client import Error, NsqdError
from nsqcy.client.options import Addresses, as_strings
from nsqcy.integrations.client_options import demand_queue_pattern, demand_seconds
from nsqcy.integrations.delays import DEFAULT_MAX_DEFER, milliseconds
from nsqcy.integrations.dramatiq.connections import Connections, Settings
from nsqcy.integrations.dramatiq.consumer import ETA, NsqConsumer, NsqMessage, seconds_left
from nsqcy.integrations.message_keys import DEDUP_ID, KEY, MessageKeys, message_keys
from nsqcy.integrations.queue_management import QueueManagement
from nsqcy.integrations.queue_names import nsq_name

PRIORITY = "broker_priority"  # RabbitmqBroker's option, where 9 comes first as well
DEAD_LETTERS = "{queue}.XQ"  # the name that Dramatiq's other brokers use


class NsqBroker(dramatiq.Broker):
    """Dramatiq broker on one or more nsqds, or on those that nsqlookupds report.

    - middleware: as for every Dramatiq broker
    - channel: the channel through which all workers consume a queue
    - topic_prefix: prefix of the names of all topics, to share nsqds with other applications
    - dead_letter_queue: queue for messages that have failed, where `{queue}` is the original queue;
      with None, they are dropped
    - msg_timeout: seconds until nsqd redelivers the messages of a worker that has died
    - max_defer: nsqd's limit for deferred messages, in seconds. A longer delay is divided into
      parts
    - publish_timeout: seconds to wait for nsqd's confirmation
    - nsqd_http_addresses: for counting, flushing, joining and cancelling. By default, nsqlookupds
      report them; a fixed nsqd's HTTP port is the one after its TCP port

    Other options are the client's, for example `tls_v1`, `auth_secret`, `durability` and `retries`.
    With the client's option `headers`, the options `key`, `dedup_id` and `broker_priority` of an
    actor or a message become those of nsqd's message.
    Raises ValueError and TypeError for unknown or invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        middleware: list[Middleware] | None = None,
        channel: str = "dramatiq",
        topic_prefix: str = "",
        dead_letter_queue: str | None = DEAD_LETTERS,
        msg_timeout: float = 60.0,
        max_defer: float = DEFAULT_MAX_DEFER,
        publish_timeout: float = 30.0,
        nsqd_http_addresses: Addresses = (),
        **options: Any,
    ) -> None:
        super().__init__(middleware)
        demand_seconds("max_defer", max_defer)
        demand_seconds("publish_timeout", publish_timeout)
        demand_queue_pattern("dead_letter_queue", dead_letter_queue)
        self.actor_options |= {KEY, DEDUP_ID, PRIORITY}
        self.queues: set[str] = set()
        self._topic_prefix = topic_prefix
        self._dead_letters = dead_letter_queue
        self._max_defer = max_defer
        self._publish_timeout = publish_timeout
        nsqds, lookupds = as_strings(nsqd_tcp_addresses), as_strings(lookupd_http_addresses)
        self._settings = Settings(nsqds, lookupds, nsq_name(channel), msg_timeout, options)
        self._connections: Connections | None = None
        self._lock = threading.Lock()
        self._publishing = _Publishing()
        self.management = QueueManagement(
            nsq_name(channel),
            nsqds,
            lookupds,
            as_strings(nsqd_http_addresses),
            self._settings.auth_secret,
            trust_lookupd=self._settings.trust_lookupd,
        )

    # -- queues

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. nsqd creates its topic with the first message or worker."""
        queue_name = q_name(queue_name)
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Return the names of the declared queues."""
        return self.queues.copy()

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return nsq_name(self._topic_prefix + queue_name)

    def dead_letter_topic(self, queue_name: str) -> str | None:
        """Return the topic of a queue's dead letters; None if they are dropped."""
        if self._dead_letters is None:
            return None
        return self.topic(self._dead_letters.format(queue=q_name(queue_name)))

    # -- messages

    def enqueue(self, message: "Message[Any]", *, delay: int | None = None) -> "Message[Any]":
        """Publish a message; return once nsqd has confirmed it.

        delay: milliseconds until nsqd delivers it. Raises ConnectionClosed if no nsqd confirms it
        in time, BrokerError if nsqd refuses it, and ValueError for a key that is neither a text nor
        a number.
        """
        options = {} if delay is None else {ETA: current_millis() + delay}
        message = message.copy(queue_name=q_name(message.queue_name), options=options)
        self.logger.debug(
            "Enqueueing message %r on queue %r.", message.message_id, message.queue_name
        )
        self.emit_before("enqueue", message, delay)
        topic, keys = self.topic(message.queue_name), self._keys_of(message)
        self._publish(topic, message.encode(), seconds_left(message), keys)
        self.emit_after("enqueue", message, delay)
        return message

    def _keys_of(self, message: "Message[Any]") -> MessageKeys:
        if not self._settings.has_headers:
            return MessageKeys()
        actor = self.actors.get(message.actor_name)
        options = (actor.options if actor else {}) | message.options
        return message_keys(options, options.get(PRIORITY), is_retry=bool(options.get("retries")))

    def _publish(
        self, topic: str, body: bytes, delay: float = 0.0, keys: MessageKeys | None = None
    ) -> None:
        """Publish a body that is due in `delay` seconds. Raises BrokerError."""
        defer = milliseconds(delay, self._max_defer)
        producer, timeout = self._connected().producer, self._publish_timeout
        with self._publishing.errors():
            producer.publish(topic, body, defer, timeout=timeout, **(keys or {}))

    def emit_before(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware. Raises SkipMessage for a message that has waited in the worker while
        its connection was lost: nsqd redelivers it."""
        if signal == "process_message" and _is_lost(*args):
            raise SkipMessage("nsqd redelivers it")
        super().emit_before(signal, *args, **kwargs)

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Call the middleware. Dramatiq logs its errors and acknowledges the message regardless,
        so record whether the middleware failed to publish a retry or the rest of a pipeline."""
        if signal == "skip_message" and _is_lost(*args):
            return  # the middleware would store a result
        if signal == "process_message":
            self._publishing.has_failed = False
        super().emit_after(signal, *args, **kwargs)
        if signal == "process_message" and self._publishing.has_failed:
            (message,) = args
            if isinstance(message, NsqMessage):
                message.is_incomplete = True

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> NsqConsumer:
        """Return an iterator over a queue's messages.

        prefetch: maximum number of unanswered messages. timeout: milliseconds to wait for a
        message before None is returned.
        """
        connections = self._connected()
        return NsqConsumer(
            queue_name,
            connections.consume(self.topic(queue_name), prefetch),
            connections.unanswered,
            lambda body: self._bury(queue_name, body),
            timeout=timeout / 1000,
            max_defer=self._max_defer,
        )

    def _bury(self, queue_name: str, body: bytes) -> None:
        topic = self.dead_letter_topic(queue_name)
        if topic is not None:
            self._publish(topic, body)

    def _connected(self) -> Connections:
        """Return this process's connections."""
        with self._lock:
            if self._connections is None or not self._connections.is_ours:
                self._connections = Connections(self._settings)
            return self._connections

    def close(self) -> None:
        """Release unanswered messages to other workers, and close the connections."""
        with self._lock:
            connections, self._connections = self._connections, None
        if connections is not None and connections.is_ours:
            connections.close()

    # -- over HTTP

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return the numbers of waiting messages, delayed messages and dead letters of a queue.

        Raises ConnectionFailed if an nsqd does not respond over HTTP.
        """
        with _http_errors():
            counts = self.management.counts([self.topic(queue_name)])
            dead = self.dead_letter_topic(queue_name)
            buried = self.management.counts([dead]).unfinished if dead else 0
        return counts.waiting, counts.deferred, buried

    def flush(self, queue_name: str) -> None:
        """Drop the messages of a queue, including delayed ones, and its dead letters.

        Raises ConnectionFailed if an nsqd does not respond over HTTP.
        """
        topics = (self.topic(queue_name), self.dead_letter_topic(queue_name))
        with _http_errors():
            self.management.purge([each for each in topics if each])

    def flush_all(self) -> None:
        """Drop the messages of all declared queues. Raises ConnectionFailed."""
        for queue_name in self.get_declared_queues():
            self.flush(queue_name)

    def join(self, queue_name: str, *, interval: int = 100, timeout: int | None = None) -> None:
        """Wait until all messages of a queue have been processed, including delayed ones.

        interval: milliseconds between checks. Raises QueueJoinTimeout after `timeout`
        milliseconds, and ConnectionFailed if an nsqd does not respond over HTTP.
        """
        deadline = None if timeout is None else time.monotonic() + timeout / 1000
        before = None
        while True:
            with _http_errors():
                counts = self.management.counts([self.topic(queue_name)])
            # A message that is retried on another nsqd can escape one query of all nsqds, but not
            # two queries between which nothing was published.
            if counts == before and counts.unfinished == 0:
                return
            before = counts
            if deadline is not None and time.monotonic() >= deadline:
                raise QueueJoinTimeout(queue_name)
            if counts.unfinished:
                time.sleep(interval / 1000)

    def cancel(self, message: "Message[Any]") -> bool:
        """Drop a delayed message that is not due yet; return whether it existed.

        Searches through all delayed messages of its queue over HTTP. Raises ConnectionFailed if an
        nsqd does not respond, or has no such API (NSQ's nsqd).
        """

        def is_wanted(body: bytes) -> bool:
            try:
                return bool(Message.decode(body).message_id == message.message_id)
            except dramatiq.DecodeError:
                return False

        with _http_errors():
            topics = [self.topic(q_name(message.queue_name))]
            return bool(self.management.cancel(topics, is_wanted))


def _is_lost(message: Any) -> bool:
    return isinstance(message, NsqMessage) and message.received.is_lost()


class _Publishing(threading.local):
    """Whether a publish of the current thread has failed."""

    has_failed = False

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Convert the client's errors to Dramatiq's."""
        try:
            yield
        except NsqdError as error:
            self.has_failed = True
            raise BrokerError(error) from error
        except Error as error:
            self.has_failed = True
            raise ConnectionClosed(error) from error


@contextlib.contextmanager
def _http_errors() -> Iterator[None]:
    try:
        yield
    except ConnectionError as error:
        raise ConnectionFailed(error) from error
