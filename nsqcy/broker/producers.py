"""Chunks that producers have published to a topic, so that a repeated chunk is published once.

A chunk is a batch of messages identified by producer, epoch, part and number; within a part,
numbers ascend. This module remembers chunks, within limits. It does not access records or the disk:
the topic reports attempts and their outcomes.

    attempted ──► published (waits) ──► accepted, when all its records are visible
        │               │
        │               └──► removed: visible messages are accepted, the others are missing
        └──► abandoned, before all its records were appended

A chunk with missing messages, which a crash may also leave, is completed when it is sent again.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from nsqcy.errors import NsqError
from nsqcy.storage.journal import EpochState, PartState, pack_part, unpack_parts

HOUR = 3600 * 1_000_000_000

MAX_PRODUCERS = 1000  # per topic; beyond that, the least recently used producer is forgotten
MAX_EPOCHS = 64  # per producer; beyond that, the least recently used epoch is forgotten
MAX_PARTS = 10_000  # maximum parts per epoch; further parts are rejected
PARTS_OF_TOPIC = 100_000  # limit above which entire epochs are forgotten, least recently used first
EXPIRY = 24 * HOUR  # ns since its last use after which an epoch is forgotten

Ranges = tuple[tuple[int, int], ...]  # [first, end) of a chunk's messages, by index in the chunk


class ChunkError(NsqError):
    """Error: a chunk is rejected. The text gives the reason."""


class ChunkName(NamedTuple):
    """The identity of a chunk."""

    producer: int  # producer_id() of the producer's name
    epoch: int
    part: int
    chunk: int


class Piece(NamedTuple):
    """Messages of a chunk that are adjacent among a topic's records, starting at `first_seq`."""

    first_seq: int
    wanted: Ranges


class Attempt(NamedTuple):
    """A publish of a chunk, or of its missing part, that is among a topic's records."""

    name: ChunkName
    pieces: tuple[Piece, ...]

    @property
    def end_seq(self) -> int:
        first_seq, wanted = self.pieces[-1]
        return first_seq + messages_in(wanted)


@dataclass(slots=True)
class Epoch:
    """The parts of an epoch: each part's highest chunk, and that chunk's missing messages. There
    may also be higher chunks that a crash left incomplete, with their missing messages."""

    used: int  # wall clock, ns
    chunks: dict[int, int] = field(default_factory=dict)
    missing: dict[int, Ranges] = field(default_factory=dict)
    left: dict[int, dict[int, Ranges]] = field(default_factory=dict)
    packed: bytes | None = None  # the parts as encoded in the journal; None: they have changed

    def accept(self, part: int, chunk: int, missing: Ranges) -> None:
        """Record `chunk` as the part's highest chunk. Lower chunks are complete."""
        self.packed = None
        self.chunks[part] = chunk
        self.missing.pop(part, None)
        if missing:
            self.missing[part] = missing
        if part in self.left:
            above = {each: lack for each, lack in self.left.pop(part).items() if each > chunk}
            if above:
                self.left[part] = above

    def leave(self, part: int, chunk: int, missing: Ranges) -> None:
        """Record a chunk above the highest one that a crash left incomplete."""
        self.packed = None
        self.left.setdefault(part, {})[chunk] = missing

    def pack(self) -> bytes:
        if self.packed is None:
            known = [
                PartState(part, chunk, self.missing.get(part, ()))
                for part, chunk in self.chunks.items()
            ]
            known += [
                PartState(part, chunk, missing, alone=True)
                for part, chunks in self.left.items()
                for chunk, missing in chunks.items()
            ]
            self.packed = b"".join(map(pack_part, known))
        return self.packed


def producer_id(name: bytes) -> int:
    """Return the number that represents a producer's name in records and in the journal."""
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


def messages_in(ranges: Ranges) -> int:
    """Return the number of messages in the ranges."""
    return sum(end - first for first, end in ranges)


def without_first(ranges: Ranges, count: int) -> Ranges:
    """Return the ranges without their first `count` messages."""
    left = []
    for first, end in ranges:
        gone = min(count, end - first)
        count -= gone
        if first + gone < end:
            left.append((first + gone, end))
    return tuple(left)


def complement(found: Iterable[tuple[int, int]], count: int) -> Ranges:
    """Return the parts of [0, count) that no range covers."""
    left = []
    at = 0
    for first, end in sorted(found):
        if first > at:
            left.append((at, first))
        at = max(at, end)
    if at < count:
        left.append((at, count))
    return tuple(left)


class Producers:
    """One topic's chunks."""

    def __init__(self) -> None:
        # Both levels are ordered by last use.
        self._producers: OrderedDict[int, OrderedDict[int, Epoch]] = OrderedDict()
        self._parts = 0
        self._waiting: deque[Attempt] = deque()  # sorted by end
        self._highest: dict[tuple[int, int, int], tuple[int, int]] = {}  # waiting: chunk, attempts
        self._found: dict[ChunkName, tuple[int, list[tuple[int, int]]]] = {}  # count, ranges

    def __bool__(self) -> bool:
        return bool(self._producers or self._waiting)

    # ---- publishing ----

    def wanted(self, name: ChunkName, count: int, visible_seq: int, now: int) -> Ranges | None:
        """Return which of a chunk's `count` messages must be published now; () if the entire chunk
        is already accepted; None if an attempt is in progress, whose outcome also decides this one.
        Records before `visible_seq` are visible; `now` is the wall clock, ns."""
        self.settle(visible_seq)
        self._expire(now)
        waiting = self._highest.get(name[:3])
        if waiting is not None and name.chunk <= waiting[0]:
            return None
        epoch = self._use(name, now)
        highest = epoch.chunks.get(name.part)
        left = epoch.left.get(name.part, {})
        if name.chunk in left:
            missing = left[name.chunk]
        elif highest is None or name.chunk > highest:
            if highest is None:
                self._make_room(name, epoch)
            return ((0, count),)
        elif name.chunk < highest:
            return ()
        else:
            missing = epoch.missing.get(name.part, ())
        if missing and missing[-1][1] > count:
            raise ChunkError(
                f"chunk {name.chunk} had at least {missing[-1][1]} messages, not {count}"
            )
        return missing

    def attempted(self, name: ChunkName) -> None:
        """Record that the wanted messages are being appended."""
        _, attempts = self._highest.get(name[:3], (0, 0))
        self._highest[name[:3]] = (name.chunk, attempts + 1)

    def published(self, name: ChunkName, pieces: Iterable[tuple[int, Ranges]]) -> None:
        """Record that the wanted messages have been appended."""
        self._waiting.append(Attempt(name, tuple(Piece(*each) for each in pieces)))

    def abandoned(self, name: ChunkName) -> None:
        """Record that the messages appended so far have been removed."""
        self._ended(name)

    def settle(self, visible_seq: int) -> None:
        """Accept each attempt whose records are all visible."""
        while self._waiting and self._waiting[0].end_seq <= visible_seq:
            attempt = self._waiting.popleft()
            self._ended(attempt.name)
            self._accept(attempt.name, ())

    def undo(self, visible_seq: int) -> None:
        """Undo the attempts, because records from `visible_seq` on have been removed."""
        self.settle(visible_seq)
        for attempt in self._waiting:
            self._ended(attempt.name)
            if attempt.pieces[0].first_seq < visible_seq:
                missing = [
                    without_first(wanted, max(visible_seq - first_seq, 0))
                    for first_seq, wanted in attempt.pieces
                ]
                self._accept(attempt.name, tuple(chain.from_iterable(missing)))
        self._waiting.clear()

    def _ended(self, name: ChunkName) -> None:
        chunk, attempts = self._highest[name[:3]]
        if attempts == 1:
            del self._highest[name[:3]]
        else:
            self._highest[name[:3]] = (chunk, attempts - 1)

    def _accept(self, name: ChunkName, missing: Ranges) -> None:
        # The epoch keeps its position in the order of use: wanted() has made it the newest.
        epoch = self._epoch(name, 0)
        if name.part not in epoch.chunks:
            self._parts += 1
        epoch.accept(name.part, name.chunk, missing)

    # ---- how much is remembered, and for how long ----

    def _epoch(self, name: ChunkName, used: int) -> Epoch:
        epochs = self._producers.setdefault(name.producer, OrderedDict())
        epoch = epochs.get(name.epoch)
        if epoch is None:
            epoch = epochs[name.epoch] = Epoch(used)
        return epoch

    def _use(self, name: ChunkName, now: int) -> Epoch:
        epoch = self._epoch(name, now)
        epoch.used = now
        self._producers.move_to_end(name.producer)
        epochs = self._producers[name.producer]
        epochs.move_to_end(name.epoch)
        while len(epochs) > MAX_EPOCHS:
            self._forget_epoch(name.producer)
        while len(self._producers) > MAX_PRODUCERS:
            self._forget_epoch(next(iter(self._producers)))
        return epoch

    def _make_room(self, name: ChunkName, epoch: Epoch) -> None:
        """Forget the oldest epochs if a new part would exceed the topic's limit. Raises ChunkError
        if the epoch has too many parts."""
        if len(epoch.chunks) >= MAX_PARTS:
            raise ChunkError(f"epoch {name.epoch} has more than {MAX_PARTS} parts")
        while self._parts >= PARTS_OF_TOPIC:
            self._forget_epoch(next(iter(self._producers)))

    def _expire(self, now: int) -> None:
        while self._producers:
            producer, epochs = next(iter(self._producers.items()))
            if next(iter(epochs.values())).used > now - EXPIRY:
                break
            self._forget_epoch(producer)

    def expire(self, visible_seq: int, now: int) -> bool:
        """Forget epochs that have not been used for a day; return whether any were forgotten."""
        self.settle(visible_seq)
        parts, producers = self._parts, len(self._producers)
        self._expire(now)
        return (parts, producers) != (self._parts, len(self._producers))

    def _forget_epoch(self, producer: int) -> None:
        """Forget a producer's least recently used epoch."""
        epochs = self._producers[producer]
        _, epoch = epochs.popitem(last=False)
        self._parts -= len(epoch.chunks)
        if not epochs:
            del self._producers[producer]

    def epochs(self, producer: int, now: int) -> list[int]:
        """Return a producer's remembered epochs, including those whose chunks have been refused."""
        self._expire(now)
        return sorted(self._producers.get(producer, ()))

    # ---- across a restart ----

    def unspoken(self, visible_seq: int) -> int:
        """Return the seq up to which state() is valid, given that everything before `visible_seq`
        is visible. state() does not contain later chunks."""
        self.settle(visible_seq)
        return min([visible_seq, *(each.pieces[0].first_seq for each in self._waiting)])

    def state(self, visible_seq: int) -> tuple[EpochState, ...]:
        """Return the accepted chunks, least recently used epoch first."""
        self.settle(visible_seq)
        return tuple(
            EpochState(producer, number, epoch.used, epoch.pack())
            for producer, epochs in self._producers.items()
            for number, epoch in epochs.items()
            if epoch.chunks or epoch.left
        )

    def restore(self, epochs: Iterable[EpochState]) -> None:
        for each in epochs:
            for state in unpack_parts(each.parts):
                name = ChunkName(each.producer, each.epoch, state.part, state.chunk)
                epoch = self._epoch(name, each.used)
                if state.alone:
                    epoch.leave(state.part, state.chunk, state.missing)
                else:
                    self._accept(name, state.missing)

    def found(self, name: ChunkName, first: int, end: int, count: int) -> None:
        """Record a part of the log after the end of the state: messages [first, end) of a chunk of
        `count` messages. Call found_all() after the last report."""
        self._found.setdefault(name, (count, []))[1].append((first, end))

    def found_all(self, now: int) -> None:
        """Adopt the chunks from found(). Each chunk is kept separately, because a disk may write in
        any order: after a crash, a chunk may exist without any part of an earlier chunk."""
        for name, (count, ranges) in self._found.items():
            epoch = self._use(name, now)
            highest = epoch.chunks.get(name.part, -1)
            if name.chunk == highest:
                ranges += complement(epoch.missing.get(name.part, ()), count)
                self._accept(name, complement(ranges, count))
            elif name.chunk > highest:
                before = epoch.left.get(name.part, {})
                if name.chunk in before:
                    ranges += complement(before[name.chunk], count)
                epoch.leave(name.part, name.chunk, complement(ranges, count))
        self._found.clear()
