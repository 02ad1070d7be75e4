"""The owner of a group: feeds the holders, tracks what is committed, and changes the set of
members.

A file change is committed once every other member has stored it; the caller waits for its own disk.
While the outcome of a proposal is unknown, the proposed members also count as members, because the
proposal may already be the value in the registry.
"""

from collections.abc import Collection, Sequence

from nsqcy.copies.feed import REPLACED, Feed, Status
from nsqcy.copies.fetching import Done, Fetches, Part
from nsqcy.copies.group import Group
from nsqcy.copies.messages import (
    Alive,
    Change,
    Confirm,
    Delete,
    Fetch,
    Fetched,
    FromHolder,
    Have,
    Received,
    Refuse,
    Rename,
    Truncate,
    Write,
)
from nsqcy.copies.ports import Copy, Host, Limits


class Owner:
    """A group that this worker owns. Exists from the transaction that made the worker its owner."""

    def __init__(
        self, group: Group, node: str, copy: Copy, host: Host, limits: Limits, now: float
    ) -> None:
        self.group = group
        self.node = node
        self.copy = copy
        self.host = host
        self.limits = limits
        self.position = 0
        """Number of changes in this epoch."""
        self.committed = -1
        self.feeds: dict[str, Feed] = {}
        self.joiner = ""
        """Node whose copy is being filled and that is not a member yet."""
        self.is_registered = True
        """Whether the registry has the group, so that another node can take over."""
        self.is_releasing = False
        self.has_failed = False
        self.is_drained = False
        self._proposals: list[Group] = []
        """Proposals based on the current value whose outcomes are unknown, one for each set of
        members."""
        self._proposed_at = now
        self._short_since: float | None = now
        """The time since which fewer than `min_copies` nodes have been responding."""
        self._blocked_since: float | None = None
        """The time since which a failed member has been unable to leave, because no proposal has an
        outcome."""
        self.is_blocked = False
        """Whether every publish would wait for a failed member that cannot leave."""
        self._fetches = Fetches(self._send)
        self._damaged_since: float | None = None
        """The time since which no node can join because of a damaged file."""
        self._damaged_at = now
        """The time at which a node last could not join for that reason."""
        self._rejoin: dict[str, tuple[float, float]] = {}
        """Nodes that have failed: the time from which each may rejoin, and the delay."""
        copy.own(group.epoch)
        self.tick(now)

    # -- for the worker's topics

    def accepts(self) -> bool:
        """Return whether publishes are accepted; otherwise they are refused and not stored
        anywhere."""
        group = self.group
        return (
            self.is_registered
            and not (group.closed or self.is_releasing)
            and group.is_complete
            and not self.is_blocked
            and self.responding() >= group.min_copies
        )

    def responding(self) -> int:
        """Return the number of members that are responding, including this node. Members whose
        process is being replaced are among them."""
        live = 1
        for node in self.group.members:
            feed = self.feeds.get(node)
            if feed is not None and (feed.status == Status.LIVE or feed.is_expected):
                live += 1
        return live

    def has_fed(self, nodes: Collection[str]) -> bool:
        """Return whether the members among these nodes have received everything, and receive each
        change as it is made."""
        return self.committed >= 0 and all(
            node not in nodes
            or ((feed := self.feeds.get(node)) is not None and feed.status == Status.LIVE)
            for node in self.group.without(self.node)
        )

    def waits(self, now: float) -> bool:
        """Return whether a record becomes visible only once it is committed, not as soon as
        it is stored here.

        A closed group does not wait, because it accepts no publishes. Nor does a group that has
        lacked copies, or has been blocked, for a while: publishes that are pending at that time are
        answered later, or never.
        """
        since = [each for each in (self._short_since, self._blocked_since) if each is not None]
        is_late = any(now - each > self.limits.copy_timeout for each in since)
        return not (self.group.closed or is_late)

    def heard(self) -> float:
        """Return the time at which any holder last responded."""
        return max(
            (feed.heard for feed in self.feeds.values() if feed.status >= Status.FILLING),
            default=float("-inf"),
        )

    # Changes that the caller has made to its own copy. Each method returns the position at which
    # the change is committed.

    def write(self, path: str, offset: int, data: object, now: float) -> int:
        return self._changed(Write(path, offset, data, self.position + 1), now)

    def truncate(self, path: str, size: int, now: float) -> int:
        return self._changed(Truncate(path, size, self.position + 1), now)

    def rename(self, path: str, to: str, now: float) -> int:
        return self._changed(Rename(path, to, self.position + 1), now)

    def delete(self, path: str, now: float) -> int:
        return self._changed(Delete(path, self.position + 1), now)

    def fetch(self, part: Part, done: Done, now: float) -> None:
        """Fetch a part of a file from a holder. Calls done(outcome, data), at once or later."""
        nodes = [node for node, feed in self.feeds.items() if feed.answers]
        # A member that has left may return with its copy.
        is_complete = len(self.group.members) >= self.group.copies
        has_everyone = is_complete and set(self._awaited()) <= set(nodes)
        self._fetches.fetch(part, nodes, done, now, has_everyone=has_everyone)

    def release(self) -> None:
        """Hand the group over once everything is committed."""
        self.is_releasing = True

    def fail(self) -> None:
        """Hand the group over, because its files cannot be changed here. If it is incomplete, end
        it: the holders could not be filled from these files."""
        self.has_failed = True
        self.release()

    def drained(self) -> None:
        """End the closed group once everything is committed."""
        self.is_drained = True

    # -- streams

    def opened(self, node: str, now: float) -> None:
        feed = self.feeds.get(node)
        if feed is None:
            self.host.close(node, self.group.id)
        else:
            feed.opened(self.group.epoch, now)

    def disconnected(self, node: str, now: float) -> None:
        feed = self.feeds.get(node)
        if feed is not None:
            self._closed(feed, now)

    def received(self, node: str, message: FromHolder, now: float) -> None:
        feed = self.feeds.get(node)
        if feed is None or feed.status <= Status.OPENING:
            return
        feed.heard = now
        match message:
            case Confirm(position):
                feed.refused = ""
                if position > feed.confirmed:
                    feed.confirmed = position
                    feed.progress = now
                    self._advance()
            case Received():
                feed.unacknowledged -= 1
                feed.progress = now
                self._fill(feed, now)
            case Have(files):
                feed.align(self.copy, files, now)
                self._fill(feed, now)
            case Alive(fetches):
                feed.answers = fetches and feed.status >= Status.FILLING
            case Fetch():
                self.copy.answer(message, lambda answer: self._send(node, answer))
            case Fetched():
                self._fetches.received(node, message, now)
            case Refuse(reason):
                feed.refused = reason
                feed.is_expected = reason == REPLACED and feed.status == Status.LIVE
                self.host.close(node, self.group.id)
                self._closed(feed, now)

    # -- the registry

    def update(self, group: Group, now: float) -> None:
        """Accept a newer value, under which this process still owns the group in the same epoch."""
        gone = [node for node in self.group.members if node not in group.members]
        self.group = group
        self._proposals.clear()
        if self.joiner in group.members:
            self.joiner = ""
        for node in gone:
            self._fail(node, now)
        self._advance()
        self._measure(now)

    # -- time

    def tick(self, now: float) -> None:
        self._watch_feeds(now)
        self._retry_mending(now)
        self._fetches.tick(now, self.limits.copy_timeout)
        self._choose_joiner(now)
        self._propose(now)
        self._measure(now)

    def end(self) -> None:
        """Close all streams: this process no longer owns the group."""
        for feed in self.feeds.values():
            if feed.status != Status.CLOSED:
                self.host.close(feed.node, self.group.id)
        self.feeds.clear()
        self._fetches.end()

    # -- inside

    def _changed(self, change: Change, now: float) -> int:
        before = self.position
        self.position += 1
        for feed in self.feeds.values():
            if feed.confirmed == before:
                feed.progress = now
            feed.changed(change)
            if feed.status == Status.FILLING:
                self._fill(feed, now)
        self._advance()
        return self.position

    def _send(self, node: str, message: Fetch | Fetched) -> bool:
        feed = self.feeds.get(node)
        if feed is None or feed.status < Status.FILLING:
            return False
        self.host.send(node, self.group.id, message)
        return True

    def _closed(self, feed: Feed, now: float) -> None:
        feed.closed(now)
        self._fetches.lost(feed.node, now)
        self._measure(now)

    def _fill(self, feed: Feed, now: float) -> None:
        if feed.status == Status.FILLING:
            feed.fill(
                self.copy, self.position, self.limits, lambda final: self._may_use(feed, final, now)
            )
            self._measure(now)

    def _may_use(self, feed: Feed, is_final: bool, now: float) -> bool:
        """Return whether a holder may use a file after an attempt to repair it here.

        A node that joins may replace the member that has the only intact copy. That member gets
        some time to return. Nodes that have left may also have an intact copy, so the candidates
        take turns.
        """
        feed.progress = feed.heard
        if is_final or feed.node != self.joiner:
            return True
        if self._damaged_since is None or now - self._damaged_at > self.limits.damage_timeout:
            self._damaged_since = now
        self._damaged_at = now
        return now - self._damaged_since > self.limits.damage_timeout

    def _awaited(self) -> Sequence[str]:
        """Return the other nodes that must store a change before it is committed."""
        if not self._proposals:
            return self.group.without(self.node)
        nodes = dict.fromkeys(self.group.members)
        for proposal in self._proposals:
            nodes |= dict.fromkeys(proposal.members)
        nodes.pop(self.node, None)
        return list(nodes)

    def _advance(self) -> None:
        if not self.group.is_complete:
            return
        position = self.position
        for node in self._awaited():
            feed = self.feeds.get(node)
            position = min(position, feed.confirmed if feed else -1)
        if position > self.committed:
            self.committed = position
            self.host.committed(self.group.id, position)

    def _measure(self, now: float) -> None:
        if self.responding() >= self.group.min_copies:
            self._short_since = None
        elif self._short_since is None:
            self._short_since = now
        if not (self._proposals and self._failed_members(now)):
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        blocked = self._blocked_since
        self.is_blocked = blocked is not None and now - blocked > self.limits.retry_interval

    def _watch_feeds(self, now: float) -> None:
        wanted = list(self._awaited())
        if self.joiner:
            wanted.append(self.joiner)
        for node in wanted:
            if node not in self.feeds:
                self.feeds[node] = Feed(node, self.group.id, self.host, now)
        for node in [each for each in self.feeds if each not in wanted]:
            self._drop(node)
        for feed in self.feeds.values():
            if now - feed.progress > self.limits.copy_timeout:
                feed.is_expected = False
            if feed.status != Status.CLOSED and now - feed.heard > self.limits.copy_timeout:
                self.host.close(feed.node, self.group.id)
                self._closed(feed, now)
            if feed.status == Status.CLOSED:
                feed.heard = now
                feed.open()
            elif feed.status >= Status.OFFERED:
                self.host.send(feed.node, self.group.id, Alive(fetches=True))

    def _retry_mending(self, now: float) -> None:
        joiner = self.feeds.get(self.joiner)
        if joiner is not None and joiner.status == Status.LIVE:
            self._damaged_since = None
        for feed in list(self.feeds.values()):
            feed.postponed.clear()
            self._fill(feed, now)

    def _drop(self, node: str) -> None:
        feed = self.feeds.pop(node)
        if feed.status != Status.CLOSED:
            self.host.close(node, self.group.id)
        self._fetches.lost(node, feed.heard)

    def _fail(self, node: str, now: float) -> None:
        _, delay = self._rejoin.get(node, (0.0, 0.0))
        delay = min(delay * 2 or self.limits.rejoin_delay, self.limits.rejoin_delay_limit)
        self._rejoin[node] = (now + delay, delay)
        if node in self.feeds:
            self._drop(node)

    def _failed_members(self, now: float) -> list[str]:
        return [
            node
            for node in self.group.members
            if node in self.feeds and self.feeds[node].has_failed(self.position, now, self.limits)
        ]

    def _choose_joiner(self, now: float) -> None:
        group = self.group
        if self.joiner:
            feed = self.feeds.get(self.joiner)
            if feed is None or not feed.has_failed(self.position, now, self.limits):
                return
            if not any(self.joiner in proposal.members for proposal in self._proposals):
                self._fail(self.joiner, now)
                self.joiner = ""
            return
        if len(group.members) - len(self._failed_members(now)) >= group.copies or group.done:
            return
        for node in self.host.candidates(group):
            may_join_at, _ = self._rejoin.get(node, (now, 0.0))
            if node != self.node and node not in group.members and now >= may_join_at:
                self.joiner = node
                self.feeds[node] = feed = Feed(node, self.group.id, self.host, now)
                feed.open()
                return

    def _propose(self, now: float) -> None:
        value = self._wanted_value(now)
        if self._proposals:
            if now - self._proposed_at < self.limits.retry_interval:
                return
            value = value or self.group.unchanged(self.host.nonce())
        if value is not None:
            if all(each.members != value.members for each in self._proposals):
                self._proposals.append(value)
            self._proposed_at = now
            self.host.propose(self.group, value)

    def _wanted_value(self, now: float) -> Group | None:
        group, nonce = self.group, self.host.nonce()
        is_settled = self.committed == self.position
        if group.done:
            return None
        if self.has_failed and not group.is_complete:
            return group.finished(nonce)  # nothing was ever committed
        if self.is_releasing and is_settled:
            return group.released(nonce)
        if self.is_drained and is_settled:
            return group.finished(nonce)
        failed = self._failed_members(now)
        if failed and len(group.members) > group.min_copies:
            return group.left(failed[0], nonce)
        if self._joiner_is_ready():
            if len(group.members) < group.copies:
                return group.joined(self.joiner, nonce)
            if failed:
                return group.exchanged(failed[0], self.joiner, nonce)
        return None

    def _joiner_is_ready(self) -> bool:
        feed = self.feeds.get(self.joiner)
        return (
            feed is not None
            and feed.status == Status.LIVE
            and feed.confirmed >= max(self.committed, 0)
        )
