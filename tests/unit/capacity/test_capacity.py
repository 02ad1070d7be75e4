"""`nsqcy capacity`: the resources that loads need, its output, and its errors."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.capacity import main, measured, model
from nsqcy.capacity.model import Impossible, Need, Plan
from nsqcy.cli.main import main as nsqcy
from support.distribution_files import ROOT

# Only cores are scarce. The rate is relative to the benchmark results, which differ between
# machines.
RATE = round(0.5e6 / (measured.PUBLISH.value + measured.DELIVER.value))
BUSY = {"rate": RATE, "body_bytes": 200, "batch": 100, "ready": 1000, "consumers_away": "0s"}
BUSY |= {"host_network_mbit": 100_000}
RESULTS = json.loads((ROOT / "docs/benchmarks.json").read_text())["nsqd"]


def plan(**flags: Any) -> Plan:
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
    given = main.capacity.make_context("capacity", words).params
    return model.plan(main.load_of(given), main.host_of(given), given["headroom"] / 100)


def need(found: Plan, name: str) -> Need:
    (one,) = [each for each in found.needs if each.name == name]
    return one


def amount(found: Plan, name: str) -> float:
    return need(found, name).amount


def part(found: Plan, name: str, what: str) -> float:
    return sum(each.amount for each in need(found, name).parts if each.what == what)


def one_worker(found: Plan) -> float:
    """Return the cores that the load would use with a single worker."""
    return amount(found, "cores") - part(found, "cores", "overhead of multiple workers")


# --- the resources that a load needs ------------------------------------------------------------


def test_what_was_measured_together_is_the_sum_of_what_was_measured_apart() -> None:
    (row,) = [each for each in RESULTS if each["scenario"] == "MPUB and SUB+FIN at once"]
    found = plan(
        rate=round(row["rate"]), body_bytes=200, batch=200, ready=2500, consumers_away="0s"
    )
    # The estimate may be too high: it counts a system call for each command.
    assert 0.75 < one_worker(found) / (row["rate"] * row["daemon_us"] / 1e6) < 1.5


@pytest.mark.parametrize("scenario", ["1 k", "20 k", "200 k"])
def test_few_messages_a_turn(scenario: str) -> None:
    (row,) = [each for each in RESULTS if each["scenario"] == f"latency at {scenario} msg/s"]
    found = plan(rate=round(row["rate"]), body_bytes=200, batch=200, consumers_away="0s")
    assert one_worker(found) == pytest.approx(row["rate"] * row["daemon_us"] / 1e6, rel=0.01)


def test_disk_and_network() -> None:
    found = plan(rate=1000, body_bytes=952, channels=3, batch=10, retention="2h", durability="os")
    assert amount(found, "disk, written") == 1_000_000
    assert amount(found, "disk, kept") == 7200 * 1_000_000
    assert amount(found, "network, in") == 1000 * (4 + 952) + 100 * 40 + 3000 * 21
    assert amount(found, "network, out") == 3000 * (34 + 952)


def test_nothing_is_on_disk_of_what_never_waits() -> None:
    found = plan(rate=1000, consumers_away="0s")
    assert amount(found, "disk, written") == amount(found, "disk, kept") == 0
    assert any("--consumers-away" in note for note in found.notes)


def test_delays() -> None:
    found = plan(
        rate=100, body_bytes=152, channels=2, deferred=0.5, delay="2h", consumers_away="0s"
    )
    waiting = 100 * 0.5 * 7200
    memory = "memory for messages and clients"
    assert part(found, memory, "deferred messages") == waiting * 2 * 58
    assert amount(found, "disk, kept") == waiting * (200 + 2 * 48)
    assert part(found, "cores", "deferred messages becoming due") == pytest.approx(
        100 * measured.DUE.value / 1e6
    )
    assert any("--max-defer-timeout" in note for note in found.notes)


def test_connections() -> None:
    memory = "memory for messages and clients"
    plain, tls = (plan(rate=1, connections=1000, tls=tls) for tls in ("false", "true"))
    assert part(plain, memory, "connections") == 1000 * measured.CONNECTION.value
    assert part(tls, memory, "connections") == 1000 * measured.TLS_CONNECTION.value


def test_what_is_dearer() -> None:
    base = amount(plan(rate=1_000_000, topics=4, batch=100), "cores")
    for change in (
        {"batch": 1},
        {"ready": 1},
        {"channels": 2},
        {"tls": "true"},
        {"body_bytes": 10_000},
        {"durability": "fsync"},
        {"deferred": 0.01},
    ):
        assert (
            amount(plan(**{"rate": 1_000_000, "topics": 4, "batch": 100} | change), "cores") > base
        )


def test_the_scarcest_thing_decides() -> None:
    found = plan(rate=100_000, body_bytes=1000, durability="os", host_disk_mb=50, host_disk_gb=9999)
    assert found.nsqds == found.wanted["disk, written"] == 5  # 104.8 MB/s, at 25 MB/s each


def test_a_topic_has_one_worker() -> None:
    one, four = (plan(**BUSY, topics=topics) for topics in (1, 4))
    assert (one.workers, four.workers) == (1, 2)
    assert one.wanted["cores"] > four.wanted["cores"]
    assert any("each topic uses one worker" in note for note in one.notes)
    assert not any("each topic uses one worker" in note for note in four.notes)


def test_slower_cores() -> None:
    usual, half = (plan(**BUSY, topics=8, core_speed=speed) for speed in (1, 0.5))
    assert half.workers > usual.workers
    assert amount(usual, "cores") == pytest.approx(amount(half, "cores"), rel=0.2)


def test_syncs() -> None:
    found = plan(rate=10_000, batch=10, durability="fsync", sync_time="20ms")
    assert any("needs 20 concurrent publishes" in note for note in found.notes)


@pytest.mark.slow
@given(
    st.integers(1, 10_000_000),
    st.integers(1, 1_000_000),
    st.sampled_from(main.CLASSES),
    st.integers(1, 100),
)
def test_more_load_never_takes_less(rate: int, body: int, durability: str, channels: int) -> None:
    load = {"rate": rate, "body_bytes": body, "durability": durability, "channels": channels}
    found = plan(**load)
    assert all(each.amount >= 0 and part.source for each in found.needs for part in each.parts)
    for name in ("rate", "body_bytes", "channels"):
        more = plan(**{**load, name: load[name] * 2})  # type: ignore[operator]
        assert more.nsqds >= found.nsqds
        for one, other in zip(found.needs, more.needs, strict=True):
            assert other.amount >= one.amount * 0.999, (name, one.name)


# --- output -------------------------------------------------------------------------------------


def test_text(capfd: pytest.CaptureFixture[str]) -> None:
    assert nsqcy(["capacity", "--rate=1_000", "--channels=2", "--spare=2"]) == 0
    out, err = capfd.readouterr()
    assert err == ""
    assert out.startswith(
        "1,000 messages/s of 1,000 bytes, class memory, 1 topic with 2 channels\n"
    )
    assert "records <- size of a record (DISKFORMAT.md)\n" in out
    assert f"<- {measured.SLOW}" in out
    assert "1 nsqd and 2 spare nsqds, each with\n          1  worker\n" in out
    assert measured.MACHINE in out


def test_json(capfd: pytest.CaptureFixture[str]) -> None:
    assert nsqcy(["capacity", "--rate=1000", "--json", "--durability=os"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["flags"]["rate"] == 1000 and told["nsqds"] == told["spare"] == 1
    assert told["each"].keys() == {"workers", "memory_bytes", "disk_bytes"}
    for each in told["needs"]:
        assert each["amount"] == pytest.approx(sum(part["amount"] for part in each["parts"]))
        assert all(part["source"] for part in each["parts"])


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "--rate is required: messages published per second"),
        (["--rate=0"], "--rate is '0': expected > 0"),
        (["--rate=-5"], "--rate is '-5': expected > 0"),
        (["--rate=many"], "--rate is 'many': expected an integer"),
        (["--rate=1", "--durability=disk"], "--durability is 'disk': expected memory, os, fsync"),
        (["--rate=1", "--deferred=1.5"], "--deferred is '1.5': expected between 0 and 1"),
        (["--rate=1", "--deferred=nan"], "--deferred is 'nan': expected a number"),
        (["--rate=1", "--headroom=100"], "--headroom is '100': expected between 0 and 95"),
        (["--rate=1", "--retention=5"], "--retention is '5': expected a number with a unit"),
        (["--rate=1", "--host-cores=0"], "--host-cores is '0': expected > 0"),
        (["--rate=1", "--workers=2"], "unknown option --workers"),
        (["--rate=1", "more"], "got unexpected extra argument (more)"),
    ],
)
def test_bad_flags(words: list[str], text: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert nsqcy(["capacity", *words]) == 2
    assert capfd.readouterr().err.startswith(f"nsqcy capacity: {text}")


def test_a_host_that_is_too_small(capfd: pytest.CaptureFixture[str]) -> None:
    assert nsqcy(["capacity", "--rate=1", "--host-memory-gb=0.2"]) == 1
    assert "each host has too little memory for 5 processes" in capfd.readouterr().err
    with pytest.raises(Impossible):
        plan(rate=1, host_memory_gb=0.2)
