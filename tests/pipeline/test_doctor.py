"""Findings of doctor for scripted nsqds."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.doctor.findings import Finding, error, ok, warning
from nsqcy.pipeline import doctor, manifests
from nsqcy.pipeline.options import Options
from support.archive_files import LOG, HandmadeArchive
from support.fake_log_nsqd import FakeTopic, LogBroker

Ask = Callable[..., list[Finding]]


@pytest.fixture
def broker() -> Iterator[LogBroker]:
    broker = LogBroker()
    yield broker
    broker.close()


@pytest.fixture
def ask(broker: LogBroker) -> Ask:
    """Return doctor's findings about nsqds."""

    def run(**given: Any) -> list[Finding]:
        options = {"topic": "orders", "nsqd-tcp-address": (broker.address,)} | given
        return list(doctor.reachability(Options(doctor.OPTIONS, options)))

    return run


def test_a_topic_that_is_kept(broker: LogBroker, ask: Ask) -> None:
    broker.topics["orders"] = FakeTopic(LOG, 5)
    first, second = ask()
    assert first == ok(f"nsqd {broker.address} has logs to read")
    assert second.text.endswith(": 5 records in 5 bytes, kept without limit")


def test_topics_that_cannot_be_read(broker: LogBroker, ask: Ask) -> None:
    assert ask()[1] == warning(f"nsqd {broker.address} has no topic 'orders'")
    broker.topics["orders"] = FakeTopic(LOG, 5)
    broker.topics["orders"].kept = False
    assert ask()[1].level == "error" and "keeps no log" in ask()[1].text


def test_without_a_topic_only_addresses_are_tried(broker: LogBroker, ask: Ask) -> None:
    assert ask(topic=None) == [ok(f"nsqd {broker.address} has logs to read")]


def test_an_nsqd_of_somebody_else(ask: Ask) -> None:
    other = LogBroker(settings={"version": "1.3.0"})
    try:
        (found,) = ask(**{"nsqd-tcp-address": (other.address,)})
    finally:
        other.close()
    assert found.level == "error"
    assert "does not support topic_log (version nsqd/1.3.0)" in found.text


def test_lookupds_and_options(ask: Ask) -> None:
    given: dict[str, Any] = {"nsqd-tcp-address": (), "lookupd-http-address": ("127.0.0.1:1",)}
    (found,) = ask(**given)
    assert found.level == "error" and "no nsqlookupd answered" in found.text
    (found,) = ask(option={"fetchBites": "1m"})
    assert found == error("unknown option 'fetchBites'; did you mean 'fetchBytes'?")


def test_an_nsqd_on_a_copy_of_a_disk(broker: LogBroker, ask: Ask) -> None:
    copy = LogBroker()
    try:
        broker.topics["orders"], copy.topics["orders"] = FakeTopic(LOG, 5), FakeTopic(LOG, 7)
        addresses = tuple(sorted([broker.address, copy.address]))
        *_, last = ask(**{"nsqd-tcp-address": addresses})
    finally:
        copy.close()
    assert last.level == "error"
    assert f"nsqd {addresses[0]} and nsqd {addresses[1]} both have log {LOG}" in last.text


def test_how_far_a_job_is(broker: LogBroker, ask: Ask, tmp_path: Path) -> None:
    topic = broker.topics["orders"] = FakeTopic(LOG, 10)
    handmade = HandmadeArchive(tmp_path)
    state = str(manifests.hidden(tmp_path, "checkpoint"))
    assert ask(checkpoint=state)[0] == warning(f"checkpoint {state}: no batch yet")
    handmade.checkpoint({LOG: 8}, 3)
    first, *_, last = ask(checkpoint=state)
    assert first == ok(f"checkpoint {state}: batch 3 has been written")
    assert last.level == "ok" and last.text.endswith("the job is 3 records behind")
    topic.publish(10)
    last = ask(checkpoint=state)[-1]
    assert last.level == "warning"
    assert last.text.endswith("the job is 13 records behind, more than half of the kept records")
    topic.logs[0].let_go(9)
    last = ask(checkpoint=state)[-1]
    assert last.level == "error"
    assert last.text.endswith("retention removed 2 records that the job has not read")
    handmade.checkpoint({LOG: 8}, 3)
    (Path(state) / "offsets" / "3").write_text("?")
    assert ask(checkpoint=state)[0].level == "error"


def test_cursors_and_retention() -> None:
    meta: dict[str, Any] = {
        "topic": "orders",
        "log_id": LOG,
        "first_seq": 1,
        "next_seq": 11,
        "bytes": 1000,
        "retention": {"time": 90_000_000_000_000, "bytes": 5000},
        "cursors": [
            {"name": "a", "lag": 4, "overrun": True},
            {"name": "b", "lag": 0, "overrun": False},
        ],
    }
    kept, overrun, fine = doctor.log("h:1", meta, {})
    assert kept.text.endswith("1,000 bytes, kept for 25 h and kept up to 5,000 bytes")
    assert (
        overrun.level == "error"
        and "4 records behind, and retention has removed records after it" in overrun.text
    )
    assert fine.level == "ok"
    meta["retention"] = None
    assert "kept for cursors only" in next(doctor.log("h:1", meta, {})).text


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, level in [
        ("4.2.0", "ok"),
        ("5.0", "ok"),
        ("4.1.4", "error"),
        ("3.5.1", "error"),
    ]:
        monkeypatch.setattr(doctor, "version", lambda name, found=found: found)
        assert doctor.package("pyspark").level == level
