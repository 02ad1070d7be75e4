"""taskiq broker on nsqd.

    broker = NsqBroker("127.0.0.1:4150")

A queue is a topic, which all workers consume through one channel. A task with the label `delay` is
a deferred message of nsqd. A message is finished when taskiq acknowledges its task.
"""

import asyncio
import functools
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC
from typing import Any

from taskiq import AckableMessage, AsyncBroker, BrokerMessage, ScheduledTask, ScheduleSource
from taskiq.kicker import AsyncKicker

from nsqcy.client import Message
from nsqcy.client.aio import Consumer, Producer
from nsqcy.client.options import Addresses, as_strings
from nsqcy.integrations.client_options import sorted_options
from nsqcy.integrations.delays import DEFAULT_MAX_DEFER, EARLY, milliseconds, remaining
from nsqcy.integrations.queue_management import QueueManagement
from nsqcy.integrations.queue_names import nsq_name
from nsqcy.integrations.unanswered import Unanswered

DELAY = "delay"  # label: seconds after the publish; taskiq's retries set it too
DUE = "nsqcy_due"  # label: seconds since 1970; a retry of the task is due already
MARKS = (DELAY.encode(), DUE.encode())
OWN_OPTIONS = ("max_tries", "max_attempts", "max_in_flight", "msg_timeout", "close_timeout")


class NsqBroker(AsyncBroker):
    """taskiq broker on one or more nsqds, or on those that nsqlookupds report.

    - queue_name: the topic that workers consume, and that of tasks without the label `queue_name`
    - channel: the channel through which all workers consume it
    - max_in_flight: tasks that a worker process receives ahead, including those that are running
    - msg_timeout: seconds until nsqd redelivers the tasks of a worker that has died
    - max_defer: nsqd's limit for deferred messages, in seconds. A longer delay is served in parts
    - nsqd_http_addresses: for cancelling schedules; see QueueManagement

    Other options are the client's, for example `tls_v1`, `auth_secret`, `durability` and `retries`.
    Raises ValueError for unknown or invalid options.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: Addresses = (),
        lookupd_http_addresses: Addresses = (),
        *,
        queue_name: str = "taskiq",
        channel: str = "taskiq",
        max_in_flight: int = 100,
        msg_timeout: float = 60.0,
        max_defer: float = DEFAULT_MAX_DEFER,
        nsqd_http_addresses: Addresses = (),
        **options: Any,
    ) -> None:
        super().__init__()
        self.queue_name = queue_name
        self._channel = nsq_name(channel)
        self._nsqds = as_strings(nsqd_tcp_addresses)
        self._lookupds = as_strings(lookupd_http_addresses)
        self._max_in_flight = max_in_flight
        self._msg_timeout = msg_timeout
        self._max_defer = max_defer
        consumer_options, producer_options = sorted_options(options, OWN_OPTIONS, "NsqBroker")
        self._consumer_options: Any = consumer_options
        self._producer = Producer(self._nsqds, self._lookupds, **producer_options)
        self._consumer: Consumer | None = None
        self._received: asyncio.Queue[Message] = asyncio.Queue()
        self._unanswered = Unanswered(msg_timeout)
        self._touching: asyncio.Task[None] | None = None
        self.management = QueueManagement(
            self._channel,
            self._nsqds,
            self._lookupds,
            as_strings(nsqd_http_addresses),
            producer_options.get("auth_secret"),
        )

    async def startup(self) -> None:
        """Connect. Workers and schedulers do this themselves; other programs call it once."""
        await self._producer.start()
        await super().startup()

    async def shutdown(self) -> None:
        """Let other workers have what this process has not run, and close the connections."""
        await super().shutdown()
        if self._touching is not None:
            self._touching.cancel()
            with suppress(asyncio.CancelledError):
                await self._touching
        if self._consumer is not None:
            self._consumer.pause()  # or nsqd would deliver the messages to this process again
            self._unanswered.requeue_all()
            await self._consumer.close()
        await self._producer.close()

    def topic(self, queue_name: str | None = None) -> str:
        """Return the topic of a queue, by default of the broker's own."""
        return nsq_name(str(queue_name or self.queue_name))

    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; return once nsqd has confirmed it. Raises the client's errors."""
        if DUE in message.labels:
            delay = float(message.labels[DUE]) - time.time()
        else:
            delay = float(message.labels.get(DELAY) or 0)
        topic = self.topic(message.labels.get("queue_name"))
        await self._producer.publish(topic, message.message, milliseconds(delay, self._max_defer))

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks of the broker's queue that are due."""
        self._consumer = Consumer(
            self.topic(),
            self._channel,
            self._nsqds,
            self._lookupds,
            self._receive,
            max_in_flight=self._max_in_flight,
            max_tries=0,
            msg_timeout=self._msg_timeout,
            **self._consumer_options,
        )
        self._touching = asyncio.create_task(self._unanswered.touch_until_cancelled())
        await self._consumer.start()
        while True:
            message = await self._received.get()
            yield AckableMessage(
                data=message.body, ack=functools.partial(self._unanswered.finish, message)
            )

    def _receive(self, message: Message) -> None:
        message.enable_async()
        delay = self._remaining(message)
        if delay > 0:
            message.requeue(delay, backoff=False)
            return
        self._unanswered.add(message)
        self._received.put_nowait(message)

    def _remaining(self, message: Message) -> float:
        """Return the seconds until a task is due. Malformed tasks are due: taskiq reports them."""
        if not any(mark in message.body for mark in MARKS):
            return 0.0
        try:
            labels = self.formatter.loads(message.body).labels
            if DUE in labels:
                left = float(labels[DUE]) - time.time()
                return min(left, self._max_defer) if left > EARLY else 0.0
            return remaining(message, float(labels.get(DELAY) or 0), self._max_defer)
        except Exception:
            return 0.0


class NsqScheduleSource(ScheduleSource):
    """Tasks that run once at a time, as deferred messages of nsqd.

        source = NsqScheduleSource(broker)
        await task.schedule_by_time(source, at, *arguments)

    nsqd keeps them, so no scheduler has to run. Cron expressions and intervals need one: use
    taskiq's LabelScheduleSource for them.
    """

    def __init__(self, broker: NsqBroker) -> None:
        self._broker = broker

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return nothing for a scheduler to send: nsqd delivers the tasks."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Publish a task that nsqd defers until its time, which is UTC without a time zone.

        Raises ValueError for a cron expression or an interval, and SendTaskError.
        """
        if schedule.time is None:
            raise ValueError(
                "NsqScheduleSource schedules tasks by time: use LabelScheduleSource and "
                "`taskiq scheduler` for cron expressions and intervals"
            )
        at = schedule.time if schedule.time.tzinfo else schedule.time.replace(tzinfo=UTC)
        kicker: AsyncKicker[Any, Any] = AsyncKicker(
            schedule.task_name, self._broker, schedule.labels
        )
        kicker = kicker.with_labels(schedule_id=schedule.schedule_id, **{DUE: at.timestamp()})
        if schedule.task_id is not None:
            kicker = kicker.with_task_id(schedule.task_id)
        await kicker.kiq(*schedule.args, **schedule.kwargs)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a task that is not due yet. Searches the broker's own queue over HTTP.

        Raises LookupError if there is no such task, and ConnectionError.
        """

        def is_wanted(body: bytes) -> bool:
            try:
                labels = self._broker.formatter.loads(body).labels
            except Exception:
                return False
            return labels.get("schedule_id") == schedule_id

        topics = [self._broker.topic()]
        found = await asyncio.to_thread(self._broker.management.cancel, topics, is_wanted)
        if not found:
            raise LookupError(f"no task with the schedule id {schedule_id} is deferred")
