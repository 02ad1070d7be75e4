"""Interfaces that the state machine's caller must provide: a copy on disk and a worker process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nsqcy.copies.group import Group
from nsqcy.copies.messages import Extent, Fetch, Fetched, FromHolder, FromOwner
from nsqcy.copies.recall import Known, Statement


class Unreadable(Exception):
    """The disk cannot be read now. Its contents may be intact, so the caller draws no conclusions,
    and tries again later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The state machine's time limits, in seconds, and sizes."""

    lease: float = 10.0
    """Time after which the registry ends the session of a silent process."""
    copy_timeout: float = 10.0
    """Time for which a member may confirm nothing while others are waiting for it."""
    fill_timeout: float = 60.0
    """Time for which a member may hold up the others while its copy is being filled."""
    alive_interval: float = 1.0
    retry_interval: float = 2.0
    """Time after which a proposal whose outcome is unknown is repeated."""
    rejoin_delay: float = 10.0
    """Time before a failed node may rejoin; it doubles with each failure."""
    rejoin_delay_limit: float = 600.0
    damage_timeout: float = 600.0
    """Time for which the owner does not replace a member that may have the only intact copy of a
    file."""
    unclaimed_timeout: float = 30.0
    """Time after which the owner reclaims a released group that no member has taken over."""
    done_timeout: float = 3600.0
    """Time after which the registry's value of a group that has ended is deleted."""
    fill_bytes: int = 256 << 10
    """Data size of one fill message."""
    fill_window: int = 4
    """Maximum number of unacknowledged fill messages."""


class Copy(Protocol):
    """A group's files on this node.

    `whole` means that the copy has all changes that it has ever confirmed: with class os, this
    holds until the machine stops uncleanly; with fsync, always. The flag is stored with the copy,
    and is false after damage.
    """

    whole: bool
    epoch: int
    """Epoch in which an owner filled the copy, or in which this node owns the group."""

    def own(self, epoch: int) -> None:
        """Record the epoch in which this node changes its copy."""
        ...

    def files(self) -> dict[str, Extent]:
        """Return all files. A file's identity is None if the file may have been changed other than
        by appending."""
        ...

    def offered(self) -> dict[str, Extent]:
        """Return the files that have an identity, up to the point that an owner has verified: the
        rest of an unfinished fill is omitted."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int, limit: int) -> tuple[Any, int]:
        """Return about `limit` bytes of a file, and the offset of their end."""
        ...

    def check(self) -> None:
        """Read the parts that cannot be repaired once this node owns the group: journals and the
        headers of segments. If one of these parts is damaged, the copy is no longer whole. Raises
        Unreadable."""
        ...

    def mend(self, path: str, done: Callable[[bool], object]) -> None:
        """Verify a file, and replace damaged parts with those of another copy. Calls
        done(is_final): is_final is false if an unresponsive copy may have a part that is still
        damaged."""
        ...

    def mends(self, path: str) -> int:
        """Return how often damage in a file has been repaired since the copy was opened."""
        ...

    def answer(self, request: Fetch, reply: Callable[[Fetched], object]) -> None:
        """Read a part of a file for another copy. Calls `reply` with the answer."""
        ...

    def begin_filling(self) -> None:
        """Keep every file that has no identity until `fill`, and write its replacement next to
        it. Raises Unreadable."""
        ...

    def align(self, path: str, size: int) -> None:
        """Truncate a file, which may not exist. The owner has verified the remaining part."""
        ...

    def write(self, path: str, offset: int, data: Any) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def rename(self, path: str, to: str) -> None: ...
    def delete(self, path: str) -> None: ...

    def fill(self, paths: Sequence[str], epoch: int) -> None:
        """Move the new files into place, delete all files except these, and become whole."""
        ...

    def store(self, done: Callable[[], None]) -> None:
        """Call `done` once all changes so far are stored as the durability class requires."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The extent of an incomplete copy. If no member has a whole copy, the best claim wins."""

    nonce: str
    """Nonce of the value that the claim refers to."""
    epoch: int
    """Epoch of the copy."""
    size: int
    """Total size of all files, in bytes."""


class Host(Protocol):
    """The process of a worker."""

    def copy(self, group_id: str) -> Copy | None:
        """Return this node's copy of a group. Raises Unreadable."""
        ...

    def create_copy(self, group: Group) -> Copy: ...
    def delete_copy(self, group_id: str) -> None:
        """Delete this node's copy of a group, if it exists. Raises Unreadable."""
        ...

    def open(self, node: str, group_id: str) -> None:
        """Begin to connect to a node; a call to `Worker.opened` or `Worker.disconnected`
        follows."""
        ...

    def close(self, node: str, group_id: str) -> None:
        """Close an opened stream, without calling `Worker.disconnected`."""
        ...

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        """Send to a holder, through a stream that this worker opened."""
        ...

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        """Send to an owner, through the stream that the owner opened."""
        ...

    def hang_up(self, node: str, group_id: str) -> None:
        """Close a stream that an owner opened, without calling `Worker.hung_up`."""
        ...

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        """Begin a transaction: if the group's value is `base`, replace it with `value`.

        The transaction also requires that the session `absent`, if given, does not exist. Its
        outcome arrives as a registry value, or not at all.
        """
        ...

    def restore(self, value: Group) -> None:
        """Begin a transaction: restore a group in the registry, unless it has a valid
        value."""
        ...

    def remember(self, known: Mapping[str, Known]) -> None:
        """Store the values that this node remembers, before any action that depends on
        them."""
        ...

    def state(self, statement: Statement | None) -> None:
        """Begin to replace or delete this process's statement in the registry."""
        ...

    def repaired(self) -> None:
        """Called when all groups are registered again after a repair."""
        ...

    def end_session(self, session: str) -> None: ...
    def claim(self, group_id: str, claim: Claim) -> None: ...

    def candidates(self, group: Group) -> Sequence[str]:
        """Return the nodes that have a session and may hold a copy, best one first."""
        ...

    def nonce(self) -> str: ...

    def owned(self, group: Group) -> None:
        """Called when the worker has become the owner of a group."""
        ...

    def lost(self, group: Group) -> None:
        """Called when the worker no longer owns a group."""
        ...

    def committed(self, group_id: str, position: int) -> None:
        """Called when all members have stored all changes up to a position in an owned group."""
        ...
