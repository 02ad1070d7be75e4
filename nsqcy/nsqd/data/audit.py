"""Audit of a closed topic's log: its contents, and the effects that starting nsqd would have on it.

The audit runs nsqd's own startup code instead of duplicating its rules: `Log.recover` reads the
segments and the journal, the log's reads verify the records, and a `Shard` loads the topic as a
worker does. All of it runs on an I/O thread that cannot write. The audit itself only compares the
results: whether footers match the records, which sequence numbers are missing, and which channels
need them.

Records are read a few megabytes at a time, regardless of the log size. As at startup, the journal
and each segment without a footer are read into memory in their entirety.
"""

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from nsqcy.base.core import IdSource
from nsqcy.broker.core import Shard, Topic
from nsqcy.channels.core import SchedulerState
from nsqcy.config.policies import DURABILITIES, Policies
from nsqcy.errors import StartError
from nsqcy.formats import FormatError
from nsqcy.logging import events
from nsqcy.storage import journal
from nsqcy.storage.core import (
    BlockPool,
    Footer,
    IoThread,
    Log,
    LogProbe,
    Recovered,
    RunHandle,
    Survey,
    Unreadable,
    recover_log,
    recovered_runs,
    survey_run,
)

BATCH = 4 << 20  # bytes to read at a time
GAPS_SHOWN = 100
SURVIVORS, HAS_DELAYED = 1, 2  # run flags
_SEGMENT_HEADER = 64
_MEMORY = 1 << 30  # memory limit for loading a topic, bytes

Range = tuple[int, int]  # first and last seq
Progress = Callable[[str, int, int], object]  # topic, bytes read, bytes to read


# ---- findings


@dataclass
class Damage:
    """Unusable bytes and, if known, the seqs lost with them."""

    offset: int
    text: str
    first_seq: int | None = None
    last_seq: int | None = None


@dataclass
class SegmentFound:
    file: str
    bytes: int
    footer: bool  # a segment without a footer is scanned
    log_id: str | None  # from the file header; None if the header is damaged
    records: int = 0  # readable and not superseded
    first_seq: int | None = None
    last_seq: int | None = None
    damages: list[Damage] = field(default_factory=list)
    disagreements: list[str] = field(default_factory=list)  # differences between footer and records
    superseded: list[Range] = field(default_factory=list)  # seqs that newer segments also have
    unlinked: bool = False  # deleted at the next start because no channel needs it

    def saw(self, first: int, last: int, records: int) -> None:
        self.records += records
        self.first_seq = first if self.first_seq is None else min(first, self.first_seq)
        self.last_seq = last if self.last_seq is None else max(last, self.last_seq)


@dataclass
class JournalFound:
    bytes: int = 0
    entries: int = 0  # complete entries
    used: int = 0  # entries before the first invalid one
    damages: list[Damage] = field(default_factory=list)
    log_id: str | None = None
    durability: str | None = None
    clean: bool = False  # the last entry was written by a clean exit


@dataclass
class ChannelFound:
    """A channel as nsqd would load it at startup. `depth` and `deferred` are the values that /stats
    would show."""

    channel: str
    cursor: int
    paused: bool
    depth: int
    deferred: int
    again: int  # part of depth: delivered at least once
    lost: int  # part of depth: damaged, or missing from disk
    missing: int  # not part of depth: in the journal, but not on disk
    beyond: int = 0  # number of records from the last record on disk to the channel's cursor


@dataclass
class TopicFound:
    topic: str
    bytes: int = 0
    records: int = 0
    first_seq: int = 0
    next_seq: int = 0
    depth: int = 0  # the topic's own messages, not yet copied to channels
    lost: int = 0  # of depth
    log_id: str | None = None  # None: nsqd assigns a new one at startup
    segments: list[SegmentFound] = field(default_factory=list)
    journal: JournalFound | None = None
    channels: list[ChannelFound] = field(default_factory=list)
    gaps: list[Range] = field(default_factory=list)
    gaps_more: int = 0
    leftovers: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    start_says: list[str] = field(default_factory=list)
    refused: str | None = None  # why nsqd would refuse to start

    def damaged_files(self) -> Iterator[tuple[str, list[Damage]]]:
        for segment in self.segments:
            yield segment.file, segment.damages
        if self.journal is not None:
            yield "journal", self.journal.damages

    @property
    def damages(self) -> int:
        return sum(len(damages) for _, damages in self.damaged_files())

    @property
    def clean(self) -> bool:
        """Return whether nsqd would start without losing a message or redelivering a finished
        one."""
        if self.refused is not None or self.damages or self.start_says:
            return False
        if any(each.disagreements for each in self.segments):
            return False
        if not self.segments:
            return True
        # A kill leaves a segment without a footer, which may have lost its end since then.
        is_complete = not self.gaps or all(each.footer for each in self.segments)
        return is_complete and self.journal_is_last

    @property
    def journal_is_last(self) -> bool:
        """Return whether the journal has the final state."""
        found = self.journal
        return found is not None and found.clean and found.used == found.entries


# ---- seqs


def merged(ranges: Iterable[Range]) -> list[Range]:
    """Return the same seqs as ascending ranges, with adjacent ranges merged."""
    found: list[Range] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def without(ranges: Iterable[Range], others: Iterable[Range]) -> list[Range]:
    """Return the difference between two lists of merged ranges."""
    found = []
    others = list(others)
    index = 0
    for first, last in ranges:
        while index < len(others) and others[index][1] < first:
            index += 1
        at = index
        while at < len(others) and others[at][0] <= last:
            if others[at][0] > first:
                found.append((first, others[at][0] - 1))
            first = others[at][1] + 1
            at += 1
        if first <= last:
            found.append((first, last))
    return found


def both(ranges: list[Range], others: list[Range]) -> list[Range]:
    return without(ranges, without(ranges, others))


def size(ranges: Iterable[Range]) -> int:
    return sum(last - first + 1 for first, last in ranges)


# ---- auditing a topic


@dataclass
class _Run:
    segment: int
    offset: int
    bytes: int
    first_seq: int
    last_seq: int
    count: int
    flags: int
    first_time: int
    last_time: int
    handle: RunHandle

    @property
    def dense(self) -> bool:
        return not self.flags & SURVIVORS and self.last_seq - self.first_seq + 1 == self.count


@dataclass
class _Totals:
    """Totals of a segment's records, to compare with its footer."""

    records: int = 0
    first_seq: int | None = None
    last_seq: int = 0
    first_time: int = 0
    last_time: int = 0
    max_id: int = 0
    bytes: int = 0

    def add(self, run: _Run, survey: Survey) -> None:
        if self.first_seq is None:
            self.first_seq, self.first_time = run.first_seq, survey.first_time
        self.first_seq = min(self.first_seq, run.first_seq)
        self.last_seq = max(self.last_seq, run.last_seq)
        self.last_time = survey.last_time
        self.max_id = max(self.max_id, survey.max_id)
        self.records += survey.records
        self.bytes += run.bytes


class Audit:
    """Audit of one topic. known: the topic's channels in nsqd.dat, and whether each is paused."""

    def __init__(
        self,
        io: IoThread,
        data_path: str,
        topic: str,
        known: Mapping[str, bool],
        *,
        policies: Policies | None = None,
        quick: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self._io = io
        self._data_path = data_path
        self._known = known
        self._policies = policies
        self._quick = quick
        self._progress = progress or (lambda topic, done, total: None)
        self._directory = os.path.join(data_path, f"{topic}.topic")
        self.found = TopicFound(topic)
        self._segments: dict[int, SegmentFound] = {}
        self._runs: list[_Run] = []
        self._damaged: list[Range] = []  # seqs of the damaged records in dense runs
        self._places: dict[int, list[_Run]] = {}  # segment -> its runs, by offset
        self._damaged_places: dict[int, list[Range]] = {}  # segment -> first and last byte
        self._fresh: list[Damage] = []  # damage in the current run
        self._totals: dict[int, _Totals] = {}
        self._read_bytes = 0

    def run(self) -> TopicFound:
        found = self.found
        found.leftovers, found.unknown = _other_files(self._directory)
        try:
            log = Log(self._io, self._data_path, found.topic, on_damage=self._on_damage)
            recovered = recover_log(log)
            state = self._journal(recovered)
        except (FormatError, journal.JournalError, Unreadable) as error:
            found.refused = str(error)
            return found
        self._take_segments(recovered)
        if not self._quick:
            self._read_records(LogProbe(log))
        for segment in self._segments.values():
            segment.damages.sort(key=lambda each: each.offset)
            found.segments.append(segment)
        found.records = sum(each.records for each in found.segments)
        self._start(recovered, state)
        return found

    # -- recovery

    def _journal(self, recovered: Recovered) -> journal.TopicState | None:
        path = os.path.join(self._directory, "journal")
        damages = [Damage(*each[1:]) for each in recovered.damages if each[0] == path]
        if not recovered.journal and not damages:
            return None
        state = journal.replay(recovered.journal)
        self.found.journal = JournalFound(
            os.path.getsize(path),
            len(recovered.journal),
            _understood(recovered.journal),
            damages,
            state.log_id.hex() if state else None,
            DURABILITIES[state.durability] if state else None,
            bool(state and state.clean),
        )
        return state

    def _take_segments(self, recovered: Recovered) -> None:
        for number, length, log_id, footer in sorted(recovered.segments):
            self._segments[number] = SegmentFound(
                f"{number:020d}.seg",
                length,
                footer is not None,
                log_id.hex() if log_id else None,
            )
        for first, last, count, flags, first_time, last_time, handle in recovered_runs(recovered):
            number, offset, length = handle.pieces[0][:3]
            times = (first_time, last_time)
            run = _Run(number, offset, length, first, last, count, flags, *times, handle)
            self._runs.append(run)
            self._places.setdefault(number, []).append(run)
            self._segments[number].saw(first, last, count)
        for number, _offset, _bytes, first, last in recovered.overlaps:
            self._segments[number].superseded.append((first, last))
        self._footers = {number: footer for number, _, _, footer in recovered.segments if footer}
        for path, offset, text in recovered.damages:
            name = os.path.basename(path)
            if name == "journal":
                continue
            number = int(name[:20])
            # Recovery skips a segment that it cannot open.
            segment = self._segments.setdefault(number, SegmentFound(name, 0, False, None))
            segment.damages.append(Damage(offset, text, *self._lost_at(number, offset)))

    def _lost_at(self, segment: int, offset: int) -> tuple[int | None, int | None]:
        """Return the first and last seq lost to damage in a scanned segment, judged by the records
        around it."""
        runs = self._places.get(segment, [])
        behind = bisect_right(runs, offset, key=lambda run: run.offset)
        first = runs[behind - 1].last_seq + 1 if behind else None
        last = runs[behind].first_seq - 1 if behind < len(runs) else None
        if first is not None and last is not None and first > last:
            return None, None
        return first, last

    # -- records

    def _read_records(self, probe: LogProbe) -> None:
        """Read the records of segments that have a footer; recovery has scanned the others."""
        pending = 0
        total = sum(run.bytes for run in self._runs if run.segment in self._footers)
        for run in self._runs:
            if run.segment in self._footers:
                probe.read(run.handle, partial(self._was_read, run))
                pending += run.bytes
            if pending >= BATCH:
                self._io.drain_now()
                self._progress(self.found.topic, self._read_bytes, total)
                pending = 0
        self._io.drain_now()
        for number, footer in self._footers.items():
            segment = self._segments[number]
            if not segment.damages and not segment.superseded:
                totals = self._totals.get(number, _Totals())
                segment.disagreements += _disagreements(footer, totals)

    def _on_damage(self, path: str, offset: int, text: str) -> None:
        self._fresh.append(Damage(offset, text))

    def _was_read(self, run: _Run, error: int, data: bytearray) -> None:
        fresh, self._fresh = self._fresh, []
        self._read_bytes += run.bytes
        segment = self._segments[run.segment]
        segment.damages += fresh
        if error:
            path = os.path.join(self._directory, f"{run.segment:020d}.seg")
            self.found.refused = self.found.refused or str(Unreadable(error, path))
            return
        survey = survey_run(data)
        self._totals.setdefault(run.segment, _Totals()).add(run, survey)
        if survey.damaged:
            lost = [(run.offset + at, length, seq) for at, length, seq in survey.damaged]
            self._lost(run, fresh, lost)
            segment.records -= run.count - survey.records
        else:
            segment.disagreements += _run_disagreements(run, survey)

    def _lost(self, run: _Run, damages: list[Damage], lost: list[tuple[int, int, int]]) -> None:
        """Record damage. lost: (offset, bytes, seq) of each damaged record, sorted by offset. In a
        run with gaps, seqs are approximate."""
        places = self._damaged_places.setdefault(run.segment, [])
        places += merged((at, at + length - 1) for at, length, _ in lost)  # by offset
        if not run.dense:
            return
        self._damaged += merged((seq, seq) for _, _, seq in lost)
        for damage in damages:
            behind = [each.offset for each in damages if each.offset > damage.offset]
            end = min(behind, default=run.offset + run.bytes)
            seqs = [seq for at, _, seq in lost if damage.offset <= at < end]
            if seqs:
                damage.first_seq, damage.last_seq = seqs[0], seqs[-1]

    # -- loading, as at startup

    def _start(self, recovered: Recovered, before: journal.TopicState | None) -> None:
        found = self.found
        told = _Told()
        shard = _shard(self._io, self._data_path, self._policies, told)
        try:
            topic = shard.load_topic(found.topic.encode(), False, dict(self._known))
        except (OSError, FormatError, StartError) as error:
            found.refused = str(error)
            return
        self._io.drain_now()
        known = {f"{path} at {offset}: {text}" for path, offset, text in recovered.damages}
        found.start_says = [line for line in told.lines if line not in known]
        facts = topic.log_facts()
        found.bytes = sum(each.bytes for each in found.segments)
        found.first_seq, found.next_seq = facts["first_seq"], facts["next_seq"]
        old = recovered.log_id.hex() if recovered.log_id else None
        found.log_id = old if facts["log_id"] == old else None
        assert topic.log is not None
        kept = {number for number, live in LogProbe(topic.log).segments if live}
        for number, segment in self._segments.items():
            stays = segment.damages and segment.first_seq is None
            segment.unlinked = number not in kept and not stays
        self._compare(topic, recovered, before)

    def _compare(
        self, topic: Topic, recovered: Recovered, before: journal.TopicState | None
    ) -> None:
        found = self.found
        state = topic.saved_state()
        present = merged((run.first_seq, run.last_seq) for run in self._runs if run.dense)
        damaged = merged(self._damaged)
        if present:
            gaps = without([(present[0][0], found.next_seq - 1)], present)
            found.gaps, found.gaps_more = gaps[:GAPS_SHOWN], max(0, len(gaps) - GAPS_SHOWN)
        own = [(state.fanout_seq, found.next_seq - 1)]
        found.depth = topic.counters()["depth"]
        good = without(present, damaged)
        found.lost = size(without(without(own, _closed(state.holes)), good))
        saved = {each.name: each for each in before.channels} if before else {}
        for channel in state.channels:
            shown = topic.channels[channel.name].counters()
            old = saved.get(channel.name, journal.ChannelState(channel.name))
            ahead = _ahead(channel, state, state.fanout_seq)
            gone = without(ahead, present)
            # An entry without a record on disk was not restored, so depth does not include it.
            entries = journal.unpack_entries(old.entries if gone else b"")
            gone = without(gone, merged((e.seq, e.seq) for e in entries if _has(gone, e.seq)))
            lost = size(gone) + size(both(damaged, ahead))
            again = 0
            for entry in journal.unpack_entries(channel.entries):
                again += entry.attempts > 0
                lost += self._is_damaged(entry) and not _has(ahead, entry.seq)
            missing = self._missing(old, before, present) - size(gone) if before else 0
            found.channels.append(
                ChannelFound(
                    channel.name,
                    channel.cursor,
                    channel.paused,
                    shown["depth"],
                    shown["deferred_count"],
                    again,
                    lost,
                    max(0, missing),
                    max(0, old.cursor - max(recovered.next_seq, before.next_seq if before else 0)),
                )
            )

    def _is_damaged(self, entry: journal.Entry) -> bool:
        return _has(self._damaged_places.get(entry.segment, []), entry.offset)

    def _missing(
        self, channel: journal.ChannelState, state: journal.TopicState, present: list[Range]
    ) -> int:
        """Return the number of messages that a channel needs according to the journal, but that
        are not on disk."""
        gone = without(_ahead(channel, state, state.next_seq), present)
        entries = journal.unpack_entries(channel.entries)
        return size(gone) + sum(
            not self._holds(each) and not _has(gone, each.seq) for each in entries
        )

    def _holds(self, entry: journal.Entry) -> bool:
        """Return whether a run covers the position of an entry's record."""
        runs = self._places.get(entry.segment, [])
        at = bisect_right(runs, entry.offset, key=lambda run: run.offset) - 1
        return at >= 0 and entry.offset < runs[at].offset + runs[at].bytes


class _Told:
    """Collects the log lines that nsqd would write about a topic at startup.

    The audit itself makes writes fail, so their failures are left out.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, /, **fields: object) -> None:
        pass

    def warn(self, text: str, /, **fields: object) -> None:
        if fields.get("event") != events.write_failed.name:
            self.lines.append(text)

    error = warn


def _shard(io: IoThread, data_path: str, policies: Policies | None, told: _Told) -> Shard:
    """Return a worker's shard with enough state to load topics."""
    scheduler = SchedulerState(BlockPool(_MEMORY), mem_queue_size=0, max_msg_timeout=0)
    scheduler.now, scheduler.wall = time.monotonic_ns(), time.time_ns()
    return Shard(
        scheduler=scheduler,
        ids=IdSource(bytearray(8), 0),
        io=io,
        data_path=data_path,
        policies=policies,
        log=told,
    )


def _other_files(directory: str) -> tuple[list[str], list[str]]:
    """Return the files that nsqd left behind, and unknown files."""
    leftovers, unknown = [], []
    for name in sorted(os.listdir(directory)):
        number, _, suffix = name.partition(".")
        if name == "journal.tmp":
            leftovers.append(name)
        elif name != "journal" and not (
            len(number) == 20 and number.isdigit() and suffix in ("seg", "ids")
        ):
            unknown.append(name)
    return leftovers, unknown


def _understood(entries: list[bytes]) -> int:
    """Return the number of valid journal entries: the first invalid delta ends the journal."""
    for index, data in enumerate(entries[1:], 1):
        try:
            journal.decode_delta(data)
        except journal.JournalError:
            return index
    return len(entries)


def _disagreements(footer: Footer, totals: _Totals) -> list[str]:
    pairs = (
        ("records", footer.records, totals.records),
        ("first_seq", footer.first_seq, totals.first_seq or 0),
        ("last_seq", footer.last_seq, totals.last_seq),
        ("first_time", footer.first_time, totals.first_time),
        ("last_time", footer.last_time, totals.last_time),
        ("max_id", footer.max_id, totals.max_id),
        ("bytes", footer.data_end - _SEGMENT_HEADER, totals.bytes),
    )
    return [
        f"{name} is {said} in the footer and {seen} in the records"
        for name, said, seen in pairs
        if said != seen
    ]


def _run_disagreements(run: _Run, survey: Survey) -> list[str]:
    pairs = (
        ("count", run.count, survey.records),
        ("flags", run.flags, survey.flags),
        ("first_time", run.first_time, survey.first_time),
        ("last_time", run.last_time, survey.last_time),
    )
    return [
        f"{name} of the run at {run.offset} is {said} in the footer and {seen} in the records"
        for name, said, seen in pairs
        if said != seen
    ]


def _ahead(channel: journal.ChannelState, state: journal.TopicState, end: int) -> list[Range]:
    """Return the seqs ahead of a channel's cursor, up to `end`."""
    skipped = merged(_closed((*channel.finished, *state.holes)))
    return without(_closed([(max(1, channel.cursor), end)]), skipped)


def _closed(ranges: Iterable[tuple[int, int]]) -> list[Range]:
    """Convert half-open ranges [first, end) to closed ones."""
    return [(first, end - 1) for first, end in ranges if first < end]


def _has(ranges: list[Range], seq: int) -> bool:
    at = bisect_right(ranges, seq, key=lambda each: each[0]) - 1
    return at >= 0 and seq <= ranges[at][1]
