"""Verification of a copy's segments, and their repair from another copy.

Files with the same header are identical, so a part is fetched from another copy, verified by the
checksums of its records, and written over the damaged part. Nothing here blocks. Decides what is
damaged; `nsqcy.copies.fetching` decides which node has it.
"""

import errno
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsqcy.copies.fetching import Done, Outcome, Part
from nsqcy.nsqd.copies.file_table import HEADER, FileTable
from nsqcy.storage.core import IoThread, find_record, footer_begin, footer_length, records_end

PIECE = 256 << 10  # bytes to read at a time; more for larger records
MAX_PART = 60 << 20  # maximum bytes of a part to fetch; an answer is one frame
FOOTER_READ = 32 << 10  # bytes; most footers fit into them
MAX_MENDS = 3  # maximum repairs of a part; after that, the disk is assumed to lose data
SAME = 600.0  # seconds after which a failing part is treated as a new one
GAP = 60.0  # seconds without a request after which a part is assumed readable; logs retry sooner


@dataclass(slots=True)
class Findings:
    """The result of verifying segments."""

    verified: int = 0
    """Bytes that were read."""
    mended: int = 0
    """Parts that were replaced."""
    damaged: int = 0
    """Parts that fail their checksums and could not be replaced."""
    unreadable: int = 0
    """Files that could not be read to the end."""
    is_final: bool = True
    """False if an unresponsive copy may have an intact version of a damaged part, or if a file
    could not be read."""


@dataclass(slots=True)
class _Failing:
    """A part that a log could not read."""

    since: float
    last: float
    """Time of the last repair request, or of its end."""
    repairs: int = 0
    """Number of times that it has been replaced."""


Pace = Callable[[int, Callable[[], object]], object]
"""Calls a function once a number of bytes may be read."""


class Mender:
    """Repairs the segments in a group's directory."""

    def __init__(
        self,
        io: IoThread,
        root: Path,
        table: FileTable,
        fetch: Callable[[Part, Done], object],
        clock: Callable[[], float],
        found: Callable[[str, Findings], object] = lambda path, findings: None,
    ) -> None:
        """
        fetch: fetches a part from another copy
        found: called with a file and the outcome for a part that a log could not read
        """
        self.io = io
        self.root = root
        self.table = table
        self.fetch = fetch
        self.mends: Counter[str] = Counter()
        """Number of replaced parts of each file."""
        self._clock = clock
        self._found = found
        self._failing: dict[tuple[str, int], _Failing] = {}

    def failing_for(self) -> float:
        """Return the time in seconds for which the same part has been failing."""
        now = self._clock()
        self._failing = {
            place: part for place, part in self._failing.items() if now - part.last <= SAME
        }
        recent = [part for part in self._failing.values() if now - part.last <= GAP]
        return max((part.last - part.since for part in recent), default=0.0)

    # -- for logs (storage.io.FileCalls.repairer)

    def repair(
        self, path: str, offset: int, size: int, error: int, answer: Callable[[bool | None], object]
    ) -> None:
        """Repair a run of records that a log cannot read. The answer is True (read it again), False
        (no other copy has it) or None (not available now)."""
        below = Path(path).relative_to(self.root).as_posix()
        identity = self.table.identity(below)
        if identity is None or size > MAX_PART:
            answer(None if error else False)
            return
        failing = self._note_failing(below, offset)
        if failing.repairs >= MAX_MENDS:
            answer(None)
            return

        def written(failure: int) -> None:
            if failure:
                answer(None)
                return
            failing.repairs += 1
            self._found(below, Findings(mended=1))
            answer(True)

        def fetched(outcome: Outcome, data: Any) -> None:
            failing.last = self._clock()
            if outcome == Outcome.FOUND:
                self.overwrite(below, identity, offset, data, written)
            elif outcome == Outcome.MISSING and not error:
                self._found(below, Findings(damaged=1))
                answer(False)
            else:
                answer(None)

        part = Part(below, identity, offset, size, lambda data: _is_run(data, size))
        self.fetch(part, fetched)

    def _note_failing(self, path: str, offset: int) -> _Failing:
        now = self._clock()
        part = self._failing.setdefault((path, offset), _Failing(now, now))
        if now - part.last > SAME:
            part.repairs = 0
        if now - part.last > GAP:
            part.since = now
        part.last = now
        return part

    # -- for fills and the scrubber

    def verify(
        self,
        path: str,
        done: Callable[[Findings], object],
        pace: Pace = lambda _, call: call(),
        *,
        only_open: bool = False,
    ) -> None:
        """Verify a segment and repair it.

        only_open: verify only a segment without a footer, which a recovery reads to the end
        """
        _Pass(self, path, done, pace, only_open).begin()

    # -- files

    def read(self, path: str, offset: int, size: int, done: Callable[[int, bytes], object]) -> None:
        """Read a part of a file, through a new descriptor. Calls done(error, data)."""
        into = bytearray(size)
        self.io.open(self.root / path).read(
            into, offset, lambda error: done(error, b"" if error else bytes(into))
        )

    def overwrite(
        self, path: str, identity: Any, offset: int, data: bytes, done: Callable[[int], object]
    ) -> None:
        """Replace a part of a file with its original contents. Calls done(error)."""
        end = offset + len(data)
        if self.table.identity(path) != identity or self.table.size(path) < end:
            done(errno.ESTALE)  # the file has been replaced or truncated since
            return
        self.mends[path] += 1
        handle = self.io.open(self.root / path)
        handle.write(data, offset)
        handle.do("sync", 0, done, "background")


class _Pass:
    """One pass over a segment, from its beginning to its end."""

    def __init__(
        self,
        mender: Mender,
        path: str,
        done: Callable[[Findings], object],
        pace: Pace,
        only_open: bool,
    ) -> None:
        self._mender = mender
        self._path = path
        self._done = done
        self._pace = pace
        self._only_open = only_open
        self._findings = Findings()
        self._identity = mender.table.identity(path)
        self._size = mender.table.size(path)
        self._end = self._size
        """End of the records if known, otherwise the end of the file."""
        self._at = HEADER
        self._want = PIECE
        self._failed_at = -1
        """Offset at which the last read failed, or did not match its checksums."""
        self._mended_at = -1
        self._is_searching = False
        """Whether the next intact record has yet to be found after a damaged part."""

    def begin(self) -> None:
        if self._identity is None or self._size < HEADER:
            # The copy is incomplete and will be refilled; an empty segment has no records.
            self._findings.is_final = self._size < HEADER
            self._done(self._findings)
        else:
            self._read_footer(min(self._size, FOOTER_READ))

    # -- the footer, which contains the end of the records

    def _read_footer(self, size: int) -> None:
        def read(error: int, tail: bytes) -> None:
            if error:
                self._retry(lambda: self._read_footer(size))
            else:
                self._footer_read(tail)

        self._mender.read(self._path, self._size - size, size, read)

    def _footer_read(self, tail: bytes) -> None:
        length = footer_length(tail)
        if len(tail) < length <= self._size - HEADER:
            self._read_footer(length)
            return
        end = footer_begin(tail, self._size)
        if end is None:
            self._read_header()
        elif self._only_open:
            self._done(self._findings)
        else:
            self._end = end
            self._read_header()

    # -- the header, which this process knows

    def _read_header(self) -> None:
        self._mender.read(self._path, 0, HEADER, self._header_read)

    def _header_read(self, error: int, data: bytes) -> None:
        if error:
            self._retry(self._read_header)
        elif self._identity is None or data == self._identity:
            self._next()
        else:
            self._mender.overwrite(
                self._path, self._identity, 0, self._identity, self._header_written
            )

    def _header_written(self, error: int) -> None:
        if error:
            self._findings.damaged += 1
        else:
            self._findings.mended += 1
        self._next()

    # -- records

    def _next(self) -> None:
        if self._at >= self._end or self._is_gone():
            self._done(self._findings)
        else:
            size = min(self._want, self._end - self._at)
            self._pace(size, lambda: self._read(size))

    def _read(self, size: int) -> None:
        self._mender.read(self._path, self._at, size, self._records_read)

    def _records_read(self, error: int, data: bytes) -> None:
        if error:
            self._unreadable(error)
            return
        self._findings.verified += len(data)
        if self._is_searching:
            self._search(data)
            return
        good = records_end(data)
        self._at += good
        self._want = PIECE
        if self._at >= self._end or good:
            self._next()
        elif self._needs_more(data):
            self._want = int.from_bytes(data[:4], "little")
            self._next()
        elif self._failed_at != self._at:
            self._failed_at = self._at
            self._next()  # a second read may return intact data
        else:
            self._mend(len(data))

    def _needs_more(self, data: bytes) -> bool:
        """Return whether the first record is larger than the data that was read."""
        length = int.from_bytes(data[:4], "little")
        return len(data) < length <= min(self._end - self._at, MAX_PART)

    def _unreadable(self, error: int) -> None:
        if self._is_gone():
            self._done(self._findings)
        elif self._failed_at != self._at:
            self._failed_at = self._at
            self._next()
        elif self._mended_at != self._at and not self._is_searching:
            self._mend(PIECE, error)
        else:
            self._give_up()

    def _mend(self, size: int, error: int = 0) -> None:
        """Fetch the data from the beginning of a record on."""
        at = self._at
        size = min(max(size, PIECE), self._size - at, MAX_PART)
        if self._mended_at == at:
            self._skip(Outcome.LATER)  # the disk does not keep written data
            return
        self._mended_at = at

        def fetched(outcome: Outcome, data: Any) -> None:
            if outcome == Outcome.FOUND:
                end = records_end(data) or len(data)
                self._mender.overwrite(self._path, self._identity, at, data[:end], self._written)
            elif error:
                self._give_up()
            else:
                self._skip(outcome)

        is_end = at + size == self._size
        part = Part(
            self._path,
            self._identity,
            at,
            size,
            lambda data: (
                len(data) <= size and (records_end(data) > 0 or (is_end and self._is_footer(data)))
            ),
        )
        self._mender.fetch(part, fetched)

    def _is_footer(self, data: bytes) -> bool:
        return footer_begin(data, self._size) == self._at

    def _written(self, error: int) -> None:
        if error:
            self._findings.damaged += 1
            self._findings.is_final = False
            self._done(self._findings)
            return
        self._findings.mended += 1
        if self._end == self._size:
            self._read_footer(min(self._size, FOOTER_READ))  # the part may have been the footer
        else:
            self._next()

    # -- parts that cannot be repaired

    def _skip(self, outcome: Outcome) -> None:
        self._findings.damaged += 1
        if outcome == Outcome.LATER:
            self._findings.is_final = False
        self._is_searching = True
        self._at += 8
        self._next()

    def _search(self, data: bytes) -> None:
        found = find_record(data, 0)
        self._at += min(found, len(data))
        self._is_searching = found >= len(data)
        self._next()

    def _retry(self, call: Callable[[], object]) -> None:
        """Repeat a read once."""
        if self._failed_at == 0:
            self._give_up()
        else:
            self._failed_at = 0
            call()

    def _give_up(self) -> None:
        if not self._is_gone():
            self._findings.unreadable += 1
            self._findings.is_final = False
        self._done(self._findings)

    def _is_gone(self) -> bool:
        return self._mender.table.identity(self._path) != self._identity


def _is_run(data: bytes, size: int) -> bool:
    return len(data) == size and records_end(data) == size
