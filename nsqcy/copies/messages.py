"""Messages between the owner of a group and its holders.

A copy is a set of files. Positions count the changes of files that an owner has made since it began
to own the group: a position means nothing in another epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a file that a copy has.

    Files with the same path and identity were created by the same process, which only appends to
    them: the shorter one is a prefix of the other.
    """

    size: int
    identity: Any


# -- from the owner


@dataclass(slots=True)
class Offer:
    """Offer the stream of an epoch."""

    epoch: int


@dataclass(slots=True)
class Align:
    """Cut a file, which may not exist, to a size that it has."""

    path: str
    size: int


@dataclass(slots=True)
class Write:
    """Write data at an offset of a file, which may not exist yet."""

    path: str
    offset: int
    data: Any
    position: int
    """Position that it completes; -1 while the copy is filled."""


@dataclass(slots=True)
class Truncate:
    """Cut a file."""

    path: str
    size: int
    position: int


@dataclass(slots=True)
class Rename:
    """Rename a file, replacing another one."""

    path: str
    to: str
    position: int


@dataclass(slots=True)
class Delete:
    """Delete a file."""

    path: str
    position: int


@dataclass(slots=True)
class Filled:
    """Complete the copy: it consists of these files."""

    paths: Sequence[str]
    position: int


@dataclass(slots=True)
class Alive:
    """Keep the stream alive in both directions."""


# -- from the holder


@dataclass(slots=True)
class Have:
    """Accept the offer, with the files of the copy that have an identity."""

    files: dict[str, Extent]


@dataclass(slots=True)
class Refuse:
    """Refuse the offer, or leave the stream."""

    reason: str
    """`epoch`: the holder knows a different value; `full`, `failing`: the state of its disk;
    `leaving`: its process exits."""


@dataclass(slots=True)
class Received:
    """Ask for more data while the copy is filled."""


@dataclass(slots=True)
class Confirm:
    """Confirm that the copy has stored everything up to a position."""

    position: int


Change = Write | Truncate | Rename | Delete
FromOwner = Offer | Align | Change | Filled | Alive
FromHolder = Have | Refuse | Received | Confirm | Alive
