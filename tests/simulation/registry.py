"""A model of etcd: values with revisions, sessions with leases, transactions and watches."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from nsqcy.copies.group import Group
from nsqcy.copies.ports import Claim
from simulation.clock import Clock

if TYPE_CHECKING:
    from simulation.process import Process


class Registry:
    """The truth about groups. Requests arrive late or never; so do answers and watch events."""

    def __init__(self, clock: Clock, lease: float) -> None:
        self.clock = clock
        self.lease = lease
        self.revision = 0
        self.groups: dict[str, tuple[int, Group]] = {}
        self.sessions: dict[str, float] = {}
        self.claims: dict[tuple[str, str], tuple[str, Claim]] = {}
        """Claim of a node for a group, with the session that made it."""
        self.processes: dict[str, str] = {}
        """Name of the last process registered by each node."""
        self.is_available = True
        self.watchers: dict[Process, None] = {}
        self.changed: Callable[[Group | None, Group], None] = lambda old, new: None

    def propose(self, base: Group | None, value: Group, absent: str) -> None:
        """Replace the value of a group if it is `base` and the session does not exist."""
        old = self.groups.get(value.id, (0, None))[1]
        if old != base or (absent and absent in self.sessions):
            return
        self.revision += 1
        self.groups[value.id] = (self.revision, value)
        self.changed(old, value)
        for watcher in self.watchers:
            watcher.watch_group(value, self.revision)

    def keep_alive(self, session: str) -> None:
        if session not in self.sessions:
            self.clock.after(self.lease, self._expire, session)
            self.sessions[session] = self.clock.now + self.lease
            self._sessions_changed()
        else:
            self.sessions[session] = self.clock.now + self.lease

    def end_session(self, session: str) -> None:
        if self.sessions.pop(session, None) is not None:
            self._sessions_changed()

    def claim(self, group_id: str, node: str, session: str, claim: Claim) -> None:
        self.claims[group_id, node] = (session, claim)
        for watcher in self.watchers:
            watcher.watch_claim(group_id, node, claim)

    def register(self, node: str, known: str, process: str) -> str:
        """Replace the process of a node if it is `known`; return the process after that."""
        if self.processes.get(node, "") == known:
            self.processes[node] = process
        return self.processes.get(node, "")

    def set_available(self, value: bool) -> None:
        """Stop or restart the registry; a restart extends every lease."""
        self.is_available = value
        if value:
            for session in self.sessions:
                self.sessions[session] = self.clock.now + self.lease

    def _expire(self, session: str) -> None:
        until = self.sessions.get(session)
        if until is None:
            return
        if not self.is_available or until > self.clock.now:
            self.clock.after(max(until - self.clock.now, 0.5), self._expire, session)
        else:
            self.end_session(session)

    def _sessions_changed(self) -> None:
        self.revision += 1
        for watcher in self.watchers:
            watcher.watch_sessions()
