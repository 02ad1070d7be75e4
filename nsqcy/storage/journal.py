"""Content of a topic's journal: encodes and decodes the positions of the topic's channels.

Pure functions. Owns the encoding of snapshots and deltas (docs/DISKFORMAT.md, "Content of the
journal"); the log owns the framing and the checksums. Independent of files and live channels.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import islice
from typing import NamedTuple

from nsqcy.formats import JOURNAL

_VERSION = JOURNAL.number


class JournalError(ValueError):
    """The bytes are not a journal entry that this version can read."""


class Kind(IntEnum):
    """Kind of delta."""

    SNAPSHOT = 1
    CHANNEL_CREATED = 2
    CHANNEL_DELETED = 3
    CURSOR_MOVED = 4
    ENTRY_ADDED = 5
    ENTRY_FINISHED = 6
    CURSOR_NAMED = 7
    ENTRY_TRANSFERRED = 8


class State(IntEnum):
    """State of a message that has been delivered or requeued."""

    QUEUED = 0
    DEFERRED = 1
    MOVING = 2  # to another topic


class Entry(NamedTuple):
    """A message that a channel still needs, and the location of its record."""

    seq: int
    segment: int
    offset: int
    due: int = 0  # wall clock, ns; 0: not deferred; in transfer: the transfer number
    attempts: int = 0
    state: int = State.QUEUED
    size: int = 0  # size of the body; 0: unknown
    reason: int = 0  # reason for a transfer

    def pack(self) -> bytes:
        return ENTRY.pack(*self[:6], self.reason, self.size)


ENTRY = struct.Struct("<QQQqHBBI")


def _entry(packed: tuple[int, ...]) -> Entry:
    seq, segment, offset, due, attempts, state, reason, size = packed
    return Entry(seq, segment, offset, due, attempts, state, size, reason)


def unpack_entries(entries: bytes) -> Iterator[Entry]:
    """Return the entries of a packed array."""
    return map(_entry, ENTRY.iter_unpack(entries))


def pack_entries(entries: Iterable[Entry]) -> bytes:
    """Return the packed array of these entries."""
    return b"".join(one.pack() for one in entries)


class TransferRun(NamedTuple):
    """A channel's messages in transfer to the topic `target`, starting with number `first`. They
    are published as chunks of this epoch, each message under its own number."""

    first: int
    epoch: int
    target: str


@dataclass(frozen=True, slots=True)
class ChannelState:
    """A channel's state. `cursor` is its position. `skipped` is the number of records at or after
    the cursor that it will skip: records with a delay, which are kept as entries, and records in
    holes and finished ranges. `entries` are the unfinished messages, in queue order. `finished` are
    ranges [first, end) at or after the cursor. Before `replay_end`, records with a delay are not
    entries, because the channel was moved back to a position before them.

    `ids` are the entries' ids, 0 if unknown. `cancelled` are records that are not entries,
    regardless of other sections. `transfers` describe the numbers of the entries in transfer, in
    ascending order. `taken` are bits, one for each record from the cursor's multiple of 64 on: the
    records whose bits are set have left the channel out of log order. `paused_keys` are not
    delivered. `emptied_keys` have lost their records before a seq, whether or not their bits are
    set.
    """

    name: str
    paused: bool = False
    cursor: int = 0
    skipped: int = 0
    entries: bytes = b""
    finished: tuple[tuple[int, int], ...] = ()
    replay_end: int = 0
    ids: bytes = b""
    cancelled: frozenset[int] = frozenset()
    transfers: tuple[TransferRun, ...] = ()
    taken: bytes = b""
    paused_keys: tuple[bytes, ...] = ()
    emptied_keys: tuple[tuple[int, bytes], ...] = ()


class Incarnation(NamedTuple):
    """Records [first_seq, end) of a topic under the log_id that its readers know. The records of
    one log_id have no gaps, and no two logs share a pair of log_id and seq."""

    log_id: bytes
    first_seq: int
    end: int


@dataclass(frozen=True, slots=True)
class NamedCursor:
    """Position of a log reader: the next record that it reads in the log `log_id`, and its last use
    (wall clock, ns)."""

    name: str
    log_id: bytes
    seq: int
    used: int


@dataclass(frozen=True, slots=True)
class EpochState:
    """A producer's publishes in an epoch: its parts, packed (unpack_parts), and its last use (wall
    clock, ns)."""

    producer: int
    epoch: int
    used: int
    parts: bytes


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic's state at startup. `delayed` are records of the topic's own backlog that have a
    delay (their `due` is the delay); `holes` are ranges [first, end) of records that no channel
    receives.

    If `clean`, nothing was published after this state. `boot` identifies the machine's boot at the
    time of writing, and `durability` is the number of the topic's class at that time: both decide
    whether later records may be lost. `past` are the logs that ended at earlier starts, oldest
    first; `log_id` is the current log's ID.

    `epochs` cover the producers' chunks before record `produced_seq`, least recently used first.
    `missing` are ranges [first, end) of records that were not found in any file at startup and have
    been reported. `policies` is the note of `config.policies.Policies`, empty if there is none.
    `secret` is the topic's secret for the hashes of keys and ids, empty if no hash has been needed.
    `ids_files` are the files with the deduplication ids of the records before `ids_seq`, with their
    sizes; 0 if the topic has no such ids.
    """

    log_id: bytes
    next_seq: int = 1
    fanout_seq: int = 1
    paused: bool = False
    channels: tuple[ChannelState, ...] = ()
    delayed: bytes = b""
    holes: tuple[tuple[int, int], ...] = ()
    clean: bool = False
    boot: bytes = bytes(16)
    durability: int = 0
    cursors: tuple[NamedCursor, ...] = ()
    epochs: tuple[EpochState, ...] = ()
    produced_seq: int = 0
    past: tuple[Incarnation, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    policies: bytes = b""
    secret: bytes = b""
    ids_seq: int = 0
    ids_files: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """One change since the snapshot. `value` is a cursor or a seq, depending on the kind. A
    named-cursor delta has `cursor`, which is removed if `deleted`. A transfer delta has the
    `entry`, its `run` and whether the record has a delay; once the transfer is done, it has no
    entry."""

    kind: Kind
    channel: str
    value: int = 0
    paused: bool = False
    entry: Entry | None = field(default=None)
    cursor: NamedCursor | None = None
    deleted: bool = False
    run: TransferRun | None = None
    delayed: bool = False


# ---- encoding ----

_HEAD = struct.Struct("<HH")  # kind, version
_SECTION = struct.Struct("<HHI")  # type, 0, bytes that follow
_TOPIC = struct.Struct("<16sQQHHI")  # log_id, next_seq, fanout_seq, flags, 0, 0
_CHANNEL = struct.Struct("<QQHHI")  # cursor, skipped, flags, bytes of name, 0
_HOLE = struct.Struct("<QQ")  # first, end
_ORIGIN = struct.Struct("<16sHHI")  # boot, durability, 0, 0
_FINISHED = struct.Struct("<HHI")  # bytes of name, 0, 0
_REPLAY = struct.Struct("<HHIQ")  # bytes of name, 0, 0, end
_OF_CHANNEL = struct.Struct("<HHI")  # bytes of name, 0, 0
_ID = struct.Struct("<Q")
_PAST = struct.Struct("<16sQQ")  # log_id, first_seq, end
_DELTA = struct.Struct("<HHHHQ")  # kind, version, flags, bytes of name, value
_CURSOR = struct.Struct("<HHIQ16sq")  # bytes of name, 0, 0, seq, log_id, used
_PLACE = struct.Struct("<16sq")  # follows the name in a named cursor's delta: log_id, used
_SEQ = struct.Struct("<Q")
_PRODUCED = struct.Struct("<Q")  # the seq up to which the epochs are valid
_EPOCH = struct.Struct("<QQqII")  # producer, epoch, used, bytes of parts, 0
_PART = struct.Struct("<IIQ")  # part, ranges that follow and flags, chunk
_KEY = struct.Struct("<QB")  # seq, bytes of the key
_MISSING = struct.Struct("<II")  # first, end
_TRANSFERS = struct.Struct("<QQHHI")  # first, epoch, bytes of target, 0, 0

_SECTION_TOPIC, _SECTION_DELAYED, _SECTION_CHANNEL, _SECTION_HOLES = 1, 2, 3, 4
_SECTION_FINISHED, _SECTION_REPLAY, _SECTION_ORIGIN, _SECTION_PAST = 5, 6, 7, 8
_SECTION_CURSOR, _SECTION_PRODUCERS, _SECTION_TRANSFERS = 9, 10, 12
_SECTION_ENTRIES, _SECTION_IDS, _SECTION_MISSING = 13, 0x8001, 0x8002
_SECTION_POLICIES, _SECTION_SECRET, _SECTION_DEDUP = 0x8003, 0x8004, 0x8005
_SECTION_TAKEN, _SECTION_PAUSED_KEYS, _SECTION_EMPTIED_KEYS = 0x8006, 0x8007, 0x8008
_SECRET_BYTES = 16
_SECTION_OPTIONAL = 0x8000  # a reader that does not recognize such a section may skip it
_PAUSED, _CLEAN = 1, 2
_DELETED = 2  # flag in a delta
_ALONE = 0x80000000  # flag in a part
_HAS_DELAY = 4  # flag in a delta


def _pack_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    return b"".join(_HOLE.pack(*each) for each in ranges)


def _section(kind: int, *payload: bytes) -> tuple[bytes, ...]:
    """Return the section in parts. A channel's entries may be many megabytes, which the caller
    copies only once, when it joins the parts."""
    return (_SECTION.pack(kind, 0, sum(map(len, payload))), *payload)


class PartState(NamedTuple):
    """A part's chunk, and the ranges of its missing messages. It is the part's highest accepted
    chunk or, if `alone`, a higher chunk: chunks between the two may be missing."""

    part: int
    chunk: int
    missing: tuple[tuple[int, int], ...] = ()
    alone: bool = False


def pack_part(state: PartState) -> bytes:
    ranges = [_MISSING.pack(*each) for each in state.missing]
    flags = _ALONE if state.alone else 0
    return _PART.pack(state.part, len(ranges) | flags, state.chunk) + b"".join(ranges)


def unpack_parts(parts: bytes) -> Iterator[PartState]:
    """Unpack an epoch's parts. Raises JournalError if the bytes are not packed parts."""
    at = 0
    while at < len(parts):
        if len(parts) - at < _PART.size:
            raise JournalError("a producer's part is truncated")
        part, count, chunk = _PART.unpack_from(parts, at)
        at += _PART.size
        end = at + (count & ~_ALONE) * _MISSING.size
        if end > len(parts):
            raise JournalError("a producer's part is truncated")
        missing = tuple(_MISSING.iter_unpack(parts[at:end]))
        yield PartState(part, chunk, missing, bool(count & _ALONE))
        at = end


def _pack_cursor(cursor: NamedCursor) -> bytes:
    name = cursor.name.encode("ascii")
    return _CURSOR.pack(len(name), 0, 0, cursor.seq, cursor.log_id, cursor.used) + name


def _pack_epochs(state: TopicState) -> list[bytes]:
    pieces = [_PRODUCED.pack(state.produced_seq)]
    for each in state.epochs:
        pieces.append(_EPOCH.pack(each.producer, each.epoch, each.used, len(each.parts), 0))
        pieces.append(each.parts)
    return pieces


def encode_snapshot(state: TopicState) -> bytes:
    """Return the journal's first entry."""
    parts = [_HEAD.pack(Kind.SNAPSHOT, _VERSION)]
    flags = (_PAUSED if state.paused else 0) | (_CLEAN if state.clean else 0)
    topic = _TOPIC.pack(state.log_id, state.next_seq, state.fanout_seq, flags, 0, 0)
    parts.extend(_section(_SECTION_TOPIC, topic))
    if state.boot != bytes(16):
        origin = _ORIGIN.pack(state.boot, state.durability, 0, 0)
        parts.extend(_section(_SECTION_ORIGIN, origin))
    if state.past:
        parts.extend(_section(_SECTION_PAST, *(_PAST.pack(*one) for one in state.past)))
    if state.delayed:
        parts.extend(_section(_SECTION_DELAYED, state.delayed))
    if state.holes:
        parts.extend(_section(_SECTION_HOLES, _pack_ranges(state.holes)))
    if state.missing:
        parts.extend(_section(_SECTION_MISSING, _pack_ranges(state.missing)))
    if state.policies:
        parts.extend(_section(_SECTION_POLICIES, state.policies))
    if state.secret:
        parts.extend(_section(_SECTION_SECRET, state.secret))
    if state.ids_seq:
        head = _SEQ.pack(state.ids_seq)
        parts.extend(_section(_SECTION_DEDUP, head, _pack_ranges(state.ids_files)))
    for cursor in state.cursors:
        parts.extend(_section(_SECTION_CURSOR, _pack_cursor(cursor)))
    if state.produced_seq:
        parts.extend(_section(_SECTION_PRODUCERS, *_pack_epochs(state)))
    for channel in state.channels:
        name = channel.name.encode("ascii")
        flags = _PAUSED if channel.paused else 0
        if channel.finished:
            head = _FINISHED.pack(len(name), 0, 0)
            ranges = _pack_ranges(channel.finished)
            parts.extend(_section(_SECTION_FINISHED, head, name, ranges))
        if channel.replay_end:
            head = _REPLAY.pack(len(name), 0, 0, channel.replay_end)
            parts.extend(_section(_SECTION_REPLAY, head, name))
        if channel.transfers:
            head = _OF_CHANNEL.pack(len(name), 0, 0)
            parts.extend(
                _section(_SECTION_TRANSFERS, head, name, *map(_pack_run, channel.transfers))
            )
        if channel.taken:
            head = _OF_CHANNEL.pack(len(name), 0, 0)
            first = _ID.pack(channel.cursor)
            parts.extend(_section(_SECTION_TAKEN, head, name, first, channel.taken))
        for kind, keys in (
            (_SECTION_PAUSED_KEYS, [(0, key) for key in channel.paused_keys]),
            (_SECTION_EMPTIED_KEYS, channel.emptied_keys),
        ):
            if keys:
                head = _OF_CHANNEL.pack(len(name), 0, 0)
                packed = (_KEY.pack(seq, len(key)) + key for seq, key in keys)
                parts.extend(_section(kind, head, name, *packed))
        head = _CHANNEL.pack(channel.cursor, channel.skipped, flags, len(name), 0)
        parts.extend(_section(_SECTION_CHANNEL, head, name, channel.entries))
    return b"".join(parts)


def encode_entries(channel: str, entries: bytes, ids: bytes) -> bytes:
    """Return sections that may follow a channel's section: more of the channel's entries, and their
    ids."""
    name = channel.encode("ascii")
    head = _OF_CHANNEL.pack(len(name), 0, 0)
    return b"".join(
        (
            *_section(_SECTION_ENTRIES, head, name, entries),
            *_section(_SECTION_IDS, head, name, ids),
        )
    )


def _pack_run(run: TransferRun) -> bytes:
    target = run.target.encode("ascii")
    return _TRANSFERS.pack(run.first, run.epoch, len(target), 0, 0) + target


def _unpack_runs(raw: bytes) -> Iterator[TransferRun]:
    at = 0
    while at < len(raw):
        if len(raw) - at < _TRANSFERS.size:
            raise JournalError("transfers of a channel are truncated")
        first, epoch, length, _, _ = _TRANSFERS.unpack_from(raw, at)
        at += _TRANSFERS.size
        yield TransferRun(first, epoch, _name(raw[at : at + length]))
        at += length
    if at > len(raw):
        raise JournalError("transfers of a channel are truncated")


def encode_delta(delta: Delta) -> bytes:
    """Return a later entry of the journal."""
    if delta.kind == Kind.ENTRY_TRANSFERRED:
        name = delta.channel.encode("ascii")
        flags = _HAS_DELAY if delta.delayed else 0
        head = _DELTA.pack(delta.kind, _VERSION, flags, len(name), delta.value) + name
        if delta.entry is None or delta.run is None:
            return head
        return head + delta.entry.pack() + _pack_run(delta.run)
    cursor = delta.cursor
    if cursor is not None:
        name = cursor.name.encode("ascii")
        flags = _DELETED if delta.deleted else 0
        head = _DELTA.pack(delta.kind, _VERSION, flags, len(name), cursor.seq)
        return head + name + _PLACE.pack(cursor.log_id, cursor.used)
    name = delta.channel.encode("ascii")
    flags = _PAUSED if delta.paused else 0
    head = _DELTA.pack(delta.kind, _VERSION, flags, len(name), delta.value)
    return head + name + (delta.entry.pack() if delta.entry else b"")


# ---- decoding ----


def _head(data: bytes) -> tuple[int, int]:
    if len(data) < _HEAD.size:
        raise JournalError("a journal entry is too short")
    kind, version = _HEAD.unpack_from(data)
    if not JOURNAL.reads(version):
        raise JournalError(JOURNAL.refusal(version))
    return kind, version


def _name(raw: bytes) -> str:
    if not raw or not raw.isascii():
        raise JournalError("a name is not ASCII")
    return raw.decode("ascii")


def _entries(raw: bytes) -> bytes:
    if len(raw) % ENTRY.size:
        raise JournalError("a list of entries is truncated")
    return raw


def _ranges(raw: bytes) -> tuple[tuple[int, int], ...]:
    if len(raw) % _HOLE.size:
        raise JournalError("a list of ranges is truncated")
    return tuple(_HOLE.iter_unpack(raw))


def _sections(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = _HEAD.size
    while at < len(data):
        if len(data) - at < _SECTION.size:
            raise JournalError("a section is truncated")
        kind, _, length = _SECTION.unpack_from(data, at)
        at += _SECTION.size
        if length > len(data) - at:
            raise JournalError("a section is truncated")
        yield kind, data[at : at + length]
        at += length


def _past(raw: bytes) -> tuple[Incarnation, ...]:
    if len(raw) % _PAST.size:
        raise JournalError("a list of logs is truncated")
    return tuple(Incarnation(*one) for one in _PAST.iter_unpack(raw))


def _decode_channel(raw: bytes) -> ChannelState:
    if len(raw) < _CHANNEL.size:
        raise JournalError("a channel is truncated")
    cursor, skipped, flags, length, _ = _CHANNEL.unpack_from(raw)
    end = _CHANNEL.size + length
    if end > len(raw):
        raise JournalError("a channel name is truncated")
    name = _name(raw[_CHANNEL.size : end])
    return ChannelState(name, bool(flags & _PAUSED), cursor, skipped, _entries(raw[end:]))


def _decode_finished(raw: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    if len(raw) < _FINISHED.size:
        raise JournalError("finished ranges are truncated")
    end = _FINISHED.size + _FINISHED.unpack_from(raw)[0]
    return _name(raw[_FINISHED.size : end]), _ranges(raw[end:])


def _decode_of_channel(raw: bytes, what: str, size: int) -> tuple[str, bytes]:
    if len(raw) < _OF_CHANNEL.size:
        raise JournalError(f"{what} of a channel are truncated")
    end = _OF_CHANNEL.size + _OF_CHANNEL.unpack_from(raw)[0]
    if (len(raw) - end) % size:
        raise JournalError(f"{what} of a channel are truncated")
    return _name(raw[_OF_CHANNEL.size : end]), raw[end:]


def _unpack_keys(raw: bytes) -> tuple[tuple[int, bytes], ...]:
    """Return keys with their seqs; those that are whole, if the section is truncated."""
    keys: list[tuple[int, bytes]] = []
    at = 0
    while len(raw) - at > _KEY.size:
        seq, length = _KEY.unpack_from(raw, at)
        at += _KEY.size + length
        if at > len(raw):
            break
        keys.append((seq, raw[at - length : at]))
    return tuple(keys)


def _decode_replay(raw: bytes) -> tuple[str, int]:
    if len(raw) < _REPLAY.size:
        raise JournalError("the section with a replay's end is truncated")
    length, _, _, end = _REPLAY.unpack_from(raw)
    if len(raw) != _REPLAY.size + length:
        raise JournalError("the end of a replay has the wrong size")
    return _name(raw[_REPLAY.size :]), end


def _decode_cursor(raw: bytes) -> NamedCursor:
    if len(raw) < _CURSOR.size:
        raise JournalError("a named cursor is truncated")
    length, _, _, seq, log_id, used = _CURSOR.unpack_from(raw)
    if len(raw) != _CURSOR.size + length:
        raise JournalError("a named cursor has the wrong size")
    return NamedCursor(_name(raw[_CURSOR.size :]), log_id, seq, used)


def _decode_epochs(raw: bytes) -> tuple[int, tuple[EpochState, ...]]:
    if len(raw) < _PRODUCED.size:
        raise JournalError("the producer table is truncated")
    at = _PRODUCED.size
    epochs = []
    while at < len(raw):
        if len(raw) - at < _EPOCH.size:
            raise JournalError("a producer's epoch is truncated")
        producer, epoch, used, length, _ = _EPOCH.unpack_from(raw, at)
        at += _EPOCH.size
        if length > len(raw) - at:
            raise JournalError("a producer's epoch is truncated")
        epochs.append(EpochState(producer, epoch, used, raw[at : at + length]))
        for _ in unpack_parts(epochs[-1].parts):
            pass
        at += length
    return _PRODUCED.unpack_from(raw)[0], tuple(epochs)


def decode_snapshot(data: bytes) -> TopicState:
    """Parse a snapshot. Raises JournalError if it is not a snapshot of a known version."""
    if _head(data)[0] != Kind.SNAPSHOT:
        raise JournalError("the journal does not start with a snapshot")
    state = None
    delayed = b""
    holes: tuple[tuple[int, int], ...] = ()
    channels: dict[str, ChannelState] = {}
    finished: dict[str, tuple[tuple[int, int], ...]] = {}
    replays: dict[str, int] = {}
    taken: dict[str, bytes] = {}
    paused_keys: dict[str, tuple[tuple[int, bytes], ...]] = {}
    emptied_keys: dict[str, tuple[tuple[int, bytes], ...]] = {}
    entries: dict[str, list[bytes]] = {}
    ids: dict[str, list[bytes]] = {}
    transfers: dict[str, tuple[TransferRun, ...]] = {}
    boot, durability = bytes(16), 0
    cursors: dict[str, NamedCursor] = {}
    produced_seq: int = 0
    epochs: tuple[EpochState, ...] = ()
    past: tuple[Incarnation, ...] = ()
    missing: tuple[tuple[int, int], ...] = ()
    policies = secret = b""
    ids_seq: int = 0
    ids_files: tuple[tuple[int, int], ...] = ()
    for kind, raw in _sections(data):
        if kind == _SECTION_TOPIC:
            if len(raw) != _TOPIC.size:
                raise JournalError("the topic section has the wrong size")
            log_id, next_seq, fanout_seq, flags, _, _ = _TOPIC.unpack(raw)
            state = TopicState(
                log_id,
                next_seq,
                fanout_seq,
                bool(flags & _PAUSED),
                clean=bool(flags & _CLEAN),
            )
        elif kind == _SECTION_ORIGIN:
            if len(raw) != _ORIGIN.size:
                raise JournalError("the origin has the wrong size")
            boot, durability, _, _ = _ORIGIN.unpack(raw)
        elif kind == _SECTION_PAST:
            past = _past(raw)
        elif kind == _SECTION_DELAYED:
            delayed = _entries(raw)
        elif kind == _SECTION_HOLES:
            holes = _ranges(raw)
        elif kind == _SECTION_MISSING:
            missing = _ranges(raw)
        elif kind == _SECTION_POLICIES:
            policies = raw
        elif kind == _SECTION_SECRET and len(raw) == _SECRET_BYTES:
            secret = raw
        elif kind == _SECTION_DEDUP and len(raw) % _HOLE.size == _SEQ.size:
            ids_seq = _SEQ.unpack_from(raw)[0]
            ids_files = _ranges(raw[_SEQ.size :])
        elif kind == _SECTION_CHANNEL:
            channel = _decode_channel(raw)
            channels[channel.name] = channel
        elif kind == _SECTION_FINISHED:
            name, ranges = _decode_finished(raw)
            finished[name] = ranges
        elif kind == _SECTION_ENTRIES:
            name, more = _decode_of_channel(raw, "entries", ENTRY.size)
            entries.setdefault(name, []).append(more)
        elif kind == _SECTION_TRANSFERS:
            name, more = _decode_of_channel(raw, "moves", 1)
            transfers[name] = tuple(_unpack_runs(more))
        elif kind == _SECTION_IDS:
            name, more = _decode_of_channel(raw, "ids", _ID.size)
            ids.setdefault(name, []).append(more)
        elif kind == _SECTION_CURSOR:
            cursor = _decode_cursor(raw)
            cursors[cursor.name] = cursor
        elif kind == _SECTION_PRODUCERS:
            produced_seq, epochs = _decode_epochs(raw)
        elif kind == _SECTION_TAKEN:
            name, bits = _decode_of_channel(raw, "taken records", _ID.size)
            taken[name] = bits
        elif kind in (_SECTION_PAUSED_KEYS, _SECTION_EMPTIED_KEYS):
            name, more = _decode_of_channel(raw, "keys", 1)
            into = paused_keys if kind == _SECTION_PAUSED_KEYS else emptied_keys
            into[name] = _unpack_keys(more)
        elif kind == _SECTION_REPLAY:
            name, end = _decode_replay(raw)
            replays[name] = end
        elif not kind & _SECTION_OPTIONAL:
            raise JournalError(f"unknown section {kind}")
    if state is None:
        raise JournalError("a snapshot without its topic")
    whole = tuple(
        replace(
            one,
            finished=finished.get(one.name, ()),
            replay_end=replays.get(one.name, 0),
            entries=b"".join((one.entries, *entries.get(one.name, ()))),
            ids=_ids_of(one, entries.get(one.name, []), ids.get(one.name, [])),
            transfers=transfers.get(one.name, ()),
            taken=_taken_of(one, taken.get(one.name, b"")),
            paused_keys=tuple(key for _, key in paused_keys.get(one.name, ())),
            emptied_keys=emptied_keys.get(one.name, ()),
        )
        for one in channels.values()
    )
    return replace(
        state,
        channels=whole,
        delayed=delayed,
        holes=holes,
        boot=boot,
        durability=durability,
        cursors=tuple(cursors.values()),
        epochs=epochs,
        produced_seq=produced_seq,
        past=past,
        missing=missing,
        policies=policies,
        secret=secret,
        ids_seq=ids_seq,
        ids_files=ids_files,
    )


def _taken_of(channel: ChannelState, taken: bytes) -> bytes:
    """Return the bits of a channel; none if they are for another position of its cursor."""
    if taken[: _ID.size] != _ID.pack(channel.cursor):
        return b""
    return taken[_ID.size :]


def _ids_of(channel: ChannelState, entries: list[bytes], ids: list[bytes]) -> bytes:
    """Return the ids of all the channel's entries; ids of entries in the channel's own section are
    unknown."""
    if sum(map(len, entries)) // ENTRY.size != sum(map(len, ids)) // _ID.size:
        return b""
    return b"".join((bytes(_ID.size * (len(channel.entries) // ENTRY.size)), *ids)) if ids else b""


_AFTER_NAME = {Kind.ENTRY_ADDED: ENTRY.size, Kind.CURSOR_NAMED: _PLACE.size}


def _decode_transfer(name: str, seq: int, delayed: bool, raw: bytes) -> Delta:
    if not raw:
        return Delta(Kind.ENTRY_TRANSFERRED, name, seq)
    if len(raw) < ENTRY.size:
        raise JournalError("a delta has the wrong size")
    runs = list(_unpack_runs(raw[ENTRY.size :]))
    if len(runs) != 1:
        raise JournalError("a delta has the wrong size")
    entry = _entry(ENTRY.unpack_from(raw))
    return Delta(Kind.ENTRY_TRANSFERRED, name, seq, entry=entry, run=runs[0], delayed=delayed)


def decode_delta(data: bytes) -> Delta:
    """Parse a delta. Raises JournalError if it is not a delta of a known kind and version."""
    number, _ = _head(data)
    if number == Kind.SNAPSHOT or number not in Kind.__members__.values():
        raise JournalError(f"unknown delta {number}")
    if len(data) < _DELTA.size:
        raise JournalError("a delta is truncated")
    _, _, flags, length, value = _DELTA.unpack_from(data)
    end = _DELTA.size + length
    name = _name(data[_DELTA.size : end])
    if number == Kind.ENTRY_TRANSFERRED:
        return _decode_transfer(name, value, bool(flags & _HAS_DELAY), data[end:])
    expected = _AFTER_NAME.get(Kind(number), 0)
    if len(data) - end != expected:
        raise JournalError("a delta has the wrong size")
    if number == Kind.CURSOR_NAMED:
        log_id, used = _PLACE.unpack_from(data, end)
        cursor = NamedCursor(name, log_id, value, used)
        return Delta(Kind.CURSOR_NAMED, "", cursor=cursor, deleted=bool(flags & _DELETED))
    entry = _entry(ENTRY.unpack_from(data, end)) if expected else None
    return Delta(Kind(number), name, value, bool(flags & _PAUSED), entry)


# ---- logs and their names ----


def name_logs(
    stretches: Iterable[tuple[int, int, bytes]], past: Iterable[Incarnation]
) -> tuple[Incarnation, ...]:
    """Return the logs of the records found at startup.

    stretches: (first_seq, end, log_id of their segments), ascending, each without gaps
    past: the journal's entries about logs that had ended when the journal was written

    A record in a past log keeps that log's name. Any other record belongs to the log named in its
    segment. Records after a gap receive a new name, because a log has no gaps.
    """
    past = tuple(past)
    named: list[Incarnation] = []
    for first, end, log_id in stretches:
        for one in past:
            if one.first_seq < end and one.end > first:
                _add(named, log_id, first, one.first_seq)
                _add(named, one.log_id, max(first, one.first_seq), min(end, one.end))
                first = max(first, min(end, one.end))
        _add(named, log_id, first, end)
    known: set[bytes] = {bytes(16)}
    for i, one in enumerate(named):
        if one.log_id in known:
            named[i] = one._replace(log_id=os.urandom(16))
        known.add(one.log_id)
    return tuple(named)


def _add(logs: list[Incarnation], log_id: bytes, first: int, end: int) -> None:
    if first >= end:
        return
    if logs and logs[-1].log_id == log_id and logs[-1].end == first:
        logs[-1] = logs[-1]._replace(end=end)
    else:
        logs.append(Incarnation(log_id, first, end))


# ---- applying ----


class _Channel:
    """A channel to which deltas are being applied. Its entries stay packed, because there may be a
    million of them."""

    __slots__ = (
        "_added",
        "_cancelled",
        "_fanout",
        "_passed",
        "_runs",
        "_state",
        "_transferred",
        "cursor",
    )

    def __init__(self, state: ChannelState, fanout: int = 0) -> None:
        self._state = state
        self._fanout = fanout
        self._runs = list(state.transfers)
        self._transferred: set[int] = set()
        self._passed: set[int] = (
            set()
        )  # records that are not entries, and that the cursor need not see
        self._added: dict[int, Entry] = {}
        self._cancelled = set(state.cancelled)
        self.cursor = state.cursor

    def apply(self, delta: Delta) -> None:
        if delta.kind == Kind.CURSOR_MOVED:
            self.cursor = delta.value
        elif delta.kind == Kind.ENTRY_FINISHED:
            added = self._added.get(delta.value)
            if added is not None and added.state != State.MOVING:
                del self._added[delta.value]
            self._cancelled.add(delta.value)
        elif delta.kind == Kind.ENTRY_TRANSFERRED:
            self._transfer(delta)
        elif delta.kind == Kind.ENTRY_ADDED and delta.entry is not None:
            self._added.pop(delta.entry.seq, None)
            self._added[delta.entry.seq] = delta.entry

    def _transfer(self, delta: Delta) -> None:
        seq = delta.value
        self._added.pop(seq, None)
        if delta.entry is None or delta.run is None:
            self._transferred.add(seq)
            return
        self._added[seq] = delta.entry
        if delta.run not in self._runs:
            self._runs.append(delta.run)
        if not delta.delayed:
            if seq >= self.cursor:
                self._passed.add(seq)
        elif seq >= self._fanout:
            self._cancelled.add(seq)

    def _finished(self) -> tuple[tuple[int, int], ...]:
        """Return the ranges that the cursor need not see, including transferred records."""
        if not self._passed:
            return self._state.finished
        ranges = list(self._state.finished)
        ranges += [(seq, seq + 1) for seq in self._passed]
        merged: list[tuple[int, int]] = []
        for first, end in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        return tuple(merged)

    def state(self) -> ChannelState:
        entries, ids = self._state.entries, self._state.ids
        finished = self._finished()
        # A message in transfer stays an entry until the transfer is done.
        cancelled = self._cancelled - _transferring(entries) if self._cancelled else self._cancelled
        gone = cancelled | self._added.keys() | self._transferred
        if gone:
            entries, ids = _without(entries, ids, gone)
        if self._added:
            entries += pack_entries(self._added.values())
            ids += bytes(_ID.size * len(self._added)) if ids else b""
        return replace(
            self._state,
            cursor=self.cursor,
            entries=entries,
            ids=ids,
            skipped=self._state.skipped + _count(finished) - _count(self._state.finished),
            finished=finished,
            transfers=tuple(self._runs),
            cancelled=frozenset(self._cancelled - self._late()),
        )

    def _late(self) -> set[int]:
        """Return cancelled records that are entries again. A delayed record in transfer stays
        cancelled; otherwise it would be fanned out at startup."""
        return {seq for seq, entry in self._added.items() if entry.state != State.MOVING}


def _count(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(end - first for first, end in ranges)


def _transferring(entries: bytes) -> set[int]:
    """Return the seqs of the entries in transfer."""
    facts = struct.Struct(f"<Q26xB{ENTRY.size - 35}x").iter_unpack(entries)
    return {seq for seq, state in facts if state == State.MOVING}


def _without(entries: bytes, ids: bytes, gone: set[int]) -> tuple[bytes, bytes]:
    """Return the entries except those with these seqs, and the ids of the returned entries."""
    seqs = struct.Struct(f"<Q{ENTRY.size - 8}x").iter_unpack(entries)
    kept = [index for index, (seq,) in enumerate(seqs) if seq not in gone]
    return tuple(  # type: ignore[return-value]
        b"".join([packed[size * index : size * (index + 1)] for index in kept])
        for packed, size in ((entries, ENTRY.size), (ids, _ID.size))
    )


def _apply_all(state: TopicState, deltas: Iterable[Delta]) -> TopicState:
    channels = {one.name: _Channel(one, state.fanout_seq) for one in state.channels}
    cursors = {one.name: one for one in state.cursors}
    for delta in deltas:
        if delta.cursor is not None:
            cursors.pop(delta.cursor.name, None)
            if not delta.deleted:
                cursors[delta.cursor.name] = delta.cursor
            continue
        channel = channels.get(delta.channel)
        if delta.kind == Kind.CHANNEL_CREATED:
            if channel is None:
                made = ChannelState(delta.channel, delta.paused, cursor=delta.value)
                channels[delta.channel] = _Channel(made, state.fanout_seq)
        elif delta.kind == Kind.CHANNEL_DELETED:
            channels.pop(delta.channel, None)
        elif channel is not None:
            channel.apply(delta)
    return replace(
        state,
        channels=tuple(one.state() for one in channels.values()),
        cursors=tuple(cursors.values()),
    )


def without(
    ranges: Iterable[tuple[int, int]], others: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return ascending ranges [first, end) minus their overlap with other ascending ranges."""
    found = []
    others = tuple(others)
    passed = 0
    for first, end in ranges:
        while passed < len(others) and others[passed][1] <= first:
            passed += 1
        for start, stop in islice(others, passed, None):
            if start >= end:
                break
            if first < start:
                found.append((first, start))
            first = stop
        if first < end:
            found.append((first, end))
    return found


def apply(state: TopicState, delta: Delta) -> TopicState:
    """Return the state after a change. A change to a channel that does not exist has no effect."""
    return _apply_all(state, (delta,))


def replay(journal: list[bytes]) -> TopicState | None:
    """Return the state after applying the entire journal; None for an empty journal. The first
    unknown delta ends the journal: messages in later deltas are redelivered."""
    if not journal:
        return None
    deltas = []
    for data in journal[1:]:
        try:
            deltas.append(decode_delta(data))
        except JournalError:
            break
    return _apply_all(decode_snapshot(journal[0]), deltas)
