"""Workers are killed under mixed load: their replacements restore what was only in memory.

NSQCY_CRASH_SEED selects another run; NSQCY_RUNS makes the soak longer.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Starter
from crash.trial import OPTIONS, TOPICS, fixed_addresses
from crash.worker_deaths import TINY, WorkerDeaths
from loadtest.many_clients import Loop
from nsqcy.testing.wire_client import Silence
from support.nsqd_process import Nsqd
from support.runs import runs

SEED = int(os.environ.get("NSQCY_CRASH_SEED", "1"))
KILLS_PER_START = 6  # later replacements would start after a delay

pytestmark = [pytest.mark.ours, pytest.mark.real_disk]


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Starter]:
    starter = Starter(1, tmp_path)
    yield starter
    for daemon in starter.daemons:
        daemon.destroy()


def begun(daemons: Starter, workers: int, durability: str, **options: object) -> Nsqd:
    return daemons(
        **OPTIONS | fixed_addresses() | {"workers": workers, "durability": durability} | options
    )


def arrived(daemon: Nsqd) -> int:
    """Finish the messages of one byte; return their number. No id comes twice after its FIN."""
    ids: set[bytes] = set()
    conn = daemon.connect().sub(TINY, "c", rdy=100)
    while True:
        try:
            message = conn.message(1)
        except Silence:
            if daemon.web.counts(TINY, "c")["depth"] == 0:
                return len(ids)
            continue
        assert message.id not in ids and message.body == b"x", message
        ids.add(message.id)
        conn.fin(message)


def deaths(
    daemons: Starter, seed: int, workers: int, durability: str, cycles: int, starts: int = 1
) -> None:
    """Check that nothing is lost and nothing comes back, no matter which workers die when."""
    run = WorkerDeaths(begun(daemons, workers, durability), workers, seed)
    tiny = Loop(run.tiny.step)
    with run.load():
        for start in range(starts):
            if start:
                run.restart()
            for number in range(cycles):
                if number % 3 == 1 and run.late:
                    run.cycle_with_a_new_channel()
                else:
                    run.cycle()
        tiny.stop()
    published = sum(each.count for each in run.publishers) + run.tiny.sent
    received = sum(each.progress for each in run.subscribers)
    print(f"{durability}: {run.kills} kills, {published} published, {received} received")
    run.findings(keeps=True)
    faults = [fault for each in run.subscribers for fault in each.faults]
    assert not faults, f"seed {seed}\n" + "\n".join(faults[:20])
    assert run.tiny.answered <= arrived(run.daemon) <= run.tiny.sent
    for topic in [*TOPICS, TINY]:
        run.daemon.web.await_counts(topic, depth=0)
        for channel in run.daemon.web.topic(topic)["channels"]:
            figures = {
                name: channel[name] for name in ("depth", "in_flight_count", "deferred_count")
            }
            assert not any(figures.values()), (topic, channel)


@pytest.mark.parametrize(("durability", "workers"), [("memory", 2), ("os", 2), ("fsync", 1)])
def test_nothing_is_lost(daemons: Starter, durability: str, workers: int) -> None:
    deaths(daemons, SEED, workers, durability, 3)


@pytest.mark.soak
@pytest.mark.parametrize("durability", ["memory", "os", "fsync"])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_lost_in_the_long_run(daemons: Starter, workers: int, durability: str) -> None:
    deaths(daemons, SEED, workers, durability, KILLS_PER_START, runs(1))
