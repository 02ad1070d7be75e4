"""Fetching a part of a file from another copy, because it is damaged or unreadable in this one.

Selects the nodes to query and interprets their answers. A part is missing only if every other
member has answered that it does not have it: a member that does not respond, or cannot read its
disk now, may still have it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from nsqcy.copies.messages import Fetch, Fetched


class Outcome(Enum):
    """The result of a query to the other copies."""

    FOUND = "found"
    MISSING = "missing"
    """No other copy has the part intact."""
    LATER = "later"
    """Not all other copies could be queried."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, and how to recognise it."""

    path: str
    identity: Any
    offset: int
    size: int
    is_sound: Callable[[Any], bool]
    """Whether the data is this part, and intact: it matches the file's checksums."""


Done = Callable[[Outcome, Any], object]


class _Query:
    """A part to fetch, and the nodes that have not been queried for it yet."""

    __slots__ = ("asked_at", "done", "has_everyone", "node", "nodes", "part")

    def __init__(self, part: Part, nodes: list[str], has_everyone: bool, done: Done) -> None:
        self.part = part
        self.nodes = nodes
        self.has_everyone = has_everyone
        """Whether all copies that may have the part are queried."""
        self.done = done
        self.node = ""
        self.asked_at = 0.0


class Fetches:
    """Queries for one copy; each tries the nodes one after another."""

    def __init__(self, send: Callable[[str, Fetch], bool]) -> None:
        """
        send: sends a request to a node, if there is a stream
        """
        self._send = send
        self._queries: dict[int, _Query] = {}
        self._number = 0

    def fetch(
        self, part: Part, nodes: Iterable[str], done: Done, now: float, *, has_everyone: bool
    ) -> None:
        """Query the nodes until one has the part. Calls done(outcome, data), at once or later.

        has_everyone: whether these are all nodes that may have the part
        """
        self._continue(_Query(part, list(nodes), has_everyone, done), now)

    def received(self, node: str, message: Fetched, now: float) -> None:
        query = self._queries.get(message.number)
        if query is None or query.node != node:
            return
        del self._queries[message.number]
        if not message.outcome and query.part.is_sound(message.data):
            query.done(Outcome.FOUND, message.data)
            return
        if message.outcome not in ("", "missing"):
            query.has_everyone = False  # unreadable, or a later version's outcome
        self._continue(query, now)

    def lost(self, node: str, now: float) -> None:
        """Stop waiting for a node, because its stream has ended."""
        self._abandon(lambda query: query.node == node, now)

    def tick(self, now: float, timeout: float) -> None:
        """Stop waiting for nodes that have not answered within `timeout`."""
        self._abandon(lambda query: now - query.asked_at > timeout, now)

    def end(self) -> None:
        """End all queries, because this process no longer uses the copy."""
        queries, self._queries = self._queries, {}
        for query in queries.values():
            query.done(Outcome.LATER, None)

    def _continue(self, query: _Query, now: float) -> None:
        part = query.part
        while query.nodes:
            self._number += 1
            query.node = query.nodes.pop(0)
            query.asked_at = now
            request = Fetch(self._number, part.path, part.identity, part.offset, part.size)
            if self._send(query.node, request):
                self._queries[self._number] = query
                return
            query.has_everyone = False
        query.done(Outcome.MISSING if query.has_everyone else Outcome.LATER, None)

    def _abandon(self, is_abandoned: Callable[[_Query], bool], now: float) -> None:
        for number, query in list(self._queries.items()):
            if is_abandoned(query):
                del self._queries[number]
                query.has_everyone = False
                self._continue(query, now)
