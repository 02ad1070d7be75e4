"""Messages between a group's owner and its holders.

A copy is a set of files. A position is the number of file changes that an owner has made since it
began to own the group; it is meaningless in any other epoch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Extent:
    """The part of a file that is present in a copy.

    Files with the same path and identity were created by the same process, which only appends to
    them, so the shorter file is a prefix of the longer one.
    """

    size: int
    identity: Any


# -- from the owner


@dataclass(slots=True)
class Offer:
    """Offer the stream for an epoch."""

    epoch: int


@dataclass(slots=True)
class Align:
    """Truncate a file, which may not exist, to a size that it has already reached.

    The owner has verified its own file up to that size. After an interrupted fill, a holder offers
    its files only up to the verified size.
    """

    path: str
    size: int


@dataclass(slots=True)
class Write:
    """Write data at an offset of a file, which may not exist yet."""

    path: str
    offset: int
    data: Any
    position: int
    """Position that this change completes; -1 while the copy is being filled."""


@dataclass(slots=True)
class Truncate:
    """Truncate a file."""

    path: str
    size: int
    position: int


@dataclass(slots=True)
class Rename:
    """Rename a file, and replace any file with the new name."""

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
    """Mark the copy as complete, with these files."""

    paths: Sequence[str]
    position: int


# -- in both directions


@dataclass(slots=True)
class Alive:
    """Keep the stream alive."""

    fetches: bool = False
    """Whether the sender answers a Fetch; earlier versions do not."""


@dataclass(slots=True)
class Fetch:
    """Request a part of a file, because the sender's own part is damaged or unreadable."""

    number: int
    """Identifies the request in its stream."""
    path: str
    identity: Any
    """Identity of the file; a file of another process has different contents."""
    offset: int
    size: int


@dataclass(slots=True)
class Fetched:
    """Answer a Fetch."""

    number: int
    outcome: str
    """Empty if there is data; `missing`: the copy does not have the part; `unreadable`: it cannot
    be read now."""
    data: Any = None


# -- from the holder


@dataclass(slots=True)
class Have:
    """Accept the offer, with the files of the copy that have an identity."""

    files: dict[str, Extent]


@dataclass(slots=True)
class Refuse:
    """Refuse the offer, or end the stream."""

    reason: str
    """`epoch`: the holder knows a different value; `full`, `failing`: the state of its disk;
    `leaving`: its process exits; `replaced`: another process of the holder follows."""


@dataclass(slots=True)
class Received:
    """Request more data while the copy is being filled."""


@dataclass(slots=True)
class Confirm:
    """Confirm that the copy has stored everything up to a position."""

    position: int


Change = Write | Truncate | Rename | Delete
FromBoth = Alive | Fetch | Fetched
FromOwner = Offer | Align | Change | Filled | FromBoth
FromHolder = Have | Refuse | Received | Confirm | FromBoth
