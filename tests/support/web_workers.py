"""Checks of the workers and servers of a web framework, which its tests call."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from nsqcy.client import Producer
from nsqcy.testing import Nsqd
from nsqcy.testing.http_requests import Web
from support.shop_process import Shop, until

Start = Callable[..., "subprocess.Popen[bytes]"]  # starts a worker of a shop, with arguments


def publish(daemon: Nsqd, topic: str, *bodies: str) -> None:
    with Producer(daemon.tcp_address) as producer:
        producer.multipublish(topic, [each.encode() for each in bodies])


def check_that_both_processes_publish(shop: Shop, web: Web, app: str) -> None:
    """Check that both gunicorn workers publish to the topic `orders`, then stop gunicorn."""
    command = ("gunicorn", "--preload", "--workers=2", f"--bind=127.0.0.1:{web.port}")
    server = shop.worker(*command, app, ready="Listening at")
    until(lambda: shop.log().count("Booting worker") == 2, "both workers start")
    pids: set[int] = set()

    def both_have_published() -> bool:
        answer = web.request("POST", f"/publish/orders/{len(pids)}")
        assert answer.status == 200, shop.log()
        pids.add(answer.json()["pid"])
        return len(pids) == 2

    until(both_have_published, "both workers publish")
    shop.stop(server)


def check_that_a_handler_finishes_after_sigterm(
    daemon: Nsqd, shop: Shop, worker: Start, gate: Path
) -> None:
    """Check that a handler finishes, and publishes, after SIGTERM."""
    running = worker(shop, "--only", "slow/billing")
    publish(daemon, "slow", str(gate))
    shop.has_notes("hang", 1)
    running.terminate()
    gate.touch()
    assert running.wait(60) == 0, shop.log()
    assert [each["state"] for each in shop.notes("hang")] == ["begun", "done"]
    worker(shop)
    assert shop.has_notes("order", 1)[0]["body"] == "after the stop"


def check_that_a_kill_redelivers(daemon: Nsqd, shop: Shop, worker: Start, gate: Path) -> None:
    """Check that a message is handled again after SIGKILL."""
    running = worker(shop)
    publish(daemon, "slow", str(gate))
    shop.has_notes("hang", 1)
    shop.kill(running)
    gate.touch()
    worker(shop)
    assert [each["state"] for each in shop.has_notes("hang", 3)] == ["begun", "begun", "done"]
