"""Import of NSQ's disk queues: converts them to logs, once, at the first start.

    import.tmp/            import in progress; after a crash, the next import starts over
        <topic>.topic/
        manifest           the imported files, and the directory in which to keep them
    import.done/           the same files, complete and synced; the rename commits the import
    imported-go-<time>/    the originals

After the rename, the topics are moved into the data path, the originals are moved out of it, and
the rest of `import.done/` is deleted. If nsqd finds `import.done/` at startup, it completes these
steps first. Before the rename, no existing file is touched.

A topic's log begins with the messages of its channels, channel by channel. The topic's own messages
follow after the fan-out position. A channel's cursor points to its first message; messages between
its last message and the fan-out position are marked as finished for the channel. Messages that were
delivered before have journal entries, which keep their attempt counts; their records form a
survivor run.

File operations block: the import runs before nsqd serves clients.
"""

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from struct import Struct

from nsqcy import formats
from nsqcy.errors import DATED, StartError, Stop
from nsqcy.logging.types import Lines
from nsqcy.names import is_ephemeral
from nsqcy.nsqd.data.diskqueue import MARK, Damage, Queue, QueueReader, Record, find_queues
from nsqcy.storage import journal
from nsqcy.storage.core import IoThread, Log, LogProbe, topic_directory
from nsqcy.util.files import sync_directory

TMP = "import.tmp"
DONE = "import.done"
MANIFEST = "manifest"
ASIDE = "imported-go-"
METADATA = "nsqd.dat"

RUN = 262144  # bytes of records per write
AHEAD = 16  # concurrent writes
MAX_ENTRIES = 1_000_000  # maximum messages per topic with saved attempt counts; each uses memory
PROGRESS = 10.0  # seconds between progress log lines
BEAT = 1.0  # seconds between calls to on_progress
MIN_RECORD = 30  # minimum bytes of a message in NSQ's files

_RECORD = Struct("<IIQQqIHH")  # length, crc, seq, id, timestamp, body, extensions, attributes
_MIN_SIZE = 48
_ZEROS = bytes(_MIN_SIZE)
_SURVIVORS = 1
_COPY = 2  # attribute of records in a survivor run


class ImportStopped(Stop):
    """nsqd was stopped during the import."""

    exit_code = 0
    shape = DATED


def is_needed(data_path: str) -> bool:
    """Return whether there is data to import, or an import to complete."""
    with os.scandir(data_path or ".") as entries:
        return any(each.name in (TMP, DONE) or MARK in each.name for each in entries)


class Importer:
    """Import of a locked data path.

    on_progress: called every second with the progress
    stopping: called regularly; returns whether to stop
    bad: also import `.bad` files
    """

    def __init__(
        self,
        data_path: str,
        lines: Lines,
        *,
        max_bytes_per_file: int = 104857600,
        bad: bool = False,
        on_progress: Callable[[str], object] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
        io: IoThread | None = None,
    ) -> None:
        self._data_path = data_path or "."
        self._lines = lines
        self._max_bytes_per_file = max_bytes_per_file
        self._bad = bad
        self._on_progress = on_progress
        self._stopping = stopping
        self._io = io
        self._next_line = 0.0
        self._next_beat = 0.0
        self._bytes = 0  # bytes of the files to read
        self.messages = 0
        self.damages = 0
        self.refused: list[str] = []  # existing topics

    def run(self) -> None:
        """Run the import. Raises StartError, and in that case leaves NSQ's files unchanged."""
        try:
            finish(self._data_path, self._lines)
            shutil.rmtree(self._path(TMP), ignore_errors=True)
            queues = self._wanted(find_queues(self._data_path))
            if queues:
                self._import(queues)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            reason = (error.strerror or str(error)).lower()
            raise StartError(f"failed to import NSQ's files - {where}{reason}") from None
        except (ValueError, KeyError) as error:
            path = self._path(DONE, MANIFEST)
            raise StartError(f"failed to complete the import - {path}: {error}") from None
        finally:
            shutil.rmtree(self._path(TMP), ignore_errors=True)

    def _path(self, *names: str) -> str:
        return os.path.join(self._data_path, *names)

    # -- the files to import

    def _wanted(self, queues: list[Queue]) -> list[Queue]:
        """Return the queues whose topics do not exist yet."""
        taken = set()
        for queue in queues:
            if queue.valid and os.path.lexists(self._path(topic_directory(queue.topic))):
                taken.add(queue.topic)
        self.refused = sorted(taken)
        for topic in self.refused:
            self._lines.error(
                f"import: topic {topic}: not imported, {topic_directory(topic)} already exists;"
                " its NSQ files stay unchanged"
            )
        return [queue for queue in queues if queue.topic not in taken]

    def _import(self, queues: list[Queue]) -> None:
        topics: dict[str, list[Queue]] = {}
        for queue in queues:
            if self._is_readable(queue):
                topics.setdefault(queue.topic, []).append(queue)
        self._bytes = sum(self._size(queue) for its in topics.values() for queue in its)
        self._lines.info(
            f"import: NSQ disk queues: {len(queues)}; topics: {len(topics)}; bytes to read: "
            f"{self._bytes}"
        )
        self._check_room()
        os.mkdir(self._path(TMP), 0o700)
        self._write(topics)
        self._commit(queues)
        finish(self._data_path, self._lines)
        self._lines.info(
            f"import: complete; messages: {self.messages}; unreadable parts: {self.damages}"
        )

    def _is_readable(self, queue: Queue) -> bool:
        files = len(queue.files) + len(queue.bad)
        if not queue.valid:
            self._lines.warn(f"import: {queue.name}: invalid name; files not read: {files}")
            return False
        if is_ephemeral(queue.topic) or (queue.channel and is_ephemeral(queue.channel)):
            self._lines.warn(f"import: {queue.name}: ephemeral; files not read: {files}")
            return False
        if queue.bad and not self._bad:
            self._lines.warn(
                f"import: {queue.name}: .bad files not read: {len(queue.bad)}"
                f" ({queue.size(queue.bad)} bytes)"
            )
        return True

    def _size(self, queue: Queue) -> int:
        return queue.size(queue.files) + (queue.size(queue.bad) if self._bad else 0)

    def _check_room(self) -> None:
        found = os.statvfs(self._data_path)
        free = found.f_bavail * found.f_frsize
        if free < self._bytes:
            text = f"{self._bytes} bytes to import, but only {free} bytes free"
            raise OSError(errno.ENOSPC, text, self._data_path)

    # -- writing

    def _write(self, topics: dict[str, list[Queue]]) -> None:
        io = self._io or IoThread()
        self._next_line = time.monotonic() + PROGRESS
        try:
            for topic in sorted(topics):
                self._write_topic(io, topic, topics[topic])
        finally:
            io.close()

    def _write_topic(self, io: IoThread, topic: str, queues: list[Queue]) -> None:
        # Short queues come first: the beginning of the log can be deleted once all channels have
        # passed it.
        queues.sort(key=lambda queue: (queue.channel is None, self._size(queue)))
        room = sum(self._size(queue) for queue in queues) // MIN_RECORD + 1
        writer = TopicWriter(io, self._path(TMP), topic, room, self._max_bytes_per_file)
        for queue in queues:
            reader = QueueReader(queue, self._on_damage, self._on_note)
            records = self._watched(queue, reader, reader.records(bad=self._bad))
            if queue.channel is None:
                writer.add_backlog(records)
            else:
                writer.add_channel(queue.channel, records)
            self.messages += reader.count
            if reader.count:
                self._lines.info(f"import: {queue.name}: {reader.count} messages")
        writer.close()
        if writer.forgotten:
            self._lines.warn(
                f"import: topic {topic}: messages that restart at attempt 1: {writer.forgotten}"
            )

    def _watched(
        self, queue: Queue, reader: QueueReader, records: Iterable[Record]
    ) -> Iterable[Record]:
        for record in records:
            if not reader.count & 1023:
                self._look_up(queue, reader)
            yield record

    def _look_up(self, queue: Queue, reader: QueueReader) -> None:
        if self._stopping():
            raise ImportStopped("stopped during the import of NSQ's files, which are unchanged")
        now = time.monotonic()
        if now < self._next_beat:
            return
        self._next_beat = now + BEAT
        text = f"{reader.count} messages so far, {self.messages + reader.count} in total"
        self._on_progress(f"importing {queue.name}: {text}")
        if now >= self._next_line:
            self._next_line = now + PROGRESS
            self._lines.info(f"import: {queue.name}: {text}")

    def _on_damage(self, damage: Damage) -> None:
        self.damages += 1
        self._lines.error(f"import: {damage}")

    def _on_note(self, text: str) -> None:
        self._lines.warn(f"import: {text}")

    # -- committing

    def _commit(self, queues: list[Queue]) -> None:
        names = [name for queue in queues for name in queue.names]
        number = formats.MANIFEST.number
        manifest = {"version": number, "aside": self._new_name(), "files": sorted(names)}
        path = self._path(TMP, MANIFEST)
        with open(path, "w", opener=_private) as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        sync_directory(self._path(TMP))
        os.rename(self._path(TMP), self._path(DONE))
        sync_directory(self._data_path)

    def _new_name(self) -> str:
        name = ASIDE + time.strftime("%Y-%m-%dT%H%M%SZ", time.gmtime())
        number = 1
        while os.path.lexists(self._path(name + f"-{number}" * (number > 1))):
            number += 1
        return name + f"-{number}" * (number > 1)


def finish(data_path: str, lines: Lines) -> None:
    """Complete a committed import: move the topics in and the originals out. Does nothing if there
    is none. Raises FormatError."""
    done = os.path.join(data_path, DONE)
    if not os.path.isdir(done):
        return
    path = os.path.join(done, MANIFEST)
    if os.path.exists(path):
        with open(path) as file:
            manifest = json.load(file)
        formats.MANIFEST.check(manifest.get("version"), path)
        _move_topics(done, data_path)
        _move_originals(data_path, manifest["aside"], manifest["files"])
        lines.info(f"import: NSQ's files are kept in {os.path.join(data_path, manifest['aside'])}")
        os.unlink(path)
        sync_directory(done)
    os.rmdir(done)
    sync_directory(data_path)


def _move_topics(done: str, data_path: str) -> None:
    for name in sorted(os.listdir(done)):
        if name != MANIFEST:
            os.rename(os.path.join(done, name), os.path.join(data_path, name))
    sync_directory(data_path)


def _move_originals(data_path: str, aside: str, names: list[str]) -> None:
    kept = os.path.join(data_path, aside)
    os.makedirs(kept, 0o700, exist_ok=True)
    metadata = os.path.join(data_path, METADATA)
    if os.path.exists(metadata) and not os.path.exists(os.path.join(kept, METADATA)):
        shutil.copy(metadata, os.path.join(kept, METADATA + ".tmp"))
        os.rename(os.path.join(kept, METADATA + ".tmp"), os.path.join(kept, METADATA))
    for name in names:
        original = os.path.join(data_path, name)
        if os.path.lexists(original):
            os.rename(original, os.path.join(kept, name))
    sync_directory(kept)
    sync_directory(data_path)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


# ---- a topic's log ----


class _Run:
    """A record buffer for one write."""

    def __init__(self, attributes: int = 0) -> None:
        self.attributes = attributes  # for each record
        self.data = bytearray()
        self.first = 0
        self.last = 0
        self.count = 0

    def has_room(self, length: int) -> bool:
        return not self.count or len(self.data) + length <= RUN

    def add(self, seq: int, record: Record, length: int) -> int:
        """Append a record and return its offset in the run."""
        at = len(self.data)
        if not self.count:
            self.first = seq
        self.last = seq
        self.count += 1
        body = record.body
        facts = seq, record.id, record.timestamp, len(body), 0, self.attributes
        head = _RECORD.pack(length, 0, *facts)
        self.data += head
        self.data += body
        self.data += _ZEROS[: length - _RECORD.size - len(body)]
        return at


class TopicWriter:
    """Writes and syncs one topic's log and journal in an empty directory.

    room: an upper bound on the number of messages. This many seqs are reserved for messages that
    were delivered before, which may be anywhere in the queues.
    """

    def __init__(
        self, io: IoThread, directory: str, topic: str, room: int, max_bytes_per_file: int
    ) -> None:
        self.forgotten = 0  # number of messages that lose their attempt counts
        self._io = io
        self._log = Log(io, directory, topic, max_bytes_per_file=max_bytes_per_file, sync_every=0)
        self._probe = LogProbe(self._log)
        self._error = 0
        self._survivor_seq = 1
        self._seq = room + 1
        self._run = _Run()
        self._survivors = _Run(_COPY)
        self._waiting: list[tuple[int, int, int]] = []  # (seq, offset in the run, attempts)
        self._entries = bytearray()
        self._entry_count = 0
        self._channels: list[tuple[str, int, int, bytes]] = []  # name, first seq, end, entries
        self._fanout = 0

    def add_channel(self, name: str, records: Iterable[Record]) -> None:
        """Add a channel's messages."""
        first = self._seq
        for record in records:
            if record.attempts and self._entry_count < MAX_ENTRIES:
                self._add_survivor(record)
            else:
                self.forgotten += record.attempts > 0
                self._add(record)
        self._flush_survivors()
        if self._seq > first or self._entries:
            self._channels.append((name, first, self._seq, bytes(self._entries)))
        self._entries.clear()

    def add_backlog(self, records: Iterable[Record]) -> None:
        """Add the topic's own messages, which are not copied to channels yet. Call this after
        add_channel()."""
        self._fanout = self._seq
        for record in records:
            self._add(record)

    def close(self) -> None:
        """Sync everything. A topic without messages creates no files."""
        self._flush()
        if self._log.disk_bytes:
            self._probe.write_snapshot(journal.encode_snapshot(self._state()), self._done)
        self._io.drain_now()
        self._probe.close(self._done)
        self._io.drain_now()
        self._check()

    def _state(self) -> journal.TopicState:
        fanout = self._fanout or self._seq
        return journal.TopicState(
            log_id=self._log.log_id,
            next_seq=self._seq,
            fanout_seq=fanout,
            channels=tuple(_channel(*each, fanout) for each in self._channels),
            clean=True,
        )

    def _add(self, record: Record) -> None:
        length = max(_MIN_SIZE, _RECORD.size + len(record.body) + 7 & ~7)
        if not self._run.has_room(length):
            self._flush()
        self._run.add(self._seq, record, length)
        self._seq += 1

    def _add_survivor(self, record: Record) -> None:
        length = max(_MIN_SIZE, _RECORD.size + len(record.body) + 7 & ~7)
        if not self._survivors.has_room(length):
            self._flush_survivors()
        offset = self._survivors.add(self._survivor_seq, record, length)
        self._waiting.append((self._survivor_seq, offset, record.attempts))
        self._survivor_seq += 1
        self._entry_count += 1

    def _flush(self) -> None:
        run, self._run = self._run, _Run()
        if run.count:
            self._probe.append(run.data, run.first, run.last, run.count, 0, done=self._done)
            self._keep_up()

    def _flush_survivors(self) -> None:
        run, self._survivors = self._survivors, _Run(_COPY)
        if not run.count:
            return
        handle = self._probe.append(
            run.data, run.first, run.last, run.count, _SURVIVORS, done=self._done
        )
        segment, place = handle.pieces[0][:2]
        for seq, offset, attempts in self._waiting:
            entry = journal.Entry(seq, segment, place + offset, attempts=attempts)
            self._entries += entry.pack()
        self._waiting.clear()
        self._keep_up()

    def _keep_up(self) -> None:
        if self._io.outstanding > AHEAD:
            self._io.drain_now()
            self._check()

    def _done(self, error: int) -> None:
        self._error = self._error or error

    def _check(self) -> None:
        if self._error:
            text = self._log.last_error_text or os.strerror(self._error)
            raise OSError(self._error, text)


def _channel(name: str, first: int, end: int, entries: bytes, fanout: int) -> journal.ChannelState:
    """Return the state of a channel that has the records from `first` to `end`."""
    if first == end:
        return journal.ChannelState(name, cursor=fanout, entries=entries)
    others = ((end, fanout),) if end < fanout else ()
    return journal.ChannelState(
        name, cursor=first, skipped=fanout - end, entries=entries, finished=others
    )
