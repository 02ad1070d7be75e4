"""Drivers killed while they copy one topic to another: each row arrives once.

This is a soak test, because each kill starts Spark again. `NSQCY_KILLS` and `NSQCY_ROWS` set the
numbers of kills and rows.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nsqcy.testing.http_requests import eventually
from support.archive_process import Driver
from support.nsqd_process import Nsqd
from support.spark_sources import batch

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("NSQCY_KILLS", "25"))
ROWS = int(os.environ.get("NSQCY_ROWS", "5000000"))
IN_FIRST_BATCH = 0.2  # fraction of the kills that hit the first batch
BATCHES = 10
PROGRAM = str(ROOT / "tests/support/spark_copy_driver.py")


def count(daemon: Nsqd, topic: str) -> int:
    answer = daemon.web.get("/topic/log", topic=topic)
    return int(answer.json()["next_seq"]) - 1 if answer.status == 200 else 0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Nsqd]:
    path = tmp_path / "nsqd"
    path.mkdir()
    daemon = Nsqd(path, workers=2, retention_time="24h", durability="os").start()
    conn = daemon.connect()
    for at in range(0, ROWS, 10_000):
        conn.mpub("from", [b"row %d" % number for number in range(at, min(ROWS, at + 10_000))])
    conn.close()
    yield daemon
    daemon.destroy()


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("idempotent", [True, False])
def test_from_topic_to_topic(idempotent: bool, daemon: Nsqd, tmp_path: Path) -> None:
    chance = random.Random(idempotent)
    checkpoint = tmp_path / "checkpoint"
    here = {"nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"}
    size = ROWS // BATCHES
    reading = here | {
        "topic": "from",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(size),
        "minPartitions": "2",
    }
    writing = here | {"topic": "to", "batchBytes": "20k", "idempotent": str(idempotent).lower()}
    words = [PROGRAM, str(checkpoint), json.dumps(reading), json.dumps(writing)]
    orphans: list[psutil.Process] = []
    kills = KILLS if idempotent else max(2, KILLS // 5)
    where: Counter[str] = Counter()
    for kill in range(kills):
        driver = Driver(tmp_path, *words)
        try:
            if kill < kills * IN_FIRST_BATCH:
                more = size // kills  # all of these kills stay within the first batch
            else:
                more = chance.randrange(ROWS // kills)
            goal = min(count(daemon, "to") + max(1, more), ROWS - 1)
            eventually(lambda goal=goal: count(daemon, "to") >= goal, 120)
        finally:
            orphans += driver.kill(workers=chance.random() < 0.5)
        where[place(checkpoint)] += 1
    last = Driver(tmp_path, *words)
    assert last.wait() == 0, last.said()
    psutil.wait_procs(orphans, 60)
    reader = batch(here | {"topic": "to"}, "body")
    bodies = Counter(
        body
        for part in reader.partitions()
        for rows in reader.read(part)
        for body in rows["body"].to_pylist()
    )
    print(f"{sum(where.values())} kills: {dict(where)}; {bodies.total()} of {ROWS}")
    assert set(bodies) == {b"row %d" % number for number in range(ROWS)}
    if idempotent:
        assert bodies.total() == ROWS
    else:
        assert bodies.total() >= ROWS


def place(checkpoint: Path) -> str:
    """Return the stage of the query according to its checkpoint."""
    planned = numbered(checkpoint / "offsets")
    committed = numbered(checkpoint / "commits")
    first = "first batch, " if not committed else ""
    return first + ("between plan and commit" if planned > committed else "between batches")


def numbered(directory: Path) -> int:
    return sum(path.name.isdigit() for path in directory.glob("*"))
