"""A copy's files on this node, changed as their owner directs.

Implements `nsqcy.copies.ports.Copy` with the I/O threads: nothing here blocks, except for opening a
copy. After the first failed change, a copy stores nothing until it is filled again.
"""

import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from nsqcy.base.core import crc32c
from nsqcy.copies.fetching import Done, Outcome, Part
from nsqcy.copies.messages import Extent, Fetch, Fetched
from nsqcy.copies.ports import Unreadable
from nsqcy.formats import FormatError
from nsqcy.net.core import FrameData
from nsqcy.nsqd.copies.file_list import (
    JOURNAL,
    LIST,
    SEGMENT,
    DamagedList,
    FileList,
    lacking,
    read_list,
)
from nsqcy.nsqd.copies.file_table import HEADER, FileTable
from nsqcy.nsqd.copies.mending import MAX_PART, Findings, Mender, Pace
from nsqcy.storage.core import (
    FileHandle,
    IoThread,
    RunBytes,
    is_segment_header,
    parse_journal,
)
from nsqcy.storage.state_file import check, parse_object, signed
from nsqcy.util import files

ASIDE = ".fill"
"""Suffix of a file that replaces another one at the end of a fill."""
FACTS = "copy.json"
FOLDER = "copies"
"""Directory in the data path that contains all copies."""
SUFFIX = ".topic"
"""Suffix of a topic's directory."""
TORN = 4096  # bytes; the last entry of a journal may be incomplete after a power failure


@dataclass(slots=True)
class Data:
    """The data of a write."""

    data: bytes | bytearray | FrameData | RunBytes
    are_records: bool = False
    """Whether the data is a run of records whose checksums are not filled in yet."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file, to be read when it is sent."""

    handle: FileHandle
    offset: int
    size: int

    def read(self, done: Callable[[int, bytes], object]) -> None:
        """Read the part. Calls done(error, data), where error is an errno or 0."""
        into = bytearray(self.size)
        self.handle.read(into, self.offset, lambda error: done(error, bytes(into)))


class CopyFiles:
    """A group's copy in a directory."""

    def __init__(
        self,
        io: IoThread,
        root: Path,
        boot: str,
        durability: str,
        failed: Callable[[int], object],
        fetch: Callable[[Part, Done], object] = lambda part, done: done(Outcome.LATER, None),
        found: Callable[[str, Findings], object] = lambda path, findings: None,
        mend_journal: Callable[[str], object] = lambda path: None,
    ) -> None:
        """
        boot: id of the machine's boot; a copy of class os is complete only until the machine stops
            uncleanly
        failed: called with the errno of the first change that failed
        fetch: fetches a part of a file from another copy
        found: called with a file and its fault, which is still present or was repaired
        mend_journal: replaces a damaged journal that no other copy has
        Raises Unreadable.
        """
        self._io = io
        self.root = root
        self._boot = boot
        self._durability = durability
        self._failed = failed
        self._found = found
        self._mend_journal = mend_journal
        self.damaged: set[str] = set()
        """Files with damage that could not yet be repaired from another copy."""
        self._doubtful: dict[str, int] = {}
        """Checksums of journals that looked damaged in the latest pass: the table may have been
        ahead of the disk."""
        self.unreadable: set[str] = set()
        """Files that could not be read to the end."""
        self.error = 0
        """The errno of the first change that failed."""
        self._handles: dict[str, FileHandle] = {}
        self._is_filling = False
        self._submitted = 0
        self._made = 0
        self._synced = 0
        """Number of the last synced change."""
        self._syncing = 0
        """The last change covered by the sync in progress, which has `_syncs` unfinished
        operations."""
        self._syncs = 0
        self._unsynced: dict[str, None] = {}
        """Files with unsynced changes."""
        self._unsynced_folders: set[str] = set()
        """Directories with unsynced entries."""
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = _read_facts(root)
        except OSError as error:
            raise Unreadable(error.strerror) from error
        self._whole = facts.get("whole") is True and (
            durability == "fsync" or facts.get("boot") == boot
        )
        self.epoch = facts["epoch"] if isinstance(facts.get("epoch"), int) else 0
        self._serves = facts.get("serves") is True
        filling = facts.get("filling")
        self._verified: dict[str, int] | None = filling if isinstance(filling, dict) else None
        """Size of the part of each segment that an owner has verified, from a fill until the next
        one; None if everything is verified."""
        self.table = FileTable.scan(root)
        self.mender = Mender(io, root, self.table, fetch, time.monotonic, self._repaired)
        listed, self.lacking = _compared(root, facts, self.table.sizes())
        """Files that are missing or too short, until the copy is filled or owned."""
        self.damaged.update(self.table.unidentified(), self.lacking)
        if self.damaged:
            self._whole = False  # an owner empties files that it cannot compare
        if self.lacking:
            self._save_facts()  # before the new list hides what is missing
        self._list(listed)
        if facts and not _has_list(facts):
            self._save_facts()
        if durability == "fsync":
            # The previous process may have been killed before it had synced them.
            self._unsynced.update(dict.fromkeys(self.table.paths()))

    # -- the copy as a whole

    @property
    def whole(self) -> bool:
        return self._whole

    @whole.setter
    def whole(self, value: bool) -> None:
        if value != self._whole:
            self._whole = value
            self._save_facts()

    @property
    def serves(self) -> bool:
        """Whether this node serves the copy's topics: it owns the group, and the group is open."""
        return self._serves

    @serves.setter
    def serves(self, value: bool) -> None:
        if value != self._serves:
            self._serves = value
            self._save_facts()

    def own(self, epoch: int) -> None:
        """Let this process's logs change the files from now on."""
        self._end_filling()
        self._verified = None
        self._end_lacking()
        self.epoch = epoch
        self._handles.clear()
        self._save_facts()

    def close(self) -> None:
        """List the final sizes of all files, because this process makes no more changes."""
        if not self.error:
            self.table.list_final_sizes()

    def remove(self) -> None:
        """Delete the copy."""
        if self.table.list is not None:
            self.table.list.remove()
        for path in self.table.paths():
            self.delete(path)
        for folder in self.root.glob(f"*{SUFFIX}"):
            self._io.on_path_now("rmdir", folder)
        self._io.on_path_now("unlink", self.root / FACTS)
        self._io.on_path_now("rmdir", self.root)

    def files(self) -> dict[str, Extent]:
        return self.table.extents()

    def offered(self) -> dict[str, Extent]:
        return {
            path: Extent(self._offered_size(path, each.size), each.identity)
            for path, each in self.table.extents().items()
            if each.identity is not None
        }

    def _offered_size(self, path: str, size: int) -> int:
        return size if self._verified is None else min(size, self._verified.get(path, 0))

    def size(self, path: str) -> int:
        return self.table.size(path)

    def read(self, path: str, offset: int, limit: int) -> tuple[Piece, int]:
        size = min(limit, self.table.size(path) - offset)
        # Do not reuse the handle from earlier changes: this process's logs may have replaced the
        # file.
        return Piece(self._open(path), offset, size), offset + size

    # -- damage

    def check(self) -> None:
        try:
            damaged = [path for path in self.table.paths() if not self._is_intact(path)]
        except OSError as error:
            raise Unreadable(error.strerror) from error
        if damaged:
            self.damaged.update(damaged)
            for path in damaged:
                self._found(path, Findings(damaged=1))
            self.whole = False

    def mend(self, path: str, done: Callable[[bool], object]) -> None:
        if path.endswith(SEGMENT):
            self._verify(path, lambda findings: done(findings.is_final), _at_once)
        else:
            done(True)

    def mends(self, path: str) -> int:
        return self.mender.mends[path]

    def mend_open(self, path: str, done: Callable[[bool], object]) -> None:
        """Repair a segment without a footer before a recovery reads it."""
        self._verify(path, lambda findings: done(findings.is_final), _at_once, only_open=True)

    def answer(self, request: Fetch, reply: Callable[[Fetched], object]) -> None:
        path, number = request.path, request.number
        identity = self.table.identity(path)
        size = min(request.size, MAX_PART, self.table.size(path) - request.offset)
        if identity is None or identity != request.identity or size <= 0:
            reply(Fetched(number, "missing"))
            return

        def done(error: int, data: bytes) -> None:
            if error == errno.ENOENT:
                reply(Fetched(number, "missing"))
            else:
                reply(Fetched(number, "unreadable" if error else "", data))

        self.mender.read(path, request.offset, size, done)

    def scrubbed_paths(self) -> list[str]:
        """Return the files that the scrubber verifies: all journals, and all segments that
        this node's logs no longer write to."""
        newest: dict[str, str] = {}
        for path in self.table.paths():
            if path.endswith(SEGMENT):
                folder = os.path.dirname(path)
                newest[folder] = max(newest.get(folder, ""), path)
        is_held = not self._serves
        return [
            path
            for path in self.table.paths()
            if (path.endswith(SEGMENT) and path != newest[os.path.dirname(path)])
            or os.path.basename(path) == JOURNAL
            or (is_held and path.endswith(SEGMENT))
        ]

    def scrub(self, path: str, pace: Pace, done: Callable[[], object]) -> None:
        """Verify a file and repair it."""
        if self._is_filling:
            done()
        elif path.endswith(SEGMENT):
            self._verify(path, lambda _: done(), pace)
        else:
            pace(self.table.size(path), lambda: self._scrub_journal(path, done))

    def _scrub_journal(self, path: str, done: Callable[[], object]) -> None:
        """Request the replacement of a journal that has the same damage in two passes."""

        def read(error: int, data: bytes) -> None:
            if not error and path in self.table and not self._is_filling:
                self._judge_journal(path, data)
            done()

        self.mender.read(path, 0, self.table.size(path), read)

    def _judge_journal(self, path: str, data: bytes) -> None:
        checksum = crc32c(data)
        if _is_journal(data):
            self._doubtful.pop(path, None)
            if path in self.damaged:
                self.damaged.remove(path)
                self._found(path, Findings(mended=1))
        elif self._doubtful.get(path) != checksum:
            self._doubtful[path] = checksum
        else:
            del self._doubtful[path]
            self.damaged.add(path)
            self._found(path, Findings(damaged=1))
            self._mend_journal(path)

    def _verify(
        self,
        path: str,
        done: Callable[[Findings], object],
        pace: Pace,
        *,
        only_open: bool = False,
    ) -> None:
        def verified(findings: Findings) -> None:
            for paths, is_member in (
                (self.damaged, findings.damaged > 0),
                (self.unreadable, findings.unreadable > 0),
            ):
                (paths.add if is_member else paths.discard)(path)
            self._found(path, findings)
            done(findings)

        self.mender.verify(path, verified, pace, only_open=only_open)

    def _repaired(self, path: str, findings: Findings) -> None:
        if findings.damaged:
            self.damaged.add(path)
        self._found(path, findings)

    def _is_intact(self, path: str) -> bool:
        """Return whether a journal, or the header of a segment, is intact. Blocks; raises
        OSError."""
        file = self.root / path
        if os.path.basename(path) == JOURNAL:
            return _is_journal(files.read_start(file)) or _is_journal(files.read_start(file))
        if path.endswith(SEGMENT) and self.table.size(path) >= HEADER:
            return is_segment_header(files.read_start(file, HEADER))
        return True

    def begin_filling(self) -> None:
        if self.error and self._made == self._submitted:
            self._recover()
        self._end_filling()
        self._is_filling = True
        if self._verified is None:
            sizes = {path: self.table.size(path) for path in self.table.paths()}
            self._verified = {path: sizes[path] for path in sizes if path.endswith(SEGMENT)}
            self._save_facts()

    def fill(self, paths: Sequence[str], epoch: int) -> None:
        for path in self.table.paths():
            if path.endswith(ASIDE):
                replaced = path.removesuffix(ASIDE)
                self.rename(path, replaced)
                self.damaged.discard(replaced)
        wanted = set(paths)
        for path in self.table.paths():
            if path not in wanted:
                self.delete(path)
        self._is_filling = False
        self.epoch = epoch
        self._end_lacking()
        self.damaged &= set(paths)
        self.unreadable &= set(paths)
        self._verified = None
        self._whole = True
        self._serves = False
        self._save_facts()

    def align(self, path: str, size: int) -> None:
        self.truncate(path, size)
        if self._verified is not None and path.endswith(SEGMENT):
            is_changed = self._verified.get(path, 0) != size
            self._verified[path] = size
            if is_changed:
                self._save_facts()

    # -- changes

    def write(self, path: str, offset: int, data: Data) -> None:
        path = self._place(path)
        handle = self._handle(path)
        if data.are_records:
            # Nothing else uses data from a stream, so it may be modified.
            is_own = isinstance(data.data, bytearray | FrameData)
            records = data.data if is_own else bytearray(data.data)
            handle.write_records(records, offset, self._change(path))
        else:
            handle.write(bytes(data.data), offset, self._change(path))
        self.table.written(path, offset, data.data)

    def write_run(
        self, path: str, offset: int, data: bytearray | FrameData, done: Callable[[], None]
    ) -> bool:
        """`write` and `store` in one step, for a run of records in a file that was written before.
        Return False, without having done anything, in any other case."""
        handle = self._handles.get(path)
        if handle is None or self._is_filling or self.error:
            return False
        handle.write_records(data, offset, self._change(path))
        self.table.written(path, offset, data)
        self._waiting.append((self._submitted, done))
        if self._durability == "fsync":
            self._advance()
        return True

    def truncate(self, path: str, size: int) -> None:
        path = self._place(path)
        self.table.shrinks(path, size)
        if path not in self.table or size < self.table.size(path):
            self._handle(path).do("truncate", size, self._change(path))
        self.table.truncated(path, size)

    def rename(self, path: str, to: str) -> None:
        handle = self._handles.pop(path, None) or self._open(path)
        self._handles.pop(to, None)
        self._handles[to] = handle
        self.table.shrinks(to, 0)
        self._unsynced_folders.add(os.path.dirname(to))
        handle.rename(self.root / to, self._change(to))
        self.table.renamed(path, to)

    def delete(self, path: str) -> None:
        """Delete a file, or a topic's empty directory."""
        handle = self._handles.pop(path, None)
        if path in self.table:
            self.table.shrinks(path, None)
            self.table.deleted(path)
            self._unsynced_folders.add(os.path.dirname(path))
            (handle or self._open(path)).do("unlink", 0, self._change(path))
        elif "/" not in path:
            self._io.on_path_now("rmdir", self.root / path)

    def store(self, done: Callable[[], None]) -> None:
        self._waiting.append((self._submitted, done))
        self._advance()

    # -- inside

    def _place(self, path: str) -> str:
        """Return the path to write a file to: a temporary one if the file will replace another one
        later."""
        return path + ASIDE if self._is_filling and not path.endswith(".seg") else path

    def _handle(self, path: str) -> FileHandle:
        handle = self._handles.get(path)
        if handle is None:
            handle = self._handles[path] = self._open(path)
        return handle

    def _open(self, path: str) -> FileHandle:
        is_new = path not in self.table
        if is_new:
            self._unsynced_folders.update((os.path.dirname(path), ""))
        return self._io.open(self.root / path, replace=is_new, parent=is_new)

    def _end_filling(self) -> None:
        self._is_filling = False
        for path in self.table.paths():
            if path.endswith(ASIDE):
                self.delete(path)

    def _recover(self) -> None:
        """Start again with the files on disk after a failed change. Trust none of them: the owner
        will send all of them again."""
        self.error = 0
        self._handles.clear()
        self._waiting.clear()
        self.table = self.mender.table = FileTable.scan(self.root)
        self.table.forget_identities()
        self._list({})
        self._verified = {}

    def _list(self, listed: Mapping[str, int]) -> None:
        """Keep a list of the files from now on. `listed`: the previous list."""
        self.table.list = FileList(
            self._io,
            self.root,
            self.table.listed_sizes(listed),
            self._ended,
            is_synced=self._durability == "fsync",
        )

    def _end_lacking(self) -> None:
        self.damaged.difference_update(self.lacking)
        self.lacking = []

    def _change(self, path: str) -> Callable[[int], None]:
        """Count a change to a file ("" for the copy's facts); return the callback for its
        completion."""
        self._submitted += 1
        self._unsynced[path] = None
        return self._changed

    def _changed(self, error: int) -> None:
        self._made += 1
        if error:
            self._ended(error)
        else:
            self._advance()

    def _ended(self, error: int) -> None:
        if error and not self.error:
            self.error = error
            self.whole = False
            self._failed(error)
        self._advance()

    def _advance(self) -> None:
        syncs = self._durability == "fsync"
        stored = self._synced if syncs else self._made
        while self._waiting and self._waiting[0][0] <= stored and not self.error:
            self._waiting.popleft()[1]()
        if syncs and self._waiting:
            self.sync()

    def sync(self) -> None:
        """Begin to sync the changes, unless a sync is in progress. In class os, nothing waits for
        the sync."""
        if self._unsynced and not (self._syncs or self.error):
            self._sync()

    def _sync(self) -> None:
        """Sync all changes so far. Changes made in the meantime share the next sync."""
        unsynced, self._unsynced = self._unsynced, {}
        folders, self._unsynced_folders = self._unsynced_folders, set()
        self._syncing = self._submitted
        paths = [path for path in unsynced if path in self.table]
        # Start at one, so that the sync cannot end before all operations have begun.
        self._syncs = len(folders) + len(paths) + 1
        lane = "awaited" if self._durability == "fsync" else "background"
        for path in paths:
            self._handle(path).do("sync", 0, partial(self._file_synced, path), lane)
        for folder in folders:
            self._io.on_path_now("sync", self.root / folder, self._folder_synced, lane)
        self._sync_ended(0)

    def _file_synced(self, path: str, error: int) -> None:
        """A file that was deleted in the meantime needs no sync."""
        self._sync_ended(0 if error == errno.ENOENT and path not in self.table else error)

    def _folder_synced(self, error: int) -> None:
        """The directory of a deleted topic no longer exists."""
        self._sync_ended(0 if error == errno.ENOENT else error)

    def _sync_ended(self, error: int) -> None:
        self._syncs -= 1
        if not self._syncs:
            self._synced = self._syncing
        self._ended(error)

    def _save_facts(self) -> None:
        facts = {
            "whole": self._whole,
            "epoch": self.epoch,
            "boot": self._boot,
            "serves": self._serves,
            "listed": True,
        }
        if self._verified is not None:
            facts["filling"] = self._verified
        self._unsynced_folders.add("")
        handle = self._io.open(self.root / f"{FACTS}.tmp", replace=True)
        handle.write(signed(json.dumps(facts).encode()), 0, self._change(""))
        handle.do("fsync", 0, self._change(""))
        handle.rename(self.root / FACTS, self._change(""))


def root_of(data_path: Path, worker: int) -> Path:
    """Return the directory of a worker's copies."""
    return data_path / FOLDER / str(worker)


def served_topics(data_path: Path, workers: int) -> dict[str, int]:
    """Return the worker of each topic that a node serves from its copies. Blocks."""
    found = {}
    for worker in range(workers):
        for directory in root_of(data_path, worker).glob("*/"):
            if _read_facts(directory).get("serves") is True:
                for path in directory.glob(f"*{SUFFIX}/"):
                    found[path.name.removesuffix(SUFFIX)] = worker
    return found


def distrust_copies(data_path: Path) -> int:
    """Mark all copies on this node as incomplete until they have been compared with other copies;
    return the number of copies. Blocks; raises OSError. nsqd must not be running."""
    count = 0
    for path in (data_path / FOLDER).glob(f"*/*/{FACTS}"):
        facts = _read_facts(path.parent)
        facts["whole"] = False
        files.replace(os.fspath(path.parent), FACTS, signed(json.dumps(facts).encode()))
        count += 1
    return count


def lacking_files(root: Path) -> list[str]:
    """Return the files that a copy should have, but that are missing or too short. Blocks; raises
    OSError or Unreadable."""
    return _compared(root, _read_facts(root), FileTable.scan(root).sizes())[1]


def _compared(
    root: Path, facts: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """Return a copy's list, and the listed files that are missing or too short. Raises
    Unreadable."""
    if not _has_list(facts):
        return {}, []
    try:
        listed = read_list(root)
    except DamagedList:
        return {}, [LIST]
    except OSError as error:
        raise Unreadable(error.strerror) from error
    return listed, lacking(listed, sizes)


def _has_list(facts: Mapping[str, Any]) -> bool:
    """Return whether the copy has a list of its files: older versions wrote none."""
    return facts.get("listed") is True


def _at_once(_: int, call: Callable[[], object]) -> None:
    call()


def _is_journal(data: bytes) -> bool:
    """Return whether a journal is intact. Its last entry may be incomplete, because it was never
    confirmed."""
    try:
        _, _, damaged_at = parse_journal(data)
    except FormatError:
        return True  # written by a newer version
    if damaged_at is None:
        return True
    rest = data[damaged_at:]
    is_short = len(rest) < 8 or int.from_bytes(rest[:4], "little") > len(rest) - 8
    return not any(rest) or (damaged_at > 0 and is_short and len(rest) < TORN)


def _read_facts(root: Path) -> dict[str, Any]:
    """Return a copy's facts; empty if they are damaged. The previous version is not kept, because
    it may describe an incomplete copy as whole."""
    try:
        content = files.read_start(root / FACTS)
        check(content)
        return parse_object(content)
    except (FileNotFoundError, ValueError):
        return {}
