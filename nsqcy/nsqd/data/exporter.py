"""Export of a stopped data path to files for NSQ's nsqd.

`TopicReader` reads a topic record by record: its journal, its runs, and the channels that still
need each record. `Export` writes the records as disk queues, and `nsqd.dat`.

NSQ stores no due times, headers or keys: deferred messages become due immediately, and headers and
keys are dropped. Expired messages are not exported.
"""

import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from struct import Struct
from typing import NamedTuple

from nsqcy.errors import StartError
from nsqcy.formats import FormatError
from nsqcy.logging.types import Lines
from nsqcy.nsqd.data.diskqueue import QueueWriter
from nsqcy.nsqd.data.importer import is_needed
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.master import metadata
from nsqcy.storage import journal
from nsqcy.storage.core import (
    IoThread,
    Log,
    LogProbe,
    RunHandle,
    Unreadable,
    recover_log,
    recovered_runs,
)
from nsqcy.util import files

_RECORD = Struct("<IIQQqIHH")  # length, crc, seq, id, timestamp, body, extensions, attributes
_EXTENSION = Struct("<HHI")
_EXPIRES = Struct("<q")
_EXPIRES_TYPE = 4
_SURVIVORS = 1
_DELAYED = 1
_HEADERS = 1 << 2
_HAS_EXPIRES = 1 << 4
_KEYED = 1 << 6 | 1 << 7  # a stored key or priority; a deduplication id
_DAMAGED = 0x8000
READS = 4  # attempts to read a run before the export fails


class Record(NamedTuple):
    """The content of a record. `expires` is the expiry in ns since 1970, or None."""

    timestamp: int
    id: int
    body: bytes
    headers: bool
    keyed: bool
    expires: int | None


class Message(NamedTuple):
    """A message that a channel still needs. `channel` is None for the topic's own messages."""

    channel: str | None
    attempts: int
    deferred: bool
    record: Record


class _Run(NamedTuple):
    first_seq: int
    last_seq: int
    survivors: bool
    segment: int
    offset: int
    size: int
    handle: RunHandle


class _Reader(NamedTuple):
    """Records in the window that a particular channel still needs."""

    name: str
    cursor: int
    finished: tuple[tuple[int, int], ...]

    def wants(self, seq: int) -> bool:
        return seq >= self.cursor and not any(first <= seq < end for first, end in self.finished)


class TopicReader:
    """Reader of one topic's log on disk.

    on_damage: called with (path, offset, text)
    known: the topic's channels in nsqd.dat
    """

    def __init__(
        self,
        io: IoThread,
        data_path: str,
        topic: str,
        known: list[str],
        on_damage: Callable[[str, int, str], object],
    ) -> None:
        self._io = io
        self._on_damage = on_damage
        log = Log(io, data_path, topic, on_damage=on_damage)
        self._probe = LogProbe(log)
        found = recover_log(log)
        for path, offset, text in found.damages:
            on_damage(path, offset, text)
        self.state = self._replay(log, found.journal)
        runs = (_run(*each) for each in recovered_runs(found))
        self._runs = sorted(runs, key=lambda run: run[:6])
        saved = {each.name: each for each in self.state.channels} if self.state else {}
        self.channels = {name: saved[name].paused if name in saved else False for name in known}
        self.channels |= {name: each.paused for name, each in saved.items()}
        self._saved = saved

    def _replay(self, log: Log, entries: list[bytes]) -> journal.TopicState | None:
        try:
            return journal.replay(entries)
        except journal.JournalError as error:
            self._on_damage(os.path.join(log.directory, "journal"), 0, str(error))
            return None

    def messages(self) -> Iterator[Message]:
        """Yield the needed messages in record order."""
        fanout = self.state.fanout_seq if self.state else 1
        holes = self.state.holes if self.state else ()
        readers = [self._reader(name, fanout, holes) for name in self.channels]
        minimum = min([fanout, *(reader.cursor for reader in readers)])
        entries = self._entries()
        for index, run in enumerate(self._runs):
            needed = entries.get(index, {})
            in_window = not run.survivors and run.last_seq >= minimum
            if not needed and not in_window and (self.state or not run.survivors):
                continue
            for at, seq, attributes, record in _records(self._read(run)):
                if attributes & _DAMAGED:
                    continue
                for channel, attempts, deferred in needed.get(at, ()):
                    yield Message(channel, attempts, deferred, record)
                if in_window and seq >= fanout:
                    yield Message(None, 0, bool(attributes & _DELAYED), record)
                elif in_window and not attributes & _DELAYED:
                    for reader in readers:
                        if reader.wants(seq):
                            yield Message(reader.name, 0, False, record)
                elif run.survivors and self.state is None:
                    # No journal entry lists the channels that need these copies, so every channel
                    # receives them.
                    for name in self.channels or (None,):
                        yield Message(name, 0, False, record)

    def _reader(self, name: str, fanout: int, holes: tuple[tuple[int, int], ...]) -> _Reader:
        saved = self._saved.get(name)
        if saved is None:
            return _Reader(name, fanout, ())
        return _Reader(name, saved.cursor, (*saved.finished, *holes))

    def _entries(self) -> dict[int, dict[int, list[tuple[str, int, bool]]]]:
        """Return run -> offset -> channels that need this record individually."""
        runs = sorted((run.segment, run.offset, index) for index, run in enumerate(self._runs))
        found: dict[int, dict[int, list[tuple[str, int, bool]]]] = {}
        for name, saved in self._saved.items():
            for entry in journal.unpack_entries(saved.entries):
                place = bisect_right(runs, (entry.segment, entry.offset, len(runs))) - 1
                if place < 0:
                    continue
                segment, offset, index = runs[place]
                if segment != entry.segment or entry.offset - offset >= self._runs[index].size:
                    continue
                records = found.setdefault(index, {})
                deferred = entry.state == journal.State.DEFERRED
                records.setdefault(entry.offset - offset, []).append(
                    (name, entry.attempts, deferred)
                )
        return found

    def _read(self, run: _Run) -> bytearray:
        """Return a run's records. Raises Unreadable after some attempts: an export has no gaps."""
        answers: list[tuple[int, bytearray]] = []
        for _ in range(READS):
            self._probe.read(run.handle, lambda error, data: answers.append((error, data)))
            self._io.drain_now()
            error, data = answers.pop()
            if not error:
                return data
        path = os.path.join(self._probe.log.directory, f"{run.segment:020d}.seg")
        raise Unreadable(error, path, run.offset, run.size)


def _run(
    first: int, last: int, _count: int, flags: int, _from: int, _to: int, handle: RunHandle
) -> _Run:
    segment, offset, length = handle.pieces[0][:3]
    survivors = bool(flags & _SURVIVORS)
    return _Run(first, last, survivors, segment, offset, length, handle)


def _records(data: bytearray) -> Iterator[tuple[int, int, int, Record]]:
    """Yield (offset, seq, attributes, record)."""
    at = 0
    while at < len(data):
        length, _, seq, number, timestamp, size, ext, attributes = _RECORD.unpack_from(data, at)
        start = at + _RECORD.size
        body = bytes(data[start + ext : start + ext + size])
        expires = _expires(data, start, start + ext) if attributes & _HAS_EXPIRES else None
        headers = bool(attributes & _HEADERS)
        keyed = bool(attributes & _KEYED)
        yield at, seq, attributes, Record(timestamp, number, body, headers, keyed, expires)
        at += length


def _expires(data: bytearray, at: int, end: int) -> int | None:
    while at < end:
        kind, size, _ = _EXTENSION.unpack_from(data, at)
        at += _EXTENSION.size
        if kind == _EXPIRES_TYPE:
            return int(_EXPIRES.unpack_from(data, at)[0])
        at += size + -size % 8
    return None


class Export:
    """Exports a locked data path to an empty or new directory, as NSQ files."""

    def __init__(
        self, data_path: str, target: str, lines: Lines, *, max_bytes_per_file: int = 104857600
    ) -> None:
        self._data_path = data_path or "."
        self._target = target
        self._lines = lines
        self._max_bytes_per_file = max_bytes_per_file
        self.messages = 0
        self.deferred = 0
        self.expired = 0
        self.headers = 0
        self.keyed = 0
        self.largest = 0
        self.damages = 0

    def run(self) -> None:
        """Run the export. Raises StartError, and in that case leaves no target directory."""
        temporary = self._target.rstrip("/") + ".tmp"
        try:
            if is_needed(self._data_path):
                raise StartError(
                    f"{self._data_path} contains NSQ files that have not been imported: run "
                    f"`nsqcy data import {self._data_path}` first, or move them elsewhere"
                )
            if os.path.isdir(self._target) and os.listdir(self._target):
                raise StartError(f"{self._target} is not empty")
            shutil.rmtree(temporary, ignore_errors=True)
            os.mkdir(temporary, 0o700)
            self._write(temporary)
            os.rename(temporary, self._target)
            files.sync_directory(os.path.dirname(os.path.abspath(self._target)))
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise StartError(
                f"failed to export - {where}{(error.strerror or str(error)).lower()}"
            ) from None
        except FormatError as error:
            raise StartError(f"failed to export - {error}") from None
        self._summary()

    def _summary(self) -> None:
        self._lines.info(f"export: messages written to {self._target}: {self.messages}")
        if self.deferred:
            self._lines.warn(
                "export: deferred messages that become due immediately, because NSQ does not store"
                f" due times: {self.deferred}"
            )
        if self.headers:
            self._lines.warn(
                f"export: messages written without headers, which NSQ does not have: {self.headers}"
            )
        if self.keyed:
            self._lines.warn(
                "export: messages written without keys, priorities or deduplication ids, which NSQ "
                f"does not have: {self.keyed}"
            )
        if self.expired:
            self._lines.info(f"export: expired messages not written: {self.expired}")
        if self.largest > 1048576:
            self._lines.warn(
                f"export: the largest message has {self.largest} bytes: nsqd treats it as damage "
                "unless --max-msg-size is at least as large"
            )

    def _write(self, directory: str) -> None:
        known_topics = metadata.load(self._data_path, self._lines)
        io = IoThread()
        try:
            for topic in list(known_topics):
                self._write_topic(io, directory, known_topics, topic)
        finally:
            io.close()
        files.replace(directory, metadata.FILE, metadata.dump(known_topics))

    def _write_topic(
        self, io: IoThread, directory: str, known_topics: KnownTopics, topic: str
    ) -> None:
        entry = known_topics.get(topic)
        assert entry is not None
        if not os.path.isdir(os.path.join(self._data_path, f"{topic}.topic")):
            return
        reader = TopicReader(io, self._data_path, topic, list(entry.channels), self._on_damage)
        for name, paused in reader.channels.items():
            entry.channels.setdefault(name, paused)
        writers: dict[str | None, QueueWriter] = {}
        now = time.time_ns()
        for message in reader.messages():
            record = message.record
            if record.expires is not None and record.expires <= now:
                self.expired += 1
                continue
            writer = writers.get(message.channel)
            if writer is None:
                name = topic if message.channel is None else f"{topic}:{message.channel}"
                writer = QueueWriter(directory, name, self._max_bytes_per_file)
                writers[message.channel] = writer
            writer.put(record.timestamp, message.attempts, record.id, record.body)
            self.deferred += message.deferred
            self.headers += record.headers
            self.keyed += record.keyed
        for channel, writer in writers.items():
            writer.close()
            self.messages += writer.depth
            self.largest = max(self.largest, writer.largest)
            what = "the topic" if channel is None else f"channel {channel}"
            self._lines.info(f"export: topic {topic}: messages of {what}: {writer.depth}")

    def _on_damage(self, path: str, offset: int, text: str) -> None:
        self.damages += 1
        self._lines.error(f"export: {path} at {offset}: {text}")
