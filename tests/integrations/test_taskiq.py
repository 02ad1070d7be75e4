"""taskiq on nsqd: real workers, in their own processes."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("taskiq")

from nsqcy.integrations.queue_management import Counts, QueueManagement
from nsqcy.testing import Nsqd, nsqd
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


@pytest.fixture(scope="module")
def shared() -> Iterator[Nsqd]:
    with nsqd(max_heartbeat_interval="10m") as found:
        yield found


@pytest.fixture
def queue(tmp_path: Path) -> str:
    return tmp_path.name[:50]


@pytest.fixture
def shop(shared: Nsqd, queue: str, tmp_path: Path) -> Iterator[Shop]:
    with shop_on(shared, tmp_path, queue_name=queue) as found:
        yield found


@contextmanager
def shop_on(daemon: Nsqd, home: Path, **options: object) -> Iterator[Shop]:
    with shop_of(
        home, "taskiq_shop", nsqd=daemon.tcp_address, options=json.dumps(options)
    ) as found:
        yield found


def start(shop: Shop, *options: str) -> "subprocess.Popen[bytes]":
    command = ("taskiq", "worker", "--workers", "1", *options, "taskiq_shop:broker")
    return shop.worker(*command, ready="Listening started")


def publish(shop: Shop, lines: str, *arguments: str) -> None:
    shop.run(PUBLISHING.format(lines.replace("\n", "\n    ")), *arguments)


def counts(daemon: Nsqd, queue: str) -> Counts:
    return QueueManagement("taskiq", [], http_addresses=[daemon.http_address]).counts([queue])


def test_a_worker_that_stops_requeues_what_it_has_not_begun(
    shared: Nsqd, queue: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    idle = {"msg_timeout": 600, "heartbeat_interval": 600}  # nothing else wakes an idle worker
    with shop_on(shared, tmp_path, queue_name=queue, **idle) as shop:
        worker = start(shop, "--max-async-tasks", "1")
        publish(shop, "for _ in range(9): await hang.kiq(sys.argv[1])", str(gate))
        shop.has_notes("hang", 1)
        until(lambda: counts(shared, queue).in_flight == 9, "the worker has all messages")
        worker.terminate()
        until(lambda: counts(shared, queue).waiting == 8, "the other messages are back in nsqd")
        gate.touch()
        assert worker.wait(60) == 0
        worker = start(shop)
        found = shop.has_notes("hang", 18)
        until(lambda: counts(shared, queue).unfinished == 0, "all tasks are acknowledged")
        assert len({each["pid"] for each in found}) == 2
        shop.stop(worker)


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


def test_a_task_that_kills_its_worker_becomes_a_dead_letter(
    shared: Nsqd, queue: str, tmp_path: Path
) -> None:
    dead = f"{queue}-dead"
    policy = json.dumps({"max_attempts": 1, "dead_letter_topic": dead})
    web = Web.at(shared.http_address)
    path = f"/channel/config?topic={queue}&channel=taskiq"
    answer = web.request("PUT", path, policy.encode())
    assert answer.status == 200, answer.body
    with shop_on(shared, tmp_path, queue_name=queue, msg_timeout=1) as shop:
        start(shop)
        publish(shop, "await crash.kiq()")
        until(lambda: counts(shared, dead).waiting == 1, "nsqd has moved the message")
        assert len(shop.notes("crash")) == 1
        publish(shop, "await add.kiq(1, 1)")
        shop.has_notes("add", 1)  # taskiq has started another process


def test_a_task_may_run_longer_than_the_message_timeout(
    shared: Nsqd, queue: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with shop_on(shared, tmp_path, queue_name=queue, msg_timeout=1) as shop:
        start(shop)
        publish(shop, "await hang.kiq(sys.argv[1])", str(gate))
        begun = shop.has_notes("hang", 1)[0]["time"]
        until(lambda: time.time() > begun + 2.5, "two message timeouts pass")
        gate.touch()
        assert [each["state"] for each in shop.has_notes("hang", 2)] == ["begun", "done"]


def test_nothing_is_lost_when_nsqd_is_killed(tmp_path: Path) -> None:
    lines = """
from datetime import UTC, datetime, timedelta
note(task="sent")
await add.kicker().with_labels(delay=1.5).kiq(1000, 0)
await add.schedule_by_time(source, datetime.now(UTC) + timedelta(seconds=1.5), 1001, 0)
for number in range(200): await add.kiq(number, 0)
"""
    with nsqd(durability="os") as daemon, shop_on(daemon, tmp_path) as shop:
        start(shop)
        publish(shop, lines)
        daemon.kill()
        daemon.start()
        publish(shop, "for number in range(200, 400): await add.kiq(number, 0)")
        wanted = {*range(400), 1000, 1001}
        until(lambda: {each["result"] for each in shop.notes("add")} == wanted, "all tasks run")
        sent = shop.notes("sent")[0]["time"]
        delayed = [each["time"] for each in shop.notes("add") if each["result"] >= 1000]
        assert min(delayed) >= sent + 1.5


def test_the_ordinary_scheduler_publishes_repeated_tasks(shop: Shop) -> None:
    shop.worker("taskiq", "scheduler", "taskiq_shop:scheduler", ready="Startup completed")
    start(shop)
    shop.has_notes("tick", 2)
