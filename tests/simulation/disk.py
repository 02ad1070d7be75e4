"""The disk of a node: copies of groups. In a crash, the last operations may be lost.

Reads may fail, and written data may be damaged.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from nsqcy.copies.identity import Identity, Memory
from nsqcy.copies.messages import Extent, Fetch, Fetched
from nsqcy.copies.ports import Unreadable
from nsqcy.copies.recall import Known
from simulation.clock import Clock

STATE = "state"
NEW_STATE = "state.tmp"
NEVER = 1 << 30


class Record(NamedTuple):
    """A message in a log."""

    message: int
    origin: tuple[str, int] | None = None
    """Group and sequence number that the message was moved from."""
    channels: frozenset[str] | None = None
    """Channels that get a moved message."""


class Damaged(NamedTuple):
    """An item of a file that no longer matches its checksum."""

    was: Any
    life: "Life"
    """The process whose disk damaged the item."""
    at: float
    """The time of the damage."""


UNREADABLE = object()
"""Stands for data that could not be read."""


def original(item: Any) -> Any:
    """Return an item as it was originally written."""
    return item.was if isinstance(item, Damaged) else item


class State:
    """Channels of a log with their finished messages, and the messages that were moved."""

    __slots__ = ("channels", "done", "moved")

    def __init__(self) -> None:
        self.channels: dict[str, int] = {}
        """The sequence number with which a channel begins."""
        self.done: set[tuple[int, str]] = set()
        self.moved: set[int] = set()

    def copy(self) -> "State":
        other = State()
        other.channels = dict(self.channels)
        other.done = set(self.done)
        other.moved = set(self.moved)
        return other

    def apply(self, change: tuple[Any, ...]) -> None:
        match change:
            case ("channel", name, first):
                self.channels.setdefault(name, first)
            case ("done", pairs):
                self.done.update(pairs)
            case ("moved", seqs):
                self.moved.update(seqs)


class Image:
    """A copy of a group, as left by the operations.

    The files `log.1`, `log.2` ... contain an identity and records, each written by one process.
    The `state` file contains the log's state and changes to the state; a new state replaces the
    file.
    """

    __slots__ = ("_records", "aside", "epoch", "files", "is_filling", "lacks", "verified", "whole")

    def __init__(self) -> None:
        self.files: dict[str, list[Any]] = {}
        self.aside: dict[str, list[Any]] = {}
        """Files written while the copy is being filled; they will replace others."""
        self.is_filling = False
        self.verified: dict[str, int] | None = None
        """Size of the part of each log that an owner has verified; None if all is verified."""
        self.whole = False
        self.lacks = False
        """Whether files on the copy's list are missing or too short."""
        self.epoch = 0
        self._records: list[Record] | None = None

    def apply(self, operation: tuple[Any, ...]) -> None:
        self._records = None
        match operation:
            case ("write", path, offset, items):
                self._place(path)[offset : offset + len(items)] = items
            case ("truncate", path, size):
                del self._place(path)[size:]
            case ("rename", path, to):
                self.files[to] = self.files.pop(path)
            case ("delete", path):
                self.files.pop(path, None)
            case ("begin filling",):
                self.is_filling = True
                self.aside = {}
                if self.verified is None:
                    self.verified = {
                        path: len(items) for path, items in self.files.items() if is_log(path)
                    }
            case ("align", path, size):
                del self._place(path)[size:]
                if self.verified is not None:
                    self.verified[path] = size
            case ("fill", paths, epoch):
                self.files = {
                    path: self.aside.get(path, self.files.get(path, [])) for path in paths
                }
                self.own(epoch)
                self.whole = True
            case ("own", epoch):
                self.own(epoch)
            case ("whole", value):
                self.whole = value
            case ("list",):
                self.lacks = False
            case ("damage", path, index, life, now):
                items = self.files.get(path, [])
                if index < len(items) and not isinstance(items[index], Damaged):
                    items[index] = Damaged(items[index], life, now)

    def remove(self, path: str, size: int) -> None:
        """Remove a file, or the items from `size` on, while no process uses the disk."""
        self._records = None
        self.lacks = True
        if size:
            del self.files[path][size:]
        else:
            del self.files[path]

    def own(self, epoch: int) -> None:
        self.epoch = epoch
        self.is_filling = False
        self.aside = {}
        self.verified = None

    def records(self) -> list[Record]:
        """Return the records of all processes, in order, as they were originally written. Callers
        must not change them."""
        if self._records is None:
            self._records = [
                original(record)
                for path in sorted(filter(is_log, self.files), key=log_number)
                for record in self.files[path][1:]
            ]
        return self._records

    def state(self) -> State:
        """Return the state with all its changes before the first damaged one."""
        state = State()
        for change in self.files.get(STATE, ()):
            if isinstance(change, Damaged):
                break
            if isinstance(change, State):
                state = change.copy()
            else:
                state.apply(change)
        return state

    def damages(self, path: str) -> list[int]:
        """Return the damaged items of a file."""
        items = self.files.get(path, ())
        return [index for index, item in enumerate(items) if isinstance(item, Damaged)]

    def is_damaged(self) -> bool:
        return any(self.damages(path) for path in self.files)

    def has_damage_of_others(self, disk: "Disk", since: float) -> bool:
        """Return whether an item was damaged on another disk after `since` and then sent here."""
        return any(
            isinstance(item, Damaged) and item.life.disk is not disk and item.at > since
            for items in self.files.values()
            for item in items
        )

    def copy(self) -> "Image":
        other = Image()
        other.whole, other.epoch, other.lacks = self.whole, self.epoch, self.lacks
        other.verified = None if self.verified is None else dict(self.verified)
        other.files = {path: list(items) for path, items in self.files.items()}
        return other

    def _place(self, path: str) -> list[Any]:
        files = self.aside if self.is_filling and not is_log(path) else self.files
        return files.setdefault(path, [])


def is_log(path: str) -> bool:
    return path.startswith("log.")


def log_number(path: str) -> int:
    return int(path.removeprefix("log."))


class Life:
    """The disk's view of a process."""

    __slots__ = ("disk",)

    def __init__(self, disk: "Disk") -> None:
        self.disk = disk


class Disk:
    """Operations on all copies of a node, in order."""

    def __init__(self, clock: Clock, random: Random, durability: str) -> None:
        self.clock = clock
        self.random = random
        self.durability = durability
        self.images: dict[str, Image] = {}
        """Copies with all operations, as the running process sees them."""
        self.names: list[str] = []
        """The last process of this disk known to be registered, and all later ones."""
        self.identity: Identity | None = None
        """Identity of the registry that the node knows."""
        self.revision = 0
        self.mark = 0
        self.known: dict[str, Known] = {}
        self.since = 0
        self.is_repaired = False
        self.slowness = 1.0
        self.read_errors = 0.0
        """Probability that a read fails. All errors have the same effect, as has a read that
        returns too little: tests/unit/nsqd/test_copies_read_errors.py."""
        self.failing_until = 0.0
        self.failing_reads = 0
        """Number of reads that fail from now on."""
        self.is_rolled_back = False
        """Whether outdated copies look complete, because no process has detected the rollback
        yet."""
        self._stable: dict[str, Image] = {}
        self._operations: list[tuple[str, tuple[Any, ...]]] = []
        self._written = 0
        self._synced = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._is_writing = False
        self.life = Life(self)
        """The process that uses the disk."""
        self.mends: Counter[tuple[str, str]] = Counter()
        """Number of repairs of a group's files."""

    def fails_to_read(self) -> bool:
        if self.failing_reads:
            self.failing_reads -= 1
            return True
        return self.read_errors > 0.0 and self.random.random() < self.read_errors

    def apply(self, group_id: str, operation: tuple[Any, ...]) -> None:
        self._operations.append((group_id, operation))
        _apply(self.images, group_id, operation)

    def store(self, done: Callable[[], None]) -> None:
        if self.durability == "memory":
            self.clock.after(0.0, self._call, self.life, done)
            return
        self._waiting.append((len(self._operations), done))
        self._write()

    def kill(self) -> None:
        """Kill the process; the machine keeps running."""
        self._restore(0 if self.durability == "memory" else self._written, whole=True)

    def lose_power(self) -> None:
        self._restore(
            0 if self.durability == "memory" else self._synced,
            whole=self.durability == "fsync",
        )

    def erase(self) -> None:
        self.images = {}
        self._stable = {}
        self._operations.clear()
        self._restore(0, whole=True)
        self.names = []
        # A real node gets a new name with its disk, so its statements never contradict those of the
        # old disk.
        self.since = NEVER
        self.identity = None
        self.revision = self.mark = 0
        self.known = {}
        self.is_repaired = False

    def memory(self) -> Memory:
        generation = max((each.stamp[0] for each in self.known.values()), default=0)
        return Memory(self.identity, self.revision, self.remembered(), self.mark, generation)

    def adopt(self, identity: Identity) -> None:
        self.identity = identity
        self.revision = self.mark = 0

    def remembered(self) -> dict[str, int]:
        generation = self.identity.generation if self.identity is not None else 0
        return {name: at for name, ((its, at), _) in self.known.items() if its == generation}

    def repair(self) -> None:
        """`nsqcy copies repair`."""
        self.identity = None
        self.revision = self.mark = 0
        self.is_repaired = True

    def whole_image(self, group_id: str) -> Image | None:
        """Return the copy of a group if the copy is complete."""
        image = self.images.get(group_id)
        is_whole = image and image.whole and not (image.lacks or self.is_rolled_back)
        return image if is_whole else None

    def backup(self) -> tuple[Any, ...]:
        """Return an image of a stopped process's disk, to roll back to."""
        facts = self.identity, self.revision, self.mark, dict(self.known)
        return list(self.names), _copied(self._stable), facts

    def roll_back(self, backup: tuple[Any, ...]) -> None:
        self.names, self._stable = list(backup[0]), _copied(backup[1])
        self.identity, self.revision, self.mark, known = backup[2]
        self.known = dict(known)
        self.images = _copied(self._stable)
        self.is_rolled_back = True

    def places(self) -> list[tuple[str, str, int]]:
        """Return the places of all items: group, file and index."""
        return [
            (group_id, path, index)
            for group_id, image in sorted(self.images.items())
            for path, items in image.files.items()
            for index in range(len(items))
        ]

    def remove(self, group_id: str, path: str, size: int) -> None:
        """Remove a file of a stopped process's disk, or its end."""
        self._stable[group_id].remove(path, size)
        self.images = _copied(self._stable)

    def registered(self, name: str, *, is_current: bool) -> None:
        """Record the registration of a process; unless the data is current, no copy counts as
        complete."""
        self.names = [name]
        self.is_rolled_back = False
        if not is_current:
            self._distrust()

    def _distrust(self) -> None:
        for images in (self.images, self._stable):
            for image in images.values():
                image.whole = False

    def _write(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            delay = self.random.expovariate(1 / 0.003) * self.slowness
            self.clock.after(delay, self._wrote, self.life, len(self._operations))

    def _wrote(self, life: Life, count: int) -> None:
        if life is not self.life:
            return
        self._is_writing = False
        self._written = count
        if self.durability == "fsync" or self.random.random() < 0.3:
            self._synced = count
        waiting, self._waiting = self._waiting, []
        for number, done in waiting:
            if number <= count:
                done()
            else:
                self._waiting.append((number, done))
        if self._waiting:
            self._write()

    def _call(self, life: Life, done: Callable[[], None]) -> None:
        if life is self.life:
            done()

    def _restore(self, count: int, *, whole: bool) -> None:
        if self.durability == "memory":
            self._stable = {}
        for group_id, operation in self._operations[:count]:
            _apply(self._stable, group_id, operation)
        self._operations.clear()
        self._waiting.clear()
        self._written = self._synced = 0
        self._is_writing = False
        self.life = Life(self)
        if not whole:
            self._distrust()
        self.images = _copied(self._stable)


class DiskCopy:
    """A copy of a group for the process that uses the disk (`nsqcy.copies.ports.Copy`)."""

    def __init__(
        self,
        disk: Disk,
        group_id: str,
        mender: Callable[[str, str, Callable[[bool], object]], object],
    ) -> None:
        """
        mender: repairs a file of a group
        """
        self.disk = disk
        self.group_id = group_id
        self.mender = mender
        self.image = disk.images.setdefault(group_id, Image())

    @property
    def whole(self) -> bool:
        return self.image.whole

    @whole.setter
    def whole(self, value: bool) -> None:
        if self.image.whole != value:
            self._apply("whole", value)

    @property
    def epoch(self) -> int:
        return self.image.epoch

    def own(self, epoch: int) -> None:
        self._apply("own", epoch)

    def read_headers(self) -> None:
        """Read the identities of all files, and compare the files with the list. Raises
        Unreadable."""
        if self.disk.fails_to_read():
            raise Unreadable
        if self.image.lacks:
            self.whole = False
            self._apply("list")
        if any(is_log(path) and self.image.files[path] for path in self._unidentified()):
            self.whole = False

    def _unidentified(self) -> list[str]:
        return [path for path in self.image.files if self.identity(path) is None]

    def files(self) -> dict[str, Extent]:
        return {
            path: Extent(len(items), self.identity(path))
            for path, items in self.image.files.items()
        }

    def offered(self) -> dict[str, Extent]:
        limits = self.image.verified
        return {
            path: Extent(each.size if limits is None else min(each.size, limits.get(path, 0)), name)
            for path, each in self.files().items()
            if (name := each.identity) is not None
        }

    def identity(self, path: str) -> Any:
        """Return a file's identity. A process remembers the identities that it has read."""
        items = self.image.files.get(path)
        if not is_log(path) or not items:
            return None
        first = items[0]
        is_lost = isinstance(first, Damaged) and first.life is not self.disk.life
        return None if is_lost else original(first)

    def size(self, path: str) -> int:
        return len(self.image.files[path])

    def read(self, path: str, offset: int, limit: int) -> tuple[Any, int]:
        items = self.image.files[path][offset : offset + limit]
        return UNREADABLE if self.disk.fails_to_read() else items, offset + len(items)

    def check(self) -> None:
        if self.disk.fails_to_read():
            raise Unreadable
        headers = [path for path in self.image.files if 0 in self.image.damages(path)]
        if headers or self.image.damages(STATE):
            self.whole = False

    def mend(self, path: str, done: Callable[[bool], object]) -> None:
        self.mender(self.group_id, path, done)

    def mends(self, path: str) -> int:
        return self.disk.mends[self.group_id, path]

    def answer(self, request: Fetch, reply: Callable[[Fetched], object]) -> None:
        identity = self.identity(request.path)
        if identity is None or identity != request.identity:
            reply(Fetched(request.number, "missing"))
            return
        if self.disk.fails_to_read():
            reply(Fetched(request.number, "unreadable"))
            return
        end = request.offset + request.size
        reply(Fetched(request.number, "", self.image.files[request.path][request.offset : end]))

    def begin_filling(self) -> None:
        self._apply("begin filling")

    def align(self, path: str, size: int) -> None:
        self._apply("align", path, size)

    def write(self, path: str, offset: int, data: Any) -> None:
        self._apply("write", path, offset, list(data))

    def truncate(self, path: str, size: int) -> None:
        self._apply("truncate", path, size)

    def rename(self, path: str, to: str) -> None:
        self._apply("rename", path, to)

    def delete(self, path: str) -> None:
        self._apply("delete", path)

    def fill(self, paths: Sequence[str], epoch: int) -> None:
        self._apply("fill", paths, epoch)

    def store(self, done: Callable[[], None]) -> None:
        self.disk.store(done)

    def _apply(self, *operation: Any) -> None:
        self.disk.apply(self.group_id, operation)


def _apply(images: dict[str, Image], group_id: str, operation: tuple[Any, ...]) -> None:
    if operation[0] == "forget":
        images.pop(group_id, None)
        return
    images.setdefault(group_id, Image()).apply(operation)


def _copied(images: dict[str, Image]) -> dict[str, Image]:
    return {group_id: image.copy() for group_id, image in images.items()}
