"""Streams between real processes."""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nsqcy
from nsqcy.ipc.core import format_shared, map_size

PROGRAM = Path(__file__).parents[2] / "support" / "mesh_worker.py"
WORKERS = 3
STREAMS = 4
BYTES = 8_000_000


@pytest.mark.slow
def test_three_processes_exchange_hundreds_of_megabytes():
    memfd = os.memfd_create("rings")
    os.truncate(memfd, map_size(WORKERS))
    format_shared(mmap.mmap(memfd, map_size(WORKERS)), WORKERS)
    eventfds = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(WORKERS)]
    root = str(Path(nsqcy.__file__).parents[1])
    workers = [
        subprocess.Popen(
            [sys.executable, PROGRAM] + [str(n) for n in (index, BYTES, STREAMS, memfd, *eventfds)],
            pass_fds=[memfd, *eventfds],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": root},
        )
        for index in range(WORKERS)
    ]
    try:
        reports = [json.loads(worker.communicate(timeout=200)[0] or "{}") for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        for fd in (memfd, *eventfds):
            os.close(fd)
    assert [worker.returncode for worker in workers] == [0] * WORKERS
    moved = 0
    for home, report in enumerate(reports):
        for name, (sent, sent_sum, got, got_sum) in report.items():
            first, second, _ = map(int, name.split("-"))
            other = reports[second if home == first else first]
            assert other[name] == [got, got_sum, sent, sent_sum]
            assert sent == BYTES
            moved += sent
    assert moved == WORKERS * (WORKERS - 1) * STREAMS * 2 * BYTES
