"""Messages between the owner of a group and its holders.

Positions count the entries that an owner has appended since it began to own the group: a position
means nothing in another epoch. The caller defines the contents of records, changes and states.
"""

from dataclasses import dataclass
from typing import Any

from nsqcy.copies.history import Mark


@dataclass(slots=True)
class Extent:
    """The records of a log that a copy has: sequence numbers from `first` to before `end`."""

    first: int
    end: int
    marks: list[Mark]


# -- from the owner


@dataclass(slots=True)
class Offer:
    """Offer the stream of an epoch."""

    epoch: int


@dataclass(slots=True)
class Align:
    """Cut a log at `end`; create it, starting with `first`, if the rest is empty."""

    log: str
    first: int
    end: int


@dataclass(slots=True)
class Records:
    """Append records of one epoch to a log. The first has the sequence number `first`."""

    log: str
    epoch: int
    first: int
    records: list[Any]
    position: int
    """Position that they complete; -1 while the copy is filled."""


@dataclass(slots=True)
class Change:
    """Change the state of a log: its channels, finished messages, cursors and producers."""

    log: str
    change: Any
    position: int


@dataclass(slots=True)
class Create:
    """Create a log."""

    log: str
    state: Any
    position: int


@dataclass(slots=True)
class Delete:
    """Delete a log."""

    log: str
    position: int


@dataclass(slots=True)
class Filled:
    """Replace the states of all logs, and delete every other log: the copy is whole now."""

    states: dict[str, Any]
    position: int


@dataclass(slots=True)
class Alive:
    """Keep the stream alive in both directions."""


# -- from the holder


@dataclass(slots=True)
class Have:
    """Accept the offer, with what the copy has."""

    logs: dict[str, Extent]


@dataclass(slots=True)
class Refuse:
    """Refuse the offer, or leave the stream."""

    reason: str
    """`epoch`: the holder knows another value; `full`: its disk is; `failing`: its disk is."""


@dataclass(slots=True)
class Received:
    """Ask for more records while the copy is filled."""


@dataclass(slots=True)
class Confirm:
    """Confirm that the copy has stored everything up to a position."""

    position: int


FromOwner = Offer | Align | Records | Change | Create | Delete | Filled | Alive
FromHolder = Have | Refuse | Received | Confirm | Alive
