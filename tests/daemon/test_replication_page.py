"""docs/REPLICATION.md: the first minute, as readers type it."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.doc_examples import Block, Reader, blocks
from support.etcd_process import needs_etcd
from support.nsqd_process import free_port

pytestmark = [needs_etcd, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "REPLICATION.md"
PORTS = (2379, 2380, 4150, 4151, 4250, 4251, 4350, 4351)


@contextmanager
def running(block: Block, folder: Path, reader: Reader, ports: dict[int, int]) -> Iterator[int]:
    """Run a daemon from the page in its own process group; yield the group's id, and kill the group
    at the end."""
    with (folder / "daemons.log").open("a") as log:
        daemon = subprocess.Popen(
            block.command(ports),
            cwd=folder,
            env=reader.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
    try:
        yield daemon.pid
    finally:
        kill(daemon.pid)
        daemon.wait()


def kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        pass


def test_the_first_minute(tmp_path: Path) -> None:
    if not shutil.which("curl"):
        pytest.skip("curl is not installed")
    text = PAGE.read_text()
    ports = {port: free_port() for port in PORTS}
    reader = Reader(tmp_path, ports=ports)
    prepare, publish, consume = blocks(text, "cluster")
    daemons = blocks(text, "daemon")
    assert [block.text.split()[0] for block in daemons] == ["etcd", "nsqd", "nsqd", "nsqd"]
    reader.type(prepare)
    with ExitStack() as stack:
        _, first, *_ = [
            stack.enter_context(running(block, tmp_path, reader, ports)) for block in daemons
        ]
        reader.type(publish)
        kill(first)
        reader.type(consume)
