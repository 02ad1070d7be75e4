"""Soak and chaos: the schedule, the register, the verdict, and a short complete run."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from loadtest.chaos import balance, schedule, watch
from loadtest.chaos.register import Publisher, Register, broken
from loadtest.chaos.schedule import KINDS, plan
from loadtest.chaos.watch import Life, Sample, floors, left_behind, slope
from loadtest.soak.ledger import Ledger
from support.nsqd_process import environment

ROOT = Path(__file__).parents[3]
PLACE = ("t", "c")
VICTIMS = {
    schedule.NSQD: [0, 1, 2],
    schedule.KILLABLE: [0, 1],
    schedule.SLOW_DISK: [0, 1, 2],
    schedule.SMALL_DISK: [2],
    schedule.LOOKUPD: [0, 1],
    schedule.KILLABLE_LOOKUPD: [0],
}


# --- schedule -----------------------------------------------------------------------------------


def test_a_seed_is_a_schedule() -> None:
    assert plan(1, 600, (5, 15), VICTIMS) == plan(1, 600, (5, 15), VICTIMS)
    assert plan(1, 600, (5, 15), VICTIMS) != plan(2, 600, (5, 15), VICTIMS)


def test_faults_come_all_the_time_and_are_over_at_the_end() -> None:
    faults = plan(3, 600, (5, 15), VICTIMS)
    pauses = [b.at - a.at for a, b in pairwise(faults)]
    assert min(pauses) >= 5 and max(pauses) <= 15
    assert faults[0].at <= 15 and faults[-1].at > 600 - 15
    assert all(each.at + each.seconds <= 600 for each in faults)


def test_each_kind_has_its_turn_and_none_hurts_who_is_spared() -> None:
    faults = plan(4, 1000, (1, 2), VICTIMS)
    turns = [sorted(each.kind for each in faults[at : at + len(KINDS)]) for at in (0, len(KINDS))]
    assert turns == [sorted(each.name for each in KINDS)] * 2
    kinds = {each.name: each for each in KINDS}
    for fault in faults:
        low, high = kinds[fault.kind].seconds
        assert fault.victim in VICTIMS[kinds[fault.kind].victims]
        assert low <= fault.seconds <= high or fault.at + fault.seconds == pytest.approx(1000)


def test_a_kind_without_victims_is_left_out() -> None:
    faults = plan(5, 600, (5, 15), VICTIMS | {schedule.SMALL_DISK: []})
    assert faults and "disk full" not in {each.kind for each in faults}


def test_the_documented_faults_are_those_there_are() -> None:
    section = (ROOT / "docs/LOADTEST.md").read_text().partition("## Half an hour of chaos")[2]
    told = re.findall(r"^\| `([a-z ]+)` \|", section, re.M)
    assert sorted(told) == sorted(each.name for each in KINDS)


# --- register -----------------------------------------------------------------------------------


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def register(ledger: Ledger) -> Register:
    return Register(ledger, [PLACE])


def test_a_death_excuses_memory_alone_and_only_what_was_there(
    ledger: Ledger, register: Register
) -> None:
    def publish(publisher: Publisher) -> None:
        ledger.publish("t", publisher.number, register.attempt(publisher, 10))

    def finish(publisher: Publisher, numbers: range) -> None:
        for number in numbers:
            ledger.finish(PLACE, publisher.number, number)

    memory, durable = register.enter("t", 0, "memory"), register.enter("t", 0, "fsync")
    elsewhere = register.enter("t", 1, "memory")
    for publisher in (memory, durable, elsewhere):
        publish(publisher)
        finish(publisher, range(8))
    register.died(0)
    publish(memory)
    finish(memory, range(11, 20))
    (found,) = register.accounts()
    assert found.forgotten == 2
    assert broken(found) == {"lost": 1 + 2 + 2}
    assert register.owed == 5


def test_what_was_not_answered_when_it_died_is_excused_as_well(
    ledger: Ledger, register: Register
) -> None:
    """The OK of an unanswered publish may be in transit."""
    publisher = register.enter("t", 0, "memory")
    numbers = register.attempt(publisher, 5)
    register.died(0)
    ledger.publish("t", publisher.number, numbers)
    (found,) = register.accounts()
    assert (found.lost, found.forgotten) == (0, 5)


def test_messages_of_others_are_foreign(register: Register) -> None:
    publisher, other = register.enter("t", 0, "os"), register.enter("u", 0, "os")
    for each in (publisher, other):
        register.attempt(each, 1)
    assert register.knows(PLACE, publisher.number, 0)
    assert not register.knows(PLACE, publisher.number, 1)
    assert not register.knows(PLACE, other.number, 0)
    assert not register.knows(PLACE, 9, 0)
    (found,) = register.accounts()
    assert broken(found) == {"foreign": 3}
    assert not register.knows(("churn", "c"), publisher.number, 0)
    assert register.strays == {"foreign": 1}


# --- resources of processes ---------------------------------------------------------------------


def life(seconds: int, rss: Any, **last: int) -> Life:
    """Return a process with a sample every two seconds."""
    found = Life("nsqd", 1)
    for at in range(0, seconds, 2):
        found.samples.append(Sample(float(at), int(rss(at)), 0, fds=20, threads=4))
    found.samples[-1] = found.samples[-1]._replace(**last)
    return found


def test_a_leak_grows() -> None:
    found = slope(life(1800, lambda at: 50e6 + at * 30e6 / 3600))
    assert found is not None and found.judged and found.grows
    assert found.an_hour == pytest.approx(30e6, rel=0.02)


def test_what_grows_little_is_not_a_leak_nor_is_a_backlog() -> None:
    slow = slope(life(1800, lambda at: 50e6 + at * 10e6 / 3600))
    large = slope(life(1800, lambda at: 1e9 + at * 40e6 / 3600))
    backlog = slope(life(1800, lambda at: 50e6 + (at > 900) * (at % 30 > 12) * 500e6))
    for found in (slow, large, backlog):
        assert found is not None and found.judged and not found.grows


def test_the_warm_up_does_not_count_and_a_short_life_is_not_judged() -> None:
    warm = slope(life(1800, lambda at: 50e6 * min(1.0, at / 50)))
    assert warm is not None and abs(warm.an_hour) < 1e6
    short = slope(life(300, lambda at: 50e6 + at * 1e6))
    assert short is not None and not short.judged and not short.grows
    assert slope(life(10, lambda at: 1)) is None


def test_the_floor_is_the_least_of_each_span() -> None:
    assert floors([(0, 5), (4, 3), (29, 9), (31, 7), (70, 1)]) == [(4, 3), (31, 7), (70, 1)]


def test_descriptors_and_threads_are_given_back() -> None:
    before = [life(10, lambda at: 1)]
    now = before[0].samples[0]
    assert left_behind(before, {1: now, 2: now._replace(fds=1000)}) == []
    slack = watch.SLACK["fds"]
    assert left_behind(before, {1: now._replace(fds=now.fds + slack)}) == []
    (told,) = left_behind(before, {1: now._replace(fds=now.fds + slack + 1)})
    assert told == f"nsqd 1 had 20 fds and has {21 + slack}"
    assert len(left_behind(before, {1: now._replace(threads=50)})) == 1


# --- the state of nsqds -------------------------------------------------------------------------

LOG = """
[nsqd] 2026/11/22 07:21:24.507037 WARNING: worker 1: killed by signal 9 (Killed)
[nsqd] 2026/11/22 07:21:25.507037 WARNING: worker 0: {}
"""
TRACE = """
Traceback (most recent call last):
  File "x.py", line 1, in f
    f()
OSError: gone
"""


def test_a_worker_dies_by_our_hand_alone() -> None:
    assert balance.complaints("nsqd 0", LOG.format("killed by signal 9 (Killed)"), killed=2) == []
    (told,) = balance.complaints("nsqd 0", LOG.format("stopped"), killed=0)
    assert told == "nsqd 0: 1 workers were killed by somebody else"
    for how in ("killed by signal 11 (Segmentation fault)", "exited with status 1: crashed"):
        (told,) = balance.complaints("nsqd 0", LOG.format(how), killed=1)
        assert told.endswith(how)


def test_a_traceback_is_reported_by_its_last_line() -> None:
    assert balance.complaints("nsqd 0", TRACE, 0) == ["nsqd 0: Traceback: OSError: gone"]
    told = balance.complaints("nsqd 0", TRACE * 7, 0)
    assert len(told) == balance.SHOWN + 1 and told[-1] == "nsqd 0: 2 more such lines"


def test_a_panic_is_reported_by_its_last_line() -> None:
    line = "[nsqd] ERROR: panic in HTTP handler - Traceback:\\n  File x\\n    y\\nE: a bug\\n\n"
    assert balance.complaints("nsqd 0", line, 0) == ["nsqd 0: panic: E: a bug"]


@pytest.mark.parametrize(
    ("finished", "dropped", "misses", "balances"),
    [
        (10, {}, False, True),
        (9, {"damaged": 1}, False, False),
        (9, {"damaged": 1}, True, True),
        (11, {"damaged": -1}, True, False),
        (9, {}, True, False),
        (9, {"emptied": 1}, True, False),
    ],
)
def test_books_that_balance(
    finished: int, dropped: dict[str, int], misses: bool, balances: bool
) -> None:
    """No channel is ever emptied, and messages that died with a worker or shortly before may be
    missing after its restart."""
    left = ("queued", "in_flight", "deferred", "dead_lettered", "expired", "redriven", "sampled")
    books = dict.fromkeys(left, 0) | {"received": 10, "finished": finished}
    books |= {"dropped": {"damaged": 0, "emptied": 0} | dropped}
    assert balance.balances(books, misses) is balances
    assert not balance.balances(books | {"queued": 1}, misses)


# --- a run --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_short_run_notices_what_was_lost_and_nothing_else(tmp_path: Path) -> None:
    """Some messages are finished without the ledger's knowledge; everything else must hold."""
    report = tmp_path / "report.html"
    words = ["--minutes=0.06", "--seed=1", "--nsqds=2", "--rate=300", "--pause=0.3-0.6"]
    words += ["--forget=5", f"--report={report}"]
    ran = subprocess.run(
        [sys.executable, "-m", "loadtest.chaos", *words],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 3, ran.stdout + ran.stderr
    figures = json.loads(report.with_suffix(".json").read_text())
    assert figures["broken"] and all(": lost " in each for each in figures["broken"]), ran.stdout
    assert sum(each["lost"] for each in figures["channels"]) == 5
    assert min(each["published"] for each in figures["channels"]) > 0
    assert len(figures["faults"]) >= 5
    assert "<svg" in report.read_text()
