"""Options of the transport with real workers: priorities, cancelling, remote control, TLS, AUTH."""

import itertools
import json
import os
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("celery")

from nsqcy.testing import certificates, nsqd
from nsqcy.testing.http_requests import Web, eventually
from support import users_file
from support.celery_process import LIMIT, CeleryShop, broker_and_shop, in_flight, shop_on, until
from support.fake_auth_server import AuthServer
from support.nsqd_process import free_port

pytestmark = pytest.mark.slow


def test_tasks_run_in_the_order_of_their_priorities(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path, priority_steps=[0, 3, 6]) as (_, shop):
        gate = tmp_path / "gate"
        shop.environment["SHOP_MULTIPLIER"] = "1"
        shop.start("--concurrency", "1", pool="threads")
        shop.run("import sys; hang.delay(sys.argv[1])", str(gate))
        shop.has_notes("hang", 1)
        program = """
for priority in (9, 5, 6, 3, 0):
    add.apply_async((priority, 0), priority=priority)
"""
        shop.run(program)
        until(lambda: in_flight(shop) == 6, "the worker has received every message")
        gate.touch()
        assert [each["result"] for each in shop.has_notes("add", 5)] == [0, 5, 3, 9, 6]


JSON_PRIORITY = {"priority": "json:/properties/priority"}


@pytest.mark.parametrize(
    ("options", "topic"), [({"headers": True}, {}), ({}, JSON_PRIORITY)], ids=["headers", "json"]
)
def test_nsqd_delivers_urgent_tasks_first(
    tmp_path: Path, options: dict[str, object], topic: dict[str, object]
) -> None:
    with broker_and_shop(tmp_path, **options) as (_, shop):
        gate = tmp_path / "gate"
        set_policies(shop, topic, {"urgent_first": True})
        shop.environment["SHOP_MULTIPLIER"] = "1"
        shop.start("--concurrency", "1", pool="threads")
        shop.run("import sys; hang.delay(sys.argv[1])", str(gate))
        shop.has_notes("hang", 1)
        program = """
add.delay(0, 0)
for priority in (3, 9, 5, 9):
    add.apply_async((priority, 0), priority=priority)
"""
        shop.run(program)
        gate.touch()
        assert [each["result"] for each in shop.has_notes("add", 5)] == [9, 9, 5, 3, 0]


def set_policies(shop: CeleryShop, topic: object, channel: object) -> None:
    web = shop.web()
    assert web.put("/topic/config", json.dumps(topic).encode(), topic="celery").status == 200
    answer = web.put(
        "/channel/config", json.dumps(channel).encode(), topic="celery", channel="celery"
    )
    assert answer.status == 200


def test_tasks_with_the_same_key_run_one_at_a_time(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path, headers=True) as (_, shop):
        gate = tmp_path / "gate"
        set_policies(shop, {}, {"order": "key"})
        shop.start("--concurrency", "4", pool="threads")
        program = """
import sys
for key in ("a", "a", 7, "a"):
    hang.apply_async((sys.argv[1],), headers={"key": key})
"""
        shop.run(program, str(gate))
        shop.has_notes("hang", 2)
        assert in_flight(shop) == 2
        gate.touch()
        shop.has_notes("hang", 8)
        changes = [1 if each["state"] == "begun" else -1 for each in shop.notes("hang")]
        assert max(itertools.accumulate(changes)) == 2


def test_a_repeated_task_is_kept_once_but_its_retries_are_kept(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path, headers=True) as (_, shop):
        set_policies(shop, {"dedup_window": "10m"}, {})
        shop.start()
        program = """
for number in (1, 1, 2):
    again.apply_async((number,), headers={"dedup_id": f"again {number}"})
"""
        shop.run(program)
        notes = shop.has_notes("again", 6)
        assert sorted((each["number"], each["retries"]) for each in notes) == [
            (number, retries) for number in (1, 2) for retries in (0, 1, 2)
        ]
        (topic,) = shop.web().stats(topic="celery")["topics"]
        assert topic["duplicates"] == 1


def test_a_task_with_a_countdown_is_cancelled_in_nsqd(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path, priority_steps=[0, 5]) as (_, shop):
        shop.start()
        program = """
from nsqcy.integrations.celery import cancel
kept, cancelled = [
    add.apply_async((number, 0), countdown=1, priority=9).id for number in range(2)
]
print(cancel(app, cancelled), cancel(app, cancelled), cancel(app, "unknown"))
"""
        assert shop.run(program).split() == ["True", "False", "False"]
        assert [each["result"] for each in shop.has_notes("add", 1)] == [0]


def test_purging_without_permission_fails(tmp_path: Path) -> None:
    users = users_file.write(
        tmp_path / "users", users_file.section("shop", publish="*", subscribe="*")
    )
    with nsqd(auth_file=users) as daemon:
        broker = f"nsqcy://:{users_file.token('shop')}@{daemon.tcp_address}"
        with shop_on(tmp_path, broker, nsqd_http_addresses=daemon.http_address) as shop:
            done = shop.celery("purge", "-f")
    assert done.returncode != 0
    assert "403" in done.stderr + done.stdout


def test_control_commands_arrive_while_every_process_is_busy(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path) as (_, shop):
        gate = tmp_path / "gate"
        shop.start("--concurrency", "1")
        shop.run("import sys\nfor _ in range(4): hang.delay(sys.argv[1])", str(gate))
        shop.has_notes("hang", 1)
        until(
            lambda: in_flight(shop) == 4, "the worker has received as many tasks as it prefetches"
        )
        program = """
import sys
inspect = app.control.inspect(timeout=20, limit=1)
revoked = add.delay(1, 1)
app.control.revoke(revoked.id)
print(len(inspect.active()["w0@test"]), len(inspect.reserved()["w0@test"]))
print(inspect.revoked()["w0@test"] == [revoked.id])
(reply,) = app.control.rate_limit("celery_shop.add", "100/s", reply=True, limit=1, timeout=20)
print("set" in reply["w0@test"]["ok"])
add.delay(2, 2)
open(sys.argv[1], "w").close()
"""
        assert shop.run(program, str(gate)).split() == ["1", "3", "True", "True"]
        assert [each["result"] for each in shop.has_notes("add", 1)] == [4]


def test_tls_and_auth(tmp_path: Path) -> None:
    authority = certificates.make("authority", authority=True)
    server = certificates.make("127.0.0.1", by=authority).save(tmp_path)
    ca = authority.save(tmp_path).certificate
    with closing(AuthServer()) as auth:
        auth.says("open sesame")
        with (
            nsqd(**server.options, tls_required="true", auth_http_address=auth.address) as daemon,
            shop_on(
                tmp_path,
                f"nsqcy://:open%20sesame@{daemon.tcp_address}",
                tls_v1=True,
                tls_options={"ca_certs": str(ca)},
            ) as shop,
        ):
            shop.start()
            shop.run("add.delay(20, 22)")
            assert shop.has_notes("add", 1)[0]["result"] == 42
            assert auth.asked("open sesame")


def test_flower_shows_workers_and_tasks(tmp_path: Path) -> None:
    pytest.importorskip("flower")
    with broker_and_shop(tmp_path) as (_, shop):
        shop.start("-E")
        port = free_port()
        environment = shop.environment | {"FLOWER_UNAUTHENTICATED_API": "true"}
        command = [sys.executable, "-m", "celery", "-A", "celery_shop", "flower"]
        with (tmp_path / "flower.log").open("wb") as log:
            flower = subprocess.Popen(
                [*command, f"--port={port}", "--address=127.0.0.1"],
                env=os.environ | environment,
                cwd=tmp_path,
                stdout=log,
                stderr=log,
            )
        try:
            web = Web(port)

            def shows_the_worker() -> bool:
                with suppress(OSError):
                    return "w0@test" in web.get("/api/workers", refresh=1).json()
                return False

            eventually(shows_the_worker, LIMIT)
            shop.run("add.delay(1, 2)")
            tasks = eventually(
                lambda: [
                    each
                    for each in web.get("/api/tasks").json().values()
                    if each["state"] == "SUCCESS"
                ]
            )
            assert [each["result"] for each in tasks] == ["3"]
        finally:
            flower.kill()
            flower.wait(LIMIT)
