"""Schedules that nsqd stores, as deferred messages."""

from datetime import UTC
from typing import Any

from taskiq import ScheduledTask, ScheduleSource
from taskiq.kicker import AsyncKicker

from nsqcy.client.aio_threads import Threads
from nsqcy.integrations.taskiq.broker import NsqBroker
from nsqcy.integrations.taskiq.labels import DUE, QUEUE, SCHEDULE


class NsqScheduleSource(ScheduleSource):
    """Tasks that run once, at a given time, as deferred messages of nsqd.

        source = NsqScheduleSource(broker)
        await task.schedule_by_time(source, at, *arguments)

    nsqd stores them, so no scheduler has to run. Cron expressions and intervals need one: use
    taskiq's LabelScheduleSource for them.
    """

    def __init__(self, broker: NsqBroker) -> None:
        self._broker = broker
        self._queues: set[str] = set()  # queues of the tasks scheduled here

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
        labels = schedule.labels | {SCHEDULE: schedule.schedule_id, DUE: at.timestamp()}
        kicker: AsyncKicker[Any, Any] = AsyncKicker(schedule.task_name, self._broker, labels)
        if schedule.task_id is not None:
            kicker = kicker.with_task_id(schedule.task_id)
        await kicker.kiq(*schedule.args, **schedule.kwargs)
        if queue := labels.get(QUEUE):
            self._queues.add(str(queue))

    async def delete_schedule(self, schedule_id: str) -> None:
        """Remove a task that is not due yet, over HTTP.

        Searches the broker's queues, the queues in the labels of its tasks, and the queues of the
        tasks that this object has scheduled. Raises LookupError if there is no such task, and
        ConnectionError.
        """

        def is_wanted(body: bytes) -> bool:
            try:
                labels = self._broker.formatter.loads(body).labels
            except Exception:
                return False
            return labels.get(SCHEDULE) == schedule_id

        topics = list(map(self._broker.topic, self._broker.queues() | self._queues))
        found = await Threads(1).call(self._broker.management.cancel, topics, is_wanted)
        if not found:
            raise LookupError(f"no task with the schedule id {schedule_id} is deferred")
