"""Flask: real servers and workers as processes, and the test client for tests without processes."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flask")

from flask import Flask

from nsqcy.client import Consumer, Message, Producer
from nsqcy.integrations.flask import Nsq
from nsqcy.integrations.process_producer import ProcessProducer
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web
from nsqcy.testing.ports import Ports
from support import web_workers
from support.shop_process import Shop, shop_of, until
from support.web_workers import publish

pytestmark = pytest.mark.slow


@pytest.fixture
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture
def shop(daemon: Nsqd, tmp_path: Path) -> Iterator[Shop]:
    with shop_of(tmp_path, "flask_shop", nsqd=daemon.tcp_address) as found:
        yield found


def worker(shop: Shop, *arguments: str) -> "subprocess.Popen[bytes]":
    command = ("flask", "--app", "flask_shop", "nsqcy", "consume", *arguments)
    return shop.worker(*command, ready="consuming ")


def test_a_worker_runs_the_handlers_in_app_contexts_and_reconnects(
    daemon: Nsqd, shop: Shop
) -> None:
    running = worker(shop)
    assert "consuming orders/billing, slow/billing" in shop.log()
    publish(daemon, "orders", "1")
    assert shop.has_notes("order", 1)[0]["app"] == "flask_shop"
    daemon.kill()
    daemon.start()
    publish(daemon, "orders", "2")
    until(lambda: {each["body"] for each in shop.notes("order")} == {"1", "2"}, "it reconnects")
    shop.stop(running)


def test_each_process_of_gunicorn_has_a_producer(daemon: Nsqd, tmp_path: Path) -> None:
    pytest.importorskip("gunicorn")
    with (
        Ports() as ports,
        shop_of(tmp_path, "flask_shop", nsqd=daemon.tcp_address, preload=1) as shop,
    ):
        web = Web(ports.take())
        web_workers.check_that_both_processes_publish(shop, web, "flask_shop:app")
        worker(shop)
        bodies = {each["body"] for each in shop.has_notes("order", 3)}
        assert bodies == {"before the fork", "0", "1"}


def test_a_handler_finishes_and_publishes_after_sigterm(
    daemon: Nsqd, shop: Shop, tmp_path: Path
) -> None:
    web_workers.check_that_a_handler_finishes_after_sigterm(daemon, shop, worker, tmp_path / "gate")


def test_a_message_is_redelivered_after_its_worker_is_killed(
    daemon: Nsqd, shop: Shop, tmp_path: Path
) -> None:
    web_workers.check_that_a_kill_redelivers(daemon, shop, worker, tmp_path / "gate")


def test_the_command_explains_what_is_missing(shop: Shop) -> None:
    app = Flask("empty")
    Nsq().init_app(configured(app))
    done = app.test_cli_runner().invoke(args=["nsqcy", "consume"])
    assert (done.exit_code, done.output) == (1, "Error: no handler is registered\n")
    lines = 'print(app.test_cli_runner().invoke(args=["nsqcy", "consume", "--only", "x"]).output)'
    assert "there is no handler for x: orders/billing, slow/billing" in shop.run(lines)


def test_a_child_process_does_not_use_the_producer_of_its_parent(daemon: Nsqd) -> None:
    made = ProcessProducer(lambda: Producer(daemon.tcp_address))
    made.get().publish("forked", b"parent")
    child = os.fork()
    if child == 0:
        try:
            made.get().publish("forked", b"child")
            made.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    made.get().publish("forked", b"parent again")
    made.close()
    with Consumer("forked", "c", daemon.tcp_address, max_in_flight=3) as consumer:
        bodies = []
        while len(bodies) < 3 and (message := consumer.get(timeout=60)) is not None:
            bodies.append(message.body)
            message.finish()
    assert sorted(bodies) == [b"child", b"parent", b"parent again"]


def configured(app: Flask, **config: object) -> Flask:
    app.config.update({"NSQCY_NSQD_TCP_ADDRESSES": "127.0.0.1:1"} | config)
    return app


def test_tests_can_record_messages() -> None:
    app = configured(Flask("shop"), NSQCY_OPTIONS={"headers": True})
    nsq = Nsq(app)

    @app.post("/")
    def create() -> str:
        nsq.producer.publish("orders", b"1", defer=500, headers={"trace-id": "4bf92f"})
        nsq.producer.multipublish("orders", [b"2", b"3"])
        nsq.producer.publish_nowait("orders", b"4").result()
        assert nsq.producer.publish_all("orders", (b"%d" % each for each in (5, 6))) == 2
        with pytest.raises(ValueError, match="not a valid topic name"):
            nsq.producer.publish("an order", b"7")
        return "created"

    with nsq.recorded(app) as messages:
        assert app.test_client().post("/").text == "created"
    assert [each.body for each in messages] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert (messages[0].topic, messages[0].defer) == ("orders", 500)
    assert messages[0].headers == {"trace-id": "4bf92f"}


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="NSQCY_NSQD_TCP_ADDRESSES: specify the TCP address"):
        Nsq(Flask("shop"))
    with pytest.raises(ValueError, match="NSQCY_NSQD_TCP_ADRESSES: did you mean NSQCY_NSQD_TCP_"):
        Nsq(configured(Flask("shop"), NSQCY_NSQD_TCP_ADRESSES="127.0.0.1:1"))
    with pytest.raises(TypeError, match="NSQCY_OPTIONS has no option 'snapy'"):
        Nsq(configured(Flask("shop"), NSQCY_OPTIONS={"snapy": True}))
    with pytest.raises(TypeError, match="NSQCY_OPTIONS must be a dict of options, not 7"):
        Nsq(configured(Flask("shop"), NSQCY_OPTIONS=7))
    app = configured(Flask("shop"))
    nsq = Nsq(app)
    with pytest.raises(ValueError, match="already has an Nsq extension"):
        nsq.init_app(app)
    with Flask("other").app_context(), pytest.raises(RuntimeError, match="call init_app"):
        _ = nsq.producer

    async def handle(message: Message) -> None: ...

    with pytest.raises(TypeError, match="cannot be a coroutine function"):
        nsq.consumer("orders", "billing")(handle)
