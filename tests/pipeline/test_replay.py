"""The decisions that replay makes, without Spark: parts, rounds, progress, and sink options."""

import datetime
import json
import os
import time
from pathlib import Path

import pytest

from nsqcy.errors import UsageError
from nsqcy.pipeline import publishing_plan, replay, rows
from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.options import parse
from nsqcy.pipeline.publishing_plan import Plan
from nsqcy.pipeline.rows import Part
from support.archive_files import LOG, OTHER, HandmadeArchive
from support.fake_log_nsqd import SECOND, FakeTopic, LogBroker


def options(*words: str) -> replay.Options:
    return parse("replay", {"replay": replay.OPTIONS}, words)


def plan(**changes: object) -> Plan:
    given = {
        "name": "replay-1",
        "asked": {"to": "again", "topic": "orders"},
        "nsqds": ("127.0.0.1:4150",),
        "tasks": 2,
        "round_rows": 100,
        "parts": (Part("orders", LOG, 1, 251), Part("orders", OTHER, 7, 11)),
    }
    return Plan(**(given | changes))  # type: ignore[arg-type]


def test_rounds_are_parts_of_a_log() -> None:
    assert [(part.log_id, part.start, part.end) for part in plan().rounds()] == [
        (LOG, 1, 101),
        (LOG, 101, 201),
        (LOG, 201, 251),
        (OTHER, 7, 11),
    ]
    assert plan().after(5).after(6) == plan(done=2, rows=11)
    assert plan().producer(3) == "replay-1-3"
    assert (
        len(publishing_plan.new_name() + "-" + "9" * 9) <= 64
    )  # maximum length of a producer's name


def test_what_is_done_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "state" / "x.json"
    asked = {"to": "again", "topic": "orders"}
    assert publishing_plan.load(path, asked) is None
    for saved in (plan(), plan(done=2, rows=150)):
        publishing_plan.save(path, saved)
        assert publishing_plan.load(path, asked) == saved
    assert [each.name for each in path.parent.iterdir()] == ["x.json"]
    with pytest.raises(
        UsageError, match=r"--topic 'orders'; this replay has 'bills': choose a different"
    ):
        publishing_plan.load(path, asked | {"topic": "bills"})
    changed = json.loads(path.read_text()) | {"v": 2}
    path.write_text(json.dumps(changed))
    with pytest.raises(publishing_plan.Damaged, match="is damaged: it does not match its checksum"):
        publishing_plan.load(path, asked)
    del changed["crc32"]  # as an earlier nsqcy wrote it
    path.write_text(json.dumps(changed))
    with pytest.raises(
        publishing_plan.Damaged, match="version 2, but this nsqcy supports version 1"
    ):
        publishing_plan.load(path, asked)
    path.write_text("{}")
    with pytest.raises(publishing_plan.Damaged, match="is not a replay plan"):
        publishing_plan.load(path, asked)


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        publishing_plan.locked(tmp_path / "x.json"),
        pytest.raises(publishing_plan.Busy, match="another run is using"),
        publishing_plan.locked(tmp_path / "x.json"),
    ):
        pass


def test_the_same_replay_has_the_same_file() -> None:
    def path(*words: str) -> Path:
        return publishing_plan.default_path(
            "replay", "again", replay.asked_for(options(*words), "again")
        )

    same = path("--topic=orders")
    assert same.name.startswith("replay-again-")
    assert path("--topic=orders", "--nsqd-tcp-address=10.0.0.1:1", "--round-rows=5") == same
    assert path("--topic=orders", "--option=authSecret=x") == same
    for other in ("--rate=5", "--where=true", "--headers=false", "--end=2026-01-31T07:00:00"):
        assert path("--topic=orders", other) != same
    text = json.dumps(replay.asked_for(options("--topic=a", "--root=x", "--start=0"), "again"))
    assert json.loads(text)["start"] == "1970-01-01T00:00:00+00:00"


def test_what_is_done_needs_no_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay, "require_spark", lambda: None)
    monkeypatch.setattr(rows.Logs, "parts", lambda _: list(plan().parts))
    asked = replay.asked_for(options("--topic=orders"), "again")
    publishing_plan.save(tmp_path / "x.json", plan(asked=asked, done=4, rows=250))
    assert main(["replay", "--topic=orders", "--to=again", f"--state={tmp_path}/x.json"]) == 0
    warning, done = map(json.loads, capsys.readouterr().out.splitlines())
    assert warning["text"].endswith(
        "x.json records this replay as done; remove the file to repeat it"
    )
    assert done["rows"] == 250


class Rounds:
    """Replay whose rounds publish nothing, and may fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, parts: tuple[Part, ...]) -> None:
        self.done: list[tuple[int, Part]] = []
        self.fails_at = -1
        monkeypatch.setattr(replay, "require_spark", lambda: None)
        monkeypatch.setattr(replay, "make_session", lambda *_: None)
        monkeypatch.setattr(replay, "one_round", self._round)
        monkeypatch.setattr(rows.Logs, "parts", lambda _: list(parts))

    def _round(self, _spark: None, _options: object, _work: object, plan: Plan, part: Part) -> int:
        if plan.done == self.fails_at:
            raise OSError("the network is gone")
        self.done.append((plan.done, part))
        return part.rows


def test_rounds_are_done_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    work = Rounds(monkeypatch, plan().parts)
    words = ["replay", "--topic=orders", "--to=again", "--round-rows=100"]
    work.fails_at = 2
    assert main(words) == 1
    assert "the network is gone" in capsys.readouterr().err
    (state,) = tmp_path.glob("replay-again-*.json")
    yesterday = time.time() - 25 * 3600
    os.utime(state, (yesterday, yesterday))
    work.fails_at = -1
    assert main(words) == 0
    assert work.done == list(enumerate(plan().rounds()))
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[0]["text"] == "continuing with round 3"
    assert said[1]["text"].endswith("some rows may be duplicated")
    assert [(line["done"], line["total"]) for line in said if line["event"] == "progress"] == [
        (250, 254),
        (254, 254),
    ]
    assert said[-1]["rows"] == 254
    assert main(words) == 0 and len(work.done) == 4


@pytest.mark.parametrize("done", [1, 4])
def test_the_same_arguments_for_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    """Addresses are not arguments of a replay, because an nsqd may move and a cluster may grow."""
    path = tmp_path / "x.json"
    asked = replay.asked_for(options("--topic=orders"), "again")
    publishing_plan.save(path, plan(asked=asked, done=done, rows=250))
    words = ["replay", "--topic=orders", "--to=again", f"--state={path}"]
    before = path.read_bytes()
    third = "9c9c" * 8
    work = Rounds(monkeypatch, (Part("orders", third, 1, 8),))
    assert main(words) == 2
    assert (
        f"belongs to a replay with the logs {LOG},{OTHER}; this replay has {third}: choose a "
        "different --state"
    ) in capsys.readouterr().err
    work = Rounds(monkeypatch, (*plan().parts, Part("orders", third, 1, 8)))
    assert main([*words, "--to-nsqd-tcp-address=10.0.0.1:4150"]) == 2
    assert (
        "the destinations 127.0.0.1:4150; this replay has 10.0.0.1:4150" in capsys.readouterr().err
    )
    assert work.done == [] and path.read_bytes() == before
    assert main(words) == 0
    assert len(work.done) == 4 - done


def test_of_nothing_there_is_no_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Rounds(monkeypatch, ())
    assert main(["replay", "--topic=orders", "--to=again"]) == 0
    assert not list(tmp_path.glob("*.json"))


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in [
        (["--topic=a"], "--to is required"),
        (["--to=b"], "exactly one of --topic, --topics and --topics-pattern is required"),
        (["--to=b", "--topic=a", "--root=nowhere"], "there is no archive at nowhere"),
        (["--to=b", f"--root={tmp_path}"], "--root requires --topic or --topics"),
        (["--to=b", "--topic=a", "--start=today"], "--start is 'today': expected ISO 8601"),
        (["--to=b#ephemeral", "--topic=a"], "--to is 'b#ephemeral': expected a topic name"),
    ]:
        assert main(["replay", *words]) == 2
        assert said in capsys.readouterr().err


def test_where_it_goes() -> None:
    def given(*words: str) -> dict[str, str]:
        return replay.destination(options("--topic=a", *words), "b")

    assert given() == {"topic": "b", "nsqdTcpAddresses": "127.0.0.1:4150"}
    found = given(
        "--lookupd-http-address=10.0.0.1:4161",
        "--option=authSecret=x",
        "--option=cursor=c",
        "--to-option=batchBytes=2m",
    )
    assert found == {
        "topic": "b",
        "lookupdHttpAddresses": "10.0.0.1:4161",
        "authSecret": "x",
        "batchBytes": "2m",
    }
    assert given("--nsqd-tcp-address=a:1", "--to-nsqd-tcp-address=b:1") == {
        "topic": "b",
        "nsqdTcpAddresses": "b:1",
    }


def test_parts_of_logs() -> None:
    broker = LogBroker()
    try:
        broker.topics["orders"] = FakeTopic("aa" * 16, 1000)
        source = rows.source_of(
            options(
                "--topic=orders",
                f"--nsqd-tcp-address={broker.address}",
                f"--start={(1_700_000_000 + 11) * 1000}",
                "--option=connectTimeoutMs=5000",
            ),
            headers=True,
        )
        (part,) = source.parts()
        assert part == Part("orders", "aa" * 16, 11, 1001)
        assert broker.topics["orders"].logs[0].records[10].timestamp == (1_700_000_011) * SECOND
        assert isinstance(source, rows.Logs)
        given = source.given(Part("orders", "aa" * 16, 11, 21))
        assert given == {
            "nsqdTcpAddresses": broker.address,
            "connectTimeoutMs": "5000",
            "topic": "orders",
            "startingOffsets": '{"orders": {"%s": 11}}' % ("aa" * 16),
            "endingOffsets": '{"orders": {"%s": 21}}' % ("aa" * 16),
            "pushdown": "true",
        }
    finally:
        broker.close()


def test_parts_and_files_of_an_archive(tmp_path: Path) -> None:
    archive = HandmadeArchive(tmp_path)
    archive.batch({LOG: range(1, 101), OTHER: range(5, 8)}, "dt=2026-01-31/hr=07")
    archive.batch({LOG: range(101, 201)}, "dt=2026-01-31/hr=08")

    def source(*words: str) -> rows.Archive:
        found = rows.source_of(
            options("--topic=orders", f"--root={tmp_path}", *words), headers=True
        )
        assert isinstance(found, rows.Archive)
        return found

    assert source().parts() == [Part("orders", LOG, 1, 201), Part("orders", OTHER, 5, 8)]
    early, late = "--end=2026-01-31T07:59:59Z", "--start=2026-01-31T09:00:00+01:00"
    assert source(early).parts() == [Part("orders", LOG, 1, 101), Part("orders", OTHER, 5, 8)]
    assert source(late).parts() == [Part("orders", LOG, 101, 201)]
    assert source("--start=2026-02-01").parts() == []

    assert [file.path.split("/")[2] for file in source().files(Part("orders", LOG, 100, 102))] == [
        "hr=07",
        "hr=08",
    ]
    assert len(source().files(Part("orders", LOG, 101, 102))) == 1
    assert source().files(Part("orders", LOG, 201, 300)) == []


def test_instants() -> None:
    def parsed(text: str) -> datetime.datetime:
        found = options(f"--start={text}")["start"]
        assert isinstance(found, datetime.datetime)
        return found

    day = datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC)
    for text in ("2026-01-31T07:00", "2026-01-31T08:00+01:00", "2026-01-31T07:00Z"):
        assert parsed(text) == day
    assert parsed(str(round(day.timestamp() * 1000))) == day
    assert replay.microseconds(day) == round(day.timestamp() * 1_000_000)
    exact = day.replace(microsecond=123_457)
    assert parsed(rows.exactly(exact)) == exact
    assert rows.exactly(None) == ""
