"""The kernel kills a worker because its cgroup has reached its memory limit: no message is lost.

Needs root and a cgroup hierarchy with the memory controller.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd

MESSAGES, SIZE = 2_000, 10_000
IN_FLIGHT = 50
ROOM = 40 << 20  # bytes of the cgroup that nothing uses yet

# Uses more and more memory until the kernel has killed a process of the cgroup.
BALLAST = """
import pathlib, sys
control, procs = map(pathlib.Path, sys.argv[1:])
def kills():
    return dict(line.split() for line in control.read_text().splitlines())["oom_kill"]
procs.write_text("0")
before, held = kills(), []
while kills() == before:
    held.append(b"x" * (1 << 20))
"""

pytestmark = [pytest.mark.ours, pytest.mark.real_disk]


class Cgroup:
    """A memory cgroup, of version 1 or 2."""

    def __init__(self, path: Path, version: int) -> None:
        self.path = path
        self.procs = path / "cgroup.procs"
        self.events = path / ("memory.oom_control" if version == 1 else "memory.events")
        self._limit = path / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        self._usage = path / ("memory.usage_in_bytes" if version == 1 else "memory.current")

    @property
    def enter(self) -> tuple[str, ...]:
        """Prefix of a command that runs in the cgroup."""
        return ("sh", "-c", f'echo 0 > {self.procs} && exec "$@"', "sh")

    def leave_room(self, size: int) -> None:
        self._limit.write_text(str(int(self._usage.read_text()) + size))


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    name = f"nsqcy-test-{os.getpid()}"
    root = Path("/sys/fs/cgroup")
    is_first = (root / "memory").is_dir()
    path = root / "memory" / name if is_first else root / name
    found = Cgroup(path, 1 if is_first else 2)
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be created: {error}")
    try:
        if not found.events.exists():
            pytest.skip("cgroups have no memory controller")
        yield found
    finally:
        eventually(lambda: not found.procs.read_text())
        path.rmdir()


@pytest.fixture
def limited(cgroup: Cgroup, tmp_path: Path) -> Iterator[Callable[..., Nsqd]]:
    starter = Starter(1, tmp_path)
    yield lambda **options: starter(within=cgroup.enter, **options)
    for daemon in starter.daemons:
        daemon.destroy()


def test_the_kernel_kills_a_worker(limited: Callable[..., Nsqd], cgroup: Cgroup) -> None:
    daemon = limited(workers=1, mem_queue_size=10 * MESSAGES)
    master, (worker,) = daemon.process.pid, daemon.workers()
    conn = daemon.connect()
    bodies = [f"{number} ".encode().ljust(SIZE, b".") for number in range(MESSAGES)]
    daemon.web.create("topic", "channel")
    for body in bodies:
        conn.pub("topic", body)
    consumer = daemon.connect().sub("topic", "channel", IN_FLIGHT)
    assert len(consumer.messages(IN_FLIGHT)) == IN_FLIGHT

    cgroup.leave_room(ROOM)
    command = [sys.executable, "-c", BALLAST, str(cgroup.events), str(cgroup.procs)]
    ballast = subprocess.run(command, timeout=120)

    assert ballast.returncode == 0, "the kernel has killed the ballast instead of a worker"
    eventually(lambda: worker not in daemon.workers())
    eventually(lambda: daemon.web.get("/ready").status == 200)
    assert daemon.process.poll() is None and daemon.process.pid == master
    assert f"killed by signal {signal.SIGKILL:d}" in daemon.log_text()
    consumer = daemon.connect().sub("topic", "channel", MESSAGES)
    found = consumer.messages(MESSAGES)
    assert sorted(each.body for each in found) == sorted(bodies)
    daemon.stop()
