"""Failed Celery tasks become dead letters and are returned to their queues, with real workers."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("celery")

from kombu import Connection

import nsqcy.integrations.celery
from nsqcy.client import NsqdError
from nsqcy.testing import nsqd
from nsqcy.testing.http_requests import Web, eventually
from support import users_file
from support.celery_process import LIMIT, broker_and_shop

pytestmark = pytest.mark.slow


def test_a_task_goes_to_the_dead_letters_after_its_last_retry(tmp_path: Path) -> None:
    with broker_and_shop(tmp_path, rejected_queue="{queue}.dead") as (daemon, shop):
        shop.start()
        shop.run("give_up.delay(7)")
        assert [each["retries"] for each in shop.has_notes("give_up", 3)] == [0, 1, 2]
        program = """
with app.connection_for_read() as connection:
    queue = connection.SimpleQueue("celery.dead")
    message = queue.get(timeout=30)
    message.requeue()
    print(message.headers["task"], message.headers["retries"], message.headers["nsqcy_error"])
"""
        assert shop.run(program).strip() == "celery_shop.give_up 2 ValueError: never works"
        redrive = subprocess.Popen(
            [
                *(sys.executable, "-m", "nsqcy", "nsq_to_nsq", "--topic=celery.dead"),
                *("--channel=celery", "--destination-topic=celery"),
                *(f"--nsqd-tcp-address={daemon.tcp_address}",),
                *(f"--destination-nsqd-tcp-address={daemon.tcp_address}",),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            assert shop.has_notes("give_up", 4)[3]["retries"] == 2
        finally:
            redrive.terminate()
            redrive.wait(LIMIT)


def test_redrive_puts_dead_letters_back_into_their_queue(tmp_path: Path) -> None:
    options = {"rejected_queue": "dead", "headers": True, "priority_steps": [0, 5]}
    with broker_and_shop(tmp_path, **options) as (_, shop):
        gate = tmp_path / "gate"
        shop.start()
        program = """
import sys
fail.apply_async(("raise", sys.argv[1]), priority=9)
fail.delay("exit", sys.argv[1])
fail.apply_async(("hang", sys.argv[1]), time_limit=0.5)
"""
        shop.run(program, str(gate))
        web = shop.web()
        web.create("dead", "celery")
        eventually(lambda: web.counts("dead", "celery")["depth"] == 3, LIMIT)
        peeked = web.get("/channel/peek", topic="dead", channel="celery", state="queued").json()
        found = {each["headers"]["error"]: each["headers"] for each in peeked["messages"]}
        errors = [each.partition(":")[0] for each in sorted(found)]
        assert errors == ["TimeLimitExceeded", "ValueError", "WorkerLostError"]
        assert found["ValueError: never works"]["origin-topic"] == "celery.p5"
        gate.touch()
        web.post("/channel/redrive", topic="dead", channel="celery")
        assert {each["how"] for each in shop.has_notes("fail", 3)} == {"raise", "exit", "hang"}


def test_a_message_stays_in_its_queue_if_its_dead_letter_is_refused(tmp_path: Path) -> None:
    nsqcy.integrations.celery.register()
    users = users_file.write(
        tmp_path / "users",
        users_file.section("shop", publish="mail", subscribe="*"),
        users_file.section("watcher", role="view"),
    )
    with nsqd(auth_file=users) as daemon:
        broker = f"nsqcy://:{users_file.token('shop')}@{daemon.tcp_address}"
        options = {"rejected_queue": "dead", "msg_timeout": 2.0}
        with Connection(broker, transport_options=options) as connection:
            queue = connection.SimpleQueue("mail")
            queue.put({})
            message = queue.get(timeout=LIMIT)
            with pytest.raises(NsqdError):
                message.reject()
            port = int(daemon.http_address.rpartition(":")[2])
            web = Web(port, headers=users_file.bearer("watcher"))
            eventually(lambda: web.counts("mail", "celery")["deferred_count"] == 1, LIMIT)
