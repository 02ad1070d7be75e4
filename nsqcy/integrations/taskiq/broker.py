"""The broker that taskiq calls."""

import functools
import time
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage

from nsqcy.client import Message
from nsqcy.client.aio import Consumer, Producer
from nsqcy.client.options import Addresses, as_strings
from nsqcy.integrations.client_options import QUICK, demand_seconds, sorted_options
from nsqcy.integrations.delays import DEFAULT_MAX_DEFER, milliseconds, remaining
from nsqcy.integrations.message_keys import MessageKeys
from nsqcy.integrations.queue_management import QueueManagement
from nsqcy.integrations.queue_names import nsq_name
from nsqcy.integrations.taskiq.inbox import Handler, Inbox
from nsqcy.integrations.taskiq.labels import QUEUE, delay_of, keys_of

OWN_OPTIONS = ("max_tries", "max_attempts", "max_in_flight", "msg_timeout", "close_timeout")


class NsqBroker(AsyncBroker):
    """taskiq broker on one or more nsqds, or on those that nsqlookupds report.

    - queue_name: the queue of tasks without the label `queue_name`
    - worker_queues: the queues that workers consume; by default, `queue_name`
    - channel: the channel through which all workers consume the queues' topics
    - max_in_flight: maximum number of tasks of each queue in a worker process, waiting or running
    - msg_timeout: seconds until nsqd redelivers the tasks of a worker that has died
    - max_defer: nsqd's limit for deferred messages, in seconds. A longer delay is divided into
      parts
    - publish_timeout: seconds to wait for nsqd's confirmation
    - nsqd_http_addresses: for cancelling schedules; see QueueManagement

    Other options are the client's, for example `tls_v1`, `auth_secret`, `durability` and `retries`.
    With the client's option `headers`, the labels `key`, `dedup_id` and `priority` of a task become
    those of nsqd's message.
    Raises ValueError and TypeError for unknown or invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        queue_name: str = "taskiq",
        worker_queues: str | Iterable[str] = (),
        channel: str = "taskiq",
        max_in_flight: int = 100,
        msg_timeout: float = 60.0,
        max_defer: float = DEFAULT_MAX_DEFER,
        publish_timeout: float = 30.0,
        nsqd_http_addresses: Addresses = (),
        **options: Any,
    ) -> None:
        super().__init__()
        demand_seconds("msg_timeout", msg_timeout)
        demand_seconds("max_defer", max_defer)
        demand_seconds("publish_timeout", publish_timeout)
        self.queue_name = queue_name
        queues = [worker_queues] if isinstance(worker_queues, str) else worker_queues
        self._worker_queues = list(queues) or [queue_name]
        self._channel = nsq_name(channel)
        self._nsqds = as_strings(nsqd_tcp_addresses)
        self._lookupds = as_strings(lookupd_http_addresses)
        self._max_in_flight = max_in_flight
        self._msg_timeout = msg_timeout
        self._max_defer = max_defer
        self._publish_timeout = publish_timeout
        consumer_options, producer_options = sorted_options(options, OWN_OPTIONS, "NsqBroker")
        self._consumer_options: Any = QUICK | consumer_options
        self._producer_options: Any = producer_options
        self._has_headers = bool(producer_options.get("headers"))
        self._producer = self._new_producer()
        self._new_inbox()  # raises an error for invalid consumer options
        self._inboxes: list[Inbox] = []
        self.management = QueueManagement(
            self._channel,
            self._nsqds,
            self._lookupds,
            as_strings(nsqd_http_addresses),
            producer_options.get("auth_secret"),
            trust_lookupd=bool(producer_options.get("trust_lookupd")),
        )

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue."""
        return nsq_name(queue_name)

    def queues(self) -> set[str]:
        """Return the queues of the broker, of its workers, and of its tasks."""
        labels = [task.labels.get(QUEUE) for task in self.get_all_tasks().values()]
        return {self.queue_name, *self._worker_queues, *(str(each) for each in labels if each)}

    async def startup(self) -> None:
        """Start connecting, and run the handlers of the event. Workers and schedulers call this."""
        await self._producer.start()
        await super().startup()

    async def shutdown(self) -> None:
        """Release the tasks that this process has not run to other workers, and close the
        connections.

        startup() opens new ones, even in another event loop.
        """
        await super().shutdown()
        inboxes, self._inboxes = self._inboxes, []
        producer, self._producer = self._producer, self._new_producer()
        for inbox in inboxes:
            await inbox.close()
        await producer.close()

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; return once nsqd has confirmed it. Raises the client's errors."""
        topic = self.topic(str(message.labels.get(QUEUE) or self.queue_name))
        defer = milliseconds(delay_of(message.labels, time.time()), self._max_defer)
        keys = keys_of(message.labels) if self._has_headers else MessageKeys()
        await self._producer.publish(
            topic, message.message, defer, timeout=self._publish_timeout, **keys
        )

    def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks of the workers' queues that are due, until the generator is closed."""
        inbox = self._new_inbox()
        self._inboxes.append(inbox)
        return inbox.messages()

    def _new_producer(self) -> Producer:
        return Producer(self._nsqds, self._lookupds, **self._producer_options)

    def _new_inbox(self) -> Inbox:
        topics = dict.fromkeys(map(self.topic, self._worker_queues))
        consumers = [functools.partial(self._new_consumer, topic) for topic in topics]
        return Inbox(consumers, self._remaining, self._msg_timeout)

    def _new_consumer(self, topic: str, handler: Handler) -> Consumer:
        return Consumer(
            topic,
            self._channel,
            self._nsqds,
            self._lookupds,
            handler,
            max_in_flight=self._max_in_flight,
            max_tries=0,
            msg_timeout=self._msg_timeout,
            **self._consumer_options,
        )

    def _remaining(self, message: Message) -> float:
        """Return the seconds until a task is due. Malformed tasks are due: taskiq reports them."""
        try:
            delay = delay_of(self.formatter.loads(message.body).labels, message.timestamp / 1e9)
        except Exception:
            return 0.0
        return remaining(message, delay, self._max_defer)
