"""The disk of a node: copies of groups, of which the last operations may be lost in a crash."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from nsqcy.copies.history import History
from nsqcy.copies.messages import Extent
from simulation.clock import Clock


class Record(NamedTuple):
    """A message in a log."""

    message: int
    publish: int
    """Records of one publish have the same number and are kept or lost together."""
    origin: tuple[str, int] | None = None
    """Log and sequence number that the message was moved from."""
    channels: frozenset[str] | None = None
    """Channels that get a moved message."""


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


class Log:
    """Records and state of a log."""

    __slots__ = ("history", "records", "state")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.history = History()
        self.state = State()


class Image:
    """A copy of a group, as operations have left it."""

    __slots__ = ("logs", "whole")

    def __init__(self) -> None:
        self.logs: dict[str, Log] = {}
        self.whole = False

    def apply(self, operation: tuple[Any, ...]) -> None:
        match operation:
            case ("append", log, epoch, first, records):
                history = self.logs[log].history
                assert len(self.logs[log].records) == first, (log, first, history.marks)
                history.begin(epoch, first)
                self.logs[log].records.extend(records)
            case ("change", log, change):
                self.logs[log].state.apply(change)
            case ("create", log):
                self.logs.setdefault(log, Log())
            case ("delete", log):
                self.logs.pop(log, None)
            case ("align", log, end):
                found = self.logs.setdefault(log, Log())
                del found.records[end:]
                found.history.cut(end)
            case ("fill", states):
                for log in self.logs.keys() - states.keys():
                    del self.logs[log]
                for log, state in states.items():
                    self.logs.setdefault(log, Log()).state = state.copy()
                self.whole = True
            case ("whole",):
                self.whole = True


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
        self.slowness = 1.0
        self.is_rolled_back = False
        """Whether copies look whole that are not, because no process has noticed it yet."""
        self._stable: dict[str, Image] = {}
        self._operations: list[tuple[str, tuple[Any, ...]]] = []
        self._written = 0
        self._synced = 0
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._is_writing = False
        self._life = 0

    def apply(self, group_id: str, operation: tuple[Any, ...]) -> None:
        self._operations.append((group_id, operation))
        _apply(self.images, group_id, operation)

    def store(self, done: Callable[[], None]) -> None:
        if self.durability == "memory":
            self.clock.after(0.0, self._call, self._life, done)
            return
        self._waiting.append((len(self._operations), done))
        self._write()

    def kill(self) -> None:
        """The process dies; the machine goes on."""
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

    def whole_image(self, group_id: str) -> Image | None:
        """Return the copy of a group if it is whole."""
        image = self.images.get(group_id)
        return image if image and image.whole and not self.is_rolled_back else None

    def backup(self) -> tuple[list[str], dict[str, Image]]:
        """Return an image of the disk of a stopped process, to roll back to."""
        return list(self.names), _copied(self._stable)

    def roll_back(self, backup: tuple[list[str], dict[str, Image]]) -> None:
        self.names, self._stable = list(backup[0]), _copied(backup[1])
        self.images = _copied(self._stable)
        self.is_rolled_back = True

    def registered(self, name: str, *, is_current: bool) -> None:
        """Note the registration of a process; without the current data, no copy is whole."""
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
            self.clock.after(delay, self._wrote, self._life, len(self._operations))

    def _wrote(self, life: int, count: int) -> None:
        if life != self._life:
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

    def _call(self, life: int, done: Callable[[], None]) -> None:
        if life == self._life:
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
        self._life += 1
        if not whole:
            self._distrust()
        self.images = _copied(self._stable)


class DiskCopy:
    """A copy of a group for the process that runs on the disk (`nsqcy.copies.ports.Copy`)."""

    def __init__(self, disk: Disk, group_id: str) -> None:
        self.disk = disk
        self.group_id = group_id
        self._image = disk.images.setdefault(group_id, Image())

    @property
    def whole(self) -> bool:
        return self._image.whole

    @whole.setter
    def whole(self, value: bool) -> None:
        assert value
        if not self._image.whole:
            self._apply("whole")

    def log(self, log: str) -> Log:
        return self._image.logs[log]

    def logs(self) -> dict[str, Extent]:
        return {
            name: Extent(0, len(log.records), list(log.history.marks))
            for name, log in self._image.logs.items()
        }

    def states(self) -> dict[str, State]:
        return {name: log.state.copy() for name, log in self._image.logs.items()}

    def read(self, log: str, first: int, limit: int) -> tuple[int, list[Record]]:
        """Return records of whole publishes."""
        found = self._image.logs[log]
        epoch, end = 0, len(found.records)
        for mark_epoch, mark_first in found.history.marks:
            if mark_first > first:
                end = mark_first
                break
            epoch = mark_epoch
        stop = min(first + limit, end)
        while stop < end and found.records[stop].publish == found.records[stop - 1].publish:
            stop += 1
        return epoch, found.records[first:stop]

    def align(self, log: str, first: int, end: int) -> None:
        found = self._image.logs.get(log)
        if found is None or len(found.records) > end:
            self._apply("align", log, end)

    def append(self, log: str, epoch: int, first: int, records: Sequence[Any]) -> None:
        self._apply("append", log, epoch, first, list(records))

    def change(self, log: str, change: Any) -> None:
        self._apply("change", log, change)

    def create(self, log: str, state: Any) -> None:
        self._apply("create", log)

    def delete(self, log: str) -> None:
        self._apply("delete", log)

    def fill(self, states: dict[str, Any]) -> None:
        self._apply("fill", states)

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
    copies = {}
    for group_id, image in images.items():
        copies[group_id] = copy = Image()
        copy.whole = image.whole
        for name, log in image.logs.items():
            copy.logs[name] = other = Log()
            other.records = list(log.records)
            other.history = History(log.history.marks)
            other.state = log.state.copy()
    return copies
