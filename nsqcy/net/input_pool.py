"""Unfinished input of many connections: a limit for all of them, and a share for each address.

Over the limit, the connection whose input has been unfinished for the longest time is dropped.
Therefore, a client that sends half of a request, or sends it slowly, cannot block other clients.
Over an address's share, only connections of that address are dropped, and the last one may exceed
the share. Independent of sockets, protocols and clocks.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

Holder = TypeVar("Holder")

UNAUTHENTICATED_PART = 16
"""Clients that have not authenticated may use 1/16 of an input budget together."""


class InputPool(Generic[Holder]):
    """Counter of unfinished input. The holders are connections."""

    def __init__(self, limit: int, share: int) -> None:
        """limit, share: maximum bytes of all connections, and of the connections from one
        address"""
        self.limit = limit
        self.share = share
        self.held = 0
        self._sizes: dict[Holder, int] = {}
        self._droppable: dict[Holder, str] = {}  # holders and their addresses, oldest first
        self._addresses: dict[str, _Address[Holder]] = {}

    @classmethod
    def of_budget(cls, budget: int) -> "InputPool[Holder]":
        """Return a pool for the clients that use all of a budget."""
        return cls(budget, budget // 2)

    @classmethod
    def of_unauthenticated(cls, budget: int) -> "InputPool[Holder]":
        """Return a pool for the clients that have not authenticated."""
        limit = budget // UNAUTHENTICATED_PART
        return cls(limit, limit // 8)

    def hold(self, holder: Holder, address: str, size: int, *, droppable: bool = True) -> None:
        """Record that a connection now holds `size` bytes. Call `excess` next."""
        change = size - self._sizes.pop(holder, 0)
        found = self._addresses.get(address)
        if found is None:
            found = self._addresses[address] = _Address()
        found.held += change
        self.held += change
        if size:
            self._sizes[holder] = size
        if size and droppable:
            self._droppable[holder] = address
            found.droppable[holder] = None
        else:
            self._droppable.pop(holder, None)
            found.droppable.pop(holder, None)
        if not found.held:
            del self._addresses[address]

    def excess(self, address: str) -> Iterator[Holder]:
        """Yield each connection that must be dropped after a change by an address. Dropped
        connections no longer hold input."""
        while (dropped := self._victim(address)) is not None:
            self.hold(dropped, self._droppable[dropped], 0)
            yield dropped

    def _victim(self, address: str) -> Holder | None:
        found = self._addresses.get(address)
        if found is not None and found.held > self.share and len(found.droppable) > 1:
            return next(iter(found.droppable))
        if self.held > self.limit and self._droppable:
            return next(iter(self._droppable))
        return None


class _Address(Generic[Holder]):
    """The connections of one address."""

    __slots__ = ("droppable", "held")

    def __init__(self) -> None:
        self.held = 0
        self.droppable: dict[Holder, None] = {}


def address_of(peer: str) -> str:
    """Return the IP address in an `ip:port` name."""
    return peer.rpartition(":")[0]
