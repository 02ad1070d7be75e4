"""taskiq on nsqd: real workers, in their own processes."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

pytest.importorskip("taskiq")

from taskiq import ScheduledTask

from nsqcy.integrations.taskiq import NsqBroker, NsqScheduleSource
from nsqcy.testing import Nsqd, nsqd, nsqlookupd
from nsqcy.testing.http_requests import Web
from support.shop_process import Shop, shop_of, until

pytestmark = pytest.mark.slow

PUBLISHING = """
import asyncio, sys

async def main():
    await broker.startup()
    {0}
    await broker.shutdown()

asyncio.run(main())
"""


@pytest.fixture
def daemon() -> Iterator[Nsqd]:
    with nsqd(durability="os") as found:
        yield found


@pytest.fixture
def shop(daemon: Nsqd, tmp_path: Path) -> Iterator[Shop]:
    with shop_of(
        tmp_path, "taskiq_shop", nsqd=daemon.tcp_address, nsqd_http=daemon.http_address
    ) as found:
        yield found


def start(shop: Shop) -> "subprocess.Popen[bytes]":
    command = ("taskiq", "worker", "--workers", "1", "taskiq_shop:broker")
    return shop.worker(*command, ready="Listening started")


def publish(shop: Shop, lines: str, *arguments: str) -> str:
    return shop.run(PUBLISHING.format(lines.replace("\n", "\n    ")), *arguments)


def test_a_worker_runs_tasks_and_stops(shop: Shop) -> None:
    worker = start(shop)
    publish(shop, "for number in range(50): await add.kiq(number, 1)")
    found = shop.has_notes("add", 50)
    assert sorted(each["result"] for each in found) == list(range(1, 51))
    shop.stop(worker)


def test_a_delay_is_deferred_in_nsqd(shop: Shop) -> None:
    publish(shop, "note(task='sent'); await add.kicker().with_labels(delay=1.5).kiq(1, 1)")
    start(shop)
    assert shop.has_notes("add", 1)[0]["time"] >= shop.notes("sent")[0]["time"] + 1.5


def test_a_delay_longer_than_the_limit_is_deferred_repeatedly(daemon: Nsqd, tmp_path: Path) -> None:
    with shop_of(tmp_path, "taskiq_shop", nsqd=daemon.tcp_address, max_defer=0.5) as shop:
        start(shop)
        publish(shop, "note(task='sent'); await add.kicker().with_labels(delay=2).kiq(1, 1)")
        assert shop.has_notes("add", 1)[0]["time"] >= shop.notes("sent")[0]["time"] + 2


def test_a_schedule_is_kept_by_nsqd_and_can_be_cancelled(daemon: Nsqd, shop: Shop) -> None:
    lines = """
from datetime import UTC, datetime, timedelta
at = datetime.now(UTC) + timedelta(seconds=1.5)
note(task="sent")
await add.schedule_by_time(schedule, at, 1, 1)
cancelled = await add.schedule_by_time(schedule, at, 2, 2)
await cancelled.unschedule()
try:
    await cancelled.unschedule()
except LookupError as error:
    print(error)
"""
    assert "is deferred" in publish(shop, lines)
    daemon.kill()
    daemon.start()
    start(shop)
    (ran,) = shop.has_notes("add", 1)
    assert ran["result"] == 2
    assert ran["time"] >= shop.notes("sent")[0]["time"] + 1.4


def test_a_task_retries(shop: Shop) -> None:
    start(shop)
    publish(shop, "await fail.kiq(7)")
    assert len(shop.has_notes("fail", 3)) == 3


def test_a_task_runs_again_after_its_worker_is_killed(shop: Shop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = start(shop)
    publish(shop, "await hang.kiq(sys.argv[1])", str(gate))
    shop.has_notes("hang", 1)
    shop.kill(worker)
    gate.touch()
    start(shop)
    states = [each["state"] for each in shop.has_notes("hang", 3)]
    assert states == ["begun", "begun", "done"]


def test_a_task_may_run_longer_than_the_message_timeout(daemon: Nsqd, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with shop_of(tmp_path, "taskiq_shop", nsqd=daemon.tcp_address, msg_timeout=1) as shop:
        start(shop)
        publish(shop, "await hang.kiq(sys.argv[1])", str(gate))
        begun = shop.has_notes("hang", 1)[0]["time"]
        until(lambda: time.time() > begun + 3.5, "three message timeouts pass")
        gate.touch()
        assert [each["state"] for each in shop.has_notes("hang", 2)] == ["begun", "done"]


def test_no_task_is_lost_when_nsqd_is_killed(daemon: Nsqd, shop: Shop) -> None:
    start(shop)
    lines = "for number in range(*map(int, sys.argv[1:])): await add.kiq(number, 0)"
    publish(shop, lines, "0", "200")
    daemon.kill()
    daemon.start()
    publish(shop, lines, "200", "400")
    until(
        lambda: {each["result"] for each in shop.notes("add")} == set(range(400)), "all tasks run"
    )


def test_nsqlookupd_finds_the_nsqds_and_queues_are_separate() -> None:
    async def main(lookupd: str, daemon: str) -> list[bytes]:
        producer = NsqBroker(daemon)
        mail = NsqBroker(lookupd_http_addresses=lookupd, queue_name="mail/urgent")

        @producer.task(task_name="send")
        async def send(to: str) -> None: ...

        await producer.startup()
        await send.kicker().with_labels(queue_name="other").kiq("elsewhere")
        await send.kicker().with_labels(queue_name="mail/urgent").kiq("here")
        await mail.startup()
        message = await anext(mail.listen())
        message.ack()
        await mail.shutdown()
        await producer.shutdown()
        return mail.formatter.loads(message.data).args

    with nsqlookupd() as lookupd, nsqd(lookupd_tcp_address=lookupd.tcp_address) as daemon:
        found = asyncio.run(
            asyncio.wait_for(main(lookupd.http_address, daemon.tcp_address), timeout=60)
        )
    assert found == ["here"]


def test_what_has_not_begun_is_requeued_once() -> None:
    async def main(address: str) -> None:
        broker = NsqBroker(address, queue_name="later", max_in_flight=50)

        @broker.task(task_name="wait")
        async def wait(number: int) -> None: ...

        await broker.startup()
        for number in range(50):
            await wait.kiq(number)
        (await anext(broker.listen())).ack()
        while broker._received.qsize() < 49:
            await asyncio.sleep(0.01)
        await broker.shutdown()

    with nsqd() as daemon:
        asyncio.run(asyncio.wait_for(main(daemon.tcp_address), timeout=60))
        web = Web(int(daemon.http_address.rpartition(":")[2]))
        web.await_counts("later", "taskiq", depth=49, in_flight_count=0, requeue_count=49)


def test_unknown_options_and_schedules_are_refused() -> None:
    with pytest.raises(ValueError, match="NsqBroker has no option 'snapy': did you mean 'snappy'"):
        NsqBroker("127.0.0.1:1", snapy=True)
    source = NsqScheduleSource(NsqBroker("127.0.0.1:1"))
    repeated = ScheduledTask(
        task_name="add", labels={}, args=[], kwargs={}, interval=timedelta(seconds=5)
    )
    with pytest.raises(ValueError, match="LabelScheduleSource"):
        asyncio.run(source.add_schedule(repeated))
    assert asyncio.run(source.get_schedules()) == []
