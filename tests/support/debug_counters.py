"""Counters of a debug build, read from the workers of a daemon. A release build has none."""

import json
import os
import re
import signal

from nsqcy.protocol.core import COUNTED
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import FOREIGN, Nsqd

COUNTS = COUNTED and not FOREIGN
LINE = re.compile(r"worker (\d+): alive: (\{.*\})$", re.MULTILINE)
Counters = dict[int, dict[str, int]]


def told(text: str) -> Counters:
    """Return the last counters in a log, by worker."""
    return {int(worker): json.loads(counters) for worker, counters in LINE.findall(text)}


def census(daemon: Nsqd) -> Counters:
    """Return the number of live objects in each worker."""
    before = len(daemon.log_text())
    workers = daemon.workers()
    for pid in workers:
        os.kill(pid, signal.SIGUSR1)

    def all_told() -> Counters:
        found = told(daemon.log_text()[before:])
        return found if len(found) == len(workers) else {}

    return eventually(all_told)
