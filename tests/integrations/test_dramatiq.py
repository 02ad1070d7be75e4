"""Dramatiq on nsqd: real workers, in their own processes."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("dramatiq")

from nsqcy.integrations.queue_management import Counts, QueueManagement
from nsqcy.testing import Nsqd, certificates, nsqd, nsqlookupd
from nsqcy.testing.http_requests import Web
from support.fake_auth_server import AuthServer
from support.shop_process import Shop, shop_of, until

pytestmark = pytest.mark.slow

PUBLISHING = "import sys\nfor number in range(*map(int, sys.argv[1:])): add.send(number, 0)"


@pytest.fixture(scope="module")
def shared() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture
def daemon() -> Iterator[Nsqd]:
    """An nsqd for tests that kill it."""
    with nsqd(durability="os") as found:
        yield found


class Queues:
    """The queues of an application on one nsqd."""

    def __init__(self, daemon: Nsqd, prefix: str = "") -> None:
        self._management = QueueManagement("dramatiq", [], http_addresses=[daemon.http_address])
        self._prefix = prefix

    def topic(self, name: str = "default") -> str:
        return self._prefix + name

    def counts(self, name: str = "default") -> Counts:
        return self._management.counts([self.topic(name)])


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return f"{tmp_path.name[:40]}-"


@pytest.fixture
def queues(shared: Nsqd, prefix: str) -> Queues:
    return Queues(shared, prefix)


@pytest.fixture
def shop(shared: Nsqd, prefix: str, tmp_path: Path) -> Iterator[Shop]:
    with shop_on(shared, tmp_path, topic_prefix=prefix) as found:
        yield found


@contextmanager
def shop_on(daemon: Nsqd, home: Path, **options: object) -> Iterator[Shop]:
    with shop_of(
        home, "dramatiq_shop", nsqd=daemon.tcp_address, options=json.dumps(options)
    ) as found:
        yield found


def start(shop: Shop, *command: str, threads: int = 4) -> "subprocess.Popen[bytes]":
    command = command or ("dramatiq",)
    shop.environment["dramatiq_worker_timeout"] = "50"  # milliseconds; the worker stops sooner
    limits = ("--processes", "1", "--threads", str(threads))
    return shop.worker(*command, "dramatiq_shop", *limits, ready="is ready for action")


def results(shop: Shop) -> list[int]:
    return [each["result"] for each in shop.notes("add")]


def test_a_worker_runs_tasks_and_stops(shop: Shop, queues: Queues) -> None:
    worker = start(shop)
    shop.run(PUBLISHING, "0", "100")
    shop.has_notes("add", 100)
    shop.stop(worker)
    assert sorted(results(shop)) == list(range(100))
    assert queues.counts().unfinished == 0


def test_a_worker_on_gevent_runs_tasks(shop: Shop) -> None:
    pytest.importorskip("gevent")
    start(shop, "gevent.monkey", "--module", "dramatiq")
    shop.run(PUBLISHING, "0", "20")
    shop.has_notes("add", 20)


def test_a_worker_that_stops_requeues_what_it_has_not_run(
    shop: Shop, queues: Queues, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    worker = start(shop, threads=1)
    shop.run("import sys\nfor _ in range(2): hang.send(sys.argv[1])", str(gate))
    shop.has_notes("hang", 1)
    until(lambda: queues.counts().in_flight == 2, "the worker has both messages")
    worker.terminate()
    until(lambda: "Shutting down" in shop.log(), "the worker is stopping")
    gate.touch()
    assert worker.wait(60) == 0
    start(shop)
    found = shop.has_notes("hang", 4)
    assert [each["state"] for each in found] == ["begun", "done"] * 2
    assert len({each["pid"] for each in found}) == 2


def test_a_delayed_message_waits_in_nsqd(daemon: Nsqd, tmp_path: Path) -> None:
    queues = Queues(daemon)
    with shop_on(daemon, tmp_path) as shop:
        worker = start(shop)
        shop.run("note(task='sent'); add.send_with_options(args=(1, 1), delay=2000)")
        until(lambda: queues.counts().deferred == 1, "nsqd defers the message")
        assert queues.counts().in_flight == 0
        shop.kill(worker)
        daemon.kill()
        daemon.start()
        start(shop)
        assert shop.has_notes("add", 1)[0]["time"] >= shop.notes("sent")[0]["time"] + 2


def test_a_message_retries_and_becomes_a_dead_letter(shop: Shop, queues: Queues) -> None:
    start(shop)
    shop.run("fail.send(7)")
    until(lambda: queues.counts("default.XQ").waiting == 1, "there is a dead letter")
    assert len(shop.notes("fail")) == 3
    until(lambda: queues.counts().unfinished == 0, "the message itself is finished")


def test_a_task_runs_again_after_its_worker_is_killed(shop: Shop, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    worker = start(shop)
    shop.run("import sys; hang.send(sys.argv[1])", str(gate))
    shop.has_notes("hang", 1)
    shop.kill(worker)
    gate.touch()
    start(shop)
    assert [each["state"] for each in shop.has_notes("hang", 3)] == ["begun", "begun", "done"]


def test_a_task_that_kills_its_worker_becomes_a_dead_letter(
    shop: Shop, shared: Nsqd, queues: Queues, tmp_path: Path
) -> None:
    policy = {"max_attempts": 1, "dead_letter_topic": queues.topic("default.XQ")}
    web = Web.at(shared.http_address)
    path = f"/channel/config?topic={queues.topic()}&channel=dramatiq"
    answer = web.request("PUT", path, json.dumps(policy).encode())
    assert answer.status == 200, answer.body
    worker = start(shop)
    shop.run("import sys; hang.send(sys.argv[1])", str(tmp_path / "never"))
    shop.has_notes("hang", 1)
    shop.kill(worker)
    until(lambda: queues.counts("default.XQ").waiting == 1, "nsqd has moved the message")


def test_a_task_may_run_longer_than_the_message_timeout(
    shared: Nsqd, prefix: str, tmp_path: Path
) -> None:
    with shop_on(shared, tmp_path, topic_prefix=prefix, msg_timeout=1.0) as shop:
        gate = tmp_path / "gate"
        start(shop, threads=1)
        shop.run("import sys\nfor _ in range(2): hang.send(sys.argv[1])", str(gate))
        begun = shop.has_notes("hang", 1)[0]["time"]
        until(lambda: time.time() > begun + 2.5, "two message timeouts pass")
        gate.touch()
        states = [each["state"] for each in shop.has_notes("hang", 4)]
        assert states == ["begun", "done"] * 2


def test_no_task_is_lost_when_nsqd_is_killed(daemon: Nsqd, tmp_path: Path) -> None:
    with shop_on(daemon, tmp_path) as shop:
        start(shop)
        shop.run(PUBLISHING, "0", "200")
        daemon.kill()
        daemon.start()
        shop.run(PUBLISHING, "200", "400")
        until(lambda: set(results(shop)) == set(range(400)), "all tasks run")


def test_a_forked_child_opens_its_own_connections(shop: Shop) -> None:
    program = """
import os
add.send(1, 0)
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    add.send(3, 0)
else:
    add.send(2, 0)
    os._exit(0)
"""
    shop.run(program)
    start(shop)
    shop.has_notes("add", 3)
    assert sorted(results(shop)) == [1, 2, 3]


def test_nsqlookupd_finds_the_nsqds(tmp_path: Path) -> None:
    with (
        nsqlookupd() as lookupd,
        nsqd(lookupd_tcp_address=lookupd.tcp_address),
        shop_of(tmp_path, "dramatiq_shop", nsqd="", lookupd=lookupd.http_address) as shop,
    ):
        shop.run(PUBLISHING, "0", "1")
        start(shop)
        shop.has_notes("add", 1)


def test_tls_and_auth(tmp_path: Path) -> None:
    authority = certificates.make("authority", authority=True)
    server = certificates.make("127.0.0.1", by=authority).save(tmp_path)
    options = {
        "tls_v1": True,
        "tls_options": {"ca_certs": str(authority.save(tmp_path).certificate)},
        "auth_secret": "open sesame",
    }
    with closing(AuthServer()) as auth:
        auth.says("open sesame")
        with (
            nsqd(**server.options, tls_required="true", auth_http_address=auth.address) as daemon,
            shop_on(daemon, tmp_path, **options) as shop,
        ):
            start(shop)
            shop.run(PUBLISHING, "0", "1")
            shop.has_notes("add", 1)
            assert auth.asked("open sesame")
