"""A signal between the client's last check for signals and the system call in which it waits.

Such a signal does not interrupt the call, but its handler is still called soon.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsqcy.testing.http_requests import eventually
from support.fake_nsqd import MockNsqd, Peer

SOURCE = Path(__file__).parents[1] / "support" / "late_wait.c"

PROGRAM = """
import os, signal, sys
from nsqcy.client import Consumer, Producer

address = sys.argv[1]

def handle(*_):
    raise SystemExit(3)

def stop(*_):
    consumer.close(graceful=False, wait=False)

def hold():
    open(os.environ["LATE_WAIT"], "w").close()

signal.signal(signal.SIGTERM, handle)
"""

WAITS = {
    "publish": """
producer = Producer(address)
producer.start()
hold()
producer.publish("t", b"x")
""",
    "result": """
future = Producer(address).publish_nowait("t", b"x")
hold()
future.result()
""",
    "result-timeout": """
future = Producer(address).publish_nowait("t", b"x")
hold()
future.result(timeout=10_000)
""",
    "get": """
consumer = Consumer("t", "c", address)
consumer.start()
hold()
consumer.get()
""",
    "for": """
consumer = Consumer("t", "c", address)
consumer.start()
hold()
for message in consumer:
    pass
""",
    "join": """
consumer = Consumer("t", "c", address, message_handler=print)
signal.signal(signal.SIGTERM, stop)
consumer.start()
hold()
consumer.join()
sys.exit(3)
""",
}


def answers_no_publish(peer: Peer, line: str, body: bytes) -> bool:
    return line.startswith("PUB")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("late_wait") / "late_wait.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, SOURCE, "-ldl"], check=True, timeout=60)
    return built


@pytest.fixture
def address() -> Iterator[str]:
    with MockNsqd(script=answers_no_publish) as nsqd:
        yield nsqd.address


@pytest.mark.parametrize("wait", WAITS)
def test_its_handler_is_called(wait: str, library: Path, address: str, tmp_path: Path) -> None:
    held = tmp_path / "held"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + WAITS[wait], address],
        env=os.environ | {"LD_PRELOAD": str(library), "LATE_WAIT": str(held)},
    )
    try:
        eventually((tmp_path / "held.reached").exists)
        program.send_signal(signal.SIGTERM)
        held.unlink()
        assert program.wait(30) == 3
    finally:
        program.kill()
        program.wait()
