"""One topic's files: when a file is opened, synced, closed and moved, and what a start repairs.

Owns the rules of rotation and revisions. Time is what the caller says it is; every call blocks and
may raise OSError, after which nothing but abandon() may be called: what was not acknowledged by
then comes again, and the next start cuts off what is left of it.
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
from nsqcy.tools.files.file import File


class Moment(NamedTuple):
    """wall    seconds since 1970, for names
    steady  nanoseconds of a clock that is never set, for intervals
    """

    wall: float
    steady: int


class Rules(NamedTuple):
    """rotate_size      bytes, 0 is never
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
        """Whether files being written and finished ones are apart."""
        return self.work_dir != self.output_dir

    @property
    def exclusive(self) -> bool:
        """Whether a file that exists is never appended to."""
        return self.codec.framed or self.rotate_interval > 0

    @property
    def revisions(self) -> bool:
        """Whether names must have a <REV>."""
        return self.exclusive or self.rotate_size > 0 or self.moves


class FileInUse(NsqError):
    """A file with no other revision is being written by another process."""


class TopicFiles:
    """The files of one topic.

    written, synced  messages so far; the first `synced` of those written are safe
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
        self._name = ""  # with its <REV> open
        self._revision = 0
        self._opened = 0

    # --- what happens to it -------------------------------------------------------------------

    def write(self, bodies: Iterable[bytes], now: Moment) -> None:
        """Messages, in order; each is followed by a line feed."""
        for body in bodies:
            file = self._file
            if due := file is None or self._is_due(file, now):
                file = self._rotate(now)
            assert file is not None
            file.add(body + b"\n")
            self.written += 1
            if due or self.written - self.synced >= self._rules.buffer:
                self.sync()
        if self._file is not None:
            self._file.flush()

    def tick(self, now: Moment) -> None:
        """Every sync interval."""
        if self._file is None or self._is_due(self._file, now):
            if self._rules.skip_empty:
                self.finish()
            else:
                self._rotate(now)
        self.sync()

    def sync(self) -> None:
        """Everything written is safe when this returns."""
        count = self.written - self.synced
        if count:
            assert self._file is not None
            self._log.info(f"{self._label} syncing {count} records to disk")
            self._file.sync()
            self.synced = self.written

    def finish(self) -> None:
        """Sync, close and move the file; the next message or tick opens one. Also the end."""
        if self._file is None:
            return
        self.sync()
        self._settle(self._file, self._name, self._revision)
        self.abandon()

    def abandon(self) -> None:
        """Let go of the file as it is."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

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
        """None when the next revision is to be tried."""
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
        """Whether the file is ours to write to now."""
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
        # Whoever had the lock may have moved the file away just before.
        return self._disk.lock(fd) and file.is_at(file.path)

    # --- closing and moving -------------------------------------------------------------------

    def _settle(self, file: File, name: str, revision: int) -> None:
        """Give a file that is done its place. It stays locked until it has it."""
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
            # Or linked already, by a process that did not live to unlink it.
            return file.is_at(target) and file.links() > 1
        return True

    def _remove(self, file: File) -> None:
        self._disk.unlink(file.path)
        self._disk.sync_folder(posixpath.dirname(file.path))

    def _make_folders(self, root: str, relative: str) -> None:
        """The folders of a file, durable. One that is there may not have been synced yet."""
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

    # --- what a crash left --------------------------------------------------------------------

    def start(self) -> None:
        """Before anything else: make the folders, and finish the files that were being written
        when a process died."""
        self._make_root(self._rules.work_dir)
        self._make_root(self._rules.output_dir)
        for relative in self._unfinished():
            path = self._work(relative)
            try:
                fd = self._disk.reopen(path)
            except FileNotFoundError:
                continue
            except PermissionError as error:
                self._log.warn(f"{self._label} {path} is left as it is: {error.strerror}")
                continue
            file = File(self._disk, fd, path, self._rules.codec)
            try:
                if self._lock(file, fd):
                    self._repair(file)
                    file.begin()  # this process may die as well
                    self._settle(file, *self._names.open_name(relative))
            finally:
                file.close()

    def _make_root(self, folder: str) -> None:
        """A folder and those above it, durable even if who made them died before he synced."""
        above = posixpath.dirname(folder)
        if above == folder:
            return
        if not self._disk.exists(folder):
            self._make_root(above)
            self._disk.make_folder(folder)
        try:
            self._disk.sync_folder(above)
        except PermissionError:
            pass  # not one that we could have made

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
        # One file at a time is written, so it is the last.
        return [max(found, key=lambda each: self._disk.modified(self._work(each)))]

    def _is_unfinished(self, path: str) -> bool:
        # A file is there a moment before its note.
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
