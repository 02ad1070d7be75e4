"""Django: real servers and workers as processes, and tests without processes."""

import asyncio
import subprocess
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("django")

import django
from django.conf import settings
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import TestCase, override_settings

from nsqcy.client import ConnectionFailed, Consumer, Message
from nsqcy.integrations.django import consumer, handlers, producer, publish_on_commit
from nsqcy.integrations.django.testing import recorded_messages
from nsqcy.testing import Nsqd, nsqd
from nsqcy.testing.http_requests import Web
from nsqcy.testing.ports import Ports
from support import web_workers
from support.shop_process import Shop, shop_of
from support.web_workers import publish

pytestmark = pytest.mark.slow

NOWHERE = {"NSQD_TCP_ADDRESSES": "127.0.0.1:1", "OPTIONS": {"retries": 0}}
DATABASE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.fixture(scope="module", autouse=True)
def project() -> None:
    if not settings.configured:
        settings.configure(
            DATABASES={"default": DATABASE},
            INSTALLED_APPS=["nsqcy.integrations.django"],
            LOGGING_CONFIG=None,
            NSQCY=NOWHERE,
        )
    django.setup()


@pytest.fixture
def daemon() -> Iterator[Nsqd]:
    with nsqd() as found:
        yield found


@pytest.fixture
def shop(daemon: Nsqd, tmp_path: Path) -> Iterator[Shop]:
    with shop_of(tmp_path, "django_shop", nsqd=daemon.tcp_address) as found:
        found.environment["DJANGO_SETTINGS_MODULE"] = "django_shop.settings"
        yield found


def worker(shop: Shop, *arguments: str) -> "subprocess.Popen[bytes]":
    return shop.worker("django", "nsqcy_consume", *arguments, ready="consuming ")


def test_a_worker_discovers_handlers_and_closes_old_connections(daemon: Nsqd, shop: Shop) -> None:
    running = worker(shop)
    assert "consuming orders/billing, slow/billing" in shop.log()
    publish(daemon, "orders", *map(str, range(10)))
    found = shop.has_notes("order", 10)
    # CONN_MAX_AGE is 0, as in a view: each handler has a new connection.
    assert not any(each["had_connection"] for each in found)
    shop.stop(running)


def test_each_process_of_gunicorn_has_a_producer(daemon: Nsqd, shop: Shop) -> None:
    pytest.importorskip("gunicorn")
    with Ports() as ports:
        web = Web(ports.take())
        web_workers.check_that_both_processes_publish(shop, web, "django_shop.urls")
    worker(shop)
    assert {each["body"] for each in shop.has_notes("order", 2)} == {"0", "1"}


def test_a_handler_finishes_and_publishes_after_sigterm(
    daemon: Nsqd, shop: Shop, tmp_path: Path
) -> None:
    web_workers.check_that_a_handler_finishes_after_sigterm(daemon, shop, worker, tmp_path / "gate")


def test_a_message_is_redelivered_after_its_worker_is_killed(
    daemon: Nsqd, shop: Shop, tmp_path: Path
) -> None:
    web_workers.check_that_a_kill_redelivers(daemon, shop, worker, tmp_path / "gate")


def test_a_message_is_published_on_commit_only() -> None:
    with recorded_messages() as messages:
        with pytest.raises(RuntimeError), transaction.atomic():
            publish_on_commit("orders", b"rolled back")
            raise RuntimeError
        with transaction.atomic():
            publish_on_commit("orders", b"committed", defer=500)
            assert messages == []
        publish_on_commit("orders", b"no transaction")
    assert [(each.body, each.defer) for each in messages] == [
        (b"committed", 500),
        (b"no transaction", 0),
    ]


def test_a_mistake_fails_the_transaction() -> None:
    with recorded_messages() as messages, transaction.atomic():
        publish_on_commit("orders", b"1")
        with pytest.raises(ValueError, match="not a valid topic name"):
            publish_on_commit("an order", b"2")
        with pytest.raises(TypeError):
            publish_on_commit("orders", "text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="headers=True"):
            publish_on_commit("orders", b"3", headers={"trace-id": "4bf92f"})
    assert [each.body for each in messages] == [b"1"]


def test_a_commit_reports_that_nsqd_is_down() -> None:
    with pytest.raises(ConnectionFailed), transaction.atomic():
        publish_on_commit("orders", b"1")
    with transaction.atomic():
        publish_on_commit("orders", b"2", robust=True)


def test_recorded_messages_in_a_test_case() -> None:
    class OrderTest(TestCase):
        def test(self) -> None:
            with recorded_messages() as messages, self.captureOnCommitCallbacks(execute=True):
                publish_on_commit("orders", b"1")
            self.assertEqual([each.topic for each in messages], ["orders"])

    result = OrderTest("test").run()
    assert result is not None and result.wasSuccessful(), result.failures + result.errors


def test_settings_may_be_overridden(daemon: Nsqd) -> None:
    with override_settings(NSQCY={"NSQD_TCP_ADDRESSES": daemon.tcp_address}):
        producer().publish("overridden", b"1")

        async def view() -> bytes:
            return await asyncio.wrap_future(producer().publish_nowait("overridden", b"2"))

        assert asyncio.run(view()) == b"OK"
    with pytest.raises(ConnectionFailed):
        producer().publish("overridden", b"3")
    bodies = []
    with Consumer("overridden", "c", daemon.tcp_address, max_in_flight=2) as reader:
        while len(bodies) < 2 and (message := reader.get(timeout=60)) is not None:
            bodies.append(message.body)
            message.finish()
    assert sorted(bodies) == [b"1", b"2"]


@pytest.mark.parametrize(
    ("value", "number", "text"),
    [
        (None, "E001", "NSQCY setting must be a dict"),
        ({"NSQD": "127.0.0.1:1"}, "E002", "unknown key 'NSQD'"),
        ({}, "E003", "specify the TCP address"),
        ({"NSQD_TCP_ADDRESSES": "localhost:http"}, "E003", "no port"),
        ({"NSQD_TCP_ADDRESSES": 4150}, "E003", "neither an address nor a list"),
        (NOWHERE | {"LOOKUPD_HTTP_ADDRESSES": [4161]}, "E003", "an address must be a str"),
        (NOWHERE | {"OPTIONS": {"snapy": True}}, "E004", "did you mean 'snappy'"),
        (NOWHERE | {"OPTIONS": {"durability": "disk"}}, "E004", "durability"),
        (NOWHERE | {"OPTIONS": "fsync"}, "E004", "must be a dict of options"),
        (NOWHERE | {"MODULES": ["shop.missing"]}, "E005", "'shop.missing'"),
        (NOWHERE | {"MODULES": "shop"}, "E005", "must be a list"),
    ],
)
def test_checks_explain_mistakes_in_settings(value: Any, number: str, text: str) -> None:
    with override_settings(NSQCY=value):
        found = [each for each in run_checks() if each.id == f"nsqcy.{number}"]
        assert len(found) == 1
        assert text in found[0].msg and found[0].hint
        if number != "E005":
            with pytest.raises(ImproperlyConfigured):
                producer()


def test_correct_settings_pass_the_checks() -> None:
    value = {
        "NSQD_TCP_ADDRESSES": ["127.0.0.1:4150", "[::1]:4150"],
        "LOOKUPD_HTTP_ADDRESSES": "127.0.0.1:4161",
        "OPTIONS": {"durability": "os", "max_tries": 0, "retries": 5},
        "MODULES": ["support.shop_notes"],
    }
    with override_settings(NSQCY=value):
        assert [each for each in run_checks() if each.id.startswith("nsqcy.")] == []
        producer()


def test_the_command_explains_what_is_missing() -> None:
    with pytest.raises(CommandError, match="no handler is registered"):
        call_command("nsqcy_consume", stdout=StringIO())


def test_old_connections_are_closed_before_and_after_a_handler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []
    message: Any = object()

    def fail(message: Message) -> None:
        events.append("failed")
        raise RuntimeError

    monkeypatch.setattr(handlers, "close_old_connections", lambda: events.append("closed"))
    with pytest.raises(RuntimeError):
        handlers.with_connections(fail)(message)
    assert events == ["closed", "failed", "closed"]


def test_a_handler_is_a_function_that_is_no_coroutine_function() -> None:
    async def handle(message: Message) -> None: ...

    with pytest.raises(TypeError, match="cannot be a coroutine function"):
        consumer("orders", "billing")(handle)
