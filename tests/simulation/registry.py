"""A model of etcd: values with revisions, sessions with leases, transactions and watches. It may
lose its data, be restored from a backup, or be replaced by another cluster's registry."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nsqcy.copies.group import Group
from nsqcy.copies.identity import Identity
from nsqcy.copies.ports import Claim
from nsqcy.copies.recall import Statement
from simulation.clock import Clock

if TYPE_CHECKING:
    from simulation.process import Process


@dataclass
class Contents:
    """All values, each with the revision at which it was set."""

    revision: int = 0
    identity: tuple[int, Identity] | None = None
    groups: dict[str, tuple[int, Group]] = field(default_factory=dict)
    processes: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Name of the last process registered by each node."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    sessions: dict[str, float] = field(default_factory=dict)
    statements: dict[str, tuple[str, Statement]] = field(default_factory=dict)
    """Statement of a node, with the session in which it was made."""


@dataclass(frozen=True)
class Reading:
    """The values that are valid for one node."""

    revision: int
    identity: Identity | None
    groups: list[tuple[int, Group]]
    process: str
    mark: int
    sessions: frozenset[str]
    statements: dict[str, Statement]


class Registry:
    """The truth about groups. Requests, answers and watch events arrive late or never."""

    def __init__(self, clock: Clock, lease: float) -> None:
        self.clock = clock
        self.lease = lease
        self.contents = Contents()
        self.is_available = True
        self.watchers: dict[Process, None] = {}
        self.changed: Callable[[Group | None, Group], None] = lambda old, new: None

    @property
    def groups(self) -> dict[str, tuple[int, Group]]:
        return self.contents.groups

    @property
    def sessions(self) -> dict[str, float]:
        return self.contents.sessions

    @property
    def identity(self) -> Identity | None:
        return self.contents.identity[1] if self.contents.identity else None

    def counts(self, revision: int) -> bool:
        """Return whether a value that was set at a revision is valid."""
        begin, identity = self.contents.identity or (0, None)
        return identity is None or identity.generation == 1 or revision >= begin

    def read(self, node: str) -> Reading:
        contents = self.contents

        def value(pairs, default):
            revision, found = pairs.get(node, (0, default))
            return found if self.counts(revision) else default

        return Reading(
            contents.revision,
            self.identity,
            [pair for pair in contents.groups.values() if self.counts(pair[0])],
            value(contents.processes, ""),
            value(contents.marks, 0),
            frozenset(contents.sessions),
            {
                each: statement
                for each, (session, statement) in contents.statements.items()
                if session in contents.sessions and self.counts(statement.revision)
            },
        )

    # -- transactions: each requires the identity that the process knows

    def replace(self, known: Identity | None, identity: Identity) -> None:
        if self.identity == known:
            self.contents.revision += 1
            self.contents.identity = (self.contents.revision, identity)

    def propose(
        self, identity: Identity, base: Group | None, value: Group, absent: str = ""
    ) -> None:
        """Replace the value of a group if it is `base` and the session does not exist."""
        old = self.groups.get(value.id, (0, None))[1]
        if identity != self.identity or old != base or (absent and absent in self.sessions):
            return
        self._set(value)
        self.changed(old, value)

    def restore(self, identity: Identity, value: Group) -> None:
        """Set the value of a group unless it has a valid one."""
        revision, _ = self.groups.get(value.id, (-1, None))
        if identity == self.identity and (revision < 0 or not self.counts(revision)):
            self._set(value)
            self.changed(None, value)

    def _set(self, value: Group) -> None:
        self.contents.revision += 1
        self.groups[value.id] = (self.contents.revision, value)
        for watcher in self.watchers:
            watcher.watch_group(self.identity, value, self.contents.revision)

    def keep_alive(self, identity: Identity, session: str) -> None:
        if identity != self.identity:
            return
        if session not in self.sessions:
            self.clock.after(self.lease, self._expire, session)
            self.sessions[session] = self.clock.now + self.lease
            self._sessions_changed()
        else:
            self.sessions[session] = self.clock.now + self.lease

    def end_session(self, identity: Identity, session: str) -> None:
        if identity == self.identity:
            self._end_session(session)

    def _end_session(self, session: str) -> None:
        if self.sessions.pop(session, None) is not None:
            self._sessions_changed()

    def claim(self, identity: Identity, group_id: str, node: str, claim: Claim) -> None:
        if identity == self.identity:
            for watcher in self.watchers:
                watcher.watch_claim(identity, group_id, node, claim)

    def state(
        self, identity: Identity, node: str, session: str, statement: Statement | None
    ) -> None:
        if identity != self.identity:
            return
        self.contents.revision += 1
        if statement is None:
            self.contents.statements.pop(node, None)
        else:
            made = Statement(
                statement.known, statement.is_repaired, statement.since, self.contents.revision
            )
            self.contents.statements[node] = session, made

    def mark(self, identity: Identity, node: str, known: int, revision: int) -> bool:
        """Replace a node's mark if it is `known`; return whether it was replaced."""
        at, found = self.contents.marks.get(node, (0, 0))
        is_known = identity == self.identity and known == (found if self.counts(at) else 0)
        if is_known:
            self.contents.revision += 1
            self.contents.marks[node] = self.contents.revision, revision
        return is_known

    def register(self, identity: Identity, node: str, known: str, process: str) -> None:
        """Replace the process of a node if it is `known`."""
        revision, found = self.contents.processes.get(node, (0, ""))
        current = found if self.counts(revision) else ""
        if identity == self.identity and current == known:
            self.contents.revision += 1
            self.contents.processes[node] = self.contents.revision, process

    # -- faults

    def set_available(self, value: bool) -> None:
        """Stop or restart the registry; a restart extends every lease."""
        self.is_available = value
        if value:
            for session in self.sessions:
                self.sessions[session] = self.clock.now + self.lease

    def backup(self) -> Contents:
        return copy.deepcopy(self.contents)

    def put(self, contents: Contents) -> None:
        """Replace all data, and end all watches."""
        self.contents = contents
        self.watchers.clear()
        for session in self.sessions:
            self.sessions[session] = self.clock.now + self.lease
            self.clock.after(self.lease, self._expire, session)

    def _expire(self, session: str) -> None:
        until = self.sessions.get(session)
        if until is None:
            return
        if not self.is_available or until > self.clock.now:
            self.clock.after(max(until - self.clock.now, 0.5), self._expire, session)
        else:
            self._end_session(session)

    def _sessions_changed(self) -> None:
        self.contents.revision += 1
        for watcher in self.watchers:
            watcher.watch_sessions()
