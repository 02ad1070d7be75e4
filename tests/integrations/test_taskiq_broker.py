"""The taskiq broker and its schedule source, with taskiq's receiver in the tests' own process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

pytest.importorskip("taskiq")

from taskiq import (
    Context,
    ScheduledTask,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.acks import AcknowledgeType
from taskiq.exceptions import SendTaskError
from taskiq.receiver import Receiver

from nsqcy.integrations.queue_management import Counts, QueueManagement
from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource
from nsqcy.integrations.taskiq.labels import delay_of
from nsqcy.testing import Nsqd, certificates, nsqd, nsqlookupd
from nsqcy.testing.http_requests import Web
from support.fake_auth_server import AuthServer

pytestmark = pytest.mark.slow

LIMIT = 60.0


@pytest.fixture(scope="module")
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture
def broker(daemon: Nsqd, queue: str) -> NsqBroker:
    return NsqBroker(
        daemon.tcp_address,
        queue_name=queue,
        msg_timeout=1,
        nsqd_http_addresses=daemon.http_address,
    )


@pytest.fixture
def queue(tmp_path: Path) -> str:
    return tmp_path.name[:50]


@pytest.fixture
def counts(daemon: Nsqd) -> Callable[[str], Counts]:
    management = QueueManagement("taskiq", [], http_addresses=[daemon.http_address])
    return lambda queue: management.counts([queue])


class Runs:
    """Records when a task has run, and with which labels."""

    def __init__(self, broker: NsqBroker, **labels: Any) -> None:
        self.times: list[float] = []
        self.labels: list[dict[str, Any]] = []
        self.failures = 0  # number of runs that must fail first

        @broker.task("run", **labels)
        async def run(number: int, context: Annotated[Context, TaskiqDepends()]) -> None:
            self.times.append(time.time())
            self.labels.append(context.message.labels)
            if len(self.times) <= self.failures:
                raise OSError("not yet")

        self.task: Any = run

    async def reach(self, count: int) -> None:
        while len(self.times) < count:
            await asyncio.sleep(0.01)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, LIMIT))


@asynccontextmanager
async def working(broker: NsqBroker, **options: Any) -> AsyncIterator[None]:
    """Run a worker in this process."""
    finish = asyncio.Event()
    receiver = Receiver(broker, **{"max_async_tasks": 10} | options)
    listening = asyncio.create_task(receiver.listen(finish))
    try:
        yield
    finally:
        finish.set()
        await listening
        await broker.shutdown()


async def until(holds: Callable[[], bool]) -> None:
    while not await asyncio.to_thread(holds):
        await asyncio.sleep(0.01)


# -- keys, priorities and deduplication ids


def prepare(daemon: Nsqd, queue: str, topic: object, channel: object) -> None:
    """Set the policies of a queue, and create its channel."""
    web = Web.at(daemon.http_address)
    assert web.put("/topic/config", json.dumps(topic).encode(), topic=queue).status == 200
    answer = web.put("/channel/config", json.dumps(channel).encode(), topic=queue, channel="taskiq")
    assert answer.status == 200
    web.create(queue, "taskiq")


class Numbers:
    """Records the numbers with which a task has run, and keys that ran twice at a time."""

    def __init__(self, broker: NsqBroker, failures: int = 0, **labels: Any) -> None:
        self.found: list[int] = []
        self.twice: list[int] = []
        held: set[int] = set()

        @broker.task("number", **labels)
        async def run(number: int, key: int = 0) -> None:
            self.twice.extend(held & {key})
            held.add(key)
            await asyncio.sleep(0)
            held.discard(key)
            self.found.append(number)
            if self.found.count(number) <= failures:
                raise OSError("not yet")

        self.task: Any = run

    async def reach(self, count: int) -> None:
        while len(self.found) < count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("options", "topic"),
    [({"headers": True}, {}), ({}, {"priority": "json:/labels/priority"})],
    ids=["headers", "json"],
)
def test_nsqd_delivers_urgent_tasks_first(
    daemon: Nsqd, queue: str, options: dict[str, Any], topic: dict[str, Any]
) -> None:
    prepare(daemon, queue, topic, {"urgent_first": True})
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, max_in_flight=1, **options)
    numbers = Numbers(broker)

    async def main() -> None:
        await broker.startup()
        for priority in (3, 9, 5, 9):
            await numbers.task.kicker().with_labels(priority=priority).kiq(priority)
        await numbers.task.kiq(0)
        async with working(broker, max_async_tasks=1):
            await numbers.reach(5)

    run(main())
    assert numbers.found == [9, 9, 5, 3, 0]


def test_tasks_with_the_same_key_run_one_at_a_time(daemon: Nsqd, queue: str) -> None:
    prepare(daemon, queue, {}, {"order": "key"})
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, headers=True)
    numbers = Numbers(broker)

    async def main() -> None:
        await broker.startup()
        for number in range(30):
            kicker = numbers.task.kicker().with_labels(key=f"customer-{number % 3}")
            await kicker.kiq(number, number % 3)
        async with working(broker):
            await numbers.reach(30)

    run(main())
    assert numbers.twice == []
    for key in range(3):
        assert [each for each in numbers.found if each % 3 == key] == list(range(key, 30, 3))


def test_a_repeated_task_is_kept_once_but_its_retries_are_kept(daemon: Nsqd, queue: str) -> None:
    prepare(daemon, queue, {"dedup_window": "10m"}, {})
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, headers=True)
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=5))
    numbers = Numbers(broker, failures=2, retry_on_error=True)

    async def main() -> None:
        await broker.startup()
        for number in (1, 1, 2):
            await numbers.task.kicker().with_labels(dedup_id=f"n{number}").kiq(number)
        async with working(broker):
            await numbers.reach(6)

    run(main())
    assert sorted(numbers.found) == [1, 1, 1, 2, 2, 2]


def test_bad_keys_and_priorities_are_refused(daemon: Nsqd, queue: str) -> None:
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, headers=True)
    numbers = Numbers(broker)

    async def main() -> None:
        await broker.startup()
        for labels in ({"key": "x" * 256}, {"dedup_id": ""}, {"priority": "high"}):
            with pytest.raises(SendTaskError):
                await numbers.task.kicker().with_labels(**labels).kiq(1)
        await broker.shutdown()

    run(main())


# -- delays


@pytest.mark.parametrize("max_defer", [3600, 0.2])
def test_a_task_runs_after_its_delay(daemon: Nsqd, queue: str, max_defer: float) -> None:
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, max_defer=max_defer)
    runs = Runs(broker)

    async def main() -> None:
        async with working(broker):
            begun = time.time()
            await runs.task.kicker().with_labels(delay=0.6).kiq(1)
            await runs.reach(1)
            assert runs.times[0] >= begun + 0.6

    run(main())


def test_a_retry_has_the_delay_of_the_smart_middleware(broker: NsqBroker) -> None:
    broker.add_middlewares(SmartRetryMiddleware(default_delay=0.3))
    runs = Runs(broker, retry_on_error=True)
    runs.failures = 2
    source = NsqScheduleSource(broker)

    async def main() -> None:
        async with working(broker):
            begun = time.time()
            at = datetime.now(UTC) + timedelta(seconds=0.2)
            await runs.task.schedule_by_time(source, at, 1)
            await runs.reach(3)
        assert runs.times[0] >= begun + 0.2
        assert runs.times[1] >= runs.times[0] + 0.3
        assert runs.times[2] >= runs.times[1] + 0.3

    run(main())


def test_a_retry_goes_through_the_schedule_source(broker: NsqBroker) -> None:
    source = NsqScheduleSource(broker)
    broker.add_middlewares(SmartRetryMiddleware(default_delay=0.3, schedule_source=source))
    runs = Runs(broker, retry_on_error=True)
    runs.failures = 1

    async def main() -> None:
        async with working(broker):
            await runs.task.kiq(1)
            await runs.reach(2)
        assert runs.times[1] >= runs.times[0] + 0.29  # a datetime has microseconds
        assert "schedule_id" in runs.labels[1]

    run(main())


def test_a_task_that_fails_for_good_is_finished(
    broker: NsqBroker, queue: str, counts: Callable[[str], Counts]
) -> None:
    broker.add_middlewares(SimpleRetryMiddleware(default_retry_count=3))
    runs = Runs(broker, retry_on_error=True)
    runs.failures = 100

    async def main() -> None:
        async with working(broker):
            await runs.task.kiq(1)
            await runs.reach(3)
            await until(lambda: counts(queue).unfinished == 0)
        assert counts(queue).published == len(runs.times) == 3

    run(main())


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, 0),
        ({"delay": "2.5"}, 2.5),
        ({"nsqcy_due": 130.0}, 30),
        ({"nsqcy_due": 130.0, "delay": 5}, 30),
        ({"nsqcy_due": 90.0, "delay": 5}, 5),
        ({"nsqcy_due": 90.0}, 0),
    ],
)
def test_a_due_time_that_has_passed_leaves_the_delay(
    labels: dict[str, Any], expected: float
) -> None:
    assert delay_of(labels, 100.0) == expected


@pytest.mark.parametrize("value", ["soon", "nan", "inf", [1]])
def test_a_delay_must_be_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match="label 'delay' must be a number of seconds, not "):
        delay_of({"delay": value}, 100.0)


# -- schedules


def test_a_schedule_can_be_cancelled(broker: NsqBroker, queue: str) -> None:
    runs = Runs(broker)
    source = NsqScheduleSource(broker)

    @broker.task("other", queue_name=f"{queue}-label")
    async def other() -> None: ...

    async def main() -> None:
        await broker.startup()
        at = datetime.now(UTC) + timedelta(seconds=0.5)
        far = datetime.now(UTC) + timedelta(days=300)
        schedules = [
            await runs.task.schedule_by_time(source, far, 1),
            await runs.task.kicker()
            .with_labels(queue_name=f"{queue}-x")
            .schedule_by_time(source, far, 2),
            await other.schedule_by_time(source, far),
        ]
        kept = await runs.task.schedule_by_time(source, at.replace(tzinfo=None), 4)
        await NsqScheduleSource(broker).delete_schedule(schedules.pop().schedule_id)
        for each in schedules:
            await each.unschedule()
            with pytest.raises(LookupError, match=f"schedule id {each.schedule_id} is deferred"):
                await each.unschedule()
        async with working(broker):
            await runs.reach(1)
        assert runs.labels[0]["schedule_id"] == kept.schedule_id
        assert runs.times[0] >= at.timestamp()

    run(main())


def test_a_scheduled_task_keeps_its_id(broker: NsqBroker) -> None:
    source = NsqScheduleSource(broker)
    runs = Runs(broker)
    at = datetime.now(UTC)

    async def main() -> None:
        await broker.startup()
        task = runs.task.kicker().with_task_id("mine").with_schedule_id("also mine")
        await task.schedule_by_time(source, at, 1)
        message = await anext(broker.listen())
        found = broker.formatter.loads(message.data)
        message.ack()
        await broker.shutdown()
        assert found.task_id == "mine"
        assert found.labels["schedule_id"] == "also mine"

    run(main())


def test_repeated_schedules_are_refused(broker: NsqBroker) -> None:
    source = NsqScheduleSource(broker)
    fields: dict[str, Any] = {"task_name": "run", "labels": {}, "args": [], "kwargs": {}}
    for each in ({"interval": timedelta(seconds=5)}, {"cron": "* * * * *"}):
        with pytest.raises(ValueError, match="use LabelScheduleSource and `taskiq scheduler`"):
            asyncio.run(source.add_schedule(ScheduledTask(**fields, **each)))
    assert asyncio.run(source.get_schedules()) == []


# -- acknowledgements


def test_a_task_that_is_dropped_without_an_acknowledgement_runs_again(
    broker: NsqBroker, queue: str, counts: Callable[[str], Counts]
) -> None:
    begun: list[float] = []

    @broker.task("manual")
    async def manual(context: Annotated[Context, TaskiqDepends()]) -> None:
        begun.append(time.time())
        if len(begun) > 1:
            await context.ack()

    task: Any = manual  # the type includes the context, which taskiq passes

    async def main() -> None:
        async with working(broker, ack_type=AcknowledgeType.MANUAL):
            await task.kiq()
            await until(lambda: len(begun) == 2 and counts(queue).unfinished == 0)
        assert begun[1] >= begun[0] + 1  # the message timeout

    run(main())


def test_a_task_runs_again_if_a_middleware_fails(broker: NsqBroker) -> None:
    class Faulty(TaskiqMiddleware):
        calls = 0

        def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
            self.calls += 1
            if self.calls == 1:
                raise OSError("not yet")
            return message

    broker.add_middlewares(Faulty())
    runs = Runs(broker)

    async def main() -> None:
        async with working(broker):
            await runs.task.kiq(1)
            await runs.reach(1)

    run(main())


def test_what_has_not_begun_is_requeued_once(
    broker: NsqBroker, queue: str, counts: Callable[[str], Counts]
) -> None:
    runs = Runs(broker)

    async def main() -> None:
        await broker.startup()
        for number in range(50):
            await runs.task.kiq(number)
        messages = broker.listen()
        (await anext(messages)).ack()
        held = await anext(messages)
        await until(lambda: counts(queue).in_flight == 49)
        await messages.aclose()
        await until(lambda: counts(queue).in_flight == 1 and counts(queue).waiting == 48)
        await broker.shutdown()
        await until(lambda: counts(queue).in_flight == 0 and counts(queue).waiting == 49)
        held.ack()

    run(main())


# -- the broker


def test_tasks_that_wait_run_once_although_nsqd_restarts() -> None:
    async def main() -> None:
        runs: list[int] = []
        begun, gate = asyncio.Event(), asyncio.Event()
        with nsqd(durability="os") as own:
            web = Web.at(own.http_address)
            broker = NsqBroker(own.tcp_address)

            async def in_flight(count: int) -> None:
                await asyncio.to_thread(
                    web.await_counts, "taskiq", "taskiq", depth=0, in_flight_count=count
                )

            @broker.task
            async def task(number: int) -> None:
                begun.set()
                await gate.wait()
                runs.append(number)

            await broker.startup()
            async with working(broker, max_async_tasks=1):
                await task.kiq(0)
                await begun.wait()
                for number in range(1, 5):
                    await task.kiq(number)
                await in_flight(5)
                own.kill()
                own.start()
                await in_flight(5)
                gate.set()
                await in_flight(0)
        assert sorted(runs) == [0, 0, 1, 2, 3, 4]

    run(main())


def test_a_broker_starts_again_in_another_loop(broker: NsqBroker) -> None:
    runs = Runs(broker)

    async def main(count: int) -> None:
        async with working(broker):
            await runs.task.kiq(1)
            await runs.reach(count)

    run(main(1))
    run(main(2))


def test_workers_consume_several_queues(daemon: Nsqd, queue: str) -> None:
    queues = [f"{queue}/mail", f"{queue}.bills"]
    broker = NsqBroker(daemon.tcp_address, queue_name=queue, worker_queues=queues)
    runs = Runs(broker)

    async def main() -> None:
        async with working(broker):
            await runs.task.kiq(1)
            for each in queues:
                await runs.task.kicker().with_labels(queue_name=each).kiq(2)
            await runs.reach(2)
        assert {each["queue_name"] for each in runs.labels} == set(queues)

    run(main())


def test_nsqlookupd_finds_the_nsqds() -> None:
    async def main(address: str) -> None:
        broker = NsqBroker(lookupd_http_addresses=address)
        runs = Runs(broker)
        await broker.startup()
        await runs.task.kiq(1)
        async with working(broker):
            await runs.reach(1)

    with nsqlookupd() as lookupd, nsqd(lookupd_tcp_address=lookupd.tcp_address):
        run(main(lookupd.http_address))


def test_tls_and_auth(tmp_path: Path) -> None:
    authority = certificates.make("authority", authority=True)
    server = certificates.make("127.0.0.1", by=authority).save(tmp_path)
    ca = str(authority.save(tmp_path).certificate)

    async def main(address: str) -> None:
        broker = NsqBroker(
            address, tls_v1=True, tls_options={"ca_certs": ca}, auth_secret="open sesame"
        )
        runs = Runs(broker)
        async with working(broker):
            await runs.task.kiq(1)
            await runs.reach(1)

    with closing(AuthServer()) as auth:
        auth.says("open sesame")
        with nsqd(**server.options, tls_required="true", auth_http_address=auth.address) as found:
            run(main(found.tcp_address))
        assert auth.asked("open sesame")


def test_a_publish_that_is_not_confirmed_fails() -> None:
    broker = NsqBroker("127.0.0.1:1", publish_timeout=0.1)
    runs = Runs(broker)

    async def main() -> None:
        with pytest.raises(SendTaskError):
            await runs.task.kiq(1)
        await broker.shutdown()

    run(main())


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"snapy": True}, "NsqBroker has no option 'snapy': did you mean 'snappy'"),
        ({"max_defer": 0}, "max_defer must be a number of seconds above 0, not 0"),
        ({"msg_timeout": "60"}, "msg_timeout must be a number of seconds above 0, not '60'"),
        ({"publish_timeout": -1}, "publish_timeout must be"),
        ({"max_in_flight": -1}, "max_in_flight"),
        ({"retries": -1}, "retries"),
    ],
)
def test_unknown_and_invalid_options_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        NsqBroker("127.0.0.1:1", **options)
