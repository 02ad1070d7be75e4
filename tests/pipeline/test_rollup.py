"""Minutes and their files without Spark: merged, closed, late and rewritten ones."""

import datetime
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline import checkpoint, manifests, minutes, plots, rollup, state_files, streams
from nsqcy.pipeline.__main__ import main
from nsqcy.pipeline.minutes import (
    AGE,
    ATTEMPTS,
    FINISH,
    IN_FLIGHT,
    PUBLISH,
    SIZE,
    Count,
    Key,
    State,
    Step,
    Values,
)
from nsqcy.pipeline.options import Options, parse
from support.archive_files import LOG, OTHER, QUERY, HandmadeArchive

START = 1_769_842_800 // 60  # 2026-01-31T07:00Z
WATERMARK = 120.0


def count(
    key: Key, value: int, rows: int = 1, *, kind: str = PUBLISH, measure: str = SIZE
) -> Count:
    bucket = math.floor(math.log2(max(value, 1)) * minutes.BUCKETS)
    last = key.minute * 60 + 59
    return Count(key, kind, measure, bucket, rows, value * rows, value, value, last)


def orders(minute: int, nsqd: str = "n1", channel: str = "") -> Key:
    return Key("orders", channel, nsqd, START + minute)


def advance(state: State, *counts: Count) -> Step:
    return minutes.advance(state, counts, WATERMARK)


def times(keys: Iterable[Key]) -> list[int]:
    return sorted(key.minute - START for key in keys)


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_percentiles_are_near(share: float) -> None:
    values = [round(1.01**n) + 3 for n in range(1500)]
    found = Values()
    for value in values:
        each = count(orders(0), value)
        found.add(each.bucket, 1, value, value, value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    percentile = found.percentile(share)
    assert percentile is not None and abs(percentile / exact - 1) < 0.044
    assert (found.rows, found.low, found.high) == (1500, 4, max(values))


def test_percentiles_of_one_value_are_exact() -> None:
    found = Values()
    found.add(106, 1000, 100_000, 100, 100)
    assert [found.percentile(share) for share in (0.0, 0.5, 1.0)] == [100, 100, 100]
    assert Values().percentile(0.5) is None


def test_a_minute_is_closed_by_its_own_log() -> None:
    state = State()
    step = advance(state, count(orders(0), 5), count(orders(1), 5), count(orders(0, "n2"), 5))
    assert not step.closed
    step = advance(state, count(orders(2), 5))
    assert not step.closed  # 2:59 is only 1:59 after the end of minute 0
    step = advance(state, count(orders(3), 5))
    assert list(step.closed) == [orders(0)]
    assert list(state.open) == [orders(1), orders(0, "n2"), orders(2), orders(3)]


def test_nothing_is_late_within_a_batch() -> None:
    """One batch contains a backlog of several minutes, in reverse order."""
    state = State()
    step = advance(state, *(count(orders(minute), 5) for minute in range(10, -1, -1)))
    assert step.late_rows == 0 and not step.late
    assert times(step.closed) == list(range(8)) and times(state.open) == [8, 9, 10]


def test_the_channels_of_an_nsqd_have_one_clock() -> None:
    state = State()
    advance(state, count(orders(0, channel="c"), 1, kind=FINISH, measure=ATTEMPTS))
    later = Key("bills", "d", "n1", START + 3)
    step = advance(state, count(later, 1, kind=FINISH, measure=ATTEMPTS))
    assert list(step.closed) == [orders(0, channel="c")]


def test_late_rows_have_rows_of_their_own(tmp_path: Path) -> None:
    state = State()
    for each in (0, 1, 5):
        minutes.write_days(tmp_path, state, advance(state, count(orders(each), 10, 7)))
    for _ in range(2):
        step = advance(state, count(orders(0), 20, 3), count(orders(5), 10))
        assert step.late_rows == 3
        minutes.write_days(tmp_path, state, step)
    assert state.late == 6
    found = rows_of(tmp_path, "topics")
    assert [(row["minute"].minute, row["count"], row["late"], row["closed"]) for row in found] == [
        (0, 7, False, True),
        (0, 3, True, True),
        (0, 3, True, True),
        (1, 7, False, True),
        (5, 9, False, False),
    ]


def rows_of(root: Path, kind: str) -> list[dict[str, Any]]:
    found = [row for path in minutes.files(root, kind) for row in pq.read_table(path).to_pylist()]
    return sorted(found, key=lambda row: (row["minute"], row["late"], row["batch"]))


def test_a_day_is_a_file() -> None:
    assert orders(17 * 60 - 1).day == "2026-01-31"
    assert orders(17 * 60).day == "2026-02-01"


def test_a_batch_that_is_repeated_changes_nothing(tmp_path: Path) -> None:
    """The driver is killed after writing the days' files, before saving the state."""
    batches = [
        [count(orders(each), 10, 5), count(orders(17 * 60 - 2 + each), 10), count(orders(0), 9)]
        for each in range(8)
    ]
    for batch in batches:
        state = minutes.load(tmp_path)
        minutes.write_days(tmp_path, state, advance(state, *batch))
        before = {kind: rows_of(tmp_path, kind) for kind in ("topics", "channels")}
        state = minutes.load(tmp_path)
        step = advance(state, *batch)
        minutes.write_days(tmp_path, state, step)
        assert {kind: rows_of(tmp_path, kind) for kind in before} == before
        minutes.save(tmp_path, state)
    assert sum(row["count"] for row in rows_of(tmp_path, "topics")) == 8 * 7
    assert len(list(minutes.files(tmp_path, "topics"))) == 2
    assert not list(tmp_path.rglob("*.partial"))


def test_what_a_killed_batch_wrote_is_undone(tmp_path: Path) -> None:
    """Rows may not be repeated in one batch, because Spark's checkpoint may be older now."""
    first = [count(orders(0), 10, 5)]
    state = minutes.load(tmp_path)
    minutes.write_days(tmp_path, state, advance(state, *first))
    minutes.save(tmp_path, state)
    before = rows_of(tmp_path, "topics")
    advance_further = [count(orders(each), 10, 3) for each in (1, 17 * 60 + 5)]
    minutes.write_days(tmp_path, state, advance(state, *advance_further))
    assert rows_of(tmp_path, "topics") != before
    minutes.undo(tmp_path, minutes.load(tmp_path))
    assert [row | {"batch": 1} for row in rows_of(tmp_path, "topics")] == before
    minutes.undo(tmp_path, minutes.load(tmp_path))
    assert [row | {"batch": 1} for row in rows_of(tmp_path, "topics")] == before


def test_a_state_that_is_older_than_the_files(tmp_path: Path) -> None:
    """The state file was removed or restored from a copy; its minutes would be lost."""
    state = minutes.load(tmp_path)
    for minute in range(3):
        minutes.write_days(tmp_path, state, advance(state, count(orders(minute * 10), 10, 5)))
        minutes.save(tmp_path, state)
    before = rows_of(tmp_path, "topics")
    minutes.state_path(tmp_path).unlink()
    with pytest.raises(minutes.Damaged, match=r"state.json is missing or ends with batch 0"):
        minutes.undo(tmp_path, minutes.load(tmp_path))
    assert rows_of(tmp_path, "topics") == before


def test_a_flipped_byte_in_a_daily_file(tmp_path: Path) -> None:
    """The damage is detected before the file is merged with new rows, or plotted."""
    state = minutes.load(tmp_path)
    minutes.write_days(tmp_path, state, advance(state, count(orders(0), 10, 5)))
    minutes.save(tmp_path, state)
    (path,) = minutes.files(tmp_path, "topics")
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        with pytest.raises(minutes.Damaged, match=r"2026-01-31.parquet has changed"):
            minutes.write_days(tmp_path, state, advance(state, count(orders(1), 10, 5)))
        with pytest.raises(minutes.Damaged, match=r"2026-01-31.parquet has changed"):
            plots.read(tmp_path, "topics")
        assert path.read_bytes() == changed
    path.write_bytes(content)
    minutes.write_days(tmp_path, state, advance(state, count(orders(1), 10, 5)))
    minutes.days_path(tmp_path).write_text("{}")
    with pytest.raises(minutes.Damaged, match="is not a rollup's list of checksums"):
        plots.read(tmp_path, "topics")


def test_killed_between_the_checksums_and_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = minutes.load(tmp_path)
    minutes.write_days(tmp_path, state, advance(state, count(orders(0), 10, 5)))
    minutes.save(tmp_path, state)
    replace = state_files.replace

    def killed(path: Path, partial: Path) -> None:
        if path.suffix == ".parquet":
            raise KeyboardInterrupt
        replace(path, partial)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(state_files, "replace", killed)
            with pytest.raises(KeyboardInterrupt):
                minutes.write_days(tmp_path, state, advance(state, count(orders(1), 10, 5)))
        state = minutes.load(tmp_path)
    minutes.undo(tmp_path, state)
    minutes.write_days(tmp_path, state, advance(state, count(orders(1), 10, 5)))
    assert [row["count"] for row in rows_of(tmp_path, "topics")] == [5, 5]


def test_states_are_read_as_they_were_written(tmp_path: Path) -> None:
    assert minutes.load(tmp_path) == State()
    state = State("query", 3)
    advance(state, count(orders(0), 10, 5), count(orders(0, channel="c"), 3, kind=FINISH))
    minutes.save(tmp_path, state)
    assert minutes.load(tmp_path) == state
    for text, said in (("{}", "is not the state of a rollup"), ('{"v": 9}', "version 9, but this")):
        minutes.state_path(tmp_path).write_text(text)
        with pytest.raises(minutes.Damaged, match=said):
            minutes.load(tmp_path)


def test_rows(tmp_path: Path) -> None:
    state = State()
    key = orders(0, channel="c")
    advanced = advance(
        state,
        count(orders(0), 100, 60),
        *(count(key, n, 1, kind=FINISH, measure=ATTEMPTS) for n in (1, 1, 2, 3, 5, 6, 9)),
        count(key, 2_000_000, 7, kind=FINISH, measure=AGE),
        count(key, 1_000_000, 7, kind=FINISH, measure=IN_FLIGHT),
        count(key, 1, 4, kind="requeue", measure=ATTEMPTS),
        count(key, 2, 3, kind="timeout", measure=ATTEMPTS),
        count(key, 5, 2, kind="dead-letter", measure=ATTEMPTS),
        count(key, 5, 1, kind="expired", measure=ATTEMPTS),
    )
    minutes.write_days(tmp_path, state, advanced)
    minute = datetime.datetime(2026, 1, 31, 7, tzinfo=datetime.UTC)
    state_of_it = {"late": False, "closed": False, "batch": 1}
    assert rows_of(tmp_path, "topics") == [
        {
            "topic": "orders",
            "nsqd": "n1",
            "minute": minute,
            "count": 60,
            "bytes": 6000,
            "rate": 1.0,
            "size_min": 100,
            "size_p50": 100,
            "size_p95": 100,
            "size_p99": 100,
            "size_max": 100,
        }
        | state_of_it
    ]
    (row,) = rows_of(tmp_path, "channels")
    for name, value in {
        "channel": "c",
        "finished": 7,
        "requeued": 4,
        "timed_out": 3,
        "dead_lettered": 2,
        "expired": 1,
        "latency_p99_ms": 2.0,
        "in_flight_p50_ms": 1.0,
        "attempts_1": 2,
        "attempts_2": 1,
        "attempts_3_to_5": 2,
        "attempts_more": 2,
    }.items():
        assert row[name] == value, name


# --- the job ----------------------------------------------------------------------------------


class Counts(rollup.Counts):
    """A sink whose batches are counted without Spark: each row is in the first minute."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.handmade = HandmadeArchive(root)
        state = manifests.hidden(root, "checkpoint")
        options = parse("rollup", {"rollup": rollup.OPTIONS}, ["--topic=orders"])
        super().__init__(root, state, options, draws=False)
        monkeypatch.setattr(streams, "only", lambda frame, parts: parts)
        monkeypatch.setattr(rollup, "counted", self._counted)

    def batch(self, number: int, pos: dict[str, int], start: dict[str, int] | None = None) -> None:
        self.handmade.checkpoint(pos, number, start=start)
        self._planned = checkpoint.rows(self._state, number)
        frame: Any = self._planned
        self.write(frame, QUERY, number)

    def _counted(self, parts: Any, options: Options) -> Any:
        class Found:
            def collect(self) -> list[tuple[Any, ...]]:
                rows = sum(part.rows for part in parts)
                return [(*orders(0), PUBLISH, SIZE, 0, rows, rows, 1, 1, 60)] if rows else []

        return Found()


def test_rows_are_counted_once_whatever_the_number_of_their_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint lost its last files, or was restored from a copy."""
    sink = Counts(tmp_path, monkeypatch)

    def total() -> int:
        return sum(row["count"] for row in rows_of(tmp_path, "topics"))

    sink.batch(0, {LOG: 11}, {LOG: 1})
    sink.batch(1, {LOG: 21})
    sink.batch(1, {LOG: 21})
    assert total() == 20
    sink.batch(0, {LOG: 31, OTHER: 11}, {LOG: 1, OTHER: 1})
    assert total() == 40
    sink.prepare()
    sink.batch(0, {LOG: 31, OTHER: 11}, {LOG: 1, OTHER: 1})
    sink.batch(1, {LOG: 35, OTHER: 12})
    assert total() == 45
    # The checkpoint is lost: the next query begins after the counted rows.
    state = manifests.hidden(tmp_path, "checkpoint")
    assert rollup.beginning(tmp_path, state) == {}
    shutil.rmtree(state)
    pos = rollup.beginning(tmp_path, state)
    assert pos == {"orders": {LOG: 35, OTHER: 12}}
    given = rollup.given(
        parse("rollup", {"rollup": rollup.OPTIONS}, ["--topic=a", "--start=0"]), pos
    )
    assert json.loads(given["startingOffsets"]) == pos and "startingTimestamp" not in given


def test_a_repeated_batch_ends_before_the_rows_of_one_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch has new rows of another log. The rows after it in the first log are not counted
    again."""
    sink = Counts(tmp_path, monkeypatch)
    sink.batch(0, {LOG: 31}, {LOG: 1})
    sink.batch(0, {LOG: 21, OTHER: 8}, {LOG: 1, OTHER: 1})
    sink.batch(1, {LOG: 41, OTHER: 8})
    assert sum(row["count"] for row in rows_of(tmp_path, "topics")) == 47


def test_positions_of_an_earlier_nsqcy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query saved the number of its last batch, and Spark knows the end of that batch."""
    sink = Counts(tmp_path, monkeypatch)
    sink.batch(0, {LOG: 11}, {LOG: 1})
    state = minutes.load(tmp_path)
    state.pos = {}
    minutes.save(tmp_path, state)
    sink.batch(0, {LOG: 11}, {LOG: 1})
    sink.batch(1, {LOG: 15})
    assert sum(row["count"] for row in rows_of(tmp_path, "topics")) == 14


def test_the_topic_of_events_is_read_beside() -> None:
    def given(*words: str) -> dict[str, str]:
        return rollup.given(parse("rollup", {"rollup": rollup.OPTIONS}, words), {})

    found = given("--topic=orders")
    assert (found["topic"], found["startingOffsets"]) == ("orders", "earliest")
    assert found["columns"] == "topic,nsqd,log_id,seq,timestamp,body"
    found = given("--topic=orders", "--events", "--start=2026-01-31T07:00:00Z")
    assert "topic" not in found and found["topics"] == "orders,_nsqcy.events"
    assert found["startingTimestamp"] == "2026-01-31T07:00:00+00:00"
    assert given("--topics=a,b", "--events")["topics"] == "a,b,_nsqcy.events"
    found = given("--topics-pattern=a.*", "--lookupd-http-address=a:1", "--events")
    assert found["topicsPattern"] == r"(?:a.*)|_nsqcy\.events"


def test_mistakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rollup, "require_spark", lambda: None)
    minutes.save(tmp_path, State("query", 3, number=4))
    words = ["rollup", "--topic=a", f"--root={tmp_path}", "--plots=no"]
    assert main(words) == 2
    assert (
        "has counts from an earlier nsqcy but no checkpoint: use a different --root"
        in capsys.readouterr().err
    )
    assert main(["rollup"]) == 2
    monkeypatch.setattr("nsqcy.pipeline.session.find_spec", lambda name: None)
    assert main(["rollup", "--topic=a", "--plots=yes"]) == 1
    assert 'matplotlib is not installed: pip install "nsqcy[plots]"' in capsys.readouterr().err
