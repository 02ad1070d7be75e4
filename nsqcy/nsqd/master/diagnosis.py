"""Diagnostics for this nsqd: whether it is ready, and the activity of its processes.

Owns the queries to workers; readiness evaluates the answers.
"""

import os
import time

from nsqcy.nsqd.master import readiness
from nsqcy.nsqd.master.disk_guard import DiskGuard
from nsqcy.nsqd.master.drain_effects import DrainControl
from nsqcy.nsqd.master.workers import Phase, Workers
from nsqcy.nsqd.process_messages.to_worker import GetHealth, InspectWorker
from nsqcy.util import debug


class Diagnosis:
    """Answers requests for /ready and the pages under /debug/pprof."""

    def __init__(
        self,
        workers: Workers,
        count: int,
        phase: Phase,
        drain: DrainControl,
        guard: DiskGuard | None,
    ) -> None:
        """count: the number of workers."""
        self._workers = workers
        self._count = count
        self._phase = phase
        self._drain = drain
        self._guard = guard

    def reasons(self) -> list[str]:
        """Return why nsqd is not ready for clients; empty if it is ready. Waits for the workers."""
        if self._phase.ending:
            return ["exiting"]
        answers = {
            index: None if isinstance(each, Exception) else each
            for index, each in self._workers.gather_ready(GetHealth()).items()
        }
        disk = self._guard.refusal if self._guard is not None else None
        found = readiness.reasons(self._count, answers, disk, time.time_ns())
        return [self._drain.reason(), *found] if self._drain.under_way else found

    def inspect(self, what: str) -> str:
        """Return the `debug.tell` reports from all processes."""
        told = [f"== master, pid {os.getpid()}\n{debug.tell(what)}"]
        pids = {each.index: each.pid for each in self._workers}
        for index, answer in self._workers.gather(InspectWorker(what)).items():
            text = f"{answer}\n" if isinstance(answer, Exception) else answer.decode()
            told.append(f"== worker {index}, pid {pids.get(index, 0)}\n{text}")
        return "\n".join(told)
