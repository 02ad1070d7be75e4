"""Workers and programs of a framework, run as processes, and the file that their tasks write."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nsqcy.testing.http_requests import eventually
from support import fork_server

LIMIT = 60.0
SUPPORT = Path(__file__).parent

# Workers and programs are forks of a process that has imported these modules: this takes longer
# than most tests. gevent patches modules before they are imported, so its workers are executed.
IMPORTED = {
    "celery_shop": (
        "celery.apps.beat",
        "celery.apps.worker",
        "celery.bin.celery",
        "celery.concurrency.prefork",
        "nsqcy.integrations.celery.dead_letters",
    ),
    "dramatiq_shop": ("dramatiq.cli", "nsqcy.integrations.dramatiq"),
    "fastapi_shop": ("fastapi", "nsqcy.integrations.fastapi", "uvicorn.main"),
    "faststream_shop": ("faststream._internal.cli.main", "nsqcy.integrations.faststream"),
    "flask_shop": ("flask", "nsqcy.integrations.flask"),
    "taskiq_shop": (
        "nsqcy.integrations.taskiq",
        "taskiq.cli.scheduler.cmd",
        "taskiq.cli.worker.cmd",
    ),
}


def until(holds: Callable[[], Any], what: str, limit: float = LIMIT) -> Any:
    """Poll until `holds` returns a true value, and return that value."""
    try:
        return eventually(holds, limit, interval=0.02)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from None


class Shop:
    """An application in tests/support: its workers, and the file that they write."""

    def __init__(self, home: Path, module: str, **variables: object) -> None:
        self.home = home
        self.module = module
        self.file = home / "notes"
        self.environment = os.environ | {
            "SHOP_FILE": str(self.file),
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path]),
            "PYTHONUNBUFFERED": "1",
        }
        self.environment |= {f"SHOP_{name.upper()}": str(each) for name, each in variables.items()}
        self.imported = IMPORTED.get(module, ())
        self.workers: list[subprocess.Popen[bytes]] = []

    def run(self, program: str, *arguments: str) -> str:
        """Run a program after importing all names from the application's module."""
        with fork_server.prepared(self.environment, self.imported):
            done = subprocess.run(
                [sys.executable, "-c", f"from {self.module} import *\n{program}", *arguments],
                env=self.environment,
                capture_output=True,
                text=True,
                timeout=LIMIT,
            )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def worker(self, *command: str, ready: str) -> "subprocess.Popen[bytes]":
        """Start a worker, and wait until its log says that it is ready."""
        log = self.home / f"worker-{len(self.workers)}.log"
        imported = () if "gevent" in str(command) else self.imported
        with log.open("wb") as output, fork_server.prepared(self.environment, imported):
            worker = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=self.environment,
                cwd=self.home,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.workers.append(worker)

        def is_ready() -> bool:
            assert worker.poll() is None, log.read_text()
            return ready in log.read_text()

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
def shop_of(home: Path, module: str, **variables: object) -> Iterator[Shop]:
    shop = Shop(home, module, **variables)
    try:
        yield shop
    finally:
        for worker in shop.workers:
            shop.kill(worker)
