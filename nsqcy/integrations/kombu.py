"""kombu transport, which runs Celery on nsqd.

    app = Celery("shop", broker="nsqcy://10.0.0.1:4150,10.0.0.2:4150")

A queue is a topic, which all workers consume through one channel. A fanout or topic exchange is an
ephemeral topic, which each consumer reads through an ephemeral channel of its own. nsqd stores
unacknowledged messages; this module touches them while a task is running. A task with an ETA is a
deferred message.

Owns the mapping of kombu's operations to nsqcy.client, whose threads do all I/O. A transport
belongs to one kombu connection and to the process that created it.
"""

import json
import logging
import math
import os
import queue
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, ClassVar
from urllib.parse import unquote

from kombu.exceptions import ChannelError
from kombu.transport import virtual

from nsqcy import __version__
from nsqcy.client import (
    AlreadyAnswered,
    ConnectionFailed,
    Consumer,
    Message,
    NoConnection,
    NsqdError,
    Producer,
    PublishTimeout,
)
from nsqcy.client.options import (
    Address,
    ConnectionKeywords,
    ConsumerKeywords,
    ProducerKeywords,
    nsqd_addresses,
)
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.web_client import Terms
from nsqcy.errors import RequestError
from nsqcy.integrations.queue_names import nsq_name

log = logging.getLogger("nsqcy.integrations.kombu")

DEFAULT_LOOKUPD_PORT = 4161
UNLIMITED = 2500  # RDY for a prefetch count of 0: nsqd's default --max-rdy-count
NO_ACK_READY = 100  # RDY for queues whose messages are acknowledged on delivery
HTTP_TIMEOUT = 5.0
END_WAIT = 5.0  # seconds that closing a channel waits for its last answers to be sent
DAYS = 7 * 86400.0  # a cancelled consumer ends when its last message has been answered
TOUCHES = 3  # per message timeout
EARLY = 0.001  # seconds that a task may arrive before its ETA

# Options of kombu and Celery that may be in transport_options and have no meaning here.
GENERAL_OPTIONS = {
    "callback",
    "client_properties",
    "confirm_publish",
    "connect_retries_timeout",
    "errback",
    "interval_max",
    "interval_start",
    "interval_step",
    "max_retries",
    "on_revive",
    "polling_interval",
}
OWN_CONSUMER_OPTIONS = frozenset({"max_in_flight", "max_tries", "max_attempts", "close_timeout"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The transport's own options, in broker_transport_options."""

    channel: str = "celery"
    topic_prefix: str = ""
    msg_timeout: float = 60.0
    max_defer: float = 3600.0
    publish_timeout: float = 30.0
    connect_timeout: float = 5.0
    get_timeout: float = 1.0
    rejected_queue: str | None = None
    nsqd_http_addresses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("msg_timeout", "max_defer", "publish_timeout"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a number of seconds above 0, not {value!r}")


@dataclass(frozen=True, slots=True)
class Settings:
    """A connection's addresses and options."""

    nsqds: tuple[str, ...]
    lookupds: tuple[str, ...]
    options: Options
    consumer: ConsumerKeywords
    producer: ProducerKeywords


def settings(client: Any) -> Settings:
    """Read the addresses and options of a kombu connection. Raises ValueError."""
    nsqds: list[str] = []
    lookupds: list[str] = []
    secret = None
    for url in _urls(client):
        scheme, separator, rest = url.rpartition("://")
        found, password = _hosts(rest)
        secret = secret or password
        if separator and scheme.rpartition("+")[2] == "lookupd":
            lookupds += [str(Address.parse(each, DEFAULT_LOOKUPD_PORT)) for each in found]
        else:
            nsqds += found
    given = dict(client.transport_options or {})
    own = {each: given.pop(each) for each in Options.__dataclass_fields__ if each in given}
    if isinstance(http := own.get("nsqd_http_addresses", ()), str):
        own["nsqd_http_addresses"] = (http,)
    else:
        own["nsqd_http_addresses"] = tuple(http)
    options = Options(**own)
    given.setdefault("auth_secret", secret)
    if client.ssl:
        given.setdefault("tls_v1", True)
        if isinstance(client.ssl, Mapping) and client.ssl:
            given.setdefault("tls_options", dict(client.ssl))
    consumer, producer = _keywords(given)
    return Settings(
        tuple(str(each) for each in nsqd_addresses(nsqds)),
        tuple(dict.fromkeys(lookupds)),
        options,
        consumer,
        producer,
    )


def _urls(client: Any) -> Iterator[str]:
    """Yield the broker's URL and its alternatives: all of their nsqds form one pool."""
    first = client.hostname or "127.0.0.1"
    if client.port and "://" not in first and ":" not in first:  # kombu has parsed the URL
        first = f"{first}:{client.port}"
    yield from dict.fromkeys(url.strip() for url in (first, *(client.alt or ())) if url.strip())


def _hosts(rest: str) -> tuple[list[str], str | None]:
    """Return the hosts of a URL without its scheme, and the password."""
    netloc = rest.partition("/")[0]
    credentials, separator, hosts = netloc.rpartition("@")
    password = credentials.partition(":")[2] if separator else ""
    found = [each.strip() for each in hosts.split(",") if each.strip()]
    return found or ["127.0.0.1"], unquote(password) or None


def _keywords(given: dict[str, Any]) -> tuple[ConsumerKeywords, ProducerKeywords]:
    """Sort the client's options. Raises ValueError for an unknown option."""
    consumer = _names(ConsumerKeywords) - OWN_CONSUMER_OPTIONS
    producer = _names(ProducerKeywords)
    for name in given.keys() - consumer - producer - GENERAL_OPTIONS:
        raise ValueError(f"broker_transport_options has no option {name!r}")
    for_consumer: Any = {name: given[name] for name in given.keys() & consumer}
    for_producer: Any = {name: given[name] for name in given.keys() & producer}
    return for_consumer, for_producer


def _names(keywords: Any) -> set[str]:
    return set(keywords.__annotations__) | set(ConnectionKeywords.__annotations__)


def seconds_until(payload: Mapping[str, Any], now: float) -> float:
    """Return the seconds until a task's ETA, or 0 if it is due or has none."""
    headers = payload.get("headers")
    eta = headers.get("eta") if isinstance(headers, Mapping) else None
    if not eta:
        return 0.0
    try:
        due = eta if isinstance(eta, datetime) else datetime.fromisoformat(str(eta))
    except ValueError:
        return 0.0
    if due.tzinfo is None:  # only the worker knows the time zone: it waits for the ETA itself
        return 0.0
    return max(0.0, (due - datetime.fromtimestamp(now, UTC)).total_seconds())


def payload_of(message: Message) -> dict[str, Any]:
    """Return kombu's payload. A body that kombu has not written becomes a message of an unknown
    content type, which the program rejects."""
    try:
        payload = json.loads(message.body)
        if isinstance(payload["properties"]["delivery_info"], dict) and "body" in payload:
            return payload
    except (ValueError, TypeError, KeyError):
        pass
    return {
        "body": message.body,
        "content-type": "application/octet-stream",
        "content-encoding": "binary",
        "headers": {},
        "properties": {"delivery_info": {"exchange": "", "routing_key": ""}},
    }


class QoS(virtual.QoS):
    """Unacknowledged messages of a channel. nsqd keeps them until they are answered."""

    restore_at_shutdown = False

    def __init__(self, channel: "Channel", prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0
        self._messages: dict[str, Any] = {}

    def can_consume(self) -> bool:
        """Return True: nsqd enforces the prefetch count, as RDY."""
        return True

    def append(self, message: Any, delivery_tag: str) -> None:
        self._messages[delivery_tag] = message

    def get(self, delivery_tag: str) -> Any:
        return self._messages[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        self._messages.pop(delivery_tag, None)
        self.channel.answer(delivery_tag, Message.finish)

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        message = self._messages.pop(delivery_tag, None)
        if requeue:
            self.channel.answer(delivery_tag, _requeue)
            return
        if message is not None and (target := self.channel.rejected_queue) is not None:
            self.channel.publish_rejected(target, delivery_tag)
        self.channel.answer(delivery_tag, Message.finish)

    def restore_unacked(self) -> list[tuple[BaseException, Any]]:
        for tag in list(self._messages):
            self.reject(tag, requeue=True)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        self.restore_unacked()


def _requeue(message: Message) -> None:
    message.requeue(0, backoff=False)


@dataclass(slots=True, eq=False)
class Subscription:
    """The consumers of one queue on one channel: one for each of its topics."""

    queue: str
    no_ack: bool
    consumers: list[Consumer] = field(default_factory=list)
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A topic and a channel that hold a queue's messages."""

    topic: str
    channel: str
    wanted: Callable[[str], bool] | None = None  # by routing key
    news: bool = False  # messages older than the subscription are not for it


class Channel(virtual.Channel):
    """Channel of the transport."""

    QoS = QoS
    supports_fanout = True
    do_restore = False
    connection: "Transport"

    def __init__(self, connection: "Transport", **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection
        self._options = connection.settings.options
        self._subscriptions: dict[str, Subscription] = {}  # by consumer tag
        self._ended: list[Subscription] = []
        self._pulls: dict[str, Subscription] = {}  # by queue, for basic_get()
        self._unacked: dict[str, Message] = {}
        self._tags = count(1)

    @property
    def rejected_queue(self) -> str | None:
        return self._options.rejected_queue

    # -- names

    def queue_topic(self, name: str) -> str:
        """Return the topic of a queue."""
        return nsq_name(self._options.topic_prefix + name)

    def _broadcast_topic(self, exchange: str) -> str:
        return nsq_name(f"{self._options.topic_prefix}{exchange}", ephemeral=True)

    def _reply_topic(self, exchange: str, routing_key: str) -> str:
        name = f"{self._options.topic_prefix}{exchange}.{routing_key}"
        return nsq_name(name, ephemeral=True)

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Publish, and return once nsqd has confirmed the message."""
        self._inplace_augment_message(message, exchange, routing_key)
        for topic in self._topics(exchange, routing_key):
            self._transport.publish(topic, message)

    def _topics(self, exchange: str, routing_key: str) -> list[str]:
        if not exchange:
            return [self.queue_topic(routing_key)]
        kind = self.typeof(exchange)
        if kind.type == "fanout":
            return [self._broadcast_topic(exchange)]
        try:
            table = self.get_table(exchange)
        except KeyError:
            table = []
        bound = [each for each in table if each[2] not in self._transport.temporary]
        if queues := kind.lookup(bound, exchange, routing_key, None):
            return [self.queue_topic(each) for each in sorted(queues)]
        if kind.type == "topic":
            return [self._broadcast_topic(exchange)]
        return [self._reply_topic(exchange, routing_key)]

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._transport.publish(self.queue_topic(queue), message)

    def publish_rejected(self, queue: str, delivery_tag: str) -> None:
        """Publish a copy of an unacknowledged message."""
        if (message := self._unacked.get(delivery_tag)) is not None:
            self._transport.send(self.queue_topic(queue), message.body)

    # -- queues

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            self._transport.temporary.add(queue)

    def _queue_bind(self, exchange: str, *meta: Any) -> None:
        """kombu has already recorded the binding."""

    def _sources(self, queue: str) -> list[Source]:
        """Return where the messages of a queue are."""
        temporary = queue in self._transport.temporary
        own = nsq_name(f"celery-{uuid.uuid4().hex[:16]}", ephemeral=True)
        found: dict[str, Source] = {}
        patterns: dict[str, list[str]] = {}
        needs_topic = False
        for binding in list(self.state.queue_bindings(queue)):
            exchange, routing_key = binding.exchange, binding.routing_key
            kind = self.typeof(exchange)
            if kind.type == "fanout":
                topic = self._broadcast_topic(exchange)
                found[topic] = Source(topic, own, news=True)
            elif not temporary:
                needs_topic = True
            elif kind.type == "topic":
                topic = self._broadcast_topic(exchange)
                patterns.setdefault(topic, []).append(kind.key_to_pattern(routing_key))
                found[topic] = Source(topic, own, _matcher(kind, patterns[topic]), news=True)
            else:
                topic = self._reply_topic(exchange, routing_key)
                found[topic] = Source(topic, own)
        if needs_topic or not found:
            topic = self.queue_topic(queue)
            found[topic] = Source(topic, nsq_name(self._options.channel))
        return list(found.values())

    # -- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Subscribe to the topics of a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        subscription = Subscription(queue, no_ack)
        self._subscriptions[consumer_tag] = subscription
        for source in self._sources(queue):
            consumer = self._consumer(source, self._ready(no_ack))
            consumer.message_handler = self._receiver(subscription, source)
            subscription.consumers.append(consumer)
            consumer.start()

    def _consumer(self, source: Source, ready: int) -> Consumer:
        keywords: Any = {
            "lookupd_poll_interval": 5.0,
            "low_rdy_idle_timeout": 1.0,
            "rdy_redistribute_interval": 0.5,
        }
        keywords |= self._transport.settings.consumer
        return Consumer(
            source.topic,
            source.channel,
            self._transport.settings.nsqds,
            self._transport.settings.lookupds,
            max_in_flight=ready,
            max_tries=0,
            close_timeout=DAYS,
            msg_timeout=self._options.msg_timeout,
            **keywords,
        )

    def _ready(self, no_ack: bool) -> int:
        return NO_ACK_READY if no_ack else self.qos.prefetch_count or UNLIMITED

    def _receiver(
        self, subscription: Subscription, source: Source
    ) -> Callable[[Message], bool | None]:
        """Return the handler that passes a subscription's messages to the program."""
        since = time.time_ns()

        def receive(message: Message) -> bool | None:
            if source.news and message.timestamp < since:
                return True
            payload = payload_of(message)
            if source.wanted is not None:
                key = payload["properties"]["delivery_info"].get("routing_key", "")
                if not source.wanted(key):
                    return True
            message.enable_async()
            delay = seconds_until(payload, time.time())
            if delay > EARLY:  # longer than nsqd's limit for deferred messages
                message.requeue(min(delay, self._options.max_defer), backoff=False)
                return None
            tag = self._take(message, payload)
            if subscription.cancelled:
                self.answer(tag, _requeue)
            else:
                self._transport.inbox.put((self, subscription, tag, payload))
            return None

        return receive

    def _take(self, message: Message, payload: dict[str, Any]) -> str:
        """Record a message as unacknowledged, under a tag of its own."""
        tag = f"{self.channel_id}.{next(self._tags)}"
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = message.attempts > 1
        self._unacked[tag] = message
        self._transport.keep_touching()
        return tag

    def deliver(self, subscription: Subscription, tag: str, payload: dict[str, Any]) -> bool:
        """Pass a message to the program; return whether there was a consumer."""
        is_wanted = subscription.queue in self.connection._callbacks
        if subscription.cancelled or not is_wanted or tag not in self._unacked:
            self.answer(tag, _requeue)
            return False
        if subscription.no_ack:
            self.answer(tag, Message.finish)
        self.connection._deliver(payload, subscription.queue)
        return True

    def answer(self, delivery_tag: str, how: Callable[[Message], None]) -> None:
        """Finish or requeue an unacknowledged message. Unknown tags have been answered."""
        message = self._unacked.pop(delivery_tag, None)
        if message is not None and self._transport.is_ours:
            with suppress(AlreadyAnswered):
                how(message)

    def touch_all(self) -> None:
        """Restart the timeouts of the unacknowledged messages."""
        for message in list(self._unacked.values()):
            with suppress(AlreadyAnswered):
                message.touch()

    def basic_cancel(self, consumer_tag: str) -> None:
        """Stop consuming; messages in flight may still be answered."""
        super().basic_cancel(consumer_tag)
        if (subscription := self._subscriptions.pop(consumer_tag, None)) is not None:
            self._cancel(subscription)

    def _cancel(self, subscription: Subscription) -> None:
        subscription.cancelled = True
        if self._transport.is_ours:
            self._ended.append(subscription)
            for consumer in subscription.consumers:
                consumer.close(wait=False)

    def basic_qos(
        self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False
    ) -> None:
        """Set the maximum number of unacknowledged messages for each queue."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for subscription in self._subscriptions.values():
            if not subscription.no_ack:
                for consumer in subscription.consumers:
                    consumer.set_max_in_flight(self._ready(False))

    def _get(self, queue_name: str, timeout: float | None = None) -> dict[str, Any]:
        """Return a message of a queue for basic_get(). Raises queue.Empty."""
        pull = self._pulls.get(queue_name)
        if pull is None:
            sources = self._sources(queue_name)
            consumers = [self._consumer(each, 0) for each in sources[:1]]
            pull = self._pulls[queue_name] = Subscription(queue_name, False, consumers)
            consumers[0].start()
        consumer = pull.consumers[0]
        consumer.set_max_in_flight(consumer.total_in_flight + 1)
        message = consumer.get(self._options.get_timeout if timeout is None else timeout)
        consumer.set_max_in_flight(0)
        if message is None:
            raise queue.Empty
        payload = payload_of(message)
        self._take(message, payload)
        return payload

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message of a queue, or None after `get_timeout` seconds."""
        message = super().basic_get(queue, no_ack, **kwargs)
        if message is not None and no_ack:
            self.answer(message.delivery_tag, Message.finish)
        return message

    def close(self) -> None:
        """Close the channel: nsqd redelivers its unacknowledged messages to other consumers."""
        if self.closed:
            return
        for tag in list(self._subscriptions):
            self.basic_cancel(tag)
        for pull in self._pulls.values():
            self._cancel(pull)
        for tag in list(self._unacked):
            self.answer(tag, _requeue)
        deadline = time.monotonic() + END_WAIT
        for subscription in self._ended if self._transport.is_ours else ():
            for consumer in subscription.consumers:
                if not consumer.join(max(0.0, deadline - time.monotonic())):
                    consumer.close(graceful=False, wait=False)
        self._ended.clear()
        super().close()

    # -- management, over HTTP

    def _size(self, queue: str) -> int:
        topic = self.queue_topic(queue)
        with suppress(RequestError, ValueError):
            return sum(self._depth(each, topic) for each in self._nsqds())
        return 0

    def _nsqds(self) -> list[NsqdHTTPClient]:
        terms = Terms(request_timeout=HTTP_TIMEOUT)
        addresses = self._options.nsqd_http_addresses
        return [NsqdHTTPClient.from_url(each, terms=terms) for each in addresses]

    def _depth(self, nsqd: NsqdHTTPClient, topic: str) -> int:
        """Return the number of messages that wait in the queue's channel, or in its topic."""
        stats: Any = nsqd.stats(topic)
        depth = 0
        for each in stats["topics"] or ():
            depth += int(each["depth"])
            for channel in each["channels"] or ():
                if channel["channel_name"] == nsq_name(self._options.channel):
                    depth += int(channel["depth"]) + int(channel.get("deferred_count", 0))
        return depth

    def _purge(self, queue: str) -> int:
        nsqds = self._nsqds()
        if not nsqds:
            raise ChannelError(
                "purging requires nsqd's HTTP port: set nsqd_http_addresses in "
                "broker_transport_options"
            )
        topic, size = self.queue_topic(queue), self._size(queue)
        for nsqd in nsqds:
            try:
                nsqd.empty_topic(topic)
                nsqd.empty_channel(topic, nsq_name(self._options.channel))
            except RequestError as error:
                if not error.status:  # 404: there is no such topic or channel
                    raise ConnectionError(f"{nsqd.address}: {error}") from None
        return size

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Forget a temporary queue. Topics stay, because other workers may use them."""
        self._transport.temporary.discard(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Keep the queue: its consumers end with the channel."""


def _matcher(kind: Any, patterns: list[str]) -> Callable[[str], bool]:
    return lambda key: any(kind._match(each, key) for each in patterns)


class Transport(virtual.Transport):
    """kombu transport for nsqd; see the module."""

    Channel = Channel
    can_parse_url = True
    default_port = 4150
    driver_type = "nsqcy"
    driver_name = "nsqcy"
    polling_interval = None
    connection_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.connection_errors,
        ConnectionFailed,
        NoConnection,
        PublishTimeout,
        OSError,
    )
    channel_errors: ClassVar[tuple[type[BaseException], ...]] = (
        *virtual.Transport.channel_errors,
        NsqdError,
    )
    implements = virtual.Transport.implements.extend(
        asynchronous=False,
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self.settings = settings(client)
        self.temporary: set[str] = set()  # auto-delete and exclusive queues
        self.inbox: queue.Queue[tuple[Channel, Subscription, str, dict[str, Any]]] = queue.Queue()
        self._producer: Producer | None = None
        self._producer_pid = 0
        self._max_defer = self.settings.options.max_defer
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing: threading.Event | None = None  # of the thread that touches

    @property
    def is_ours(self) -> bool:
        """Return whether this process created the transport, not its parent before a fork."""
        return self._pid == os.getpid()

    def driver_version(self) -> str:
        return __version__

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL, with its password masked."""
        scheme, separator, rest = uri.partition("://")
        credentials, at, hosts = rest.rpartition("@")
        if at and not include_password:
            credentials = f"{credentials.partition(':')[0]}:{mask}"
        return f"{scheme}{separator}{credentials}{at}{hosts}"

    # -- connections

    def establish_connection(self) -> "Transport":
        """Check that an nsqd is reachable. Raises OSError."""
        self._check_reachable(self.settings.nsqds or self.settings.lookupds)
        return super().establish_connection()

    def _check_reachable(self, addresses: Iterable[str]) -> None:
        failure: OSError | None = None
        for each in addresses:
            address = Address.parse(each)
            try:
                socket.create_connection(
                    (address.host, address.port), self.settings.options.connect_timeout
                ).close()
            except OSError as error:
                failure = error
            else:
                return
        if failure is not None:
            raise failure

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        with self._lock:
            if self._closing is not None:
                self._closing.set()
                self._closing = None
            producer, self._producer = self._producer, None
        if producer is not None and self._producer_pid == os.getpid():
            producer.close()

    # -- publishing

    def publish(self, topic: str, payload: dict[str, Any]) -> None:
        """Publish a payload, deferred until the task's ETA. Returns once nsqd has confirmed it."""
        delay = min(seconds_until(payload, time.time()), self._max_defer)
        self.send(topic, json.dumps(payload).encode(), delay)

    def send(self, topic: str, data: bytes, delay: float = 0.0) -> None:
        """Publish bytes. Raises the errors of nsqcy.client.Producer.publish()."""
        defer = math.ceil(delay * 1000) or None
        self.producer.publish(topic, data, defer, timeout=self.settings.options.publish_timeout)

    @property
    def producer(self) -> Producer:
        """The producer of this connection and process."""
        with self._lock:
            if self._producer is None or self._producer_pid != os.getpid():
                self._producer_pid = os.getpid()
                self._producer = Producer(
                    self.settings.nsqds, self.settings.lookupds, **self.settings.producer
                )
            return self._producer

    # -- consuming

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises socket.timeout."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                if left == 0:
                    channel, subscription, tag, payload = self.inbox.get_nowait()
                else:
                    channel, subscription, tag, payload = self.inbox.get(timeout=left)
            except queue.Empty:
                raise TimeoutError from None
            if channel.deliver(subscription, tag, payload):
                return

    def keep_touching(self) -> None:
        """Start the thread that touches unacknowledged messages."""
        if self._closing is not None:
            return
        with self._lock:
            if self._closing is None:
                self._closing = threading.Event()
                threading.Thread(
                    target=self._touch_until, args=(self._closing,), name="nsqcy touch", daemon=True
                ).start()

    def _touch_until(self, closing: threading.Event) -> None:
        interval = self.settings.options.msg_timeout / TOUCHES
        while not closing.wait(interval):
            for channel in list(self.channels):
                channel.touch_all()
