"""A channel of kombu: publishing, consuming and answering."""

import queue
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

from kombu.transport import virtual

from nsqcy.client import Closed, ConnectionFailed, Consumer, Error, Message
from nsqcy.integrations.client_options import QUICK, UNTIL_ANSWERED
from nsqcy.integrations.delays import EARLY
from nsqcy.integrations.kombu.inbox import NOT_PRIORITISED
from nsqcy.integrations.kombu.payloads import payload_of, seconds_until, task_of
from nsqcy.integrations.kombu.qos import QoS, requeue_now
from nsqcy.integrations.kombu.rejected import Unacked
from nsqcy.integrations.kombu.topics import Source, Topics
from nsqcy.names import is_ephemeral

UNLIMITED = 2500  # RDY for a prefetch count of 0: nsqd's default --max-rdy-count
NO_ACK_READY = 100  # RDY for queues whose messages are acknowledged on delivery
END_WAIT = 5.0  # seconds to wait for the last answers when a channel is closed


@dataclass(slots=True, eq=False)
class Subscription:
    """The consumers of one queue on one channel: one for each of its topics."""

    queue: str
    no_ack: bool
    sources: list[Source] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    cancelled: bool = False

    def add(self, source: Source, consumer: Consumer) -> None:
        """Start the consumer of a source."""
        self.sources.append(source)
        self.consumers.append(consumer)
        consumer.start()


class Channel(virtual.Channel):
    """Channel of the transport."""

    QoS = QoS
    supports_fanout = True
    do_restore = False

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection
        self._options = connection.settings.options
        self._topics = Topics(self, self._options, connection.temporary)
        self._is_prioritised = len(self._options.priority_steps) > 1
        self._subscriptions: dict[str, Subscription] = {}  # by consumer tag
        self._ended: list[Subscription] = []
        self._pulls: dict[str, Subscription] = {}  # subscriptions by queue, for basic_get()
        self._unacked: dict[str, Unacked] = {}
        self._drops = False  # whether _drop_lost() is in the inbox
        self._tags = count(1)

    @property
    def is_full(self) -> bool:
        """Return whether messages of lower priorities must wait for the program."""
        return bool(self.qos.is_full)

    # -- publishing

    def basic_publish(
        self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any
    ) -> None:
        """Publish, and return once nsqd has confirmed the message."""
        self._inplace_augment_message(message, exchange, routing_key)
        priority = message["properties"].get("priority") or 0
        for topic in self._topics.of_message(exchange, routing_key, priority):
            self._transport.publish(topic, message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        priority = message["properties"].get("priority") or 0
        self._transport.publish(self._topics.of_queue(queue, priority), message)

    def keep_rejected(self, delivery_tag: str, error: str | None) -> None:
        """Publish an unacknowledged message to the queue for rejected messages, if there is one."""
        target = self._options.rejected_queue
        unacked = self._unacked.get(delivery_tag)
        if target is None or unacked is None:
            return
        topic = self._topics.of_queue(target.format(queue=unacked.queue))
        headers = unacked.headers(error) if self._transport.has_headers else None
        self._transport.send(topic, unacked.dead_letter(error), headers=headers)

    # -- queues

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            self._transport.temporary.add(queue)

    def _queue_bind(self, exchange: str, *meta: Any) -> None:
        """Do nothing: kombu has already recorded the binding."""

    def _size(self, queue: str) -> int:
        return self._transport.management.size(self._topics.all_of_queue(queue))

    def _purge(self, queue: str) -> int:
        return self._transport.management.purge(self._topics.all_of_queue(queue))

    def cancel_deferred(self, queue: str, task_id: str) -> int:
        """Drop the deferred messages of a task; return their number.

        Raises ConnectionError.
        """
        topics = self._topics.all_of_queue(queue)
        return self._transport.management.cancel(topics, lambda body: task_of(body) == str(task_id))

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        """Forget a temporary queue. Topics are kept, because other workers may use them."""
        self._transport.temporary.discard(queue)

    def after_reply_message_received(self, queue: str) -> None:
        """Do nothing: the consumers of the reply queue end with the channel."""

    # -- consuming

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Any, consumer_tag: str, **kwargs: Any
    ) -> None:
        """Subscribe to the topics of a queue."""
        super().basic_consume(queue, no_ack, callback, consumer_tag, **kwargs)
        subscription = Subscription(queue, no_ack)
        self._subscriptions[consumer_tag] = subscription
        for source in self._topics.sources(queue):
            consumer = self._consumer(source, self._ready(no_ack))
            consumer.message_handler = self._receiver(subscription, source)
            subscription.add(source, consumer)

    def _consumer(self, source: Source, ready: int) -> Consumer:
        keywords: Any = QUICK | self._transport.settings.consumer
        if is_ephemeral(source.topic):  # a reply may arrive before a query finds its topic
            keywords["every_nsqd"] = True
        return Consumer(
            source.topic,
            source.channel,
            self._transport.settings.nsqds,
            self._transport.settings.lookupds,
            max_in_flight=ready,
            max_tries=0,
            close_timeout=UNTIL_ANSWERED,
            msg_timeout=self._options.msg_timeout,
            on_error=self._connection_failed,
            **keywords,
        )

    def _ready(self, no_ack: bool) -> int:
        """Return the RDY of each topic. With priorities, one more message of each priority must
        always be available, in addition to those that the program has."""
        if no_ack:
            return NO_ACK_READY
        factor = 2 if self._is_prioritised else 1
        return min(factor * self.qos.prefetch_count or UNLIMITED, UNLIMITED)

    def _receiver(
        self, subscription: Subscription, source: Source
    ) -> Callable[[Message], bool | None]:
        """Return the handler that passes a subscription's messages to the program."""
        since = time.time_ns()
        is_ordered = self._is_prioritised and not subscription.no_ack
        urgency = source.step if is_ordered else NOT_PRIORITISED

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
            if delay > EARLY:  # the delay exceeds nsqd's limit for deferred messages
                message.requeue(min(delay, self._options.max_defer), backoff=False)
                return None
            tag = self._take(Unacked(message, subscription.queue, source), payload)
            if subscription.cancelled:
                self.answer(tag, requeue_now)
            else:
                self._transport.inbox.put(
                    self, urgency, lambda: self._deliver(subscription, tag, payload)
                )
            return None

        return receive

    def _take(self, unacked: Unacked, payload: dict[str, Any]) -> str:
        """Record a message as unacknowledged, under a new tag."""
        tag = f"{self.channel_id}.{next(self._tags)}"
        properties = payload["properties"]
        properties["delivery_tag"] = tag
        properties["delivery_info"]["redelivered"] = unacked.message.attempts > 1
        self._unacked[tag] = unacked
        self._transport.unanswered.add(unacked.message)
        self._transport.unanswered.start_thread()
        return tag

    def _deliver(self, subscription: Subscription, tag: str, payload: dict[str, Any]) -> bool:
        """Pass a message to the program; return whether there was a consumer."""
        unacked = self._unacked.get(tag)
        is_wanted = subscription.queue in self.connection._callbacks and not subscription.cancelled
        if unacked is None or unacked.message.is_lost() or not is_wanted:
            self.answer(tag, requeue_now)
            return False
        if subscription.no_ack:
            self.answer(tag, Message.finish)
        self.connection._deliver(payload, subscription.queue)
        return True

    def _connection_failed(self, error: Error) -> None:
        """Drop lost messages, in the program's thread. If the consumer itself has failed, make
        the program reconnect."""
        if isinstance(error, Closed):
            self._transport.inbox.put(self, NOT_PRIORITISED, partial(_raise, error))
        elif not self._drops:
            self._drops = True
            self._transport.inbox.put(self, NOT_PRIORITISED, self._drop_lost)

    def _drop_lost(self) -> bool:
        """Drop tasks that Celery has received but not begun, and that nsqd redelivers."""
        self._drops = False
        lost = {tag for tag, each in list(self._unacked.items()) if each.message.is_lost()}
        if lost and "celery.worker.state" in sys.modules:  # this is a worker
            from nsqcy.integrations.celery.lost_tasks import drop

            for tag in drop(lost):
                self.qos.reject(tag, requeue=True)
        return False

    def answer(self, delivery_tag: str, how: Callable[[Message], None]) -> None:
        """Finish or requeue an unacknowledged message. Unknown tags have been answered."""
        unacked = self._unacked.pop(delivery_tag, None)
        if unacked is not None and self._transport.is_ours:
            self._transport.unanswered.answer(unacked.message, how)
            self._transport.inbox.wake()

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
        """Set the maximum number of unacknowledged messages for each topic."""
        super().basic_qos(prefetch_size, prefetch_count, apply_global)
        for subscription in self._subscriptions.values():
            if not subscription.no_ack:
                for consumer in subscription.consumers:
                    consumer.set_max_in_flight(self._ready(False))
        self._transport.inbox.wake()

    def _get(self, queue_name: str, timeout: float | None = None) -> dict[str, Any]:
        """Return a message of a queue for basic_get(). Raises queue.Empty."""
        pull = self._pulls.get(queue_name)
        if pull is None:
            pull = self._pulls[queue_name] = Subscription(queue_name, False)
            for source in self._topics.sources(queue_name):
                pull.add(source, self._consumer(source, 0))
        each_timeout = self._options.get_timeout if timeout is None else timeout
        for source, consumer in zip(pull.sources, pull.consumers, strict=True):
            consumer.set_max_in_flight(consumer.total_in_flight + 1)
            message = consumer.get(each_timeout / len(pull.consumers))
            consumer.set_max_in_flight(0)
            if message is not None:
                payload = payload_of(message)
                self._take(Unacked(message, queue_name, source), payload)
                return payload
        raise queue.Empty

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
            self.answer(tag, requeue_now)
        deadline = time.monotonic() + END_WAIT
        for subscription in self._ended if self._transport.is_ours else ():
            for consumer in subscription.consumers:
                if not consumer.join(max(0.0, deadline - time.monotonic())):
                    consumer.close(graceful=False, wait=False)
        self._ended.clear()
        super().close()


def _raise(error: Error) -> bool:
    raise ConnectionFailed(str(error)) from error
