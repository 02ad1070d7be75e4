"""Celery workers and programs as processes: the application in celery_shop.py on any broker."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LIMIT = 60.0
SUPPORT = Path(__file__).parent


def until(holds: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Poll until `holds` returns something true, and return it."""
    deadline = time.monotonic() + limit
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what}: not within {limit:g} s"
        time.sleep(0.02)
    return found


class Shop:
    """The application in support/celery_shop.py, its workers, and the file that they write."""

    def __init__(self, home: Path, *addresses: str, **options: object) -> None:
        self.home = home
        self.file = home / "notes"
        self.options = {"msg_timeout": 2.0} | options
        broker = addresses[0] if "://" in addresses[0] else f"nsqcy://{','.join(addresses)}"
        self.environment = os.environ | {
            "SHOP_BROKER": broker,
            "SHOP_OPTIONS": json.dumps(self.options),
            "SHOP_FILE": str(self.file),
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]),
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def run(self, program: str, *arguments: str) -> str:
        """Run a program that has the application's tasks."""
        done = subprocess.run(
            [sys.executable, "-c", f"from celery_shop import *\n{program}", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def celery(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", "celery_shop", *arguments],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )

    def worker(self, *arguments: str, pool: str = "prefork") -> "subprocess.Popen[bytes]":
        """Start a worker and wait until it is ready."""
        log = self.home / f"worker-{len(self.workers)}.log"
        command = [sys.executable, "-m", "celery", "-A", "celery_shop", "worker"]
        command += ["--pool", pool, "--concurrency", "2", "--loglevel", "INFO", *arguments]
        command += ["--hostname", f"w{len(self.workers)}@test"]
        with log.open("wb") as output:
            worker = subprocess.Popen(
                command,
                env=self.environment,
                cwd=self.home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.workers.append(worker)

        def is_ready() -> bool:
            assert worker.poll() is None, log.read_text()
            return " ready." in log.read_text()

        until(is_ready, "the worker is ready")
        return worker

    def log(self) -> str:
        return "\n".join(each.read_text() for each in sorted(self.home.glob("worker-*.log")))

    def notes(self, task: str) -> list[dict[str, Any]]:
        try:
            lines = self.file.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [each for each in map(json.loads, lines) if each["task"] == task]

    def has_notes(self, task: str, count: int) -> list[dict[str, Any]]:
        try:
            return until(
                lambda: len(found := self.notes(task)) >= count and found, f"{count} x {task}"
            )
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-6000:]}") from None

    def stop(self, worker: "subprocess.Popen[bytes]") -> None:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(LIMIT) == 0, self.log()

    def kill(self, worker: "subprocess.Popen[bytes]") -> None:
        """Kill a worker and its children with SIGKILL."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(LIMIT)


@contextlib.contextmanager
def shop_on(home: Path, *addresses: str, **options: object) -> Iterator[Shop]:
    shop = Shop(home, *addresses, **options)
    try:
        yield shop
    finally:
        for worker in shop.workers:
            shop.kill(worker)
