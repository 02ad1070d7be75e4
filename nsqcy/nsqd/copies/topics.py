"""A worker's copied topics: the group of each topic, the time from which it can be used, and
the draining of logs that were taken over.

Depends on groups and the shard, but not on streams or the registry.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from nsqcy.broker.core import Shard, Topic, restore_counters
from nsqcy.config.policies import Policies, TopicPolicy
from nsqcy.copies.group import Group
from nsqcy.copies.owner import Owner
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.copy_files import SUFFIX
from nsqcy.storage.core import FileCalls

InFlight = Mapping[str, Mapping[str, Mapping[int, int]]]
"""Deadlines of messages in flight, by topic, channel and id."""

HERE = ""
"""Group of the logs without copies; a log is drained if its topic now has copies."""


class Groups(Protocol):
    """This process's groups (`nsqcy.nsqd.copies.host.CopiesHost`)."""

    def create_group(self, durability: str, copies: int, min_copies: int) -> str:
        """Begin to create a group; return its id. `CopiedTopics.begun` is called before this
        returns."""
        ...

    def owner(self, group_id: str) -> Owner | None: ...

    def is_mended(self, group_id: str) -> bool:
        """Return whether the files of an owned group that a recovery reads have been repaired as
        far as possible."""
        ...

    def unopened(self, opened: Iterable[str]) -> bool | None:
        """Return whether this node owns groups other than these; None if that is not known yet."""
        ...

    def trouble(self) -> str:
        """Return why copies cannot be protected; empty if they can."""
        ...


class Files(Protocol):
    """A group's files (`storage/mirrored_io.pyx.MirroredIo`)."""

    @property
    def waits(self) -> bool: ...
    def wait(self, waits: bool) -> None: ...


class _Kind(NamedTuple):
    """The part of a policy that all topics in a group share."""

    durability: str
    copies: int
    min_copies: int

    @classmethod
    def of(cls, values: TopicPolicy | Group) -> "_Kind":
        return cls(values.durability, values.copies, values.min_copies)


class _OwnedGroup:
    """A group, from the moment this process owns it or begins to create it."""

    def __init__(self, group: Group, files: Any, directory: Path) -> None:
        self.group = group
        self.files = files
        self.directory = directory
        self.topics: dict[bytes, Topic] = {}
        self.drained: dict[bytes, Topic] = {}
        """Topics whose messages are being moved to another log."""
        self.deleted: list[Topic] = []
        """Topics whose deletion has not been answered yet."""
        self.is_mended = False
        self.unreadable_since: float | None = None
        """The time since which a log cannot be opened, because the disk cannot be read."""
        self.is_open = False
        self.is_finished = False

    def takes(self, kind: _Kind) -> bool:
        """Return whether topics of this kind can be created in the group."""
        is_usable = self.is_open and not (self.group.closed or self.is_finished)
        return is_usable and _Kind.of(self.group) == kind

    @property
    def is_unused(self) -> bool:
        return self.is_open and not (self.topics or self.drained or self.is_finished)


class CopiedTopics:
    """The topics in all of a worker's groups (`nsqcy.nsqd.copies.host.Topics`)."""

    def __init__(
        self,
        shard: Shard,
        policies: Policies,
        create_channels: Callable[[str, list[str], Callable[[], object]], object],
        usable: Callable[[bytes], object],
        ready: Callable[[], object],
        log: Lines,
    ) -> None:
        """
        create_channels: called with a topic, which may belong to another worker, the channels that
            it needs to receive the messages of a drained log, and a callback for when it has them
        usable: called with each topic that `may_use` has denied, once the topic can be used
        ready: called once, before this
        """
        self._shard = shard
        self._policies = policies
        self._create_channels = create_channels
        self._usable = usable
        self._ready = ready
        self._log = log
        self._groups_of: Groups | None = None
        self._groups: dict[str, _OwnedGroup] = {}
        self._plain: dict[bytes, Topic] = {}
        self._loaded: dict[bytes, tuple[bool, Mapping[str, bool]]] = {}
        """Topics in nsqd.dat, until they can be opened."""
        self._denied: set[bytes] = set()
        self._in_flight: InFlight = {}
        self._counters: Mapping[str, Any] = {}
        self._is_ready = False
        self._is_cut_off = False
        self._are_deliveries_held = False
        self._unrecorded: int | None = None
        """Number of topics whose journals are being written for the nodes that take over; None if
        nothing is handed over."""

    def attach(self, groups: Groups) -> None:
        self._groups_of = groups

    def inherit(self, in_flight: InFlight, counters: Mapping[str, Any]) -> None:
        """Continue with what only the memory of the previous process had, when topics are opened
        until this process is ready."""
        self._in_flight, self._counters = in_flight, counters

    def names(self, group_id: str) -> list[str]:
        """Return the topics in a group that this process owns, including topics that are being
        drained."""
        owned = self._groups.get(group_id)
        return sorted(key.decode() for key in (*owned.topics, *owned.drained)) if owned else []

    def draining(self) -> int:
        """Return the number of logs whose messages are being moved to another log."""
        return len(self._plain) + sum(len(owned.drained) for owned in self._groups.values())

    def trouble(self) -> str:
        """Return why copies cannot be protected; empty if they can."""
        return self._groups_of.trouble() if self._groups_of is not None else ""

    # -- before the topics can be used

    def is_copied(self, topic: str) -> bool:
        return self._policies.topic(topic).copies > 1

    def may_use(self, topic: str) -> bool:
        """Return whether a topic may be created or used. No topic may be used until the process
        knows which groups it owns: one of the groups may have the topic."""
        if self._is_ready or not self.is_copied(topic):
            return True
        self._denied.add(topic.encode())
        return False

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    def load(self, topic: str, paused: bool, channels: Mapping[str, bool]) -> None:
        """Load a topic in nsqd.dat as soon as the groups are known."""
        self._loaded[topic.encode()] = (paused, channels)
        if self._is_ready:
            self._load_all()

    def become_ready(self) -> None:
        """Allow copied topics to be used from now on; create topics that are not in any group."""
        if self._is_ready:
            return
        self._is_ready = True
        self._load_all()
        for policy in self._policies.copied():  # so that a group exists before the first publish
            self._group_for(_Kind.of(policy))
        self._ready()
        denied, self._denied = self._denied, set()
        for key in denied:
            self._usable(key)
        self._in_flight, self._counters = {}, {}

    def _load_all(self) -> None:
        loaded, self._loaded = self._loaded, {}
        for key, (paused, channels) in loaded.items():
            if self._shard.topic(key) is None:
                self._shard.load_or_wait(key, paused, channels)
            self._drain_plain(key)

    def _drain_plain(self, key: bytes) -> None:
        """Move a topic's messages out of a log without copies."""
        data_path = Path(self._shard.data_path or "")
        if key not in self._plain and (data_path / f"{key.decode()}{SUFFIX}").is_dir():
            io = self._shard.io
            assert io is not None
            self._plain[key] = self._open_drained(HERE, key, io, str(data_path))

    # -- called by the shard

    def files(self, topic: str) -> tuple[FileCalls, str] | None:
        """Return where to put a new topic's log; None if the topic has no copies."""
        policy = self._policies.topic(topic)
        if policy.copies == 1:
            return None
        owned = self._group_for(_Kind.of(policy))
        return owned.files, str(owned.directory)

    def created(self, topic: Topic) -> None:
        """Accept a topic whose log is in the files that `files` returned."""
        owned = self._group_for(_Kind.of(self._policies.topic(topic.name)))
        owned.topics[topic.name.encode()] = topic
        self._refuse(owned)

    def deleted(self, key: bytes) -> None:
        for owned in self._groups.values():
            topic = owned.topics.pop(key, None)
            if topic is not None:
                owned.deleted.append(topic)

    def _group_for(self, kind: _Kind) -> _OwnedGroup:
        for owned in self._groups.values():
            if owned.takes(kind):
                return owned
        assert self._groups_of is not None
        return self._groups[self._groups_of.create_group(*kind)]

    # -- host.Topics

    def begun(self, group: Group, files: Any, directory: Path) -> None:
        """Use a group that is being created. Its topics accept publishes once the group exists."""
        owned = self._groups[group.id] = _OwnedGroup(group, files, directory)
        owned.is_open = True

    def owned(self, group: Group, files: Any, directory: Path) -> None:
        found = self._groups.get(group.id)
        if found is None:
            self._groups[group.id] = _OwnedGroup(group, files, directory)
        else:
            found.group = group

    def lost(self, group: Group) -> None:
        owned = self._groups.pop(group.id)
        for key in owned.topics:
            self._shard.lose_topic(key)
        for key in owned.drained:
            self._shard.lose_closed(group.id, key)

    def write_journal(self, group_id: str, topic: str) -> None:
        owned, key = self._groups[group_id], topic.encode()
        found = owned.topics.get(key) or owned.drained.get(key)
        if found is not None:
            found.record()

    def degraded(self, group_id: str) -> None:
        owned = self._groups[group_id]
        for topic in (*owned.topics.values(), *owned.deleted):
            topic.leave_unanswered()

    def cut_off(self, is_cut_off: bool) -> None:
        self._is_cut_off = is_cut_off
        self._set_deliveries()

    def hold_deliveries(self, held: bool) -> None:
        """Stop deliveries, because the groups are being handed over, or resume deliveries."""
        if held != self._are_deliveries_held:
            self._are_deliveries_held = held
            self._unrecorded = None
            self._set_deliveries()

    @property
    def is_held(self) -> bool:
        """Whether `hold_deliveries` has stopped deliveries."""
        return self._are_deliveries_held

    def is_recorded(self) -> bool:
        """Return whether the journals contain all finished messages, so that no other process
        redelivers them. Starts writing the journals; call this again later. Deliveries must be
        held, and no message may be finished in the meantime."""
        if self._unrecorded is None:
            topics = [topic for each in self._groups.values() for topic in each.topics.values()]
            self._unrecorded = len(topics)
            for topic in topics:
                topic.record(self._recorded)
        return self._unrecorded == 0

    def _recorded(self, _: str | None) -> None:
        if self._unrecorded:
            self._unrecorded -= 1

    def in_flight(self) -> int:
        """Return the number of messages that consumers have received but not finished."""
        return sum(
            in_flight
            for owned in self._groups.values()
            for topic in owned.topics.values()
            for _, _, in_flight, _ in topic.remains()
        )

    def _set_deliveries(self) -> None:
        stopped = self._is_cut_off or self._are_deliveries_held
        for owned in self._groups.values():
            for topic in owned.topics.values():
                topic.set_cut_off(stopped)

    def tick(self) -> None:
        """Open the topics in groups that may be served, and watch the groups that are already
        open."""
        assert self._groups_of is not None
        for owned in list(self._groups.values()):
            owner = self._groups_of.owner(owned.group.id)
            owned.deleted = [topic for topic in owned.deleted if topic.has_pending_changes]
            if owned.is_open:
                self._refuse(owned)
                self._end_drained(owned, owner)
                self._end_unused(owned, owner)
            elif owner is not None and _may_open(owner) and self._is_mended(owned):
                self._open_all(owned)
        self._end_plain()
        if not self._is_ready:
            opened = [owned.group.id for owned in self._groups.values() if owned.is_open]
            if self._groups_of.unopened(opened) is False:
                self.become_ready()

    # -- inside

    def _is_mended(self, owned: _OwnedGroup) -> bool:
        assert self._groups_of is not None
        owned.is_mended = owned.is_mended or self._groups_of.is_mended(owned.group.id)
        return owned.is_mended

    def _open_all(self, owned: _OwnedGroup) -> None:
        # Recovery makes changes that no caller is waiting for.
        waits = owned.files.waits
        owned.files.wait(False)
        try:
            for path in sorted(owned.directory.glob(f"*{SUFFIX}")):
                key = path.name.removesuffix(SUFFIX).encode()
                if key not in owned.topics and key not in owned.drained:
                    self._open(owned, key)
            owned.is_open = True
        except OSError as error:
            self._not_opened(owned, error)
        owned.files.wait(waits)
        self._refuse(owned)

    def _not_opened(self, owned: _OwnedGroup, error: OSError) -> None:
        """Retry later: files that cannot be read now may be intact. If the failure lasts, another
        member takes over."""
        assert self._groups_of is not None
        owner = self._groups_of.owner(owned.group.id)
        now = time.monotonic()
        if owned.unreadable_since is None:
            owned.unreadable_since = now
            role, reason = "owned", (error.strerror or str(error)).lower()
            events.copies_read_failed(self._log, role, group=owned.group.id, error=reason)
        elif owner and now - owned.unreadable_since > owner.limits.copy_timeout:
            owner.release()

    def _open(self, owned: _OwnedGroup, key: bytes) -> None:
        """Open a topic in a group. If the topic may not stay here, its messages are moved to
        another log."""
        group, directory = owned.group, str(owned.directory)
        kind = _Kind.of(self._policies.topic(key.decode()))
        if group.closed or kind != _Kind.of(group) or self._shard.topic(key) is not None:
            owned.drained[key] = self._open_drained(group.id, key, owned.files, directory)
        else:
            name = key.decode()
            owned.topics[key] = self._shard.open_topic(
                key, owned.files, directory, self._in_flight.get(name)
            )
            if name in self._counters:
                restore_counters(self._shard, {name: self._counters[name]})

    def _open_drained(self, group_id: str, key: bytes, files: FileCalls, directory: str) -> Topic:
        topic = self._shard.open_closed(group_id, key, files, directory)
        events.copies_draining(self._log, topic=topic.name, group=group_id)
        self._create_channels(
            topic.name, topic.moved_channels, lambda: self._move(group_id, key, topic)
        )
        return topic

    def _move(self, group_id: str, key: bytes, topic: Topic) -> None:
        """Move a drained log's messages, unless the group has been lost in the meantime."""
        owned = self._groups.get(group_id)
        drained = self._plain if group_id == HERE else owned.drained if owned else {}
        if drained.get(key) is topic:
            self._shard.move_closed(group_id, key)

    def _refuse(self, owned: _OwnedGroup) -> None:
        """Accept publishes while there are enough copies."""
        assert self._groups_of is not None
        owner = self._groups_of.owner(owned.group.id)
        refused = None if owner is not None and owner.accepts() else _refusal(owned.group, owner)
        for topic in owned.topics.values():
            topic.refused = refused

    def _end_drained(self, owned: _OwnedGroup, owner: Owner | None) -> None:
        """Delete logs whose messages have all moved, and end a closed group that has no logs
        left."""
        for key, topic in list(owned.drained.items()):
            if topic.is_moved:
                del owned.drained[key]
                self._end_log(owned.group.id, topic)
        if owned.group.closed and not owned.drained and owner and not owned.is_finished:
            owned.is_finished = True
            owner.drained()

    def _end_unused(self, owned: _OwnedGroup, owner: Owner | None) -> None:
        """End an open group without topics, if no policy requires such groups."""
        if owner is None or owned.group.closed or not owned.is_unused:
            return
        if _Kind.of(owned.group) not in map(_Kind.of, self._policies.copied()):
            owned.is_finished = True
            owner.drained()

    def _end_plain(self) -> None:
        for key, topic in list(self._plain.items()):
            if topic.is_moved:
                del self._plain[key]
                self._end_log(HERE, topic)

    def _end_log(self, group_id: str, topic: Topic) -> None:
        self._shard.close_closed(group_id, topic.name.encode())
        events.copies_drained(self._log, topic=topic.name, group=group_id)


def _may_open(owner: Owner) -> bool:
    # No other member may have received an earlier process's records yet.
    return owner.committed == owner.position or not owner.waits(time.monotonic())


def _refusal(group: Group, owner: Owner | None) -> str:
    """Return why publishes to the topics of a group are refused."""
    if owner is not None and not owner.is_registered:
        return "too few copies: etcd lacks the topic's group, so no other node could take over"
    if owner is not None and owner.is_releasing:
        return "the topic is being handed over to another node"
    responding = owner.responding() if owner is not None else 1
    if owner is not None and owner.is_blocked and responding >= group.min_copies:
        return "too few copies: a lost node is still a member, because etcd does not respond"
    return f"too few copies: {responding} of {group.copies}, at least {group.min_copies} required"
