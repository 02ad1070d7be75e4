"""Reader and writer for NSQ's disk queues.

    <topic>.diskqueue.000000.dat           records
    <topic>:<channel>.diskqueue.meta.dat   depth, read and write positions
    <name>.diskqueue.000000.dat.bad        set aside by NSQ's nsqd, never read again

A record is `i32 length, i64 timestamp, u16 attempts, 16 hex digits of id, body`, big-endian,
without a checksum. Damage is therefore detected only by implausible lengths and ids. Reading
resumes at the next three consecutive valid records, or where only valid records follow up to the
end of the file. The bytes in between are reported and lost. Reading changes nothing.
"""

import errno
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from nsqcy.base.core import parse_id
from nsqcy.names import is_valid_name

MARK = ".diskqueue."
LARGEST_ID = 0x7000_0000_0000_0000  # an id from the year 2077: larger ids mean damage
CHUNK = 1 << 20  # bytes read at a time

_NAME = re.compile(r"(.+)\.diskqueue\.(?:(\d{6,})\.dat(\.bad)?|(meta\.dat)|(meta\.dat\..*\.tmp))")
_META = re.compile(rb"(-?\d{1,19})\n(\d{1,18}),(\d{1,18})\n(\d{1,18}),(\d{1,18})\n")

_LENGTH = 4
_HEADER = struct.Struct(">iqH16s")  # length (excluding the length field), timestamp, attempts, id
_MIN_SIZE = _HEADER.size - _LENGTH
_CHAIN = 3  # consecutive valid records that end a damaged range
# Limits for a plausible header while searching for a record: below 256 MiB, before 2116.
_PLAUSIBLE = re.compile(rb"(?s)(?=[\x00-\x0f].{3}[\x00-\x3f].{9}[0-9a-f]{16})")


class Record(NamedTuple):
    """One message from a queue."""

    timestamp: int
    attempts: int
    id: int
    body: bytes


class Damage(NamedTuple):
    """An unreadable part of a file: its position, and its size in bytes."""

    path: str
    offset: int
    bytes: int
    text: str

    def __str__(self) -> str:
        return f"{self.path} at {self.offset}: {self.text}"


class Meta(NamedTuple):
    """The content of a queue's metadata file."""

    depth: int
    read_file: int
    read_offset: int
    write_file: int
    write_offset: int


@dataclass
class Queue:
    """The files of one queue, by number. `channel` is None for a topic's own queue."""

    directory: str
    name: str
    topic: str
    channel: str | None
    files: dict[int, str] = field(default_factory=dict)
    bad: dict[int, str] = field(default_factory=dict)
    meta: str | None = None
    leftovers: list[str] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Return whether NSQ allows these topic and channel names."""
        return is_valid_name(self.topic) and (self.channel is None or is_valid_name(self.channel))

    @property
    def names(self) -> list[str]:
        """Return all of the queue's files."""
        meta = [] if self.meta is None else [self.meta]
        return [*self.files.values(), *self.bad.values(), *meta, *self.leftovers]

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def size(self, names: dict[int, str]) -> int:
        """Return the total size of these files in bytes."""
        return sum(os.path.getsize(self.path(name)) for name in names.values())


def find_queues(directory: str) -> list[Queue]:
    """Return the queues of a data path, sorted by name."""
    queues: dict[str, Queue] = {}
    with os.scandir(directory or ".") as entries:
        names = sorted(each.name for each in entries if MARK in each.name and each.is_file())
    for name in names:
        found = _NAME.fullmatch(name)
        if found is None:
            continue
        queue = queues.setdefault(found[1], _new_queue(directory, found[1]))
        _enter(queue, name, found)
    return list(queues.values())


def _new_queue(directory: str, name: str) -> Queue:
    # Names contain neither ':' nor ';' (NSQ's separator on Windows).
    topic, colon, channel = name.replace(";", ":").partition(":")
    return Queue(directory, name, topic, channel if colon else None)


def _enter(queue: Queue, name: str, found: re.Match[str]) -> None:
    if found[4]:
        queue.meta = name
    elif found[2] and name.startswith(data_name(queue.name, int(found[2]))):
        (queue.bad if found[3] else queue.files)[int(found[2])] = name
    else:
        queue.leftovers.append(name)


def data_name(queue: str, number: int) -> str:
    """Return the name of a queue's data file."""
    return f"{queue}{MARK}{number:06d}.dat"


def meta_name(queue: str) -> str:
    """Return the name of a queue's metadata file."""
    return f"{queue}{MARK}meta.dat"


def parse_meta(content: bytes) -> Meta | None:
    """Parse a metadata file. Return None if it is invalid."""
    found = _META.fullmatch(content)
    if found is None:
        return None
    meta = Meta(*map(int, found.groups()))
    behind = (meta.write_file, meta.write_offset) < (meta.read_file, meta.read_offset)
    return None if behind else meta


# ---- one file ----


class _Bytes:
    """Random access to a file through one buffer."""

    def __init__(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        self._fd = fd
        self._base = 0
        self._data = b""

    def at(self, offset: int, n: int) -> tuple[bytes, int]:
        """Return a buffer that contains these bytes, and their index in it. The range must be
        within the file."""
        within = offset - self._base
        if within < 0 or within + n > len(self._data):
            self._data = self._read(offset, max(n, CHUNK))
            self._base = offset
            within = 0
            if len(self._data) < n:
                raise OSError(errno.EIO, "the file was truncated while reading")
        return self._data, within

    def header(self, offset: int) -> tuple[bytes, int]:
        """Like at(), but for a possible header, which may be truncated. Keeps the buffer's
        position."""
        within = offset - self._base
        if 0 <= within <= len(self._data) - _HEADER.size:
            return self._data, within
        return os.pread(self._fd, _HEADER.size, offset), 0

    def _read(self, offset: int, n: int) -> bytes:
        pieces = []
        while n > 0:
            piece = os.pread(self._fd, n, offset)
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            n -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class FileReader:
    """Reads one file's records, starting at an offset. Reports skipped bytes to `on_damage`."""

    def __init__(self, path: str, on_damage: Callable[[Damage], object]) -> None:
        self.path = path
        self.offset = 0  # offset of the next record
        self._on_damage = on_damage
        self._bytes: _Bytes

    def records(self, start: int = 0) -> Iterator[Record]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._bytes = _Bytes(fd)
            self.offset = start
            if start > self._bytes.size:
                self._lose(start, 0, f"the file ends earlier, at {self._bytes.size}")
                return
            yield from self._walk()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            rest = self._bytes.size - self.offset
            self._lose(self.offset, rest, f"the last {rest} bytes cannot be read: {error.strerror}")
        finally:
            os.close(fd)

    def _walk(self) -> Iterator[Record]:
        size = self._bytes.size
        head = self._header(self.offset)
        while self.offset < size:
            if head is None:
                self._skip(self._after_damage(self.offset))
                head = self._header(self.offset)
                continue
            length, timestamp, attempts, number = head
            start = self.offset
            end = start + _LENGTH + length
            following = self._header(end)
            if following is None and end < size:
                inside = self._next_good(start + _HEADER.size, end)
                if inside < end and self._leads_past(inside, end):
                    self._skip(inside)
                    head = self._header(inside)
                    continue
            data, at = self._bytes.at(start, _LENGTH + length)
            self.offset = end
            head = following
            yield Record(
                timestamp, attempts, number, data[at + _HEADER.size : at + _LENGTH + length]
            )

    def _header(self, offset: int) -> tuple[int, int, int, int] | None:
        """Return (length, timestamp, attempts, id) if a complete record may begin here."""
        room = self._bytes.size - offset - _LENGTH
        if room < _MIN_SIZE:
            return None
        data, at = self._bytes.header(offset)
        length, timestamp, attempts, text = _HEADER.unpack_from(data, at)
        number = parse_id(text)
        if not _MIN_SIZE <= length <= room or number is None or number >= LARGEST_ID:
            return None
        return length, timestamp, attempts, number

    def _skip(self, to: int) -> None:
        lost = to - self.offset
        text = f"{lost} bytes without a valid record"
        if to == self._bytes.size:
            text = f"no complete record in the last {lost} bytes"
        self._lose(self.offset, lost, text)
        self.offset = to

    def _lose(self, offset: int, count: int, text: str) -> None:
        self._on_damage(Damage(self.path, offset, count, text))

    # -- resuming after damage --

    def _after_damage(self, offset: int) -> int:
        """Return the offset at which to resume after an invalid record at `offset`. If only the ID
        is unreadable, this is the end of the record."""
        data, at = self._bytes.header(offset)
        length = int.from_bytes(data[at : at + _LENGTH], "big")
        end = offset + _LENGTH + length
        if length >= _MIN_SIZE and end < self._bytes.size and self._is_good(end):
            return end
        return self._next_good(offset + 1, self._bytes.size)

    def _next_good(self, offset: int, limit: int) -> int:
        """Return the first offset at or after `offset` where valid records begin; `limit` if there
        is none."""
        while offset < limit:
            n = min(CHUNK, self._bytes.size - offset)
            if n < _HEADER.size:
                break
            data, at = self._bytes.at(offset, n)
            for found in _PLAUSIBLE.finditer(data, at, at + n):
                place = offset + found.start() - at
                if place >= limit:
                    return limit
                if self._is_good(place):
                    return place
            offset += n - _HEADER.size + 1
        return limit

    def _is_good(self, offset: int) -> bool:
        """Return whether enough consecutive records, or only records up to the end of the file,
        begin here; the last record may be truncated."""
        for _ in range(_CHAIN):
            head = self._header(offset)
            if head is None:
                return self._is_torn(offset)
            offset += _LENGTH + head[0]
            if offset == self._bytes.size:
                return True
        return True

    def _is_torn(self, offset: int) -> bool:
        """Return whether a record begins here that is truncated by the end of the file."""
        room = self._bytes.size - offset
        if room < _HEADER.size:
            return False
        data, at = self._bytes.header(offset)
        length = int.from_bytes(data[at : at + _LENGTH], "big")
        return _PLAUSIBLE.match(data, at) is not None and _LENGTH + length > room

    def _leads_past(self, offset: int, end: int) -> bool:
        """Return whether consecutive records lead from `offset` past `end` and none of them ends
        exactly there."""
        while offset < end:
            head = self._header(offset)
            if head is None:
                return False
            offset += _LENGTH + head[0]
        return offset > end


# ---- a queue ----


class QueueReader:
    """Reader of a queue's messages, oldest first.

    on_damage: called with unreadable parts
    on_note: called with notes for the operator
    """

    def __init__(
        self,
        queue: Queue,
        on_damage: Callable[[Damage], object],
        on_note: Callable[[str], object],
    ) -> None:
        self.queue = queue
        self.count = 0
        self._on_damage = on_damage
        self._on_note = on_note

    def records(self, *, bad: bool = False) -> Iterator[Record]:
        """Yield the records from the read position to the end of the last file, including records
        written after the metadata. bad: first yield the readable records in .bad files."""
        queue = self.queue
        if bad:
            for number in sorted(queue.bad):
                yield from self._file(queue.path(queue.bad[number]), 0)
        meta = self._meta()
        first, offset = (meta.read_file, meta.read_offset) if meta else (0, 0)
        numbers = [number for number in sorted(queue.files) if number >= first]
        self._note_missing(meta, numbers)
        for number in numbers:
            yield from self._file(queue.path(queue.files[number]), offset * (number == first))
        if meta is not None and meta.depth != self.count:
            self._on_note(
                f"{queue.name}: depth is {meta.depth} in the metadata, but {self.count} messages "
                "were found"
            )

    def _file(self, path: str, start: int) -> Iterator[Record]:
        for record in FileReader(path, self._on_damage).records(start):
            self.count += 1
            yield record

    def _meta(self) -> Meta | None:
        queue = self.queue
        if queue.meta is None:
            if queue.files:
                self._on_note(f"{queue.name}: no metadata file: reading every data file")
            return None
        path = queue.path(queue.meta)
        with open(path, "rb") as file:
            content = file.read(256)
        meta = parse_meta(content)
        if meta is None:
            text = "unreadable metadata: reading every data file"
        elif meta.depth > 0 and queue.files and max(queue.files) < meta.read_file:
            text = f"read position beyond all data files ({meta.read_file}): reading all of them"
        else:
            return meta
        self._on_damage(Damage(path, 0, len(content), text))
        return None

    def _note_missing(self, meta: Meta | None, numbers: list[int]) -> None:
        queue = self.queue
        known = set(numbers)
        if meta is not None:
            for number, name in sorted(queue.files.items()):
                if number < meta.read_file:
                    self._on_note(f"{name}: skipped, because it is before the read position")
            if meta.read_file not in known and meta.read_file < meta.write_file:
                # The file has been read and deleted, but the machine stopped before the metadata
                # recorded that.
                known.add(meta.read_file)
            if meta.depth > 0 or meta.read_file < meta.write_file:
                drained = meta[1:3] == meta[3:5]
                known.update([meta.write_file] * (meta.write_offset > 0 and not drained))
        order = sorted(known)
        for before, after in pairwise(order):
            if after > before + 1:
                self._miss(before + 1, after - 1)
        if order and order[-1] not in queue.files:
            self._miss(order[-1], order[-1])

    def _miss(self, first: int, last: int) -> None:
        path = self.queue.path(data_name(self.queue.name, first))
        more = f", as are all files up to number {last}" if last > first else ""
        self._on_damage(Damage(path, 0, 0, f"the file is missing{more}"))


# ---- writing ----


class QueueWriter:
    """Writes a queue as NSQ's nsqd does on a clean exit. An empty queue creates no files."""

    def __init__(self, directory: str, name: str, max_bytes_per_file: int) -> None:
        self.depth = 0
        self.largest = 0  # size of the largest body, in bytes
        self._directory = directory
        self._name = name
        self._maximum = max_bytes_per_file
        self._number = 0
        self._offset = 0
        self._fd = -1
        self._pending = bytearray()

    def put(self, timestamp: int, attempts: int, number: int, body: bytes) -> None:
        length = _MIN_SIZE + len(body)
        if self._offset and self._offset + _LENGTH + length > self._maximum:
            self._close_file()
            self._number += 1
            self._offset = 0
        self._pending += _HEADER.pack(length, timestamp, attempts, b"%016x" % number)
        self._pending += body
        self._offset += _LENGTH + length
        self.depth += 1
        self.largest = max(self.largest, len(body))
        if len(self._pending) >= 1 << 16:
            self._flush()

    def close(self) -> None:
        """Sync the data and write the metadata."""
        if not self.depth:
            return
        self._close_file()
        meta = f"{self.depth}\n0,0\n{self._number},{self._offset}\n"
        fd = self._create(meta_name(self._name))
        try:
            os.write(fd, meta.encode())
            os.fsync(fd)
        finally:
            os.close(fd)

    def _create(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return os.open(os.path.join(self._directory, name), flags, 0o600)

    def _flush(self) -> None:
        if self._fd < 0:
            self._fd = self._create(data_name(self._name, self._number))
        view = memoryview(bytes(self._pending))
        self._pending.clear()
        while view:
            view = view[os.write(self._fd, view) :]

    def _close_file(self) -> None:
        self._flush()
        fd, self._fd = self._fd, -1
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
