"""Parts of metrics: the table, the lines of topics and channels, and sums that never decrease."""

import gzip
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from nsqcy.errors import RequestError
from nsqcy.metrics import exposition
from nsqcy.metrics.families import (
    AGE_BOUNDS,
    BY_DAEMON,
    CHANNELS,
    OPTIONAL,
    SYNC_BOUNDS,
    TOPICS,
    TURN_BOUNDS,
)
from nsqcy.nsqadmin.metrics import outcome
from nsqcy.nsqd.stats import metrics_shares, page_buffer
from nsqcy.nsqd.stats.metrics_other_series import Growing, Summed
from nsqcy.server.core import CHANNEL_NAMES, TOPIC_NAMES, Exposition, bounds
from nsqcy.storage.core import IoThread
from support.worker_core import MILLISECOND, Core

ROOT = Path(__file__).parents[3]


def text_of(lines: Exposition) -> str:
    families = range(len(metrics_shares.LINES))
    return b"".join(lines.take(family, bytes) for family in families).decode()


def walked(core: Core, limit: int = 100) -> tuple[dict[str, Any], Exposition]:
    """Return the samples of topics and channels, by name and label values."""
    lines = Exposition(core.shard, limit, *metrics_shares.NAMES)
    assert not lines.go_on(1000)
    found = {}
    for family in parse(text_of(lines)):
        for sample in family.samples:
            found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found, lines


# The table


def test_names_follow_the_rules_of_prometheus() -> None:
    for daemon, families in BY_DAEMON.items():
        names = [family.name for family in families]
        assert len(set(names)) == len(names)
        assert all(name.startswith((f"{daemon}_", "process_")) for name in names)
    for family in (family for families in BY_DAEMON.values() for family in families):
        assert family.help.endswith(".")
        assert not family.name.endswith(("_total", "_info", "_count", "_sum", "_bucket"))


def test_the_table_has_a_family_for_each_figure() -> None:
    """The families are in the same order as in the compiled code."""
    for prefix, families, figures in (
        ("nsqd_topic_", TOPICS, TOPIC_NAMES),
        ("nsqd_channel_", CHANNELS, CHANNEL_NAMES),
    ):
        names = [family.name.removeprefix(prefix) for family in families]
        assert all(figure in name for figure, name in zip(figures, names, strict=True))
        assert [f"{prefix}{figure}" for figure in figures if figure in names] == [
            family.name for family in families if family.name.removeprefix(prefix) in figures
        ]


def test_buckets_are_where_the_compiled_part_has_them() -> None:
    assert bounds("ages") == AGE_BOUNDS
    assert bounds("syncs") == SYNC_BOUNDS
    assert bounds("turns") == TURN_BOUNDS


# Lines


def test_names_are_escaped() -> None:
    """Escaping is tested with names that no client can create."""
    core = Core(None)
    core.create('a"b\\c\nd').channel('e"')
    found, _ = walked(core)
    assert found['nsqd_topic_depth a"b\\c\nd'] == 0
    assert found['nsqd_channel_depth a"b\\c\nd e"'] == 0


def test_the_longest_names_have_room() -> None:
    core = Core(None)
    topic, channel = '"' * 64, "\\" * 64
    core.create(topic).channel(channel)
    found, _ = walked(core)
    assert f"nsqd_channel_depth {topic} {channel}" in found
    core.create('"' * 200)
    with pytest.raises(ValueError, match="too long"):
        walked(core)


def test_ages_of_messages_that_are_finished(tmp_path: Path) -> None:
    """A FIN that arrives alone counts with the age of its message; FINs that arrive together count
    with the age of the first message."""
    core = Core(tmp_path)
    consumer = core.client().subscribe("t", "c", ready=10)
    producer = core.client()
    for _ in range(4):
        producer.publish("t", b"x")
    core.settle()
    first, *others = consumer.messages()
    core.advance(MILLISECOND)
    consumer.finish(first.id)
    core.advance(MILLISECOND)
    consumer.send(*(b"FIN %b\n" % message.id for message in others))
    consumer.finish(first.id)  # no longer in flight, so not counted
    found, _ = walked(core)
    name = "nsqd_topic_e2e_latency_seconds"
    counts = [found[f"{name}_bucket t {bound!r}"] for bound in AGE_BOUNDS]
    assert counts == [0, 1, *[4] * (len(AGE_BOUNDS) - 2)]
    assert found[f"{name}_bucket t +Inf"] == found[f"{name}_count t"] == 4
    assert found[f"{name}_sum t"] == pytest.approx(0.007)


def test_an_age_that_is_negative_counts_as_none(tmp_path: Path) -> None:
    """The clock was set back."""
    core = Core(tmp_path)
    consumer = core.client().subscribe("t", "c", ready=1)
    core.client().publish("t", b"x")
    core.settle()
    (message,) = consumer.messages()
    core.wall -= 10**12
    core.advance(0)
    consumer.finish(message.id)
    found, _ = walked(core)
    name = "nsqd_topic_e2e_latency_seconds"
    assert found[f"{name}_bucket t {AGE_BOUNDS[0]!r}"] == found[f"{name}_count t"] == 1
    assert found[f"{name}_sum t"] == 0


def test_nobody_loses_the_series_that_it_has(tmp_path: Path) -> None:
    core = Core(tmp_path)
    for name in ("a", "b"):
        core.create(name).channel("c")
    found, lines = walked(core, limit=3)
    assert "nsqd_channel_depth a c" in found and "nsqd_topic_depth b" in found
    assert "nsqd_channel_depth b c" not in found
    assert lines.summed()["(other)"]["channels"] == 1
    core.create("new").channel("c")
    core.topic("a").delete_channel("c")
    found, _ = walked(core, limit=3)
    assert "nsqd_topic_depth new" in found
    found, lines = walked(core, limit=3)
    assert "nsqd_channel_depth b c" not in found
    assert lines.summed()["(other)"]["channels"] == 2


def test_what_goes_while_it_is_walked_over_is_counted_once(tmp_path: Path) -> None:
    core = Core(tmp_path)
    topic = core.create("t")
    topic.channel("kept")
    topic.channel("x#ephemeral")
    core.client().publish("t", b"x")
    core.settle()
    lines = Exposition(core.shard, 100, *metrics_shares.NAMES)
    assert lines.go_on(1)
    topic.delete_channel("x#ephemeral")
    topic.delete_channel("kept")
    assert not lines.go_on(3)
    text = text_of(lines)
    assert 'nsqd_channel_messages_total{topic="t",channel="#ephemeral"} 1\n' in text
    assert 'channel="kept"' not in text
    found, _ = walked(core)
    assert found["nsqd_channel_messages_total t #ephemeral"] == 1


@pytest.mark.parametrize("compress", [False, True])
def test_a_share_is_made_in_slices(compress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of each family are together, even if they are from different slices."""
    monkeypatch.setattr(metrics_shares, "SLICE", 2)
    monkeypatch.setattr(metrics_shares, "COMPRESSED_SLICES", 2)
    core = Core(None)
    for name in ("a", "b", "t"):
        core.create(name).channel("c")
    sheet, turns = page_buffer.SharedBuffer(), []
    lines = Exposition(core.shard, 100, *metrics_shares.NAMES)
    writer = page_buffer.Writer(sheet.fd, 3)
    found = metrics_shares.share(lines, {"tcp": 1}, writer, compress, lambda: turns.append(1))
    assert len(turns) > len(found["lengths"]) == (2 if compress else 4)
    assert found["worker"]["tcp"] == 1
    columns = page_buffer.pieces(3, found["lengths"])
    page = page_buffer.read(
        sheet.fd, page_buffer.plan(piece for column in columns for piece in column), lambda: None
    )
    text = gzip.decompress(page).decode() if compress else bytes(page).decode()
    names = [line.partition("{")[0] for line in text.splitlines()]
    assert [name for name, _ in groupby(names)] == list(dict.fromkeys(names))
    optional = [sum(each in OPTIONAL for each in table) for table in (TOPICS, CHANNELS)]
    assert len(names) == 3 * (len(TOPICS) - optional[0]) + 3 * (len(CHANNELS) - optional[1])


class Watched:
    """Lines of a walk that record whether any of them was requested."""

    def __init__(self, lines: Exposition) -> None:
        self._lines = lines
        self.is_asked = False

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any) -> Any:
            self.is_asked = True
            try:
                return getattr(self._lines, name)(*args)
            finally:
                self.is_asked = False

        return ask


def test_nobody_gives_way_beneath_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/internals/testing.md gives the reason for this test."""
    monkeypatch.setattr(metrics_shares, "BULK", 0)
    core = Core(None)
    core.create("t").channel("c")
    sheet, turns = page_buffer.SharedBuffer(), []
    lines: Any = Watched(Exposition(core.shard, 100, *metrics_shares.NAMES))
    metrics_shares.share(
        lines,
        {},
        page_buffer.Writer(sheet.fd, 0),
        False,
        lambda: turns.append(lines.is_asked),
    )
    assert len(turns) > len(metrics_shares.LINES) / 2
    assert not any(turns)


def test_there_are_no_other_families() -> None:
    lines = Exposition(Core(None).shard, 100, *metrics_shares.NAMES)
    for number in (-1, len(metrics_shares.LINES)):
        with pytest.raises(IndexError):
            lines.size(number)
        with pytest.raises(IndexError):
            lines.take(number, bytes)


def test_pieces_are_where_they_were_written() -> None:
    sheet = page_buffer.SharedBuffer()
    writer = page_buffer.Writer(sheet.fd, 1)
    rows = [[writer.write(data).length for data in row] for row in ([b"a", b"1"], [b"bc", b"23"])]
    columns = page_buffer.pieces(1, rows)
    plan = page_buffer.plan([*columns[0], *columns[1]])
    assert page_buffer.read(sheet.fd, plan, lambda: None) == b"abc123"


def test_a_page_is_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_buffer, "BULK", 4)
    sheet, turns = page_buffer.SharedBuffer(), []
    first, second = page_buffer.Writer(sheet.fd, 0), page_buffer.Writer(sheet.fd, 1)
    pieces = [first.write(b"one "), second.write(b"three "), first.write(b""), first.write(b"two ")]
    plan = page_buffer.plan([pieces[0], pieces[3], pieces[2], pieces[1]])
    assert page_buffer.read(sheet.fd, plan, lambda: turns.append(1)) == b"one two three "
    assert len(turns) == 3


def test_a_piece_that_is_missing_is_an_error() -> None:
    sheet = page_buffer.SharedBuffer()
    piece = page_buffer.Writer(sheet.fd, 0).write(b"one")
    assert page_buffer.read(sheet.fd, b"", lambda: None) == b""
    with pytest.raises(OSError, match="cannot read the page"):
        page_buffer.read(sheet.fd, page_buffer.plan([piece._replace(length=4)]), lambda: None)


def test_syncs_are_timed_by_lane(tmp_path: Path) -> None:
    io = IoThread(stepped=True)
    file = io.open(tmp_path / "f", create=True)
    file.write(b"x", 0)
    file.do("sync", lane="awaited")
    io.on_path_now("sync", tmp_path, lane="background")
    io.kick_now()
    io.drain_now()
    times = io.sync_times()
    assert {lane: sum(counts) for lane, (counts, _) in times.items()} == {
        "awaited": 1,
        "background": 1,
    }
    assert all(seconds > 0 for _, seconds in times.values())
    io.close()


# Sums across workers


def test_a_sum_keeps_what_a_worker_had_before_it_was_restarted() -> None:
    sums = Growing()
    assert sums.total() == []
    sums.look(0, 1, [10, 1])
    sums.look(1, 1, [5, 5])
    assert sums.total() == [15, 6]
    sums.look(0, 1, [9, 3])  # a topic was deleted during the walk
    assert sums.total() == [15, 8]
    sums.look(0, 2, [1, 0])
    assert sums.total() == [16, 8]


def test_nothing_is_shown_of_nothing() -> None:
    summed = Summed("(other)")
    share = {"topic": [0] * 9, "channel": [0] * 12, "ages": ([0] * 13, 0.0), "topics": 0}
    summed.look({0: {**share, "channels": 0}}, {0: 1})
    assert list(summed.topics()) == list(summed.channels()) == [] and summed.ages() is None
    summed.look({0: {**share, "topic": [3, 30, 0, 0, 0, 2, 0, 0, 0], "channels": 0}}, {0: 1})
    assert [value for _, value in summed.topics()] == [3, 30, 0, 2, 0]
    summed.look({}, {})
    assert [value for _, value in summed.topics()] == [3, 30, 0, 0, 0]


# Requests to other workers


@pytest.mark.parametrize(
    "error, counted",
    [
        (RequestError("timed out"), "timeout"),
        (RequestError("Connection refused"), "unreachable"),
        (RequestError("the response has more than 10 bytes", 200), "bad"),
    ],
)
def test_what_became_of_a_request(error: RequestError, counted: str) -> None:
    assert outcome(error) == counted


# Forms


@pytest.mark.parametrize(
    "accept, content_type",
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html," * 1000 + "application/openmetrics-text", "text/plain; version=0.0.4; "),
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text; version=1."),
    ],
)
def test_who_gets_which_form(accept: str, content_type: str) -> None:
    assert exposition.choose(accept, "").content_type.startswith(content_type)
