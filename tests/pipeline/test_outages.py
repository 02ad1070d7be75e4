"""One of three nsqds hangs or is stopped for a minute, while archive continues with the others.

This is a soak test, because it takes a long time. `NSQCY_OUTAGE` sets the duration of an outage in
seconds.
"""

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nsqcy.pipeline import checkpoint, manifests
from nsqcy.pipeline.__main__ import main
from support.archive_files import rows_by_glob
from support.archive_process import Driver, Producer, archiving, body, state
from support.nsqd_outages import gone, hanging, three_nsqds
from support.nsqd_process import Nsqd
from support.spark_sources import batch, rows

pytestmark = [pytest.mark.spark, pytest.mark.ours, pytest.mark.soak]

SECONDS = float(os.environ.get("NSQCY_OUTAGE", "60"))
TRIGGERS = 2
APART = 1_000_000  # difference between the first numbers of two producers


def ends(*daemons: Nsqd) -> dict[str, int]:
    """Return the next seq of each log, by log_id."""
    logs: list[dict[str, Any]] = [
        each.web.get("/topic/log", topic="orders").json() for each in daemons
    ]
    return {log["log_id"]: int(log["next_seq"]) for log in logs}


def is_archived(root: Path, number: int, wanted: dict[str, int]) -> bool:
    """Return whether the batches up to `number` contain these logs up to these ends."""
    pos = checkpoint.offset(manifests.hidden(root, "checkpoint"), number).pos.get("orders", {})
    return all(pos.get(log_id, 0) >= end for log_id, end in wanted.items())


def archive_all(driver: Driver, root: Path, *daemons: Nsqd) -> None:
    wanted = ends(*daemons)
    driver.until(lambda: (at := state(root).committed) >= 0 and is_archived(root, at, wanted))


@pytest.mark.timeout(1200)
def test_a_minute_without_one_of_three(tmp_path: Path) -> None:
    root = tmp_path / "lake" / "archive"
    root.parent.mkdir()
    taken: list[int] = []
    lives = 0

    def producer(daemon: Nsqd) -> Producer:
        nonlocal lives
        lives += 1
        return Producer(daemon, lives * APART, pause=0.2)

    with three_nsqds(tmp_path) as (lookupd, daemons):
        here = [f"--lookupd-http-address={lookupd.http_address}"]
        driver = archiving(root, *here, "--every=1s", "--option=discoveryInterval=1s")
        producers = {each: producer(each) for each in daemons}
        try:
            archive_all(driver, root, *daemons)
            for away, outage in ((daemons[2], hanging), (daemons[1], gone)):
                # A batch with rows of the absent nsqd would have to wait for it.
                producers[away].stop()
                taken += producers.pop(away).taken
                archive_all(driver, root, away)
                others = [each for each in daemons if each is not away]
                turns = 0
                with outage(away):
                    over = time.monotonic() + SECONDS
                    while time.monotonic() < over:
                        within = state(root).committed + TRIGGERS
                        wanted = ends(*others)
                        driver.until(lambda within=within: state(root).committed >= within)
                        assert is_archived(root, within, wanted), driver.said()
                        turns += 1
                print(f"{outage.__name__}: the other nsqds were archived {turns} times", flush=True)
                producers[away] = producer(away)
                archive_all(driver, root, *daemons)
            for each in producers.values():
                each.stop()
                taken += each.taken
            archive_all(driver, root, *daemons)
            assert driver.stop() == 0, driver.said()
        finally:
            for each in producers.values():
                each.stop()
            if driver.running:
                driver.kill()
        found = rows_by_glob(root)
        source = {"topic": "orders", "lookupdHttpAddresses": lookupd.http_address}
        there = [(row["log_id"], row["seq"]) for row in rows(batch(source, "log_id", "seq"))]
    assert Counter((log_id, seq) for log_id, seq, _ in found) == Counter(there)
    assert Counter(text for _, _, text in found) == Counter(map(body, taken))
    assert len({log_id for log_id, _, _ in found}) == 3
    assert main(["verify", f"--root={root}"]) == 0
    print(f"{len(found)} rows, each exactly once", flush=True)
