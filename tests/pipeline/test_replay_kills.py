"""Drivers of replay killed with SIGKILL: every row is published exactly once. `NSQCY_KILLS` sets
the number of kills, `NSQCY_KILLS_ROWS` the number of rows."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from support.nsqd_process import Nsqd, environment
from support.spark_sources import batch, rows

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

ROWS = int(os.environ.get("NSQCY_KILLS_ROWS", "1000000"))
KILLS = int(os.environ.get("NSQCY_KILLS", "25"))
SEED = int(os.environ.get("NSQCY_KILLS_SEED", "1"))
TEXT = b"x" * 80
START_SECONDS = 180.0


def replay(daemon: Nsqd, folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "nsqcy.pipeline", "replay", "--topic=orders", "--to=again"),
            *(f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}", f"--round-rows={ROWS // 10}"),
            *("--master=local[2]", "--driver-memory=1g", f"--state={folder}/state.json"),
        ],
        env=environment() | {"SPARK_LOCAL_IP": "127.0.0.1"},
        start_new_session=True,
    )


def kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill the driver and all processes that Spark has started."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    for each in family:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()
    psutil.wait_procs(family, 30)


def published(daemon: Nsqd) -> int:
    return daemon.web.counts("again")["message_count"]


@pytest.mark.timeout(7200)
def test_many_kills(daemon: Nsqd, tmp_path: Path) -> None:
    """Each driver is killed while it publishes."""
    rng = random.Random(SEED)
    for start in range(0, ROWS, 5000):
        numbers = range(start, min(start + 5000, ROWS))
        daemon.connect().mpub("orders", [b"%d %s" % (number, TEXT) for number in numbers])
    kills = 0
    for _ in range(KILLS):
        before = published(daemon)
        process = replay(daemon, tmp_path)
        deadline = time.monotonic() + START_SECONDS
        while published(daemon) == before and process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        time.sleep(rng.uniform(0, 0.3))
        if process.poll() is not None:
            break  # the replay is complete
        kill(process)
        kills += 1
        print(f"kill {kills} at {published(daemon)}", flush=True)
    assert replay(daemon, tmp_path).wait() == 0
    source = {"topic": "again", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    found = Counter(int(row["body"].split()[0]) for row in rows(batch(source, "body")))
    assert found == Counter(range(ROWS))
    assert kills >= min(KILLS, 3)
