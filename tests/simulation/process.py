"""A process of nsqd in the simulation: the worker's state machine, a topic, and its consumers.

Each process has one topic, in its own group, and drains the groups that it takes over into
that topic. Its consumers receive the messages that the state machine shows, and finish or requeue
them.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nsqcy.copies.fetching import Outcome, Part
from nsqcy.copies.group import Group
from nsqcy.copies.identity import BROKEN, Found, Identity, Memory, Standing, judge, successor
from nsqcy.copies.messages import FromHolder, FromOwner, Write
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Copy
from nsqcy.copies.recall import Known, Recall, Statement
from nsqcy.copies.roles_and_takeover import Worker
from simulation.disk import (
    NEW_STATE,
    STATE,
    UNREADABLE,
    Damaged,
    Disk,
    DiskCopy,
    Record,
    is_log,
    log_number,
)
from simulation.network import REGISTRY, Stream
from simulation.registry import Reading

if TYPE_CHECKING:
    from simulation.world import World

CHANNELS = ("a", "b")
TICK = 0.4
RECOVERY_PAUSE = 0.5
IN_FLIGHT_LIMIT = 4


class OwnedLog:
    """A group that this process owns: its records and state, and the known facts about them."""

    def __init__(self, group_id: str, copy: DiskCopy) -> None:
        self.group_id = group_id
        self.copy = copy
        self.records = list(copy.image.records())
        self.state = copy.image.state()
        paths = sorted(filter(is_log, copy.image.files), key=log_number)
        self.places = [
            (path, index) for path in paths for index in range(1, len(copy.image.files[path]))
        ]
        """The file of each record, and its index in the file."""
        self.skipped: set[int] = set()
        """Damaged records that no other copy has."""
        self.path = f"log.{max(map(log_number, paths), default=0) + 1}"
        """File for new records."""
        self.ends: deque[tuple[int, int]] = deque([(0, len(self.records))])
        """Positions in the group, with the end of the log at each."""
        self.stored_position = -1
        self.committed_position = -1
        self.visible = 0
        self.committed = 0
        self.checked = 0
        self.cursors = dict.fromkeys(CHANNELS, 0)
        self.requeued: dict[str, list[int]] = {name: [] for name in CHANNELS}
        self.in_flight: set[tuple[int, str]] = set()
        self.finished: list[tuple[int, str]] = []
        self.moving: set[int] = set()
        self.moved: list[int] = []
        self.drained_to = 0
        self.saved: deque[tuple[int, list[tuple[int, str]]]] = deque()
        """Positions in the group, with the finished or moved messages at each."""

    def position(self) -> int:
        """Return the position up to which everything is stored here and committed."""
        return min(self.stored_position, self.committed_position)

    def end_at(self, position: int) -> int:
        """Return the end of the log at a position in its group."""
        end = 0
        for each, log_end in self.ends:
            if each > position:
                break
            end = log_end
        return end

    def channels_of(self, seq: int) -> list[str]:
        """Return the channels that have not finished a message."""
        if seq in self.skipped:
            return []
        record, state = self.records[seq], self.state
        wanted = state.channels if record.channels is None else record.channels
        return [
            name
            for name in wanted
            if (record.channels is not None or seq >= state.channels[name])
            and (seq, name) not in state.done
        ]


class Process:
    """A process, from its start to its end."""

    def __init__(self, world: "World", node: str, disk: Disk) -> None:
        self.world = world
        self.clock = world.clock
        self.network = world.network
        self.registry = world.registry
        self.random = world.random
        self.node = node
        self.disk = disk
        self.session = f"{node}/{next(world.numbers)}"
        self.disk.names.append(self.session)
        self.is_running = True
        self.is_paused = False
        self.is_draining = False
        self._inbox: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._opened: dict[tuple[str, str], Stream] = {}
        self._accepted: dict[tuple[str, str], Stream] = {}
        self._opening: set[tuple[str, str]] = set()
        self._known: set[str] = set()
        """Copies that this process has read."""
        self._sessions_revision = 0
        self.logs: dict[str, OwnedLog] = {}
        """The log of each owned group."""
        self._own_group = ""
        self._answers: deque[tuple[int, partial[None]]] = deque()
        """Callbacks for when positions in the process's own group are committed."""
        recall = Recall(node, disk.known, is_repaired=disk.is_repaired)
        self.worker = Worker(node, self.session, self, world.limits, recall)
        self._identity: Identity | None = None
        """Identity of the registry that the process uses."""
        self._revision = 0
        self._is_registered = False
        self._current_mark = 0
        self._is_current = True
        """Whether the disk has everything that earlier processes of the node stored."""
        self._read = False
        self._poll()
        self.clock.after(self.random.uniform(0, TICK), self._tick)

    def run(self, call: Callable[..., None], *args: Any) -> None:
        """Call a method of this process, now or when the process resumes."""
        if self.is_paused:
            self._inbox.append((call, args))
        elif self.is_running:
            call(*args)

    def resume(self) -> None:
        self.is_paused = False
        inbox, self._inbox = self._inbox, []
        for call, args in inbox:
            self.run(call, *args)

    def end(self) -> None:
        self.is_running = False
        self.registry.watchers.pop(self, None)

    # -- the registry

    @property
    def uses_registry(self) -> bool:
        return self._identity is not None

    def _poll(self) -> None:
        if self.is_running:
            self._ask()
            self.clock.after(self.world.limits.lease / 4, self.run, self._poll)

    def _ask(self) -> None:
        """Extend the lease, and read the whole registry."""
        memory = self.disk.memory()  # a change may arrive while the registry is read
        self.network.request(self, self._renew, partial(self._got, memory))

    def _renew(self) -> Reading:
        # Late requests from an ended process do not affect its lease.
        if self.is_running and self._identity is not None and self._is_registered:
            self.registry.keep_alive(self._identity, self.session)
            if self._identity == self.registry.identity:
                self.registry.watchers[self] = None
        return self.registry.read(self.node)

    def _got(self, memory: Memory, reading: Reading) -> None:
        groups = {group.id: revision for revision, group in reading.groups}
        found = Found(reading.identity, reading.revision, groups, reading.mark)
        standing = judge(memory, found)
        is_overtaken = self._identity is not None and reading.revision < self._revision
        if is_overtaken and standing is Standing.CURRENT:
            return
        if standing is Standing.NEW or standing in BROKEN:
            self._leave()
            if self._may_replace(standing, reading):
                self._replace(standing, reading)
            return
        identity = reading.identity
        assert identity is not None
        if identity != self._identity:
            self._enter(identity)
        if not self._is_registered:
            self._register(identity, reading.process)
            if not self._is_registered:
                return
        self._use_reading(reading)

    def _may_replace(self, standing: Standing, reading: Reading) -> bool:
        if standing in (Standing.NEW, Standing.LOST) or self.disk.is_repaired:
            return True
        generation = reading.identity.generation if reading.identity is not None else 0
        return not any(
            group.is_complete
            and group.session in reading.sessions
            and not self.worker.knows(group, (generation, revision))
            for revision, group in reading.groups
        )

    def _replace(self, standing: Standing, reading: Reading) -> None:
        identity = Identity(self.nonce())
        if standing is not Standing.NEW:
            identity = successor(self.disk.memory(), reading.identity, identity.id)
            self.world.log("%s: registry is %s, now %s", self.node, standing, identity)
        self.network.request(self, partial(self.registry.replace, reading.identity, identity), None)
        self.clock.after(0.1, self.run, self._ask)

    def _leave(self) -> None:
        if self._identity is not None:
            self._identity = None
            self.registry.watchers.pop(self, None)
            self.worker.left()

    def _enter(self, identity: Identity) -> None:
        self._leave()
        self._is_registered = False
        self._revision = self._sessions_revision = 0
        if identity != self.disk.identity:
            self.disk.adopt(identity)
        self._identity = identity
        self.worker.entered(identity.generation, self.disk.since, self.clock.now)

    def _register(self, identity: Identity, known: str) -> None:
        """Replace the name of the last process in the registry, and check the previous name.

        If the disk does not have that name, an older disk has replaced it since.
        """
        if known == self.session:
            self._is_registered = True
            self.disk.registered(self.session, is_current=self._is_current)
            if not self._is_current:
                self.world.log("%s: its disk went back", self.node)
            self._is_current = True
            return
        self._is_current = self._is_current and known in ("", *self.disk.names)
        call = partial(self.registry.register, identity, self.node, known, self.session)
        self.network.request(self, call, None)
        self.clock.after(0.1, self.run, self._ask)

    def _use_reading(self, reading: Reading) -> None:
        now = self.clock.now
        self._revision = reading.revision
        self.disk.revision = max(self.disk.revision, reading.revision)
        self.worker.registry_heard(now)
        self._got_sessions(self._identity, reading.revision, reading.sessions)
        groups = [(group, revision) for revision, group in reading.groups]
        self.worker.listed(groups, reading.revision, reading.statements, now)
        self._read = True
        self._current_mark = reading.mark
        self._mark()

    def _mark(self) -> None:
        identity, revision = self._identity, max(self.disk.remembered().values(), default=0)
        if identity is not None and self._current_mark < revision:
            self.network.request(
                self,
                partial(self.registry.mark, identity, self.node, self._current_mark, revision),
                partial(self._marked, identity, revision),
            )

    def _marked(self, identity: Identity, revision: int, is_set: bool) -> None:
        if is_set and identity == self._identity:
            self.disk.mark = self._current_mark = max(self.disk.mark, revision)

    def watch_group(self, identity: Identity, group: Group, revision: int) -> None:
        if (REGISTRY, self.node) not in self.network.blocked:
            delay = self.network.delay()
            self.clock.after(delay, self.run, self._got_group, identity, group, revision)

    def watch_sessions(self) -> None:
        if (REGISTRY, self.node) not in self.network.blocked:
            revision = self.registry.contents.revision
            sessions = frozenset(self.registry.sessions)
            self.clock.after(
                self.network.delay(),
                self.run,
                self._got_sessions,
                self.registry.identity,
                revision,
                sessions,
            )

    def watch_claim(self, identity: Identity, group_id: str, node: str, claim: Claim) -> None:
        self.clock.after(
            self.network.delay(), self.run, self._got_claim, identity, group_id, node, claim
        )

    def _got_claim(self, identity: Identity, group_id: str, node: str, claim: Claim) -> None:
        if identity == self._identity:
            self.worker.claimed(group_id, node, claim)

    def _got_group(self, identity: Identity, group: Group, revision: int) -> None:
        if self._read and identity == self._identity:
            self.disk.revision = max(self.disk.revision, revision)
            if self.worker.updated(group, revision, self.clock.now):
                self._mark()

    def _got_sessions(
        self, identity: Identity | None, revision: int, sessions: frozenset[str]
    ) -> None:
        if identity == self._identity and revision >= self._sessions_revision:
            self._sessions_revision = revision
            self.worker.sessions = sessions

    # -- streams

    def open_succeeded(self, stream: Stream) -> None:
        key = stream.holder.node, stream.group_id
        if key not in self._opening:
            self.network.cut(stream)
            return
        self._opening.discard(key)
        self._opened[key] = stream
        self.worker.opened(*key, self.clock.now)

    def open_failed(self, node: str, group_id: str) -> None:
        if (node, group_id) in self._opening:
            self._opening.discard((node, group_id))
            self.worker.disconnected(node, group_id, self.clock.now)

    def received(self, stream: Stream, to_holder: bool, message: Any) -> None:
        if to_holder:
            key = stream.owner.node, stream.group_id
            if not self._read:
                self.network.cut(stream)
                return
            old = self._accepted.get(key)
            if old is not stream:
                if old is not None:
                    self.network.cut(old)
                self._accepted[key] = stream
            self.worker.from_owner(*key, message, self.clock.now)
        else:
            key = stream.holder.node, stream.group_id
            if self._opened.get(key) is stream:
                self.worker.from_holder(*key, message, self.clock.now)

    def stream_ended(self, stream: Stream) -> None:
        key = stream.holder.node, stream.group_id
        if stream.owner is self and self._opened.get(key) is stream:
            del self._opened[key]
            self.worker.disconnected(*key, self.clock.now)
        key = stream.owner.node, stream.group_id
        if stream.holder is self and self._accepted.get(key) is stream:
            del self._accepted[key]
            self.worker.hung_up(*key)

    # -- requests of the state machine

    def copy(self, group_id: str) -> DiskCopy | None:
        if group_id not in self.disk.images:
            return None
        copy = DiskCopy(self.disk, group_id, self._mend)
        if group_id not in self._known:
            copy.read_headers()
            self._known.add(group_id)
        return copy

    def create_copy(self, group: Group) -> Copy:
        self._known.add(group.id)
        return DiskCopy(self.disk, group.id, self._mend)

    def delete_copy(self, group_id: str) -> None:
        if group_id in self.disk.images:
            self.disk.apply(group_id, ("forget",))

    def open(self, node: str, group_id: str) -> None:
        self._opening.add((node, group_id))
        self.network.open(self, node, group_id)

    def close(self, node: str, group_id: str) -> None:
        self._opening.discard((node, group_id))
        stream = self._opened.pop((node, group_id), None)
        if stream is not None:
            self.network.cut(stream)

    def hang_up(self, node: str, group_id: str) -> None:
        stream = self._accepted.pop((node, group_id), None)
        if stream is not None:
            self.network.cut(stream)

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        stream = self._opened.get((node, group_id))
        if stream is None:
            return
        if isinstance(message, Write) and message.data is UNREADABLE:
            self.network.cut(stream)
        else:
            self.network.send(stream, True, message)

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        stream = self._accepted.get((node, group_id))
        if stream is not None:
            self.network.send(stream, False, message)

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        self.world.proposals.append((base, value))
        self._transact(self.registry.propose, base, value, absent)

    def restore(self, value: Group) -> None:
        self.world.log("%s: restores %s", self.node, value)
        self._transact(self.registry.restore, value)

    def remember(self, known: Mapping[str, Known]) -> None:
        self.disk.known = dict(known)

    def state(self, statement: Statement | None) -> None:
        self._transact(self.registry.state, self.node, self.session, statement)

    def repaired(self) -> None:
        self.disk.is_repaired = False

    def end_session(self, session: str) -> None:
        self._transact(self.registry.end_session, session)

    def claim(self, group_id: str, claim: Claim) -> None:
        self._transact(self.registry.claim, group_id, self.node, claim)

    def _transact(self, call: Callable[..., None], *args: Any) -> None:
        if self._identity is not None:
            self.network.request(self, partial(call, self._identity, *args), None)

    def candidates(self, group: Group) -> Sequence[str]:
        nodes = [session.split("/")[0] for session in sorted(self.worker.sessions)]
        self.random.shuffle(nodes)
        return nodes

    def nonce(self) -> str:
        return str(next(self.world.numbers))

    def owned(self, group: Group) -> None:
        copy = self.copy(group.id)
        assert copy is not None
        self.world.oracle.owned(self, group)
        self._open_log(group, OwnedLog(group.id, copy))

    def _open_log(self, group: Group, log: OwnedLog) -> None:
        """Recover the log of a group. A recovery that fails to read is repeated."""
        owner = self.worker.owner(group.id)
        if owner is None or owner.group.epoch != group.epoch:
            return
        if self.disk.fails_to_read():
            self.clock.after(RECOVERY_PAUSE, self.run, self._open_log, group, log)
            return
        self.logs[group.id] = log
        log.committed_position = owner.committed
        self.disk.store(partial(self._stored, log, 0))
        self._save_state(log)
        self._write(log, log.path, [f"{group.epoch} {self.session}"])
        if not group.closed and not self._own_group:
            self._use(log)

    def _use(self, log: OwnedLog) -> None:
        """Select a log for later publishes, and give it channels."""
        self._own_group = log.group_id
        for name in CHANNELS:
            if name not in log.state.channels:
                delay = self.random.uniform(0, 4)
                self.clock.after(delay, self.run, self._create_channel, log.group_id, name)

    def lost(self, group: Group) -> None:
        self.world.log("%s: lost %s", self.node, group.id)
        self.logs.pop(group.id, None)
        if group.id == self._own_group:
            self._own_group = ""
            self._answers.clear()
            for log in self.logs.values():
                log.moving.clear()

    def committed(self, group_id: str, position: int) -> None:
        log = self.logs.get(group_id)
        if log is not None:
            log.committed_position = position
            self._advance(log)

    def _stored(self, log: OwnedLog, position: int) -> None:
        if self.is_running and self.logs.get(log.group_id) is log:
            log.stored_position = max(log.stored_position, position)
            self._advance(log)

    def _advance(self, log: OwnedLog) -> None:
        position = log.position()
        log.committed = log.end_at(position)
        self.world.oracle.committed(self, log, position)
        if log.group_id == self._own_group:
            while self._answers and self._answers[0][0] <= position:
                self._answers.popleft()[1]()

    # -- files

    def _write(self, log: OwnedLog, path: str, items: list[Any], offset: int | None = None) -> int:
        """Write to a file, by default at its end; return the position of the write."""
        if offset is None:
            offset = log.copy.size(path) if path in log.copy.image.files else 0
        log.copy.write(path, offset, items)
        owner = self.worker.owner(log.group_id)
        assert owner is not None
        return self._store(log, owner.write(path, offset, items, self.clock.now))

    def _store(self, log: OwnedLog, position: int) -> int:
        self.disk.store(partial(self._stored, log, position))
        return position

    def _append(self, log: OwnedLog, records: list[Record]) -> int:
        position = self._write(log, log.path, records)
        begin = log.copy.size(log.path) - len(records)
        log.places += [(log.path, begin + number) for number in range(len(records))]
        log.records += records
        log.ends.append((position, len(log.records)))
        return position

    def _change(self, log: OwnedLog, *change: Any) -> int:
        """Change the state of a log; return the position of the change."""
        log.state.apply(change)
        if self.random.random() < 0.2:
            return self._save_state(log)
        return self._write(log, STATE, [change])

    def _save_state(self, log: OwnedLog) -> int:
        """Replace the file that contains a log's state. The first write is overwritten."""
        self._write(log, NEW_STATE, [None], 0)
        self._write(log, NEW_STATE, [log.state.copy()], 0)
        log.copy.rename(NEW_STATE, STATE)
        owner = self.worker.owner(log.group_id)
        assert owner is not None
        return self._store(log, owner.rename(NEW_STATE, STATE, self.clock.now))

    # -- publishers

    def publish(self, messages: list[int], answer: Callable[[str], None]) -> None:
        """Publish messages together; the answer is OK, or `refused` if they are stored nowhere."""
        owner = self._publisher()
        if owner is None or not owner.accepts():
            answer("refused")
            return
        log = self.logs[owner.group.id]
        position = self._append(log, [Record(message) for message in messages])
        self._answers.append((position, partial(self._answer, log, messages, answer)))

    def _answer(self, log: OwnedLog, messages: list[int], answer: Callable[[str], None]) -> None:
        self.world.oracle.answered(log, messages)
        answer("ok")

    def _leave_unanswered(self) -> None:
        """Do not answer pending requests: other nodes may never get the data that these requests
        have stored here."""
        moves = [each for each in self._answers if each[1].func == self._moved]
        self._answers = deque(moves)

    def _publisher(self) -> Owner | None:
        return self.worker.owner(self._own_group) if self._own_group else None

    def _create_channel(self, group_id: str, name: str) -> None:
        owner = self._publisher()
        if owner is None or group_id != self._own_group:
            return
        log = self.logs[group_id]
        first = len(log.records) if log.state.channels else 0
        position = self._change(log, "channel", name, first)
        call = partial(self.world.oracle.channel_created, log, name)
        self._answers.append((position, call))

    # -- time

    def _tick(self) -> None:
        if not self.is_running:
            return
        self.clock.after(TICK, self.run, self._tick)
        if not self._read:
            return
        now = self.clock.now
        self.worker.tick(now)
        self._ensure_group()
        if self.world.damages:
            self._scrub()
        is_cut_off = self.worker.is_cut_off(now)
        for log in list(self.logs.values()):
            owner = self.worker.owner(log.group_id)
            assert owner is not None
            log.visible = self._visible(log, owner)
            if log.group_id == self._own_group and not owner.waits(now):
                self._leave_unanswered()
            self.world.oracle.shown(log, owner)
            while len(log.ends) > 1 and log.ends[1][0] <= log.position():
                log.ends.popleft()
            self._save_progress(log)
            if is_cut_off:
                continue
            if self.world.damages:
                self._read_back(log)
            if owner.group.closed:
                self._drain(log, owner)
            elif not self.is_draining:
                self._deliver(log)

    def _visible(self, log: OwnedLog, owner: Owner) -> int:
        waits = owner.waits(self.clock.now)
        return log.end_at(log.position() if waits else log.stored_position)

    def hand_over(self) -> None:
        """Hand all groups over to other members, without duplicates."""
        self.is_draining = True
        self._hand_over()

    def _hand_over(self) -> None:
        is_moving = any(log.moving or log.moved for log in self.logs.values())
        owners = [owner for each in self.worker.groups() if (owner := self.worker.owner(each.id))]
        for owner in owners:
            log = self.logs.get(owner.group.id)
            is_busy = log and (log.in_flight or log.finished or log.moving or log.moved)
            is_target = owner.group.id == self._own_group
            if not is_busy and not (is_target and is_moving):
                owner.release()
        if owners:
            self.clock.after(TICK, self.run, self._hand_over)

    def _ensure_group(self) -> None:
        if self._own_group or self.is_draining:
            return
        for group in self.worker.groups():
            if group.owner == self.node and not group.closed:
                if group.id in self.logs:
                    self._use(self.logs[group.id])
                return
        value = Group(
            id=f"{self.node}-{self.nonce()}",
            epoch=1,
            owner=self.node,
            session=self.session,
            members=(self.node,),
            copies=self.world.copies,
            min_copies=self.world.min_copies,
            nonce=self.nonce(),
        )
        self.propose(None, value)

    def _save_progress(self, log: OwnedLog) -> None:
        if log.finished:
            position = self._change(log, "done", log.finished)
            log.saved.append((position, log.finished))
            log.finished = []
        if log.moved:
            position = self._change(log, "moved", log.moved)
            log.saved.append((position, [(seq, "") for seq in log.moved]))
            log.moved = []

    def _deliver(self, log: OwnedLog) -> None:
        for name in log.cursors:
            while len(log.in_flight) < IN_FLIGHT_LIMIT:
                seq = self._next(log, name)
                if seq is None:
                    break
                log.in_flight.add((seq, name))
                message = log.records[seq].message
                self.world.oracle.delivered(self, log, seq, name, message)
                delay = self.random.expovariate(1 / 0.3)
                self.clock.after(delay, self.run, self._end_flight, log, seq, name)

    def _next(self, log: OwnedLog, name: str) -> int | None:
        if log.requeued[name]:
            is_readable = self._is_readable(log, log.requeued[name][-1])
            return log.requeued[name].pop() if is_readable else None
        seq = log.cursors[name]
        while seq < log.visible:
            if name in log.channels_of(seq):
                if not self._is_readable(log, seq):
                    return None
                log.cursors[name] = seq + 1
                return seq
            seq += 1
        if name in log.state.channels:
            log.cursors[name] = seq
        return None

    def _end_flight(self, log: OwnedLog, seq: int, name: str) -> None:
        if self.logs.get(log.group_id) is not log:
            return
        log.in_flight.discard((seq, name))
        if self.random.random() < 0.1:
            log.requeued[name].append(seq)
            self.world.oracle.requeued += 1
        else:
            log.finished.append((seq, name))

    # -- damaged and unreadable files

    def _is_readable(self, log: OwnedLog, seq: int) -> bool:
        """Read a record. If that fails, it is read again at a later tick."""
        path, index = log.places[seq]
        if self.disk.fails_to_read():
            return False
        if not isinstance(log.copy.image.files[path][index], Damaged):
            return True
        self._mend_item(log.group_id, path, index, partial(self._tried_to_mend, log, seq))
        return False

    def _read_back(self, log: OwnedLog) -> None:
        """Read any record again, as compactions and log readers do."""
        if log.visible and self.random.random() < 0.3:
            seq = self.random.randrange(log.visible)
            if seq not in log.skipped:
                self._is_readable(log, seq)

    def _tried_to_mend(self, log: OwnedLog, seq: int, outcome: Outcome) -> None:
        if outcome == Outcome.MISSING:
            self.world.oracle.skipped(log, seq)
            log.skipped.add(seq)

    def _scrub(self) -> None:
        """Repair one of the files on this disk."""
        files = [
            (group_id, path)
            for group_id, image in sorted(self.disk.images.items())
            for path in image.files
        ]
        if files:
            self._mend(*self.random.choice(files), lambda _: None)

    def _mend(self, group_id: str, path: str, done: Callable[[bool], object]) -> None:
        """Repair a file's damaged items one after the other."""
        image = self.disk.images.get(group_id)
        damages = image.damages(path) if image is not None else []
        if self.disk.fails_to_read():
            done(False)
        elif not damages:
            done(True)
        elif damages[0] == 0 and (header := self._header(group_id, path)) is not None:
            self._overwrite(group_id, path, 0, [header])
            self._mend_items(group_id, path, damages[1:], set(), done)
        elif is_log(path):
            self._mend_items(group_id, path, damages, set(), done)
        else:
            log = self.logs.get(group_id)
            if log is not None:
                self._save_state(log)
            else:
                self.worker.refill(group_id)
            done(True)

    def _mend_items(
        self,
        group_id: str,
        path: str,
        damages: list[int],
        outcomes: set[Outcome],
        done: Callable[[bool], object],
    ) -> None:
        if not damages:
            done(Outcome.LATER not in outcomes)
            return
        index, *rest = damages

        def mended(outcome: Outcome) -> None:
            self._mend_items(group_id, path, rest, outcomes | {outcome}, done)

        self._mend_item(group_id, path, index, mended)

    def _mend_item(
        self, group_id: str, path: str, index: int, done: Callable[[Outcome], object]
    ) -> None:
        copy = DiskCopy(self.disk, group_id, self._mend)
        identity = copy.identity(path)

        def fetched(outcome: Outcome, items: Any) -> None:
            is_same = self.is_running and copy.identity(path) == identity
            if outcome == Outcome.FOUND and is_same and index in copy.image.damages(path):
                self._overwrite(group_id, path, index, items)
            done(outcome)

        if identity is None:
            done(Outcome.LATER)
        else:
            part = Part(path, identity, index, 1, self._is_sound)
            self.worker.fetch(group_id, part, fetched, self.clock.now)

    def _header(self, group_id: str, path: str) -> Any:
        """Return a log file's header, if the process has read it before it was damaged."""
        return DiskCopy(self.disk, group_id, self._mend).identity(path)

    def _overwrite(self, group_id: str, path: str, index: int, items: list[Any]) -> None:
        DiskCopy(self.disk, group_id, self._mend).write(path, index, items)
        self.disk.mends[group_id, path] += 1

    def _is_sound(self, items: list[Any]) -> bool:
        return len(items) == 1 and not isinstance(items[0], Damaged)

    # -- draining

    def _drain(self, log: OwnedLog, owner: Owner) -> None:
        """Move the messages that channels of a closed log have not finished to the process's own
        log."""
        state, target = log.state, self._publisher()
        own = self.logs.get(self._own_group)
        moved = set(log.moved)
        while log.drained_to < log.visible:
            seq = log.drained_to
            if seq in state.moved or not log.channels_of(seq):
                log.drained_to += 1
                continue
            break
        for seq in range(log.drained_to, log.visible):
            if seq in state.moved or seq in moved or seq in log.moving:
                continue
            channels = log.channels_of(seq)
            if not channels:
                continue
            if target is None or own is None or self.is_draining:
                return
            if not self._is_readable(log, seq):
                continue
            self._move(log, seq, channels, own, target)
            if len(log.moving) >= 8:
                break
        if (
            log.drained_to >= len(log.records)
            and log.visible == len(log.records)
            and not (log.moving or log.moved)
        ):
            owner.drained()

    def _move(
        self, log: OwnedLog, seq: int, channels: list[str], own: OwnedLog, target: Owner
    ) -> None:
        self.world.oracle.moved(log, seq, channels)
        log.moving.add(seq)
        origin = (log.group_id, seq)
        moved_to = next(
            (i for i, record in enumerate(own.records) if record.origin == origin), None
        )
        if moved_to is None:
            record = Record(log.records[seq].message, origin, frozenset(channels))
            position = self._append(own, [record])
            self._answers.append((position, partial(self._moved, log, seq)))
        elif moved_to < own.committed:
            self._moved(log, seq)
        else:
            self._answers.append((target.position, partial(self._moved, log, seq)))

    def _moved(self, log: OwnedLog, seq: int) -> None:
        log.moving.discard(seq)
        log.moved.append(seq)
