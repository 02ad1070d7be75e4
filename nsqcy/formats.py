"""The formats that nsqd writes: to its data path, and between processes, machines and clients.

Owns the number of each format, the numbers that this version reads, and the text of the error if a
reader meets any other number. cext/nsqcy/formats.pxd repeats the numbers that compiled code writes.
Independent of what the formats contain: docs/DISKFORMAT.md and docs/internals describe that.

Append a version to a format's `since` if an older version could not read what this one writes, or
would misunderstand it. An addition that an older version ignores without harm needs no new number.
"""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from nsqcy.errors import StartError


class FormatError(StartError):
    """A reader does not support a format's number; it leaves what it read unchanged."""


class Place(Enum):
    """Where bytes of a format lie, and who reads them."""

    DISK = "data path"
    PROCESSES = "processes of one nsqd"
    MACHINES = "nsqds on several machines"
    CLIENTS = "clients"


class Format(NamedTuple):
    """One format."""

    name: str
    place: Place
    where: str
    """The file or message, and where it contains the number."""
    since: tuple[str, ...]
    """The version of nsqcy that introduced each number; the first number is 1."""
    oldest: int = 1
    """The oldest number that this version reads."""
    is_implied: bool = False
    """Whether number 1 is not written: the format is older than its number."""

    @property
    def number(self) -> int:
        """The number that this version writes."""
        return len(self.since)

    @property
    def numbers(self) -> str:
        """The numbers that this version reads."""
        return f"{self.oldest}" if self.oldest == self.number else f"{self.oldest} to {self.number}"

    def reads(self, number: object) -> bool:
        """Return whether this version reads a number, which may be any value from JSON."""
        return type(number) is int and self.oldest <= number <= self.number

    def check(self, number: object, source: str) -> None:
        """Raise FormatError if this version does not read a number.

        source: what contains the number: a path, or a kind of message
        """
        if not self.reads(number):
            raise FormatError(f"{source}: {self.refusal(number)}")

    def check_fields(self, found: Mapping[str, object], source: str, key: str = "format") -> None:
        """Raise FormatError if this version does not read the number under a key, which may be
        missing if the number is implied."""
        self.check(found.get(key, 1 if self.is_implied else None), source)

    def refusal(self, number: object) -> str:
        """Return the reason why this version does not read a number, and what to do."""
        if type(number) is not int or number < 1:
            return f"{self.name} format has no valid version (supported: {self.numbers})"
        age = "newer" if number > self.number else "older"
        text = f"{self.name} format version {number} is {age} than this nsqcy supports"
        return f"{text} ({self.numbers}): {_ADVICE[self.place, age]}"


_ADVICE = {
    (Place.DISK, "newer"): "run the version that wrote it, or a later one",
    (Place.DISK, "older"): "run an earlier version first",
    (Place.PROCESSES, "newer"): "restart nsqd",
    (Place.PROCESSES, "older"): "restart nsqd",
    (Place.MACHINES, "newer"): "run compatible versions on all nodes",
    (Place.MACHINES, "older"): "run compatible versions on all nodes",
    (Place.CLIENTS, "newer"): "upgrade the client",
    (Place.CLIENTS, "older"): "upgrade nsqd",
}

FIRST = "0.1.0"

SEGMENT = Format("segment", Place.DISK, "`<topic>.topic/<number>.seg`: header", (FIRST,))
JOURNAL = Format("journal", Place.DISK, "`<topic>.topic/journal`: header, entries", (FIRST,))
IDS = Format("ids", Place.DISK, "`<topic>.topic/<number>.ids`: header", (FIRST,))
METADATA = Format(
    "nsqd.dat", Place.DISK, "`nsqd.dat`: none, because NSQ defines it", (FIRST,), is_implied=True
)
CHANGES = Format("nsqd.dat.changes", Place.DISK, "`nsqd.dat.changes`: `version`", (FIRST,))
POLICIES = Format("policies", Place.DISK, "`policies.json`: `version`", (FIRST,))
MANIFEST = Format("import manifest", Place.DISK, "`import.done/manifest`: `version`", (FIRST,))
MACHINE = Format("machine", Place.DISK, "`machine.json`: `format`", (FIRST,), is_implied=True)
NODE = Format(
    "node", Place.DISK, "`copies/node.<worker>.json`: `format`", (FIRST,), is_implied=True
)
COPY = Format("copy", Place.DISK, "`copies/*/*/copy.json`: `format`", (FIRST,), is_implied=True)
FILE_LIST = Format("file list", Place.DISK, "`copies/*/*/files.list`: first line", (FIRST,))

BOOT = Format("boot", Place.PROCESSES, "boot data of a worker: `formats`", (FIRST,))
CONTROL = Format(
    "control", Place.PROCESSES, "calls and their answers; number in the boot data", (FIRST,)
)
HANDOFF = Format("handoff", Place.PROCESSES, "accepted sockets; number in the boot data", (FIRST,))
SHARED_MEMORY = Format(
    "shared memory", Place.PROCESSES, "slots, rings and quotas: header", (FIRST,)
)
WORKER_MEMORY = Format(
    "worker memory", Place.PROCESSES, "what a worker's memory contains: head of its state", (FIRST,)
)
MESH = Format("mesh", Place.PROCESSES, "streams in the rings: hello", (FIRST,))
SESSION = Format("session", Place.PROCESSES, "a migrating session: `format`", (FIRST,))
MASTER_STATE = Format(
    "master state",
    Place.PROCESSES,
    "what the master passes to its next version: `formats`",
    (FIRST,),
)

SUCCESSION = Format(
    "succession", Place.PROCESSES, "what a worker hands over: first parcel", (FIRST,)
)

REGISTRY = Format("registry", Place.MACHINES, "values in etcd: `format`", (FIRST,))
COPIES_STREAM = Format(
    "copies stream", Place.MACHINES, "connections between nsqds: `level` of the greeting", (FIRST,)
)
LOG_BLOCK = Format("log block", Place.CLIENTS, "answers to LOG_FETCH: header", (FIRST,))

FORMATS: tuple[Format, ...] = (
    SEGMENT,
    JOURNAL,
    IDS,
    METADATA,
    CHANGES,
    POLICIES,
    MANIFEST,
    MACHINE,
    NODE,
    COPY,
    FILE_LIST,
    BOOT,
    CONTROL,
    HANDOFF,
    SHARED_MEMORY,
    WORKER_MEMORY,
    MESH,
    SESSION,
    MASTER_STATE,
    SUCCESSION,
    REGISTRY,
    COPIES_STREAM,
    LOG_BLOCK,
)


def numbers() -> dict[str, int]:
    """Return the numbers that this version writes, by name."""
    return {each.name: each.number for each in FORMATS}


def check_numbers(found: Mapping[str, object], source: str) -> None:
    """Raise FormatError unless this version reads the numbers that another version writes. A format
    that the other version does not have is not used yet."""
    for each in FORMATS:
        if each.name in found:
            each.check_fields(found, source, each.name)


def numbers_in_use() -> dict[str, int]:
    """Return the numbers that the processes of one nsqd use with each other, by name."""
    return {each.name: each.number for each in FORMATS if each.place is Place.PROCESSES}


def check_numbers_in_use(found: object, source: str = "the master") -> None:
    """Raise FormatError unless this process reads all formats of the process that it continues
    with: the master that started it, or its predecessor."""
    numbers = found if isinstance(found, dict) else {}
    for each in FORMATS:
        if each.place is Place.PROCESSES:
            each.check_fields(numbers, source, each.name)
