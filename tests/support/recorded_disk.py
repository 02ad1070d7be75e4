"""Possible contents of a disk after a power loss, derived from the recorded file operations.

A file keeps its synced data. A random part of the rest survives: nothing, all, a prefix of any
length, or any of its sectors, each as it was at some time. A directory keeps its synced entries,
and any of its later changes in any order.
"""

import os
import posixpath
from pathlib import Path
from random import Random
from typing import NamedTuple

SECTOR = 512
O_CREAT = os.O_CREAT
O_TRUNC = os.O_TRUNC


class Call(NamedTuple):
    """A recorded operation; see FaultyIoThread.recorded()."""

    name: str
    fd: int
    path: str | None
    to: str | None
    data: bytes
    offset: int
    flags: int
    error: int


class Change(NamedTuple):
    """A change to a file: `data` at `offset`, or, without data, a truncation to the size
    `offset`."""

    offset: int
    data: bytes | None

    def apply(self, to: bytearray) -> None:
        if self.data is None:
            del to[self.offset :]
            to += bytes(self.offset - len(to))
            return
        to += bytes(max(0, self.offset - len(to)))
        to[self.offset : self.offset + len(self.data)] = self.data


class File:
    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.changes: list[Change] = []  # changes since the last sync
        self.failed = False  # a sync failed: later ones do not cover these changes

    def content(self, changes: int | None = None) -> bytearray:
        """Return the content after the first `changes` changes, or after all of them."""
        content = bytearray(self.durable)
        for change in self.changes[:changes]:
            change.apply(content)
        return content

    def sync(self, failed: bool) -> None:
        self.failed = self.failed or failed
        if not self.failed:
            self.durable = bytes(self.content())
            self.changes.clear()

    def after_power_loss(self, chance: Random) -> bytes:
        if not self.changes:
            return self.durable
        how = chance.random()
        if how < 0.15:
            return self.durable
        if how < 0.3:
            return bytes(self.content())
        if how < 0.5:
            return self._beginning(chance)
        return self._sectors(chance)

    def _beginning(self, chance: Random) -> bytes:
        count = chance.randrange(len(self.changes))
        content = self.content(count)
        torn = self.changes[count]
        if torn.data:
            torn._replace(data=torn.data[: chance.randrange(len(torn.data))]).apply(content)
        return bytes(content)

    def _sectors(self, chance: Random) -> bytes:
        """Return the content with each sector, and the size, as they were at some time."""
        content = bytearray(self.durable)
        sizes = [len(content)]
        versions: dict[int, list[bytes]] = {}
        for change in self.changes:
            if change.data:
                first, end = change.offset, change.offset + len(change.data)
                touched = range(first - first % SECTOR, end, SECTOR)
            else:
                touched = range(0)
            for at in touched:
                versions.setdefault(at, [bytes(content[at : at + SECTOR])])
            change.apply(content)
            for at in touched:
                versions[at].append(bytes(content[at : at + SECTOR]))
            sizes.append(len(content))
        size = chance.choice(sizes) if chance.random() < 0.5 else sizes[-1]
        if size > min(sizes) and chance.random() < 0.3:
            size = chance.randrange(min(sizes), size)
        content += bytes(max(sizes) - len(content))
        for at, each in versions.items():
            sector = chance.choice(each)
            content[at : at + SECTOR] = sector + bytes(SECTOR - len(sector))
        return bytes(content[:size])


class Folder:
    def __init__(self) -> None:
        self.names: dict[str, File | Folder] = {}
        self.durable: dict[str, File | Folder] = {}
        self.changes: list[dict[str, File | Folder | None]] = []  # None: the name has been removed

    def change(self, what: "dict[str, File | Folder | None]") -> None:
        self.changes.append(what)
        enter(self.names, what)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.changes.clear()

    def after_power_loss(self, chance: Random) -> "dict[str, File | Folder]":
        names = dict(self.durable)
        likely = chance.choice([0.0, 0.5, 0.9, 1.0])
        for change in self.changes:
            if chance.random() < likely:
                enter(names, change)
        return names


def enter(names: "dict[str, File | Folder]", change: "dict[str, File | Folder | None]") -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def sync_all(folder: Folder, failed: bool) -> None:
    """Sync every file and directory. If this fails, a later sync of a single file can still
    succeed."""
    for node in folder.names.values():
        if isinstance(node, Folder):
            sync_all(node, failed)
        elif not failed:
            node.sync(failed=False)
    if not failed:
        folder.sync()


class RecordedDisk:
    """The files below `root`: their initial state, and the operations since then."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[Call] = []
        self.before = {
            str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
            for path in sorted(root.rglob("*"))
        }

    def take(self, calls: list[tuple]) -> None:
        self.calls += [self._relative(Call(*each)) for each in calls]

    def _relative(self, call: Call) -> Call:
        if call.path is None:
            return call
        to = call.to and posixpath.relpath(call.to, self.root)
        return call._replace(path=posixpath.relpath(call.path, self.root), to=to)

    def lose_power(self, cut: int, into: Path, chance: Random) -> None:
        """Write the state of the disk after the first `cut` operations only."""
        self._write(self._replay(self.calls[:cut]), into, chance)

    def kill(self, cut: int, into: Path, chance: Random | None = None) -> None:
        """Write the same state for a process that is killed: everything written exists, and with
        `chance` some part of the next call, if that is a write."""
        calls = self.calls[:cut]
        if chance is not None and cut < len(self.calls) and self.calls[cut].name == "pwrite":
            torn = self.calls[cut]
            calls.append(torn._replace(data=torn.data[: chance.randint(0, len(torn.data))]))
        self._write(self._replay(calls), into, None)

    def _replay(self, calls: list[Call]) -> Folder:
        root = Folder()
        for path, data in self.before.items():
            folder, name = self._parent(root, path)
            folder.names[name] = Folder() if data is None else File(data)
            folder.sync()
        open_files: dict[int, File | Folder] = {}
        for call in calls:
            self._do(root, call, open_files)
        return root

    def _do(self, root: Folder, call: Call, open_files: "dict[int, File | Folder]") -> None:
        node = open_files.get(call.fd)
        if call.path is not None:
            folder, name = self._parent(root, call.path)
        match call.name:
            case "open":
                node = root if name == "." else folder.names.get(name)
                if node is None:
                    assert call.flags & O_CREAT
                    node = File()
                    folder.change({name: node})
                elif call.flags & O_TRUNC and isinstance(node, File):
                    node.changes.append(Change(0, None))
                open_files[call.fd] = node
            case "pwrite":
                assert isinstance(node, File)
                node.changes.append(Change(call.offset, call.data))
            case "ftruncate":
                assert isinstance(node, File)
                node.changes.append(Change(call.offset, None))
            case "fdatasync" | "fsync" if isinstance(node, File):
                node.sync(call.error != 0)
            case "fsync":
                assert isinstance(node, Folder)
                if not call.error:
                    node.sync()
            case "syncfs":
                sync_all(root, call.error != 0)
            case "mkdir":
                folder.change({name: Folder()})
            case "rename":
                assert call.to is not None
                moved = folder.names[name]
                folder.change({name: None, posixpath.basename(call.to): moved})
            case "unlink" | "rmdir":
                folder.change({name: None})

    def _parent(self, root: Folder, path: str) -> tuple[Folder, str]:
        *above, name = path.split("/")
        folder = root
        for part in above:
            below = folder.names[part]
            assert isinstance(below, Folder)
            folder = below
        return folder, name

    def _write(self, folder: Folder, into: Path, chance: Random | None) -> None:
        into.mkdir()
        names = folder.names if chance is None else folder.after_power_loss(chance)
        for name, node in names.items():
            if isinstance(node, Folder):
                self._write(node, into / name, chance)
            elif chance is None:
                (into / name).write_bytes(node.content())
            else:
                (into / name).write_bytes(node.after_power_loss(chance))
