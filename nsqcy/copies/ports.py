"""Interfaces that the state machine needs from its caller: a copy on disk and a worker process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from nsqcy.copies.group import Group
from nsqcy.copies.messages import Extent, FromHolder, FromOwner


@dataclass(frozen=True, slots=True)
class Limits:
    """Times of the state machine, in seconds, and amounts."""

    lease: float = 10.0
    """Time after which the registry ends the session of a silent process."""
    copy_timeout: float = 10.0
    """Time that a member may confirm nothing while others wait for it."""
    fill_timeout: float = 60.0
    """Time that a member may hold up the others while it is filled."""
    alive_interval: float = 1.0
    retry_interval: float = 2.0
    """Time before a proposal without a known outcome is repeated."""
    rejoin_delay: float = 10.0
    """Time before a node that failed may join again; doubles with each failure."""
    rejoin_delay_limit: float = 600.0
    unclaimed_timeout: float = 30.0
    """Time after which the owner takes a released group back that no member has taken over."""
    fill_bytes: int = 256 << 10
    """Size of the data in one message of a fill."""
    fill_window: int = 4
    """Messages of a fill that may be unacknowledged."""


class Copy(Protocol):
    """The files of a group on this node.

    `whole` means that the copy has everything that it ever confirmed: until the machine stops
    uncleanly (class os), or always (fsync). It is stored with the copy, and false after damage.
    """

    whole: bool
    epoch: int
    """Epoch of the owner that filled the copy, or that owns it."""

    def own(self, epoch: int) -> None:
        """Note the epoch in which this node changes its copy."""
        ...

    def files(self) -> dict[str, Extent]:
        """Return all files. The identity of a file is None if it may have been changed otherwise
        than by appending."""
        ...

    def size(self, path: str) -> int: ...

    def read(self, path: str, offset: int, limit: int) -> tuple[Any, int]:
        """Return about `limit` bytes of a file, and the offset of their end."""
        ...

    def begin_filling(self) -> None:
        """Keep every file without an identity until `fill`, and write a new one beside it."""
        ...

    def write(self, path: str, offset: int, data: Any) -> None: ...
    def truncate(self, path: str, size: int) -> None: ...
    def rename(self, path: str, to: str) -> None: ...
    def delete(self, path: str) -> None: ...

    def fill(self, paths: Sequence[str], epoch: int) -> None:
        """Put new files in their places, delete all files but these, and become whole."""
        ...

    def store(self, done: Callable[[], None]) -> None:
        """Call `done` when every change until here is stored in the sense of the class."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """Extent of an incomplete copy. If no member has a whole copy, the best claim decides."""

    nonce: str
    """Nonce of the value for which the claim is made."""
    epoch: int
    """Epoch of the copy."""
    size: int
    """Bytes in all files."""


class Host(Protocol):
    """The process of a worker."""

    def copy(self, group_id: str) -> Copy | None: ...
    def create_copy(self, group: Group) -> Copy: ...
    def delete_copy(self, group_id: str) -> None: ...

    def open(self, node: str, group_id: str) -> None:
        """Begin to connect to a node; `Worker.opened` or `Worker.disconnected` follows."""
        ...

    def close(self, node: str, group_id: str) -> None:
        """Close an opened stream, without a call of `Worker.disconnected`."""
        ...

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        """Send to a holder, by a stream that this worker opened."""
        ...

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        """Send to an owner, by the stream that it opened."""
        ...

    def hang_up(self, node: str, group_id: str) -> None:
        """Close a stream that an owner opened, without a call of `Worker.hung_up`."""
        ...

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        """Begin a transaction: if the group's value is `base`, replace it by `value`.

        It also requires that the session `absent`, if given, does not exist. Its outcome arrives
        as a value of the registry, or not at all.
        """
        ...

    def end_session(self, session: str) -> None: ...
    def claim(self, group_id: str, claim: Claim) -> None: ...

    def candidates(self, group: Group) -> Sequence[str]:
        """Return the nodes with a session that may hold a copy, the best one first."""
        ...

    def nonce(self) -> str: ...

    def owned(self, group: Group) -> None:
        """The worker owns the group from now on."""
        ...

    def lost(self, group: Group) -> None:
        """The worker does not own the group any longer."""
        ...

    def committed(self, group_id: str, position: int) -> None:
        """Every member has everything up to a position of the owned group."""
        ...
