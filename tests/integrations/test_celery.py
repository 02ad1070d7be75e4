"""Celery on nsqd: real workers, in their own processes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("celery")

from nsqcy.testing import Nsqd, nsqd, nsqlookupd
from nsqcy.testing.http_requests import Web
from support.celery_process import LIMIT, CeleryShop, in_flight, shop_on, until

pytestmark = pytest.mark.slow


@pytest.fixture
def broker() -> Iterator[Nsqd]:
    with nsqd(durability="os") as daemon:
        yield daemon


@pytest.fixture
def shop(broker: Nsqd, tmp_path: Path) -> Iterator[CeleryShop]:
    with shop_on(tmp_path, broker.tcp_address) as found:
        yield found


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_runs_tasks(shop: CeleryShop, pool: str) -> None:
    worker = shop.start(pool=pool)
    shop.run("for number in range(50): add.delay(number, 1)")
    found = shop.has_notes("add", 50)
    assert sorted(each["result"] for each in found) == list(range(1, 51))
    shop.stop(worker)


def test_a_countdown_is_deferred_in_nsqd(shop: CeleryShop) -> None:
    shop.run("note(task='sent'); add.apply_async((1, 1), countdown=2)")
    shop.start()  # the task was published before this worker started
    sent = shop.notes("sent")[0]["time"]
    assert shop.has_notes("add", 1)[0]["time"] >= sent + 2


def test_a_countdown_longer_than_the_limit_is_deferred_repeatedly(
    broker: Nsqd, tmp_path: Path
) -> None:
    with shop_on(tmp_path, broker.tcp_address, max_defer=0.5) as shop:
        shop.start()
        shop.run("note(task='sent'); add.apply_async((1, 1), countdown=2)")
        sent = shop.notes("sent")[0]["time"]
        assert shop.has_notes("add", 1)[0]["time"] >= sent + 2
        assert len(shop.notes("add")) == 1


def test_a_task_retries(shop: CeleryShop) -> None:
    shop.start()
    shop.run("again.delay(7)")
    assert [each["retries"] for each in shop.has_notes("again", 3)] == [0, 1, 2]


def test_beat_publishes_its_schedule(shop: CeleryShop, tmp_path: Path) -> None:
    shop.environment["SHOP_BEAT"] = "0.3"
    shop.start()
    schedule = str(tmp_path / "schedule")
    command = ["celery", "-A", "celery_shop", "beat", "--loglevel", "INFO", "--schedule", schedule]
    beat = shop.worker(*command, ready="beat: Starting")
    assert shop.has_notes("add", 3)[0]["result"] == 3
    shop.stop(beat)


def test_a_task_runs_again_after_its_worker_is_killed(shop: CeleryShop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = shop.start()
    shop.run("import sys; hang.delay(sys.argv[1])", str(gate))
    shop.has_notes("hang", 1)
    shop.kill(worker)
    gate.touch()
    shop.start()
    states = [each["state"] for each in shop.has_notes("hang", 3)]
    assert states == ["begun", "begun", "done"]


def test_a_task_may_run_longer_than_the_message_timeout(broker: Nsqd, tmp_path: Path) -> None:
    with shop_on(tmp_path, broker.tcp_address, msg_timeout=1.0) as shop:
        gate = tmp_path / "gate"
        shop.start()
        shop.run("import sys; hang.delay(sys.argv[1])", str(gate))
        begun = shop.has_notes("hang", 1)[0]["time"]
        until(lambda: time.time() > begun + 3.5, "three message timeouts pass")
        gate.touch()
        states = [each["state"] for each in shop.has_notes("hang", 2)]
        assert states == ["begun", "done"]


def test_no_task_is_lost_when_nsqd_is_killed(broker: Nsqd, shop: CeleryShop) -> None:
    worker = shop.start()
    program = "import sys\nfor number in range(*map(int, sys.argv[1:])): add.delay(number, 0)"
    shop.run(program, "0", "200")
    broker.kill()
    broker.start()
    shop.run(program, "200", "400")
    until(
        lambda: {each["result"] for each in shop.notes("add")} == set(range(400)), "all tasks run"
    )
    shop.stop(worker)


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_prefetched_tasks_run_once_although_nsqd_restarts(
    broker: Nsqd, tmp_path: Path, pool: str
) -> None:
    options = {"nsqd_http_addresses": broker.http_address, "msg_timeout": 60.0}
    with shop_on(tmp_path, broker.tcp_address, **options) as shop:
        gate = tmp_path / "gate"
        shop.start("--concurrency", "1", pool=pool)
        program = "import sys; hang.delay(sys.argv[1])\nfor each in range(3): add.delay(each, 0)"
        shop.run(program, str(gate))
        shop.has_notes("hang", 1)
        until(lambda: in_flight(shop) == 4, "the worker has prefetched every task")
        broker.kill()
        broker.start()
        until(lambda: in_flight(shop) == 4, "the worker has them again")
        gate.touch()
        until(lambda: in_flight(shop) == 0, "all have run")
        assert sorted(each["result"] for each in shop.notes("add")) == [0, 1, 2]


def test_inspect_and_control_reach_every_worker(shop: CeleryShop) -> None:
    shop.start()
    shop.start()
    done = shop.celery("inspect", "ping", "--timeout", "2", "-j", "-d", "w0@test")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == {"w0@test": {"ok": "pong"}}
    found = shop.run("print(sorted(app.control.inspect(timeout=30, limit=2).ping()))")
    assert found.split() == ["['w0@test',", "'w1@test']"]
    shop.run("app.control.shutdown()")
    for worker in shop.workers:
        worker.wait(LIMIT)


def test_a_new_worker_ignores_old_commands(shop: CeleryShop) -> None:
    shop.run("app.control.shutdown()")
    worker = shop.start()
    shop.run("add.delay(1, 2)")
    shop.has_notes("add", 1)
    assert worker.poll() is None


def test_events_reach_a_monitor(shop: CeleryShop) -> None:
    shop.start("-E")
    program = """
with app.connection_for_read() as connection:
    seen = []
    def on_event(event):
        seen.append(event["type"])
        if event["type"] == "worker-heartbeat" and not any("task" in each for each in seen):
            add.delay(1, 1)
        if event["type"] == "task-succeeded":
            receiver.should_stop = True
    receiver = app.events.Receiver(connection, handlers={"*": on_event})
    receiver.capture(limit=None, timeout=30, wakeup=True)
print(" ".join(seen))
"""
    assert {"task-received", "task-succeeded"} <= set(shop.run(program).split())


def test_reject_requeues_or_drops_a_task(shop: CeleryShop) -> None:
    shop.start()
    shop.run("refuse.delay(True)")
    assert [each["redelivered"] for each in shop.has_notes("refuse", 2)] == [False, True]


def test_a_rejected_task_goes_to_the_rejected_queue(broker: Nsqd, tmp_path: Path) -> None:
    with shop_on(tmp_path, broker.tcp_address, rejected_queue="rejected") as shop:
        shop.start()
        shop.run("refuse.delay(False)")
        program = """
with app.connection_for_read() as connection:
    queue = connection.SimpleQueue("rejected")
    message = queue.get(timeout=30)
    message.ack()
    print(message.headers["task"])
"""
        assert shop.run(program).split() == ["celery_shop.refuse"]


def test_inspect_finds_workers_through_nsqlookupd(tmp_path: Path) -> None:
    """The topics for commands and replies do not exist beforehand, and no reply topic remains
    afterwards."""
    with (
        nsqlookupd() as lookupd,
        nsqd(lookupd_tcp_address=lookupd.tcp_address) as first,
        nsqd(lookupd_tcp_address=lookupd.tcp_address) as second,
        shop_on(tmp_path, f"nsqcy+lookupd://{lookupd.http_address}") as shop,
    ):
        registry, *webs = (web_of(each.http_address) for each in (lookupd, first, second))
        until(
            lambda: len(registry.get("/nodes").json()["producers"]) == 2,
            "both nsqds are registered",
        )
        shop.start()
        until(lambda: all(map(commanded, webs)), "the worker subscribes to commands everywhere")
        for _ in range(3):  # the command may go to either nsqd
            done = shop.celery("inspect", "ping", "--timeout", "10", "-j", "-d", "w0@test")
            assert done.returncode == 0, done.stdout + done.stderr
            assert json.loads(done.stdout) == {"w0@test": {"ok": "pong"}}
        until(
            lambda: not any(name.startswith("reply.") for web in webs for name in topics(web)),
            "no reply topic is left",
        )


def web_of(address: str) -> Web:
    return Web(int(address.rpartition(":")[2]))


def topics(web: Web) -> list[str]:
    return [each["topic_name"] for each in web.stats()["topics"]]


def commanded(web: Web) -> bool:
    return "celery.pidbox#ephemeral" in topics(web)


def test_purge_and_queue_sizes_use_http(broker: Nsqd, tmp_path: Path) -> None:
    address = broker.http_address
    with shop_on(tmp_path, broker.tcp_address, nsqd_http_addresses=address) as shop:
        program = """
for number in range(5): add.delay(number, 0)
with app.connection_for_read() as connection:
    print(connection.default_channel.queue_declare("celery").message_count)
print(app.control.purge())
with app.connection_for_read() as connection:
    print(connection.default_channel.queue_declare("celery").message_count)
"""
        assert shop.run(program).split() == ["5", "5", "0"]


def test_results_over_rpc(shop: CeleryShop) -> None:
    shop.environment["SHOP_BACKEND"] = "rpc://"
    shop.start()
    assert shop.run("print(add.delay(2, 3).get(timeout=30))").split() == ["5"]
