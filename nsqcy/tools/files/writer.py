"""Writer for one topic's files: opens, syncs, closes and moves files, and repairs them at startup.

Owns the rotation and revision rules. Callers pass the time. Every call blocks and may raise
OSError; after an OSError, only abandon() may be called. Messages that are not acknowledged by that
time are redelivered, and the next run truncates any partial data written for them.
"""

import posixpath
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from nsqcy.config.durations import format_duration
from nsqcy.errors import NsqError
from nsqcy.logging.types import Lines
from nsqcy.tools.files import names
from nsqcy.tools.files.codecs import Codec
from nsqcy.tools.files.disk import Disk
from nsqcy.tools.files.output_file import File


class Moment(NamedTuple):
    """A point in time.

    wall    seconds since 1970, for names
    steady  nanoseconds on a monotonic clock, for intervals
    """

    wall: float
    steady: int


class Rules(NamedTuple):
    """Rotation and sync rules.

    rotate_size      bytes, 0 is never
    rotate_interval  ns, 0 is never
    buffer           messages after which to sync
    """

    output_dir: str
    work_dir: str
    codec: Codec
    rotate_size: int = 0
    rotate_interval: int = 0
    skip_empty: bool = False
    buffer: int = 200

    @property
    def moves(self) -> bool:
        """Whether the work directory and the output directory differ."""
        return self.work_dir != self.output_dir

    @property
    def exclusive(self) -> bool:
        """Whether existing files are never appended to."""
        return self.codec.framed or self.rotate_interval > 0

    @property
    def revisions(self) -> bool:
        """Whether names must have a <REV>."""
        return self.exclusive or self.rotate_size > 0 or self.moves


class FileInUse(NsqError):
    """Another process is writing the file, and the format has no <REV> to form a different name."""


class TopicFiles:
    """One topic's files.

    written, synced  message counts; the first `synced` of the written messages are durable
    """

    def __init__(
        self, label: str, file_names: names.FileNames, rules: Rules, disk: Disk, log: Lines
    ) -> None:
        self.written = self.synced = 0
        self._label = label
        self._names = file_names
        self._rules = rules
        self._disk = disk
        self._log = log
        self._file: File | None = None
        self._name = ""  # with <REV> not replaced
        self._revision = 0
        self._opened = 0
        self._now = Moment(0.0, 0)
        self._unsynced: list[bytes] = []  # messages since the last sync

    # --- operations ---------------------------------------------------------------------------

    def write(self, bodies: Iterable[bytes], now: Moment) -> None:
        """Write messages in order, each followed by a line feed."""
        self._now = now
        self._replace_removed()
        for body in bodies:
            file = self._file
            if due := file is None or self._is_due(file, now):
                file = self._rotate(now)
            assert file is not None
            file.add(body + b"\n")
            self.written += 1
            self._unsynced.append(body)
            if due or self.written - self.synced >= self._rules.buffer:
                self.sync()
        if self._file is not None:
            self._file.flush()

    def tick(self, now: Moment) -> None:
        """Sync and rotate. Call this every sync interval."""
        self._now = now
        if self._file is None or self._is_due(self._file, now):
            if self._rules.skip_empty:
                self.finish()
            else:
                self._rotate(now)
        self.sync()

    def sync(self) -> None:
        """Make everything written so far durable."""
        count = self.written - self.synced
        if count:
            assert self._file is not None
            self._log.info(f"{self._label} syncing {count} records to disk")
            self._file.sync()
            while self._replace_removed():
                self._file.sync()
            self.synced = self.written
            self._unsynced.clear()

    def finish(self) -> None:
        """Sync, close and move the file. The next message or tick opens a new one."""
        if self._file is None:
            return
        self.sync()
        if self._file.links():  # otherwise it was removed after its last sync
            self._settle(self._file, self._name, self._revision)
        self.abandon()

    def abandon(self) -> None:
        """Close the file without syncing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _replace_removed(self) -> bool:
        """If the file was removed, write its unsynced messages to a new one, so that they are not
        lost. This also recreates directories that were removed with it."""
        if self._file is None or self._file.links():
            return False
        self._log.warn(f"{self._label} {self._file.path} was removed: opening a new file")
        self.abandon()
        self._name = ""
        file = self._rotate(self._now)
        for body in self._unsynced:
            file.add(body + b"\n")
        file.flush()
        return True

    # --- rotation -----------------------------------------------------------------------------

    def _is_due(self, file: File, now: Moment) -> bool:
        rules = self._rules
        name = self._names.at(now.wall)
        age = now.steady - self._opened
        if name != self._name:
            why = f"new filename {name}"
        elif 0 < rules.rotate_interval < age:
            why = f"{format_duration(age)} since last open"
        elif 0 < rules.rotate_size < file.length:
            why = f"currently {file.length} bytes (> {rules.rotate_size})"
        else:
            return False
        self._log.info(f"{self._label} {why}, rotating...")
        return True

    def _rotate(self, now: Moment) -> File:
        self.finish()
        name = self._names.at(now.wall)
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        while (file := self._open(names.with_revision(name, self._revision))) is None:
            if not self._names.revisions:
                raise FileInUse(f"{self._work(name)} is being written by another process")
            self._revision += 1
        self._file = file
        self._opened = now.steady
        return file

    def _open(self, relative: str) -> File | None:
        """Open a file. Return None if the caller must try the next revision."""
        path = self._work(relative)
        if self._rules.moves and self._disk.exists(self._output(relative)):
            self._log.warn(f"{self._label} output file already exists: {self._output(relative)}")
            return None
        self._make_folders(self._rules.work_dir, relative)
        try:
            fd = self._disk.open(path, exclusive=self._rules.exclusive)
        except FileExistsError:
            self._log.warn(f"{self._label} working file already exists: {path}")
            return None
        file = File(self._disk, fd, path, self._rules.codec)
        try:
            opened = self._take(file, fd)
        except OSError:
            file.close()
            raise
        if not opened:
            file.close()
            return None
        self._disk.sync_folder(posixpath.dirname(path))
        self._log.info(f"{self._label} opening {path}")
        return file

    def _take(self, file: File, fd: int) -> bool:
        """Lock the file; return whether we may write to it."""
        if not self._lock(file, fd):
            self._log.warn(f"{self._label} working file is in use: {file.path}")
            return False
        self._repair(file)
        if 0 < self._rules.rotate_size < file.size:
            file.complete()
            return False
        file.begin()
        return True

    def _lock(self, file: File, fd: int) -> bool:
        # The previous owner of the lock may have moved the file.
        return self._disk.lock(fd) and file.is_at(file.path)

    # --- closing and moving -------------------------------------------------------------------

    def _settle(self, file: File, name: str, revision: int) -> None:
        """Move a finished file to its final place. The file stays locked until then."""
        file.complete()
        if self._rules.skip_empty and file.length == 0:
            self._remove(file)
        elif self._rules.moves:
            self._move(file, name, revision)

    def _move(self, file: File, name: str, revision: int) -> None:
        while not self._link(file, names.with_revision(name, revision)):
            revision += 1
        self._remove(file)

    def _link(self, file: File, relative: str) -> bool:
        target = self._output(relative)
        self._log.info(f"{self._label} moving finished file {file.path} to {target}")
        self._make_folders(self._rules.output_dir, relative)
        if not self._is_linked(file, target):
            self._log.warn(f"{self._label} destination file already exists: {target}")
            return False
        self._disk.sync_folder(posixpath.dirname(target))
        return True

    def _is_linked(self, file: File, target: str) -> bool:
        try:
            self._disk.link(file.path, target)
        except FileExistsError:
            # A process that died before unlinking the file may already have linked it.
            return file.is_at(target) and file.links() > 1
        return True

    def _remove(self, file: File) -> None:
        self._disk.unlink(file.path)
        self._disk.sync_folder(posixpath.dirname(file.path))

    def _make_folders(self, root: str, relative: str) -> None:
        """Create a file's directories durably, including `root` if it was removed. Existing
        directories may not have been synced yet."""
        if not self._disk.exists(root):
            self._make_root(root)
        folder = root
        for part in relative.split("/")[:-1]:
            below = posixpath.join(folder, part)
            self._disk.make_folder(below)
            self._disk.sync_folder(folder)
            folder = below

    def _work(self, relative: str) -> str:
        return posixpath.join(self._rules.work_dir, relative)

    def _output(self, relative: str) -> str:
        return posixpath.join(self._rules.output_dir, relative)

    # --- repair after a crash -----------------------------------------------------------------

    def start(self) -> None:
        """Create the directories, and repair and move files that a dead process was writing. Must
        be called first."""
        self._make_root(self._rules.work_dir)
        self._make_root(self._rules.output_dir)
        for relative in self._unfinished():
            path = self._work(relative)
            try:
                fd = self._disk.reopen(path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                self._log.warn(f"{self._label} {path} not repaired: {error.strerror}")
                continue
            file = File(self._disk, fd, path, self._rules.codec)
            try:
                if self._lock(file, fd):
                    self._repair(file)
                    file.begin()  # this process may also crash
                    self._settle(file, *self._names.open_name(relative))
            finally:
                file.close()

    def _make_root(self, folder: str) -> None:
        """Create a directory and its parents durably, even if a previous process created them and
        died before syncing."""
        above = posixpath.dirname(folder)
        if above == folder:
            return
        if not self._disk.exists(folder):
            self._make_root(above)
            self._disk.make_folder(folder)
        try:
            self._disk.sync_folder(above)
        except PermissionError:
            pass  # not a directory that we could have created

    def _repair(self, file: File) -> None:
        cut = file.repair()
        if cut:
            self._log.warn(
                f"{self._label} {file.path}: a crash left {cut} bytes that were never"
                f" acknowledged; {file.size} bytes are kept"
            )

    def _unfinished(self) -> list[str]:
        found = sorted(self._ours("", 0))
        if self._rules.moves or not found:
            return found
        if self._disk.has_notes(self._rules.work_dir):
            return [each for each in found if self._is_unfinished(self._work(each))]
        # Only one file is written at a time, so it is the last one.
        return [max(found, key=lambda each: self._disk.modified(self._work(each)))]

    def _is_unfinished(self, path: str) -> bool:
        # A file exists briefly before its note does.
        empty = self._rules.codec.framed and self._disk.is_empty(path)
        return empty or self._disk.is_noted(path)

    def _ours(self, folder: str, level: int) -> Iterator[str]:
        for entry in self._disk.listing(self._work(folder)):
            last = level == self._names.depth()
            if entry.is_folder != last and self._names.is_part(level, entry.name):
                relative = posixpath.join(folder, entry.name)
                if last:
                    yield relative
                else:
                    yield from self._ours(relative, level + 1)
