"""A disk in memory that can fail like a real one: fill up, fail a call, lose power.

It separates the data that a program sees from the durable data. After a power loss, synced data
remains. `choose` determines what remains of the rest: any part of the bytes, any of the names.
"""

import errno
import os
import posixpath
from collections.abc import Callable, Iterator

from nsqcy.tools.files.disk import Disk, Entry

# Return a number from 0 up to the given one.
Choose = Callable[[int], int]


class Killed(BaseException):
    """The process ends here and now, without any clean-up."""


def common(one: bytes | bytearray, two: bytes) -> int:
    """Return the length of the common prefix of both."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(two)))


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.note: bytes | None = None
        self.durable_data = data
        self.durable_note: bytes | None = None
        self.owner: int | None = None
        self.modified = 0


class Folder:
    def __init__(self) -> None:
        self.names: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}


class MemoryDisk(Disk):
    """fail_at  the call that fails, counted from 1; 0 is none
    error    what it raises: an errno, or 0 for Killed
    """

    def __init__(self, choose: Choose, notes: bool = True) -> None:
        self.choose = choose
        self.notes = notes
        self.root = Folder()
        self.descriptors: dict[int, Inode] = {}
        self.calls = self.fail_at = self.error = 0

    # --- for tests ------------------------------------------------------------------------------

    def die(self) -> None:
        """Close all descriptors, as the kernel does when a process exits."""
        for fd in list(self.descriptors):
            self._drop(fd)
        self.fail_at = 0

    def lose_power(self) -> None:
        self.die()
        self._lose_names(self.root)
        for _, inode in self._files("", self.root):
            self._lose_bytes(inode)

    def contents(self, folder: str) -> dict[str, bytes]:
        """Return every file below a directory, by its relative path."""
        found = self._find(folder)
        if not isinstance(found, Folder):
            return {}
        return {path: bytes(inode.data) for path, inode in self._files("", found)}

    def noted(self) -> list[str]:
        return [path for path, inode in self._files("", self.root) if inode.note is not None]

    def put(self, path: str, data: bytes) -> Inode:
        """Create a file as another process would."""
        folder = self.root
        for part in path.split("/")[1:-1]:
            below = folder.names.setdefault(part, Folder())
            assert isinstance(below, Folder)
            folder.durable[part] = below
            folder = below
        inode = Inode(data)
        folder.names[posixpath.basename(path)] = folder.durable[posixpath.basename(path)] = inode
        return inode

    # --- the calls ------------------------------------------------------------------------------

    def open(self, path: str, *, exclusive: bool) -> int:
        self._call()
        folder, name = self._parent(path)
        inode = folder.names.get(name)
        if inode is not None and exclusive:
            raise FileExistsError(errno.EEXIST, "exists", path)
        if inode is None:
            inode = folder.names[name] = Inode()
            inode.modified = self.calls
        return self._descriptor(inode)

    def reopen(self, path: str) -> int:
        self._call()
        inode = self._find(path)
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return self._descriptor(inode)

    def lock(self, fd: int) -> bool:
        self._call()
        inode = self.descriptors[fd]
        if inode.owner not in (None, fd):
            return False
        inode.owner = fd
        return True

    def is_at(self, fd: int, path: str) -> bool:
        self._call()
        return self._find(path) is self.descriptors[fd]

    def exists(self, path: str) -> bool:
        self._call()
        return self._find(path) is not None

    def size(self, fd: int) -> int:
        self._call()
        return len(self.descriptors[fd].data)

    def links(self, fd: int) -> int:
        self._call()
        return sum(inode is self.descriptors[fd] for _, inode in self._files("", self.root))

    def read(self, fd: int, offset: int, count: int) -> bytes:
        self._call()
        return bytes(self.descriptors[fd].data[offset : offset + count])

    def write(self, fd: int, data: bytes) -> None:
        inode = self.descriptors[fd]
        inode.modified = self.calls
        try:
            self._call()
        except (OSError, Killed):
            inode.data += data[: self.choose(len(data))]
            raise
        inode.data += data

    def truncate(self, fd: int, size: int) -> None:
        self._call()
        del self.descriptors[fd].data[size:]

    def sync(self, fd: int) -> None:
        self._call()
        inode = self.descriptors[fd]
        inode.durable_data, inode.durable_note = bytes(inode.data), inode.note

    def close(self, fd: int) -> None:
        self._call()
        self._drop(fd)

    def note(self, fd: int) -> bytes | None:
        self._call()
        return self.descriptors[fd].note

    def set_note(self, fd: int, note: bytes) -> None:
        self._call()
        if self.notes:
            self.descriptors[fd].note = note

    def drop_note(self, fd: int) -> None:
        self._call()
        self.descriptors[fd].note = None

    def has_notes(self, folder: str) -> bool:
        self._call()
        return self.notes

    def is_noted(self, path: str) -> bool:
        self._call()
        inode = self._find(path)
        return isinstance(inode, Inode) and inode.note is not None

    def listing(self, folder: str) -> list[Entry]:
        self._call()
        found = self._find(folder)
        if not isinstance(found, Folder):
            return []
        return [Entry(name, isinstance(each, Folder)) for name, each in found.names.items()]

    def is_empty(self, path: str) -> bool:
        self._call()
        inode = self._find(path)
        return isinstance(inode, Inode) and not inode.data

    def modified(self, path: str) -> int:
        self._call()
        inode = self._find(path)
        return inode.modified if isinstance(inode, Inode) else 0

    def make_folder(self, path: str) -> bool:
        self._call()
        folder, name = self._parent(path)
        if name in folder.names:
            return False
        folder.names[name] = Folder()
        return True

    def link(self, source: str, target: str) -> None:
        self._call()
        folder, name = self._parent(target)
        if name in folder.names:
            raise FileExistsError(errno.EEXIST, "exists", target)
        inode = self._find(source)
        assert inode is not None
        folder.names[name] = inode

    def unlink(self, path: str) -> None:
        self._call()
        folder, name = self._parent(path)
        del folder.names[name]

    def sync_folder(self, path: str) -> None:
        self._call()
        folder = self._find(path)
        assert isinstance(folder, Folder)
        folder.durable = dict(folder.names)

    # --- internals ------------------------------------------------------------------------------

    def _call(self) -> None:
        self.calls += 1
        if self.calls == self.fail_at:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            raise Killed

    def _find(self, path: str) -> Inode | Folder | None:
        found: Inode | Folder | None = self.root
        for part in filter(None, path.split("/")):
            found = found.names.get(part) if isinstance(found, Folder) else None
        return found

    def _parent(self, path: str) -> tuple[Folder, str]:
        above, _, name = path.rpartition("/")
        folder = self._find(above)
        if not isinstance(folder, Folder):
            raise FileNotFoundError(errno.ENOENT, "missing", path)
        return folder, name

    def _descriptor(self, inode: Inode | Folder) -> int:
        assert isinstance(inode, Inode)
        fd = max(self.descriptors, default=2) + 1
        self.descriptors[fd] = inode
        return fd

    def _drop(self, fd: int) -> None:
        inode = self.descriptors.pop(fd)
        if inode.owner == fd:
            inode.owner = None

    def _files(self, above: str, folder: Folder) -> Iterator[tuple[str, Inode]]:
        for name, each in folder.names.items():
            path = posixpath.join(above, name)
            if isinstance(each, Folder):
                yield from self._files(path, each)
            else:
                yield path, each

    def _lose_names(self, folder: Folder) -> None:
        for name in sorted(folder.names.keys() | folder.durable.keys()):
            before, now = folder.durable.get(name), folder.names.get(name)
            if before is not now and self.choose(1):
                if before is None:
                    del folder.names[name]
                else:
                    folder.names[name] = before
        folder.durable = dict(folder.names)
        for each in folder.names.values():
            if isinstance(each, Folder):
                self._lose_names(each)

    def _lose_bytes(self, inode: Inode) -> None:
        same = common(inode.data, inode.durable_data)
        if same < len(inode.durable_data):  # cut, or not
            kept = bytes(inode.data) if self.choose(1) else inode.durable_data
        else:
            kept = bytes(inode.data[: same + self.choose(len(inode.data) - same)])
            # Blocks reach the disk in any order: missing ones in between are zeros.
            hole = same + self.choose(len(kept) - same)
            end = hole + self.choose(len(kept) - hole)
            kept = kept[:hole] + bytes(end - hole) + kept[end:]
        inode.data = bytearray(kept)
        inode.note = inode.note if self.choose(1) else inode.durable_note
        inode.durable_data, inode.durable_note = kept, inode.note
