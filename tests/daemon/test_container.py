"""nsqd in a container: as process 1, and with the command that Kubernetes runs before it stops the
container."""

import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support import nsqd_process as daemons
from support.kubernetes_manifests import before_stopping
from support.nsqd_process import FOREIGN
from support.sanitizer import unwatched

pytestmark = [
    pytest.mark.ours,
    pytest.mark.skipif(bool(FOREIGN), reason="the image contains nsqcy's daemons"),
    pytest.mark.parametrize("workers", [1], indirect=True),
]

ALONE = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]


def is_permitted() -> bool:
    try:
        return subprocess.run([*ALONE, "true"], capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not is_permitted(), reason="PID namespaces are not permitted here")
def test_as_process_1_it_saves_and_reaps(
    nsqd: Starter, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = daemons.command()
    monkeypatch.setattr(daemons, "command", lambda: [*ALONE, *command])
    daemon = nsqd()
    daemon.web.create(topic, "c")
    daemon.web.pub(topic, b"kept")
    (first,) = psutil.Process(daemon.process.pid).children()
    assert f"NSpid:\t{first.pid}\t1\n" in Path(f"/proc/{first.pid}/status").read_text()
    orphan = "sleep 0.01 & echo $!"
    enter = ["nsenter", f"--target={first.pid}", "--pid", "sh", "-c", orphan]
    subprocess.run(enter, check=True, stdout=subprocess.DEVNULL)
    eventually(lambda: len(first.children()) == 1)  # only the worker remains
    os.kill(first.pid, signal.SIGTERM)
    assert daemon.wait() == 0
    monkeypatch.undo()
    daemon.restart()
    daemon.web.await_counts(topic, "c", depth=1)


def test_the_hook_comes_back_when_consumers_have_emptied_it(nsqd: Starter, topic: str) -> None:
    daemon = nsqd()
    daemon.web.create(topic, "c")
    daemon.web.pub(topic, b"the last one")
    script = before_stopping().replace(":4151/", f":{daemon.http_port}/")
    script = script.replace("sleep 1", "sleep 0.05")
    hook = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL, env=unwatched())
    try:
        consumer = daemon.connect().sub(topic, "c", rdy=1)
        message = consumer.message()
        assert hook.poll() is None and daemon.alive()
        consumer.fin(message)
        assert daemon.wait() == 0
        hook.wait(30)
    finally:
        hook.kill()
        hook.wait()
