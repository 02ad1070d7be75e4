"""The rules of nsqcy.copies, each broken once. Some schedule must detect each broken
rule."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from nsqcy.copies.feed import Feed, Status
from nsqcy.copies.fetching import Fetches, Outcome
from nsqcy.copies.group import Group
from nsqcy.copies.holder import Holder
from nsqcy.copies.identity import Standing
from nsqcy.copies.messages import Extent
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Unreadable
from nsqcy.copies.recall import Recall
from nsqcy.copies.roles_and_takeover import Worker
from simulation import process as processes
from simulation.disk import Disk, DiskCopy, is_log
from simulation.process import Process
from simulation.registry import Registry

TRANSACTIONS = (
    *("propose", "restore", "state", "mark"),
    *("register", "keep_alive", "end_session", "claim"),
)

Patch = tuple[Any, str, Callable[[Any], Any]]

MUTANTS: dict[str, list[Patch]] = {}


def _mutant(owner: Any, attribute: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(patch: Callable[[Any], Any]) -> Callable[[Any], Any]:
        MUTANTS.setdefault(patch.__name__, []).append((owner, attribute, patch))
        return patch

    return add


@contextmanager
def broken(name: str) -> Iterator[None]:
    """Break a rule within the context."""
    originals = []
    for owner, attribute, patch in MUTANTS[name]:
        original = owner.__dict__[attribute]
        originals.append((owner, attribute, original))
        setattr(owner, attribute, patch(original))
    try:
        yield
    finally:
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


# -- confirm, then answer


@_mutant(Holder, "_store")
def confirms_before_it_is_stored(original):
    return lambda self, position: self.stored(position)


@_mutant(Process, "_store")
def does_not_wait_for_its_own_disk(original):
    def store(self, log, position):
        self._stored(log, position)
        return position

    return store


@_mutant(Owner, "_advance")
def commits_when_min_copies_have_it(original):
    def advance(self):
        confirmed = [feed.confirmed for feed in self.feeds.values()]
        position = sorted([self.position, *confirmed], reverse=True)
        wanted = self.group.min_copies - 1
        if len(position) > wanted and position[wanted] > self.committed:
            self.committed = position[wanted]
            self.host.committed(self.group.id, self.committed)

    return advance


@_mutant(Process, "_visible")
def shows_what_is_not_committed(original):
    return lambda self, log, owner: log.end_at(log.stored_position)


@_mutant(Owner, "write")
def keeps_changes_to_itself(original):
    return lambda self, path, *args: (
        self.position if path == "state" else original(self, path, *args)
    )


# -- refused messages are stored nowhere


@_mutant(Process, "lost")
def refuses_what_it_has_sent(original):
    def lost(self, group):
        if group.id == self._own_group:
            for _, call in self._answers:
                if call.func.__name__ == "_answer":
                    call.args[2]("refused")
        original(self, group)

    return lost


# -- a single history


@_mutant(DiskCopy, "truncate")
def does_not_cut(original):
    return lambda self, path, size: None if is_log(path) else original(self, path, size)


@_mutant(DiskCopy, "align")
def does_not_cut(original):  # noqa: F811 - the same rule
    return lambda self, path, size: None if is_log(path) else original(self, path, size)


@_mutant(DiskCopy, "files")
def takes_files_of_other_processes_for_the_same(original):
    return lambda self: {path: Extent(each.size, 0) for path, each in original(self).items()}


@_mutant(Worker, "_offered")
def accepts_any_epoch(original):
    def offered(self, node, group_id, epoch, now):
        member = self._members.get(group_id)
        if member is None or member.owner is not None or member.group.done:
            original(self, node, group_id, epoch, now)
            return
        self._end_holder(member)
        copy = self.host.copy(group_id) or self.host.create_copy(member.group)
        member.holder = Holder(group_id, node, epoch, copy, self.host, now)

    return offered


# -- members


@_mutant(Group, "is_complete")
def commits_in_an_incomplete_group(original):
    return property(lambda self: True)


@_mutant(Owner, "_joiner_is_ready")
def joins_before_it_is_filled(original):
    return lambda self: (feed := self.feeds.get(self.joiner)) and feed.status >= Status.FILLING


@_mutant(Owner, "_awaited")
def does_not_wait_for_proposed_members(original):
    return lambda self: [node for node in self.group.members if node != self.node]


@_mutant(Owner, "_awaited")
def forgets_a_member_before_the_outcome(original):
    return lambda self: [
        node
        for node in (self._proposals[-1] if self._proposals else self.group).members
        if node != self.node
    ]


@_mutant(Owner, "_propose")
def guesses_that_a_proposal_failed(original):
    def propose(self, now):
        if now - self._proposed_at >= self.limits.retry_interval:
            self._proposals.clear()
        original(self, now)

    return propose


@_mutant(Owner, "_propose")
def guesses_that_a_proposal_succeeded(original):
    def propose(self, now):
        original(self, now)
        if self._proposals:
            self.group = self._proposals.pop()

    return propose


@_mutant(Process, "nonce")
def proposes_equal_values(original):
    return lambda self: "0"


@_mutant(Owner, "_wanted_value")
def members_leave_until_one_is_left(original):
    def wanted(self, now):
        failed = self._failed_members(now)
        if failed and not self.group.done:
            return self.group.left(failed[0], self.host.nonce())
        return original(self, now)

    return wanted


# -- takeover


@_mutant(Worker, "_replace_owner")
def takes_over_although_it_is_not_whole(original):
    def replace_owner(self, member, now):
        copy = self.host.copy(member.group.id)
        if copy is not None and member.group.session not in self.sessions:
            copy.whole = True
        original(self, member, now)

    return replace_owner


@_mutant(Registry, "propose")
def does_not_compare_the_value(original):
    def propose(self, identity, base, value, absent=""):
        current = self.groups.get(value.id, (0, None))[1]
        original(self, identity, current if base is not None else None, value, absent)

    return propose


@_mutant(Group, "taken_over")
def removes_the_other_members(original):
    return lambda self, node, *args: replace(original(self, node, *args), members=(node,))


@_mutant(Worker, "_take_role")
def the_loser_deletes_its_copy(original):
    def take_role(self, member, now):
        is_loser = member.group.closed and member.group.owner != self.node
        if is_loser and member.owner is None and member.holder is None:
            self.host.delete_copy(member.group.id)
        original(self, member, now)

    return take_role


# -- draining


@_mutant(Process, "_move")
def leaves_before_the_move_is_committed(original):
    def move(self, log, seq, channels, own, target):
        original(self, log, seq, channels, own, target)
        if seq in log.moving:
            log.moving.discard(seq)
            log.moved.append(seq)

    return move


@_mutant(Owner, "_wanted_value")
def ends_a_group_that_is_not_drained(original):
    def wanted(self, now):
        if self.group.closed and not self.group.done and self.committed >= 0:
            return self.group.finished(self.host.nonce())
        return original(self, now)

    return wanted


# -- return of a node


@_mutant(Worker, "_return")
def resumes_although_it_is_not_whole(original):
    return lambda self, member, is_whole, now: original(self, member, True, now)


@_mutant(Worker, "_is_still_whole")
def resumes_although_it_is_not_whole(original):  # noqa: F811 - the same rule
    return lambda self, group: True


@_mutant(Owner, "_advance")
def answers_before_the_members_have_what_it_has(original):
    def advance(self):
        position = self.position
        for node in self._awaited():
            feed = self.feeds.get(node)
            if feed is not None and feed.status == Status.LIVE:
                position = min(position, feed.confirmed)
        if position > self.committed and self.group.is_complete:
            self.committed = position
            self.host.committed(self.group.id, position)

    return advance


@_mutant(Disk, "registered")
def does_not_notice_an_old_disk(original):
    return lambda self, name, **_: original(self, name, is_current=True)


@_mutant(Process, "create_copy")
def is_whole_before_it_is_filled(original):
    def create_copy(self, group):
        copy = original(self, group)
        copy.whole = True
        return copy

    return create_copy


@_mutant(Disk, "_distrust")
def trusts_a_copy_after_a_power_failure(original):
    return lambda self: setattr(self, "is_rolled_back", False)


@_mutant(Feed, "_finish")
def is_live_before_it_has_confirmed(original):
    def finish(self, position):
        original(self, position)
        self.confirmed = max(self.confirmed, position)

    return finish


@_mutant(Feed, "_refill")
def does_not_fill_a_changed_file_again(original):
    return lambda self, change: None


@_mutant(DiskCopy, "begin_filling")
def replaces_states_before_the_end(original):
    return lambda self: None


# -- another registry


@_mutant(processes, "judge")
def does_not_notice_an_older_registry(original):
    def judge(memory, found):
        standing = original(memory, found)
        return Standing.CURRENT if standing is Standing.OLDER else standing

    return judge


@_mutant(processes, "judge")
def uses_any_registry(original):
    def judge(memory, found):
        standing = original(memory, found)
        return Standing.SUCCESSOR if standing is Standing.FOREIGN else standing

    return judge


@_mutant(Registry, "counts")
def trusts_values_from_before_the_identity(original):
    return lambda self, revision: True


def does_not_require_the_identity(original):
    return lambda self, identity, *args: original(self, self.identity, *args)


for _transaction in TRANSACTIONS:
    _mutant(Registry, _transaction)(does_not_require_the_identity)


@_mutant(Process, "restore")
def does_not_restore_lost_groups(original):
    return lambda self, value: None


@_mutant(Process, "remember")
def remembers_nothing(original):
    return lambda self, known: None


@_mutant(Recall, "agreed")
def restores_what_it_remembers_itself(original):
    return lambda self, group_id, session, nonce, is_overdue: self.known[group_id].group.unchanged(
        nonce
    )


@_mutant(Recall, "_has_seen_the_end")
def takes_silence_for_the_end(original):
    return lambda self, node, latest: node not in self._statements or original(self, node, latest)


@_mutant(Worker, "_replace_owner")
def takes_over_unregistered_groups(original):
    def replace_owner(self, member, now):
        self.recall._registered.add(member.group.id)
        original(self, member, now)

    return replace_owner


# -- no copy is complete


@_mutant(Worker, "_claim")
def does_not_wait_for_all_members(original):
    def claim(self, member, now):
        original(self, member, now)
        group = member.group
        if len(member.claims) > 1 and self.node != group.owner:
            self._own_incomplete(member, now)

    return claim


@_mutant(processes, "successor")
def keeps_the_generation(original):
    return lambda *args: replace(original(*args), generation=original(*args).generation - 1)


@_mutant(Process, "remember")
def remembers_after_it_has_acted(original):
    return lambda self, known: self.clock.after(5.0, self.run, original, self, known)


# -- damaged and unreadable files


@_mutant(Owner, "fetch")
def gives_up_without_the_members_that_are_silent(original):
    def fetch(self, part, done, now):
        nodes = [node for node, feed in self.feeds.items() if feed.answers]
        self._fetches.fetch(part, nodes, done, now, has_everyone=bool(nodes))

    return fetch


@_mutant(Fetches, "received")
def takes_a_read_error_for_an_answer(original):
    def received(self, node, message, now):
        if message.outcome == "unreadable":
            message = replace(message, outcome="missing")
        original(self, node, message, now)

    return received


@_mutant(Fetches, "_abandon")
def takes_a_lost_request_for_an_answer(original):
    def abandon(self, is_abandoned, now):
        for number, query in list(self._queries.items()):
            if is_abandoned(query):
                del self._queries[number]
                self._continue(query, now)

    return abandon


@_mutant(Process, "_is_readable")
def gives_up_what_cannot_be_read(original):
    def is_readable(self, log, seq):
        if self.disk.fails_to_read():
            self._tried_to_mend(log, seq, Outcome.MISSING)
            return False
        return original(self, log, seq)

    return is_readable


@_mutant(Process, "_is_sound")
def does_not_verify_what_it_has_fetched(original):
    return lambda self, items: True


@_mutant(Feed, "_mend")
def spreads_damage(original):
    return lambda self, path, copy, may_use: self.mended.add(path)


@_mutant(Worker, "_is_still_whole")
def owns_a_damaged_state(original):
    return lambda self, group: True


@_mutant(Process, "_scrub")
def does_not_look_for_damage(original):
    return lambda self: None


@_mutant(Worker, "refill")
def keeps_a_damaged_state(original):
    return lambda self, group_id: None


@_mutant(Owner, "_may_use")
def replaces_the_member_that_may_have_the_only_intact_copy(original):
    return lambda self, feed, is_final, now: True


@_mutant(DiskCopy, "mends")
def does_not_notice_what_was_mended_meanwhile(original):
    return lambda self, path: 0


@_mutant(Worker, "_may_own")
def owns_what_was_damaged_meanwhile(original):
    return lambda self, member: True


@_mutant(DiskCopy, "read_headers")
def is_whole_with_an_unknown_file(original):
    return lambda self: None


@_mutant(Process, "copy")
def takes_an_unreadable_copy_for_an_empty_one(original):
    def copy(self, group_id):
        try:
            return original(self, group_id)
        except Unreadable:
            self.disk.apply(group_id, ("forget",))
            return None

    return copy


@_mutant(DiskCopy, "read_headers")
def is_whole_without_a_listed_file(original):
    def read_headers(self):
        self.image.lacks = False
        original(self)

    return read_headers
