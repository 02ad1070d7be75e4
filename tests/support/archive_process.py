"""Programs that use Spark, run as processes that tests may kill, and the rows that they archive."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from nsqcy.pipeline import checkpoint, manifests
from support.nsqd_process import Nsqd
from support.spark_requirements import spark_environment

START_SECONDS = 180.0
LOCAL = ("--master=local[2]", "--driver-memory=1g")


def at(*daemons: Nsqd) -> list[str]:
    """Return the flags with the addresses of these daemons."""
    return [f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}" for daemon in daemons]


class Driver:
    """A run of a program in its own process group."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._path = folder / "driver.log"
        self._log = self._path.open("a+")
        self._process = subprocess.Popen(
            [sys.executable, *words],
            env=spark_environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )

    def kill(self, *, workers: bool = True) -> list[psutil.Process]:
        """Kill the driver and its JVM. If `workers` is set, also kill the Python workers, which
        Spark moves out of the process group. Otherwise, the workers must detect the driver's death
        themselves. Return all these processes."""
        family = [psutil.Process(self._process.pid)] if self.running else []
        family += [child for each in family for child in each.children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                if workers or each.pid == self._process.pid or each.name() == "java":
                    each.kill()
        self._process.wait()
        if workers:
            psutil.wait_procs(family, 30)
        self._log.close()
        return family

    def stop(self) -> int:
        """Send SIGTERM, and return the exit status, once the JVM and the workers have exited."""
        family = psutil.Process(self._process.pid).children(recursive=True) if self.running else []
        self._process.terminate()
        code = self.wait()
        _, alive = psutil.wait_procs(family, 60)
        assert not alive, alive
        return code

    def wait(self) -> int:
        code = self._process.wait(1200)
        self._log.close()
        return code

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        return self._path.read_text()[-4000:]

    def until(self, condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
        """Wait for a condition while this program is running."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.running and time.monotonic() < deadline, self.said()
            time.sleep(0.005)


def running(job: str, folder: Path, *words: str) -> Driver:
    """Start a job that needs Spark."""
    words = (*words, "--topic=orders", *LOCAL)
    return Driver(folder, "-m", "nsqcy.pipeline", job, *words)


def archiving(root: Path, *words: str) -> Driver:
    return running("archive", root.parent, f"--root={root}", *words)


def state(root: Path) -> checkpoint.Checkpoint:
    return checkpoint.read(manifests.hidden(root, "checkpoint"))


# --- what is archived -------------------------------------------------------------------------


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * (number % 100)


def publish(daemon: Nsqd, first: int, end: int) -> None:
    conn = daemon.connect()
    for at in range(first, end, 5000):
        conn.mpub("orders", [body(number) for number in range(at, min(at + 5000, end))])
    conn.close()


class Producer:
    """Publishes consecutive numbers until it is stopped, even while nsqd is down. `taken` contains
    the numbers that nsqd acknowledged. Unanswered numbers are not sent again."""

    def __init__(self, daemon: Nsqd, first: int = 0, pause: float = 0.0) -> None:
        self._daemon = daemon
        self._first = first
        self._pause = pause
        self._stop = threading.Event()
        self.taken: list[int] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        number = self._first
        conn: Any = None
        while not self._stop.is_set():
            numbers = range(number, number + 50)
            try:
                conn = conn or self._daemon.connect(timeout=120.0)
                conn.mpub("orders", [body(each) for each in numbers])
                self.taken += numbers
            except (OSError, AssertionError):
                conn = None
                time.sleep(0.05)
            number += 50
            self._stop.wait(self._pause)
