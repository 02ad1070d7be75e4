"""Celery workers as processes, with the file that their tasks write."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtest.bench import procfs
from loadtest.bench.tasks.brokers import Broker

STOP_LIMIT = 60.0  # maximum seconds for a warm shutdown


class Workers:
    """Workers of the application in app.py. Leaving the `with` block kills them."""

    def __init__(self, broker: Broker, *arguments: str, acks_late: bool = False) -> None:
        self._home = tempfile.TemporaryDirectory(prefix="tasks-", ignore_cleanup_errors=True)
        self.file = Path(self._home.name, "records")
        self.file.touch()
        self._arguments = arguments
        self._started = 0
        self.environment = os.environ | {
            "TASKS_BROKER": broker.url,
            "TASKS_OPTIONS": json.dumps(broker.options),
            "TASKS_FILE": str(self.file),
            "TASKS_ACKS_LATE": str(int(acks_late)),
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self.running:
            self.kill(0)
        self._home.cleanup()

    def start(self) -> None:
        """Start one more worker, in its own session."""
        name = f"w{self._started}@tasks"
        self._started += 1
        command = [sys.executable, "-m", "celery", "-A", "loadtest.bench.tasks.app", "worker"]
        command += ["--hostname", name, "--loglevel", "ERROR", *self._arguments]
        with Path(self._home.name, "log").open("ab") as log:
            worker = subprocess.Popen(
                command, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.running.append(worker)

    def kill(self, index: int) -> None:
        """Kill a worker and its pool with SIGKILL."""
        worker = self.running.pop(index)
        procfs.end(procfs.family(worker.pid))
        worker.wait()

    def restart(self, index: int) -> None:
        """Stop a worker with a warm shutdown, and start another."""
        worker = self.running.pop(index)
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            procfs.end(procfs.family(worker.pid))
            worker.wait()
        self.start()

    def memory(self) -> int:
        """Return the proportional memory of the workers and their pools, in bytes."""
        total = 0
        for worker in self.running:
            try:
                total += procfs.memory(procfs.family(worker.pid))["Pss"]
            except OSError:
                continue  # the worker, or a process of its pool, has just ended
        return total

    def cpu_seconds(self) -> float:
        """Return the CPU time of the workers and their pools."""
        return sum(
            procfs.cpu_seconds(pid) for worker in self.running for pid in procfs.family(worker.pid)
        )

    def log(self) -> str:
        return Path(self._home.name, "log").read_text(errors="replace")
