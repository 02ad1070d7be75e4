"""What Kubernetes is told to run before it stops nsqd's container."""

import subprocess

import pytest
from conftest import Starter
from manifests import before_stopping

pytestmark = pytest.mark.ours


@pytest.mark.parametrize("workers", [1], indirect=True)
def test_it_comes_back_when_consumers_have_emptied_nsqd(nsqd: Starter, topic: str) -> None:
    daemon = nsqd()
    daemon.web.create(topic, "c")
    daemon.web.pub(topic, b"the last one")
    script = before_stopping().replace(":4151/", f":{daemon.http_port}/")
    script = script.replace("sleep 1", "sleep 0.05")
    hook = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.DEVNULL)
    try:
        consumer = daemon.connect().sub(topic, "c", rdy=1)
        message = consumer.message()
        assert hook.poll() is None and daemon.alive()
        consumer.fin(message.id)
        assert hook.wait(30) == 0 or not daemon.alive()
        assert daemon.wait() == 0
    finally:
        hook.kill()
        hook.wait()
