"""Drivers of replay killed with SIGKILL: every row is published exactly once. `NSQCY_KILLS` sets
the number of kills, `NSQCY_KILLS_ROWS` the number of rows."""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from support.archive_process import at, running
from support.nsqd_process import Nsqd
from support.spark_sources import batch, rows

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

ROWS = int(os.environ.get("NSQCY_KILLS_ROWS", "1000000"))
KILLS = int(os.environ.get("NSQCY_KILLS", "25"))
SEED = int(os.environ.get("NSQCY_KILLS_SEED", "1"))
TEXT = b"x" * 80


def published(daemon: Nsqd) -> int:
    return daemon.web.counts("again")["message_count"]


@pytest.mark.timeout(7200)
def test_many_kills(daemon: Nsqd, tmp_path: Path) -> None:
    """Each driver is killed while publishing."""
    rng = random.Random(SEED)
    for start in range(0, ROWS, 5000):
        numbers = range(start, min(start + 5000, ROWS))
        daemon.connect().mpub("orders", [b"%d %s" % (number, TEXT) for number in numbers])
    kills = 0
    words = (*at(daemon), "--to=again", f"--round-rows={ROWS // 10}", f"--state={tmp_path}/state")
    for _ in range(KILLS):
        before = published(daemon)
        driver = running("replay", tmp_path, *words)
        driver.until(
            lambda before=before, driver=driver: published(daemon) > before or not driver.running
        )
        time.sleep(rng.uniform(0, 0.3))
        if not driver.running:
            break  # the replay is complete
        driver.kill()
        kills += 1
        print(f"kill {kills} at {published(daemon)}", flush=True)
    assert running("replay", tmp_path, *words).wait() == 0
    source = {"topic": "again", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    found = Counter(int(row["body"].split()[0]) for row in rows(batch(source, "body")))
    assert found == Counter(range(ROWS))
    assert kills >= min(KILLS, 3)
