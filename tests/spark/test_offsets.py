"""Positions: the next rows to read, across incarnations, retention and limits."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsqcy.spark.batch_plan import advance, ranges, shares, split
from nsqcy.spark.errors import CopiedDisk, NsqError
from nsqcy.spark.offsets import (
    Log,
    Offset,
    Positions,
    Range,
    Settled,
    Shard,
    View,
    distinct,
    fit,
    settle,
)

OLD = Log("old", 1, 11, ended=True)
NEW = Log("new", 11, 21, ended=False)


def view(*shards: Shard, away: dict[str, list[str]] | None = None) -> View:
    return View(shards, away or {}, ("a:1", "b:1"))


def settled(pos: dict[str, int], *logs: Log, ends: dict[str, int] | None = None) -> Settled:
    """Determine the positions in topic `t` on one nsqd."""
    return settle(Offset({"t": pos}), view(Shard("t", "a:1", logs)), ends or {}, ["t"])


def test_offsets_are_sorted_texts() -> None:
    offset = Offset({"t": {"b": 2, "a": 1}, "s": {}}, {"t": {"b": 1}}, init=True, split=(2, 1))
    assert list(offset.as_json()) == ["from", "init", "pos", "split", "v"]
    assert str(offset.as_json()["pos"]) == "{'s': {}, 't': {'a': 1, 'b': 2}}"
    assert Offset.parse(offset.as_json()) == offset


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (
            {"v": 2, "pos": {}},
            "the checkpoint has offsets of version 2; this nsqcy supports version 1: use the nsqcy "
            "that wrote the checkpoint, or a new checkpointLocation",
        ),
        ({"v": 1}, "the checkpoint has an invalid offset: {'v': 1}"),
        (
            {"v": 1, "pos": {}, "split": 3},
            "the checkpoint has an invalid offset: {'v': 1, 'pos': {}, 'split': 3}",
        ),
        (
            {"v": 1, "pos": {"t": {"l": math.inf}}},
            "the checkpoint has an invalid offset: {'v': 1, 'pos': {'t': {'l': inf}}}",
        ),
        (
            {"v": 1, "pos": {}, "split": ["a", 1]},
            "the checkpoint has an invalid offset: {'v': 1, 'pos': {}, 'split': ['a', 1]}",
        ),
        ({"v": 1, "pos": 5}, "the checkpoint has an invalid offset: {'v': 1, 'pos': 5}"),
    ],
)
def test_checkpoints_that_are_refused(value: dict[str, object], text: str) -> None:
    with pytest.raises(NsqError) as caught:
        Offset.parse(value)
    assert str(caught.value) == f"nsq: {text}"


def test_the_rest_of_an_old_log_and_then_the_new_one() -> None:
    found = settled({"old": 5}, OLD, NEW)
    assert found.pos == {"t": {"old": 5, "new": 11}}
    assert found.start == {"t": {"new": 11}}
    there = view(Shard("t", "a:1", (OLD, NEW)))
    found_pos = advance(found, there, 4, None, None)
    assert found_pos == ({"t": {"old": 9, "new": 11}}, 4, True)
    found_pos = advance(found, there, 8, None, None)
    assert found_pos == ({"t": {"old": 11, "new": 13}}, 8, True)


def test_an_old_log_that_was_read_is_let_go() -> None:
    assert settled({"old": 11, "new": 12}, OLD, NEW).pos == {"t": {"new": 12}}
    # The old log is also dropped if more records were read than remain after a crash.
    found = settled({"old": 15}, OLD, NEW)
    assert (found.pos, found.losses) == ({"t": {"new": 11}}, [])


def test_logs_before_the_first_that_is_known_stay_unread() -> None:
    assert settled({"new": 21}, OLD, NEW).pos == {"t": {"new": 21}}


def test_losses() -> None:
    found = settled({"new": 5}, NEW)
    assert (found.pos, found.start) == ({"t": {"new": 11}}, {"t": {"new": 11}})
    assert found.losses[0].rows == 6
    assert str(found.losses[0].error()) == (
        "nsq: rows are lost: topic 't', log new on nsqd a:1: retention "
        "removed 6 rows from seq 5 on, and the first available seq is 11; set "
        "failOnDataLoss=false to continue without them"
    )
    found = settled({"new": 25}, NEW)
    assert found.pos == {"t": {"new": 21}}
    assert found.losses[0].text == (
        "rows are lost: topic 't', log new on nsqd a:1 had rows up to seq 25, but now "
        "ends before 21; the log was restored from an older copy, or a crash truncated it"
    )
    found = settled({"gone": 25}, NEW)
    assert found.pos == {"t": {"new": 11}}
    assert found.losses[0].text == (
        "rows are lost: topic 't', log gone is on none of the nsqds a:1,b:1, so seq 25 cannot "
        "be read; if the nsqd with the log is down, start it; the new log is new"
    )
    text = settled({"gone": 25}).losses[0].text
    assert text.endswith("; the nsqds have no other log of this topic")


def test_a_log_that_was_read_may_vanish() -> None:
    assert settled({"gone": 25}, NEW, ends={"gone": 25}).losses == []
    assert settled({"gone": 25}, NEW, ends={"gone": 26}).losses != []


def test_what_is_away_is_held() -> None:
    found = settle(Offset({"t": {"gone": 25}}), view(away={"t": ["b:1"]}), {}, ["t"])
    assert (found.pos, found.losses) == ({"t": {"gone": 25}}, [])


def test_a_lost_log_that_comes_back_continues_where_it_was() -> None:
    """The log's nsqd was only down, and nsqlookupds no longer listed it."""
    other = Log("other", 1, 8, ended=False)
    shards = Shard("t", "a:1", (NEW,)), Shard("t", "b:1", (other,))
    found = settle(Offset({"t": {"new": 15, "other": 5}}), view(shards[0]), {}, ["t"])
    assert (found.pos, found.lost) == ({"t": {"new": 15}}, {"t": {"other": 5}})
    assert len(found.losses) == 1
    offset = Offset(found.pos, found.start, lost=found.lost)
    assert Offset.parse(offset.as_json()) == offset
    found = settle(offset, view(shards[0]), {}, ["t"])
    assert (found.lost, found.losses) == ({"t": {"other": 5}}, [])
    found = settle(offset, view(*shards), {}, ["t"])
    assert (found.pos, found.lost) == ({"t": {"new": 15, "other": 5}}, {})
    pos, rows, is_full = advance(found, view(*shards), None, None, None)
    assert (rows, is_full) == (9, False)
    assert ranges(offset, Offset(pos, found.start)) == [
        Range("t", "new", 15, 21),
        Range("t", "other", 5, 8),
    ]


def test_ranges_begin_where_the_batch_began() -> None:
    start = Offset({"t": {"a": 5, "b": 9}}, init=True)
    end = Offset({"t": {"a": 8, "b": 9, "c": 4}}, {"t": {"a": 3, "c": 1}})
    assert ranges(start, end) == [Range("t", "a", 3, 8), Range("t", "c", 1, 4)]
    assert ranges(end, Offset({"t": {"a": 7}})) == []  # the end is before the start: no range
    with pytest.raises(NsqError, match=r"has no start position for log c of topic 't'$"):
        ranges(start, Offset({"t": {"c": 4}}))


def test_an_nsqd_at_two_addresses_is_read_once() -> None:
    one, other = (Shard("t", address, (OLD, NEW), instance="1") for address in ("a:1", "b:1"))
    assert distinct([other, one]) == [one]
    unknown, another = (replace(each, instance="") for each in (one, other))
    assert distinct([unknown, another]) == [unknown]
    elsewhere = replace(other, topic="u", instance="2")
    assert distinct([one, elsewhere]) == [one, elsewhere]


def test_a_copied_disk_is_read_where_its_logs_can_be_told_apart() -> None:
    one = Shard("t", "a:1", (OLD, NEW), instance="1")
    own = Log("own", 11, 13, ended=False)
    copy = Shard("t", "b:1", (OLD, own), instance="2")
    assert distinct([one, copy]) == [one, replace(copy, logs=(own,))]
    for logs in [(OLD, NEW), (replace(OLD, next_seq=12), own), (replace(OLD, ended=False),)]:
        with pytest.raises(CopiedDisk, match=r"nsqd a:1 and nsqd b:1 both have log .*; stop one"):
            distinct([one, replace(copy, logs=logs)])


def test_the_limit_by_bytes_is_by_the_mean_size() -> None:
    there = view(Shard("t", "a:1", (Log("x", 1, 1001, False),), bytes=100_000))
    for size, rows in [(1000, 10), (1, 1), (10**9, 1000)]:
        assert advance(Settled({"t": {"x": 1}}), there, None, size, None)[1] == rows


def test_nothing_beyond_the_cap() -> None:
    there = view(Shard("t", "a:1", (OLD, NEW)))
    found = Settled({"t": {"old": 5, "new": 11}})
    capped = advance(found, there, None, None, {"t": {"old": 8}})
    assert capped == ({"t": {"old": 8, "new": 11}}, 3, False)


def test_what_there_is_of_a_range() -> None:
    shard = Shard("t", "a:1", (NEW,))
    assert fit(shard, NEW, Range("t", "new", 12, 15)) == (Range("t", "new", 12, 15), [])
    part, losses = fit(shard, NEW, Range("t", "new", 1, 5))
    assert (part.rows, losses[0].rows) == (0, 4)
    part, losses = fit(shard, NEW, Range("t", "new", 12, 30))
    assert (part, len(losses)) == (Range("t", "new", 12, 21), 1)


@given(st.lists(st.integers(0, 1000), max_size=8), st.integers(0, 3000))
def test_shares(wanted: list[int], maximum: int) -> None:
    found = shares(wanted, maximum)
    assert sum(found) == min(maximum, sum(wanted))
    assert all(0 <= share <= want for share, want in zip(found, wanted, strict=True))
    if maximum >= len(wanted):
        assert all(share for share, want in zip(found, wanted, strict=True) if want)


def test_shares_are_in_proportion() -> None:
    assert shares([300, 100, 600], 100) == [30, 10, 60]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 5000)), max_size=5),
    st.integers(1, 40),
    st.sampled_from([1, 100]),
)
def test_split(logs: list[tuple[int, int]], pieces: int, minimum: int) -> None:
    parts = [Range("t", str(n), start, start + rows) for n, (start, rows) in enumerate(logs)]
    found = split(parts, pieces, minimum)
    for part in parts:
        mine = [each for each in found if each.log_id == part.log_id]
        assert (mine[0].start, mine[-1].end) == (part.start, part.end)
        assert all(one.end == two.start for one, two in itertools.pairwise(mine))
        assert len(mine) == 1 or min(each.rows for each in mine) >= minimum
    assert len(found) <= pieces + len(parts)


histories = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 30)),
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("read"), st.integers(1, 40)),
    ),
    max_size=30,
)


@given(histories)
def test_every_row_once_whatever_happens(history: list[tuple[str, int]]) -> None:
    """Compare the batches of a reader, over logs that grow and end, with a list of all records."""
    logs = [Log("0", 1, 1, ended=False)]
    offset = Offset({"t": {"0": 1}}, {"t": {"0": 1}})
    read: list[tuple[str, int]] = []
    for what, count in [*history, ("read", 10**6)]:
        last = logs[-1]
        if what == "publish":
            logs[-1] = Log(last.log_id, last.first_seq, last.next_seq + count, False)
        elif what == "begin":
            logs[-1] = Log(last.log_id, last.first_seq, last.next_seq, True)
            logs.append(Log(str(len(logs)), last.next_seq, last.next_seq, False))
        else:
            there = view(Shard("t", "a:1", tuple(logs)))
            found = settle(offset, there, {}, ["t"])
            assert not found.losses
            pos, rows, _ = advance(found, there, count, None, None)
            end = Offset(pos, found.start)
            batch = [
                (part.log_id, seq)
                for part in ranges(offset, end)
                for seq in range(part.start, part.end)
            ]
            assert len(batch) == rows <= count
            read += batch
            offset = end
    everything = [(log.log_id, seq) for log in logs for seq in range(log.first_seq, log.next_seq)]
    assert sorted(read) == sorted(everything)


def test_positions_are_json() -> None:
    found: Positions = Offset.parse({"v": 1, "pos": {"t": {"a": 1}}}).pos
    assert found == {"t": {"a": 1}}
