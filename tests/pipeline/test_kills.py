"""Drivers of archive and nsqds killed with SIGKILL: nothing is lost, and nothing is duplicated.

The files on disk show where a driver was killed. These are soak tests, because each kill starts
Spark again; `test_jobs` tests a single kill.
"""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from nsqcy.pipeline import manifests
from nsqcy.pipeline.__main__ import main
from nsqcy.testing.http_requests import eventually
from support.archive_process import Producer, archiving, at, publish, state
from support.nsqd_process import Nsqd
from support.spark_requirements import spark_environment

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

ROWS = int(os.environ.get("NSQCY_KILLS_ROWS", "5000000"))
KILLS = int(os.environ.get("NSQCY_KILLS", "25"))
NSQD_KILLS = int(os.environ.get("NSQCY_NSQD_KILLS", "10"))
SEED = int(os.environ.get("NSQCY_KILLS_SEED", "1"))
BATCH_0, PLANNED, WRITTEN, BETWEEN = "in batch 0", "planned", "written", "between batches"


def has_manifest(root: Path, number: int) -> bool:
    return any(manifests.hidden(root, "manifests").glob(f"*-{number:09}.json"))


def place(root: Path) -> str:
    """Return the point at which the dead driver was killed."""
    found = state(root)
    if found.planned == found.committed:
        return BETWEEN
    if found.planned == 0:
        return BATCH_0
    return WRITTEN if has_manifest(root, found.planned) else PLANNED


def kill_somewhere(
    root: Path,
    daemon: Nsqd,
    rng: random.Random,
    within: float,
    *words: str,
    behind_batch_0: bool = False,
) -> str:
    """Run a driver and kill it; return the point at which it was killed."""
    planned, writing = state(root).planned, manifests.unplaced(root)
    driver = archiving(root, *at(daemon), "--every=100ms", *words)
    try:
        if behind_batch_0:
            driver.until(lambda: state(root).planned > 0)
        # A batch that is retried is not planned again.
        driver.until(
            lambda: (
                state(root).planned > planned or not set(manifests.unplaced(root)) <= set(writing)
            ),
        )
        time.sleep(rng.uniform(0, within))
    finally:
        driver.kill()
    return place(root)


def archive_the_rest(root: Path, daemon: Nsqd, *words: str) -> None:
    driver = archiving(root, *at(daemon), "--once", *words)
    assert driver.wait() == 0, driver.said()


def counted(root: Path) -> tuple[int, int, int]:
    """Return the number of rows, the number of distinct rows, and the next number, as an
    independent reader sees them."""
    found = ds.dataset(root, format="parquet", partitioning="hive").to_table(["seq", "body"])
    numbers = pc.cast(
        pc.list_element(pc.split_pattern(pc.cast(found["body"], "string"), " "), 0), "int64"
    )
    distinct = pc.count_distinct(numbers).as_py()
    return found.num_rows, distinct, pc.max(numbers).as_py() + 1


COUNT_BY_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
found = spark.read.parquet(sys.argv[1])
print(found.count(), found.select("log_id", "seq").distinct().count())
"""


def counted_by_spark(root: Path) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", COUNT_BY_SPARK, str(root)],
        capture_output=True,
        text=True,
        env=spark_environment(),
    )
    return [int(word) for word in done.stdout.split()]


def check(root: Path, rows: int) -> None:
    assert counted(root) == (rows, rows, rows)
    assert main(["verify", f"--root={root}"]) == 0
    assert {path.name for path in root.iterdir()} == {manifests.HIDDEN, "topic=orders"}


def test_many_kills_of_drivers(daemon: Nsqd, tmp_path: Path) -> None:
    """At least a fifth of the kills are in batch 0, and a fifth between a plan and its manifest.
    `NSQCY_KILLS` sets the number of kills, `NSQCY_KILLS_ROWS` the number of rows."""
    root = tmp_path / "archive"
    rng = random.Random(SEED)
    minimum = max(1, KILLS // 5)
    each = ROWS // KILLS
    words = [f"--option=maxOffsetsPerTrigger={each // 3 + 1}"]
    places: Counter[str] = Counter()
    published = 0
    while places.total() < KILLS or places[PLANNED] < minimum:
        assert places.total() < 3 * KILLS, places
        if published < ROWS:
            publish(daemon, published, min(published + each, ROWS))
            published = min(published + each, ROWS)
        first = places[BATCH_0] < minimum
        within = 0.3 if first else 3.0
        behind = not first
        places[kill_somewhere(root, daemon, rng, within, *words, behind_batch_0=behind)] += 1
        print(json.dumps({"kills": places.total()} | places), flush=True)
    assert places[BATCH_0] >= minimum, places
    archive_the_rest(root, daemon)
    check(root, published)
    assert counted_by_spark(root) == [published, published]


def test_many_kills_of_nsqd(tmp_path: Path) -> None:
    """Every acknowledged message is in the archive exactly once."""
    path, root = tmp_path / "data", tmp_path / "archive"
    path.mkdir()
    daemon = Nsqd(path, workers=1, retention_time="24h", sync_every=1, durability="fsync").start()
    port = daemon.tcp_port
    daemon.options["tcp_address"] = f"127.0.0.1:{port}"
    rng = random.Random(SEED)
    producer = Producer(daemon)
    try:
        eventually(lambda: len(producer.taken) > 1000)
        driver = archiving(root, *at(daemon), "--every=500ms")
        try:
            driver.until(lambda: state(root).committed >= 0)
            for _ in range(NSQD_KILLS):
                time.sleep(rng.uniform(0.5, 3))
                before = state(root).committed
                daemon.destroy()
                daemon.start()
                driver.until(lambda before=before: state(root).committed > before + 1)
            producer.stop()
            assert driver.stop() == 0, driver.said()
        finally:
            if driver.running:
                driver.kill()
        archive_the_rest(root, daemon)
    finally:
        producer.stop()
        daemon.destroy()
    rows, distinct, _ = counted(root)
    assert rows == distinct >= len(producer.taken)
    assert main(["verify", f"--root={root}"]) == 0
    found = ds.dataset(root, format="parquet", partitioning="hive").to_table(["body"])
    there = {int(each.split()[0]) for each in found["body"].to_pylist()}
    assert set(producer.taken) <= there
    assert counted_by_spark(root) == [rows, rows]


def test_what_the_first_batch_was_to_have_is_gone(tmp_path: Path) -> None:
    """The driver is killed in batch 0; then retention removes records, or the topic is created
    again. The job stops with an error, so no gap goes unnoticed."""
    for what, said in [("retention", "retention removed"), ("topic", "the new log is")]:
        path, root = tmp_path / what, tmp_path / f"{what}-archive" / "archive"
        path.mkdir()
        root.parent.mkdir()
        daemon = Nsqd(path, workers=1, retention_time="24h", durability="os").start()
        try:
            publish(daemon, 0, 50_000)
            assert kill_somewhere(root, daemon, random.Random(SEED), 0.1) == BATCH_0
            if what == "retention":
                daemon.stop()
                daemon.options["retention_bytes"] = 600_000
                daemon.start()
                eventually(lambda daemon=daemon: first_seq(daemon) > 1)
            else:
                daemon.web.post("/topic/delete?topic=orders")
                publish(daemon, 0, 1000)
            driver = archiving(root, *at(daemon), "--once")
            assert driver.wait() == 1
            last = driver.said().splitlines()[-1]
            assert last.startswith("nsqcy-pipeline archive: nsq: rows are lost: ") and said in last
            assert not manifests.read(root).files
        finally:
            daemon.destroy()


def first_seq(daemon: Nsqd) -> int:
    return int(json.loads(daemon.web.get("/topic/log?topic=orders").body)["first_seq"])
