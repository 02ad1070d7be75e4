"""A worker's role in each group, derived from the registry values.

The worker acts only on values in the registry, never on the assumption that one of its own
transactions succeeded. A transaction whose outcome is unknown therefore needs no special case:
either its value appears in the registry, or it is repeated.
"""

from collections.abc import Mapping, Sequence

from nsqcy.copies.fetching import Done, Outcome, Part
from nsqcy.copies.group import Group
from nsqcy.copies.holder import Holder
from nsqcy.copies.messages import Alive, FromHolder, FromOwner, Offer, Refuse
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Host, Limits, Unreadable
from nsqcy.copies.recall import Recall, Stamp, Statement


class _Member:
    """A group as this worker knows it, and the worker's role in it."""

    __slots__ = (
        "absent_since",
        "claimed",
        "claims",
        "group",
        "holder",
        "owner",
        "proposed_at",
        "released_at",
        "restored_at",
        "stamp",
    )

    def __init__(self, group: Group, stamp: Stamp) -> None:
        self.group = group
        self.stamp = stamp
        self.owner: Owner | None = None
        self.holder: Holder | None = None
        self.claims: dict[str, Claim] = {}
        self.proposed_at = float("-inf")
        self.restored_at = float("-inf")
        self.released_at: float | None = None
        self.absent_since: float | None = None
        """The time since which the owner's session has been missing."""
        self.claimed: set[str] = set()
        """Nonces of values with which this worker has proposed to own the group with a copy that is
        not whole."""


class Worker:
    """All groups in a worker process."""

    def __init__(
        self, node: str, session: str, host: Host, limits: Limits, recall: Recall | None = None
    ) -> None:
        """
        recall: what the node remembers from earlier processes
        """
        self.recall = recall or Recall(node, {})
        self.node = node
        self.session = session
        self.host = host
        self.limits = limits
        self.sessions: frozenset[str] = frozenset()
        """Sessions in the registry."""
        self._registry_heard = float("-inf")
        self._members: dict[str, _Member] = {}

    # -- for reports

    def role(self, group_id: str) -> str:
        """Return `owner`, `holder` (an owner feeds this copy), `member`, or "" if there is no
        role."""
        member = self._members.get(group_id)
        if member is None or member.group.done:
            return ""
        if member.owner is not None:
            return "owner"
        if member.holder is not None:
            return "holder"
        return "member" if self.node in member.group.members else ""

    # -- the registry

    def group(self, group_id: str) -> Group | None:
        member = self._members.get(group_id)
        return member.group if member else None

    def groups(self) -> list[Group]:
        return [member.group for member in self._members.values()]

    def owner(self, group_id: str) -> Owner | None:
        member = self._members.get(group_id)
        return member.owner if member else None

    def holder(self, group_id: str) -> Holder | None:
        member = self._members.get(group_id)
        return member.holder if member else None

    def fetch(self, group_id: str, part: Part, done: Done, now: float) -> None:
        """Fetch a part of a file from another copy of a group. Calls done(outcome, data), at once
        or later."""
        member = self._members.get(group_id)
        if member is not None and member.owner is not None:
            member.owner.fetch(part, done, now)
        elif member is not None and member.holder is not None:
            member.holder.fetch(part, done, now)
        else:
            done(Outcome.LATER, None)

    def refill(self, group_id: str) -> None:
        """Let the owner fill this copy again, because a file without an identity is damaged."""
        member = self._members.get(group_id)
        if member is not None and member.holder is not None:
            member.holder.copy.whole = False
            self.host.hang_up(member.holder.owner, group_id)
            self._end_holder(member)

    def entered(self, generation: int, since: int, now: float) -> None:
        """Use another registry from now on. `since`: see Recall."""
        self.recall.entered(generation, since, now)
        self._protect()

    def left(self) -> None:
        """Stop using the registry, and ignore its contents."""
        self.recall.leave()
        self._protect()

    def knows(self, group: Group, stamp: Stamp) -> bool:
        """Return whether this process knows a value of a group, or a later one."""
        member = self._members.get(group.id)
        known = self.recall.known.get(group.id)
        stamps = [each.stamp for each in (member, known) if each is not None]
        return any(each >= stamp for each in stamps)

    def listed(
        self,
        groups: Sequence[tuple[Group, int]],
        revision: int,
        statements: Mapping[str, Statement],
        now: float,
    ) -> None:
        """Accept all values in the registry, each with the revision at which it was set, and the
        nodes' statements."""
        changed = [self.recall.registered(*each) for each in groups]
        changed.append(self.recall.listed([group.id for group, _ in groups], revision, statements))
        if any(changed):
            self.host.remember(self.recall.known)
        for group, at in groups:
            self._accept(group, at, now)
        self._protect()
        self._recall(now)

    def updated(self, group: Group, revision: int, now: float) -> bool:
        """Accept a value from the registry; return whether this node remembers it. Values older
        than the current one are ignored."""
        is_changed = self.recall.registered(group, revision)
        if is_changed:
            self.host.remember(self.recall.known)
        self._accept(group, revision, now)
        self._protect()
        return is_changed

    def _accept(self, group: Group, revision: int, now: float) -> None:
        stamp = self.recall.generation, revision
        member = self._members.get(group.id)
        if member is None:
            self._members[group.id] = member = _Member(group, stamp)
        elif stamp <= member.stamp:
            return
        else:
            member.group = group
            member.stamp = stamp
            member.proposed_at = float("-inf")
            member.restored_at = float("-inf")
            member.claims.clear()
            member.claimed &= {group.nonce}
            member.absent_since = None
        member.released_at = None if group.session else now
        self._take_role(member, now)

    def forget(self, group_id: str) -> None:
        """Forget a group that has ended."""
        self._members.pop(group_id, None)
        if self.recall.forget(group_id):
            self.host.remember(self.recall.known)

    def claimed(self, group_id: str, node: str, claim: Claim) -> None:
        """Accept the claim of a member whose copy is incomplete."""
        member = self._members.get(group_id)
        if member is not None:
            member.claims[node] = claim

    def tick(self, now: float) -> None:
        for member in list(self._members.values()):
            self._take_role(member, now)
            if member.owner is not None:
                member.owner.tick(now)
            elif member.holder is not None:
                self._watch_stream(member, member.holder, now)
        self._recall(now)

    def registry_heard(self, now: float) -> None:
        """Record that the registry has answered."""
        self._registry_heard = now

    def is_cut_off(self, now: float) -> bool:
        """Return whether this worker owns groups, but has heard from neither the registry nor a
        holder for a lease's duration.

        Its groups may have other owners by now, so it should not deliver messages.
        """
        owners = [each.owner for each in self._members.values() if each.owner is not None]
        heard = max([self._registry_heard, *(each.heard() for each in owners)])
        return bool(owners) and now - heard > self.limits.lease

    # -- streams

    def opened(self, node: str, group_id: str, now: float) -> None:
        """Accept the stream to a holder, which this worker has opened."""
        owner = self.owner(group_id)
        if owner is None:
            self.host.close(node, group_id)
        else:
            owner.opened(node, now)

    def disconnected(self, node: str, group_id: str, now: float) -> None:
        """Handle the end of a stream that this worker opened or tried to open."""
        owner = self.owner(group_id)
        if owner is not None:
            owner.disconnected(node, now)

    def hung_up(self, node: str, group_id: str) -> None:
        """Handle the end of a stream that an owner had opened."""
        member = self._members.get(group_id)
        if member is not None and member.holder is not None and member.holder.owner == node:
            self._end_holder(member)

    def from_holder(self, node: str, group_id: str, message: FromHolder, now: float) -> None:
        member = self._members.get(group_id)
        if member is not None and member.owner is not None:
            member.owner.received(node, message, now)

    def from_owner(self, node: str, group_id: str, message: FromOwner, now: float) -> None:
        if isinstance(message, Offer):
            self._offered(node, group_id, message.epoch, now)
            return
        holder = self.holder(group_id)
        if holder is not None and holder.owner == node:
            holder.received(message, now)

    # -- inside

    def _offered(self, node: str, group_id: str, epoch: int, now: float) -> None:
        member = self._members.get(group_id)
        if (
            member is None
            or member.owner is not None
            or member.group.done
            or not member.group.session
            or (member.group.owner, member.group.epoch) != (node, epoch)
        ):
            self.host.reply(node, group_id, Refuse("epoch"))
            return
        self._end_holder(member)
        try:
            copy = self.host.copy(group_id) or self.host.create_copy(member.group)
            if self.recall.holds(member.group, member.stamp):
                self.host.remember(self.recall.known)
            member.holder = Holder(group_id, node, epoch, copy, self.host, now)
        except Unreadable:
            # An answer without these files would let the owner truncate them.
            self.host.hang_up(node, group_id)

    def _watch_stream(self, member: _Member, holder: Holder, now: float) -> None:
        if now - holder.heard > self.limits.copy_timeout:
            self.host.hang_up(holder.owner, member.group.id)
            self._end_holder(member)
        else:
            holder.tick(now, self.limits.copy_timeout)
            self.host.reply(holder.owner, member.group.id, Alive(fetches=True))

    def _protect(self) -> None:
        """Let a group accept publishes only if other nodes could take it over."""
        for member in self._members.values():
            if member.owner is not None:
                member.owner.is_registered = self.recall.is_registered(member.group.id)

    def _recall(self, now: float) -> None:
        """Restore values that the registry lacks, and keep this node's statement up to date."""
        recall = self.recall
        if not recall.generation:
            return
        for group_id in recall.unregistered():
            self._restore(group_id, now)
        statement = recall.statement()
        if not recall.has_stated(statement):
            self.host.state(statement)
        if recall.is_repaired and not recall.unprotected():
            recall.is_repaired = False
            self.host.repaired()

    def _restore(self, group_id: str, now: float) -> None:
        member = self._members.get(group_id)
        if member is None:
            known = self.recall.known[group_id]
            self._members[group_id] = member = _Member(known.group, known.stamp)
        if now - member.restored_at < self.limits.retry_interval:
            return
        if member.owner is not None:
            value: Group | None = member.owner.group.unchanged(self.host.nonce())
        else:
            try:
                copy = self.host.copy(group_id)
            except Unreadable:
                return  # the copy may be intact: try again later
            value = self.recall.agreed(
                group_id,
                self.session if copy is not None and copy.whole else "",
                self.host.nonce(),
                is_overdue=now - self.recall.entered_at > self.limits.unclaimed_timeout,
            )
        if value is not None:
            member.restored_at = now
            self.host.restore(value)

    def _end_holder(self, member: _Member) -> None:
        if member.holder is not None:
            member.holder.end()
            member.holder = None

    def _take_role(self, member: _Member, now: float) -> None:
        group = member.group
        is_owner = (group.owner, group.session) == (self.node, self.session) and not group.done
        owner, holder = member.owner, member.holder
        if owner is not None and (not is_owner or owner.group.epoch != group.epoch):
            member.owner = None
            owner.end()
            self.host.lost(owner.group)
        if holder is not None and (
            not group.session or (holder.owner, holder.epoch) != (group.owner, group.epoch)
        ):
            self.host.hang_up(holder.owner, group.id)
            self._end_holder(member)
        if group.done:
            self._end_holder(member)
        try:
            if group.done:
                self.host.delete_copy(group.id)
            elif is_owner:
                self._own(member, now)
            else:
                self._replace_owner(member, now)
        except Unreadable:
            pass  # retried by the next tick; other members may be faster

    def _own(self, member: _Member, now: float) -> None:
        group = member.group
        if member.owner is None:
            if not self._may_own(member):
                self._give_back(member, now)
                return
            copy = self.host.copy(group.id) or self.host.create_copy(group)
            # Even a new or incomplete copy now counts as whole, because its history is
            # authoritative from here on.
            copy.whole = True
            member.owner = Owner(group, self.node, copy, self.host, self.limits, now)
            self.host.owned(group)
        elif member.owner.group is not group:
            member.owner.update(group, now)

    def _may_own(self, member: _Member) -> bool:
        """Return whether the copy is unchanged since this worker proposed to own the group. Raises
        Unreadable."""
        group = member.group
        return group.epoch == 1 or group.nonce in member.claimed or self._is_still_whole(group)

    def _give_back(self, member: _Member, now: float) -> None:
        """Let a member with an intact copy take over."""
        if now - member.proposed_at >= self.limits.retry_interval:
            member.proposed_at = now
            self.host.propose(member.group, member.group.released(self.host.nonce()))

    def _replace_owner(self, member: _Member, now: float) -> None:
        """Become the owner of a group without a live owner, if the group's value and this copy
        allow it."""
        group = member.group
        if self.node not in group.members or not self.recall.is_registered(group.id):
            return
        if now - member.proposed_at < self.limits.retry_interval:
            return
        copy = self.host.copy(group.id)
        is_whole = copy is not None and copy.whole
        if group.owner == self.node:
            self._return(member, is_whole, now)
        elif group.session not in self.sessions:
            if not is_whole:
                self._claim(member, now)
            elif member.holder is None or not group.session:
                member.proposed_at = now
                if self._is_still_whole(group):
                    self._take_over(member, now)
        else:
            member.absent_since = None

    def _return(self, member: _Member, is_whole: bool, now: float) -> None:
        """Resume a group that an earlier process of this node owned."""
        group = member.group
        if not is_whole:
            if group.session in self.sessions:
                member.proposed_at = now
                self.host.end_session(group.session)
            else:
                self._claim(member, now)
            return
        released_at = member.released_at
        if released_at is None or now - released_at > self.limits.unclaimed_timeout:
            member.proposed_at = now
            if self._is_still_whole(group):
                self.host.propose(group, group.resumed(self.session, self.host.nonce()))

    def _is_still_whole(self, group: Group) -> bool:
        """Return whether a whole copy is intact in the parts that only the previous owner could
        have repaired. Raises Unreadable."""
        copy = self.host.copy(group.id)
        if copy is None:
            return False
        copy.check()
        return copy.whole

    def _take_over(self, member: _Member, now: float) -> None:
        group = member.group
        member.proposed_at = now
        self.host.propose(
            group,
            group.taken_over(self.node, self.session, self.host.nonce()),
            absent=group.session,
        )

    def _claim(self, member: _Member, now: float) -> None:
        """Take over with an incomplete copy, if all members are back and none of them has more. A
        claim is valid only for a group without a session: while the group has one, the owner could
        fill the copy of a member that has already made a claim.
        """
        group = member.group
        if group.session:
            if member.absent_since is None:
                member.absent_since = now
            elif now - member.absent_since > self.limits.unclaimed_timeout:
                member.proposed_at = now
                value = group.released(self.host.nonce())
                self.host.propose(group, value, absent=group.session)
            return
        copy = self.host.copy(group.id)
        size = sum(each.size for each in copy.files().values()) if copy is not None else 0
        mine = Claim(group.nonce, copy.epoch if copy is not None else 0, size)
        member.claims[self.node] = mine
        self.host.claim(group.id, mine)
        claims = {
            node: claim for node, claim in member.claims.items() if claim.nonce == group.nonce
        }
        if set(claims) != set(group.members):
            return
        best = max(claims, key=lambda node: (claims[node].epoch, claims[node].size, node))
        if best == self.node:
            self._own_incomplete(member, now)

    def _own_incomplete(self, member: _Member, now: float) -> None:
        group, nonce = member.group, self.host.nonce()
        member.proposed_at = now
        member.claimed.add(nonce)
        if group.owner == self.node:
            value = group.resumed(self.session, nonce)
        else:
            value = group.taken_over(self.node, self.session, nonce)
        self.host.propose(group, value, absent=group.session)
