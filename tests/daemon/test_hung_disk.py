"""A disk whose calls do not return: nsqd reports this, continues with work that needs no disk, and
can exit."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conftest import Starter, three_workers
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import Hangup
from support.nsqd_process import Nsqd

Hangs = Callable[[str, str], tuple[Nsqd, Path]]

SOURCE = Path(__file__).parents[1] / "support" / "hung_disk.c"


@pytest.fixture
def hangs(nsqd: Starter, tmp_path: Path) -> Hangs:
    """Start a daemon whose syncs or writes hang while a file exists."""

    def start(durability: str, calls: str) -> tuple[Nsqd, Path]:
        library, switch = tmp_path / "hung_disk.so", tmp_path / "hung"
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True, timeout=60
        )
        daemon = nsqd.prepare(durability=durability, hung_disk_timeout="2s")
        daemon.environ = {"LD_PRELOAD": str(library), "HUNG_DISK": str(switch), "HUNG_CALLS": calls}
        daemon.start()
        return daemon, switch

    return start


@three_workers
@pytest.mark.parametrize(("durability", "call"), [("fsync", "sync"), ("os", "write")])
def test_a_hang_is_noticed_while_it_lasts(hangs: Hangs, durability: str, call: str) -> None:
    daemon, switch = hangs(durability, call)
    says = f"disk hangs: {call}"
    web = daemon.web
    web.create("t", "c")
    assert web.put("/topic/config", b'{"durability": "memory"}', topic="m").status == 200
    web.create("m", "c")
    switch.touch()
    waiting = daemon.connect()
    waiting.send(b"PUB t\n\0\0\0\3one")
    eventually(lambda: says.encode() in web.get("/ping").body, 30)
    assert web.get("/ping").status == 500
    answer = web.get("/ready")
    assert answer.status == 503 and says.encode() in answer.body
    assert b'nsqd_disk_hung{worker="' in web.get("/metrics").body
    assert web.post("/pub", b"two", topic="t").status == 503
    with daemon.connect() as refused:
        refused.send(b"PUB t\n\0\0\0\3two")
        assert b"E_PUB_FAILED" in refused.frame().data
    web.pub("m", b"needs no disk")
    with pytest.raises(Hangup):
        waiting.frame(30)  # the outcome for the message is unknown
    switch.unlink()
    eventually(lambda: web.get("/ping").body == b"OK", 30)
    web.pub("t", b"three")
    daemon.web.await_counts("t", "c", depth=2)
    assert says in daemon.log_text() and "disk responds again" in daemon.log_text()
    daemon.stop()


def test_an_exit_ends_and_says_what_is_lost(hangs: Hangs) -> None:
    daemon, switch = hangs("fsync", "sync")
    web = daemon.web
    assert web.put("/topic/config", b'{"durability": "memory"}', topic="m").status == 200
    web.create("m", "c")
    for number in range(3):
        web.pub("m", b"%d" % number)
    switch.touch()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 1
    log = daemon.log_text()
    assert "exiting: waiting for sync" in log
    last = log.rstrip().rpartition("\n")[2]
    assert last.partition("saved: ")[2].startswith("3 messages are not on disk: m (3)")
