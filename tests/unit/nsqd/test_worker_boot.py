"""A worker that its master starts, before it serves anything."""

import os
import subprocess

from nsqcy import formats
from nsqcy.process import arbiter, spawn


def test_a_worker_refuses_a_master_in_another_format() -> None:
    log = {"prefix": "", "level": 1, "format": "text"}
    numbers = formats.numbers_in_use() | {"control": 2}
    fd = spawn.pack({"worker": 0, "context": {"log": log}, "formats": numbers})
    try:
        done = subprocess.run(
            spawn.python("nsqcy.nsqd.worker.main", str(fd)),
            pass_fds=[fd],
            env=spawn.environment(),
            capture_output=True,
            text=True,
        )
    finally:
        os.close(fd)
    assert done.returncode == arbiter.NOT_BOOTED
    text = "the master: control format version 2 is newer than this nsqcy supports (1)"
    assert f"{text}: restart nsqd" in done.stderr
    assert "Traceback" not in done.stderr
