"""The copies in a worker process: what the state machine needs from the outside.

Connects the state machine, the registry, the streams and the files. Knows nothing about topics: it
calls `Topics` when the process becomes the owner of a group, or stops owning it.
"""

import errno
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gevent
from gevent import socket, ssl

from nsqcy.copies.group import Group
from nsqcy.copies.messages import FromHolder, FromOwner, Refuse
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Limits
from nsqcy.copies.worker import Worker
from nsqcy.etcd.client import EtcdClient
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.copy_files import SUFFIX, CopyFiles, Data
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.registry import Registry, Session
from nsqcy.nsqd.copies.streams import Listener, Stream, connect
from nsqcy.nsqd.copies.wire import Decoder, Greeting
from nsqcy.storage.io import IoThread
from nsqcy.storage.mirrored_io import MirroredIo

FLUSH_INTERVAL = 0.01  # seconds
LEAVE_PAUSE = 0.02  # seconds in which streams can send the last messages
ROLES = ("owner", "holder", "member")

Key = tuple[str, str]
"""A node and a group."""


class Topics(Protocol):
    """The worker's topics."""

    def begun(self, group: Group, files: MirroredIo, directory: Path) -> None:
        """Use the files of a group that is being created."""
        ...

    def owned(self, group: Group, files: MirroredIo, directory: Path) -> None:
        """Open a group's topics."""
        ...

    def lost(self, group: Group) -> None:
        """Close a group's topics, because its files can no longer be changed."""
        ...

    def degraded(self, group_id: str) -> None:
        """Leave pending publishes unanswered: from now on, the group's records are visible as soon
        as they are stored here."""
        ...

    def cut_off(self, is_cut_off: bool) -> None:
        """Stop deliveries, because other processes may own the groups; or resume them."""
        ...

    def tick(self) -> None:
        """Handle changes to the state of the groups."""
        ...


class Settings(Protocol):
    """The options that the host uses."""

    @property
    def cluster(self) -> str: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def listen(self) -> tuple[str, int]: ...
    @property
    def advertise(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def server_tls(self) -> ssl.SSLContext | None: ...
    @property
    def client_tls(self) -> ssl.SSLContext | None: ...


class _Mirror:
    """Passes the changes to an owned group to its owner.

    A group that is being created has no owner yet. Its first changes are counted: the owner's
    position 0 includes them, because each holder is filled with all files first.
    """

    def __init__(self, host: "CopiesHost", group_id: str, copy: CopyFiles) -> None:
        self._host = host
        self._group_id = group_id
        self._table = copy.table
        self.first = 0
        """Number of changes before the group existed."""

    def write(self, path: str, offset: int, data: bytes, are_records: bool) -> int:
        self._table.written(path, offset, data)
        owner = self._owner()
        if owner is None:
            return self._count()
        change = Data(data, are_records)
        return self.first + owner.write(path, offset, change, time.monotonic())

    def truncate(self, path: str, size: int) -> int:
        self._table.truncated(path, size)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.truncate(path, size, time.monotonic())

    def rename(self, path: str, to: str) -> int:
        self._table.renamed(path, to)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.rename(path, to, time.monotonic())

    def delete(self, path: str) -> int:
        self._table.deleted(path)
        owner = self._owner()
        if owner is None:
            return self._count()
        return self.first + owner.delete(path, time.monotonic())

    def failed(self, error: int) -> None:
        self._host.disk_failed(self._group_id, error)

    def _owner(self) -> Owner | None:
        return self._host.worker.owner(self._group_id)

    def _count(self) -> int:
        self.first += 1
        return self.first


class _Files(NamedTuple):
    """Files of an owned group, or of one that is being created."""

    io: MirroredIo
    mirror: _Mirror


class CopiesHost:
    """The process of a worker (`nsqcy.copies.ports.Host`)."""

    def __init__(
        self,
        io: IoThread,
        root: Path,
        node: Node,
        settings: Settings,
        etcd: EtcdClient,
        topics: Topics,
        log: Lines,
        enter: Callable[[], None] = lambda: None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        root: directory for the copies; each group has its own subdirectory
        enter: called whenever topics may be touched
        is_full: whether the disk has too little room for copies
        """
        self._io = io
        self._root = root
        self._node = node
        self._settings = settings
        self._limits = settings.limits
        self._topics = topics
        self._log = log
        self._enter = enter
        self._is_full = is_full
        self._copies: dict[str, CopyFiles] = {}
        self._files: dict[str, _Files] = {}
        self._begun: dict[str, Group] = {}
        """Groups that are being created."""
        self._opening: dict[Key, gevent.Greenlet[Any, Any]] = {}
        self._opened: dict[Key, Stream] = {}
        self._accepted: dict[Key, Stream] = {}
        self._sessions: dict[str, Session] = {}
        self._is_ready = False
        self._is_cut_off = False
        self._released: set[str] | None = None
        """Groups that are being handed over."""
        self.takeovers = 0
        """Groups that this process has taken over from other nodes."""
        self._listener = Listener(
            settings.listen, settings.server_tls, self._refusal, self._stream_accepted
        )
        advertised = settings.advertise or settings.listen[0]
        self.session = Session(
            node.process,
            node.name,
            node.machine,
            f"{advertised}:{self._listener.port}",
            settings.zone,
        )
        self.worker = Worker(node.name, self.session.id, self, settings.limits)
        self._registry = Registry(
            etcd, settings.cluster, self.session, self, settings.limits.lease, self, log
        )
        self._ticker = gevent.spawn(self._tick)

    def stop(self) -> None:
        """End all streams. The process still owns its groups until its lease ends."""
        self._ticker.kill()
        self._listener.close()
        for streams in (self._opened, self._accepted):
            for stream in list(streams.values()):
                stream.close()
            streams.clear()
        self.stop_waiting()
        self._registry.close()

    def leave(self) -> None:
        """Announce the end of the process to the owners that feed copies here, so that they do not
        wait for this node."""
        for stream in list(self._accepted.values()):
            stream.send(Refuse("leaving"))
        gevent.sleep(LEAVE_PAUSE)

    def stop_waiting(self) -> None:
        """Report changes as soon as they are made here, because the process is about to exit."""
        for files in self._files.values():
            files.io.wait(False)

    def flush(self, limit: float) -> None:
        """Wait at most `limit` seconds until the holders have all changes to the owned groups."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not self._is_flushed():
            self._io.kick_now()
            gevent.sleep(FLUSH_INTERVAL)

    def _is_flushed(self) -> bool:
        owners = [self.worker.owner(group_id) for group_id in self._files]
        return all(owner is None or owner.committed == owner.position for owner in owners)

    # -- handing over

    def owned_ids(self) -> list[str]:
        """Return the groups that this process owns."""
        return [group_id for group_id in self._files if self.worker.owner(group_id) is not None]

    def release(self) -> int:
        """Release the groups that this process owns now, each once its members have everything.
        Return the number of groups left. Later calls do not release groups that it has begun to own
        since."""
        if self._released is None:
            self._released = set(self.owned_ids())
        left = self._released.intersection(self.owned_ids())
        for group_id in left:
            owner = self.worker.owner(group_id)
            if owner is not None:
                owner.release()
        return len(left)

    def keep(self) -> None:
        """Keep the groups that have not been released yet."""
        for group_id in self._released or ():
            owner = self.worker.owner(group_id)
            if owner is not None:
                owner.is_releasing = False
        self._released = None

    # -- reports

    def status(self) -> dict[str, Any]:
        """Return the groups that this worker owns or keeps a copy of."""
        roles = [(group, self.worker.role(group.id)) for group in self.worker.groups()]
        groups = [self._describe(group, role) for group, role in roles if role]
        groups += [self._describe(group, "new") for group in self._begun.values()]
        return {
            "node": self._node.name,
            "etcd": not self._registry.is_away,
            "sessions": sorted(self._sessions),
            "groups": sorted(groups, key=lambda each: str(each["group"])),
        }

    def topics_on_disk(self, group_id: str) -> list[str]:
        """Return the topics in the files of a copy, if they are in use."""
        copy = self._copies.get(group_id)
        paths = copy.table.paths() if copy is not None else []
        return sorted({path.partition("/")[0].removesuffix(SUFFIX) for path in paths})

    def figures(self) -> dict[str, Any]:
        roles = Counter(self.worker.role(group.id) for group in self.worker.groups())
        owners = [owner for each in self._files if (owner := self.worker.owner(each))]
        return {
            "groups": {role: roles[role] for role in ROLES},
            "short": sum(not owner.group.closed and not owner.accepts() for owner in owners),
            "missing": sum(owner.group.copies - owner.responding() for owner in owners),
            "waiting": sum(owner.position - max(owner.committed, 0) for owner in owners),
            "bytes": sum(copy.table.total() for copy in self._copies.values()),
            "takeovers": self.takeovers,
            "etcd": int(not self._registry.is_away),
        }

    def _describe(self, group: Group, role: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "group": group.id,
            "role": role,
            "owner": group.owner,
            "members": list(group.members),
            "epoch": group.epoch,
            "copies": group.copies,
            "min_copies": group.min_copies,
            "durability": group.durability,
            "closed": group.closed,
        }
        copy = self._copies.get(group.id)
        if copy is not None:
            found["bytes"] = copy.table.total()
            found["whole"] = copy.whole
        owner = self.worker.owner(group.id)
        if owner is not None:
            found["responding"] = owner.responding()
            found["accepts"] = owner.accepts()
            found["joining"] = owner.joiner
            found["waiting"] = owner.position - max(owner.committed, 0)
        return found

    # -- groups (topics.Groups)

    def owner(self, group_id: str) -> Owner | None:
        return self.worker.owner(group_id)

    def unopened(self, opened: Iterable[str]) -> bool | None:
        if not self._is_ready:
            return None
        mine = {
            group.id
            for group in self.worker.groups()
            if group.owner == self._node.name and not group.done
        }
        return not mine <= set(opened)

    def create_group(self, durability: str, copies: int, min_copies: int) -> str:
        group = Group(
            id=secrets.token_hex(8),
            epoch=1,
            owner=self._node.name,
            session=self.session.id,
            members=(self._node.name,),
            copies=copies,
            min_copies=min_copies,
            nonce=self.nonce(),
            durability=durability,
        )
        self._begun[group.id] = group
        files = self._make_files(self.create_copy(group), group.id)
        self._topics.begun(group, files.io, self._root / group.id)
        self._propose_begun(group)
        return group.id

    def _propose_begun(self, group: Group) -> None:
        if self._is_ready:
            self.propose(None, group)

    def _make_files(self, copy: CopyFiles, group_id: str) -> _Files:
        mirror = _Mirror(self, group_id, copy)
        files = _Files(MirroredIo(self._io, self._root / group_id, mirror), mirror)
        self._files[group_id] = files
        return files

    def disk_failed(self, group_id: str, error: int) -> None:
        """Hand a group whose files cannot be changed here over to another member."""
        self._report_failure(group_id, "owned", error)
        owner = self.worker.owner(group_id)
        if owner is not None:
            owner.release()

    # -- time

    def _tick(self) -> None:
        while True:
            gevent.sleep(self._limits.alive_interval)
            self._enter()
            if self._is_ready:
                self._watch_groups(time.monotonic())
            self._topics.tick()
            self._io.kick_now()

    def _watch_groups(self, now: float) -> None:
        self.worker.tick(now)
        self._note_cut_off(self.worker.is_cut_off(now))
        for group in list(self._begun.values()):
            self._propose_begun(group)
        for group_id, files in self._files.items():
            owner = self.worker.owner(group_id)
            if owner is not None:
                waits = owner.waits(now)
                if files.io.waits and not waits:
                    self._topics.degraded(group_id)
                files.io.wait(waits)

    def _note_cut_off(self, is_cut_off: bool) -> None:
        if is_cut_off != self._is_cut_off:
            self._is_cut_off = is_cut_off
            if is_cut_off:
                self._log.warn(
                    "COPIES: neither etcd nor any other node responds: deliveries from copied "
                    "topics stop, because other nodes may have taken over",
                    event="copies_cut_off",
                )
            self._topics.cut_off(is_cut_off)

    # -- called by the registry (registry.Reader and NodeNames)

    def registry_read(
        self, revision: int, groups: Sequence[tuple[Group, int]], sessions: Sequence[Session]
    ) -> None:
        now = time.monotonic()
        self._enter()
        self._is_ready = True
        self._sessions = {session.node: session for session in sessions}
        self.worker.registry_heard(now)
        self.worker.sessions = frozenset(session.id for session in sessions)
        for group, changed_at in groups:
            self.worker.updated(group, changed_at, now)
        self._topics.tick()
        self._io.kick_now()

    def group_changed(self, group: Group, revision: int) -> None:
        if self._is_ready:
            self._enter()
            self._node.saw(revision)
            self._node.save_revision()
            self.worker.updated(group, revision, time.monotonic())
            self._topics.tick()
            self._io.kick_now()

    def claimed(self, group_id: str, node: str, claim: Claim) -> None:
        self.worker.claimed(group_id, node, claim)

    def names(self) -> Sequence[str]:
        return self._node.names

    @property
    def revision(self) -> int:
        return self._node.revision

    def saw(self, revision: int) -> None:
        self._node.saw(revision)

    def registered(self, *, is_current: bool) -> None:
        self._node.registered()
        if not is_current:
            self._log.warn(
                "COPIES: the disk is older than the registry: its copies are incomplete",
                event="copies_disk_is_older",
            )
            for path in self._root.iterdir():
                if path.is_dir():
                    self._open_copy(path.name, "fsync").whole = False
            self._copies.clear()

    # -- called by the state machine (ports.Host)

    def copy(self, group_id: str) -> CopyFiles | None:
        found = self._copies.get(group_id)
        group = self.worker.group(group_id)
        if found is None and group is not None and (self._root / group_id).is_dir():
            found = self._open_copy(group_id, group.durability)
        return found

    def create_copy(self, group: Group) -> CopyFiles:
        return self._open_copy(group.id, group.durability)

    def _open_copy(self, group_id: str, durability: str) -> CopyFiles:
        copy = CopyFiles(
            self._io,
            self._root / group_id,
            self._node.boot,
            durability,
            lambda error: self._copy_failed(group_id, error),
        )
        self._copies[group_id] = copy
        return copy

    def _copy_failed(self, group_id: str, error: int) -> None:
        self._report_failure(group_id, "held", error)
        self._copies.pop(group_id, None)  # the next stream begins with the files as they are
        holder = self.worker.holder(group_id)
        if holder is not None:
            reason = "full" if error in (errno.ENOSPC, errno.EDQUOT) else "failing"
            self.reply(holder.owner, group_id, Refuse(reason))

    def _report_failure(self, group_id: str, role: str, error: int) -> None:
        reason = os.strerror(error).lower()
        self._log.error(
            f"COPIES: {role} group {group_id} cannot be written: {reason}",
            event="copies_write_failed",
            group=group_id,
            error=reason,
        )

    def delete_copy(self, group_id: str) -> None:
        copy = self.copy(group_id)
        if copy is not None:
            del self._copies[group_id]
            copy.remove()

    def open(self, node: str, group_id: str) -> None:
        key = (node, group_id)
        self._opening[key] = gevent.spawn(self._connect, key)

    def _connect(self, key: Key) -> None:
        node, group_id = key
        session = self._sessions.get(node)
        try:
            if session is None:
                raise ConnectionError("the node has no session")
            host, _, port = session.address.rpartition(":")
            greeting = Greeting(
                self._settings.cluster, self._node.name, node, group_id, self._settings.token
            )
            sock, decoder = connect(
                (host.strip("[]"), int(port)), greeting, self._settings.client_tls
            )
        except (OSError, ValueError) as error:
            if self._opening.pop(key, None) is not None:
                self._log.info(f"COPIES: no stream to {node} for {group_id}: {error}")
                self._enter()
                self.worker.disconnected(node, group_id, time.monotonic())
            return
        if self._opening.pop(key, None) is None:
            sock.close()
            return
        stream = Stream(
            sock,
            decoder,
            lambda message: self._from_holder(key, message),
            lambda reason: self._stream_lost(key, reason),
        )
        self._opened[key] = stream
        self._enter()
        self.worker.opened(node, group_id, time.monotonic())
        stream.run()

    def _from_holder(self, key: Key, message: FromHolder) -> None:
        self._enter()
        self.worker.from_holder(*key, message, time.monotonic())
        self._io.kick_now()

    def _stream_lost(self, key: Key, reason: str) -> None:
        self._log.info(f"COPIES: stream to {key[0]} for {key[1]} ended: {reason}")
        if self._opened.pop(key, None) is not None:
            self._enter()
            self.worker.disconnected(*key, time.monotonic())

    def close(self, node: str, group_id: str) -> None:
        self._opening.pop((node, group_id), None)
        stream = self._opened.pop((node, group_id), None)
        if stream is not None:
            stream.close()

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        stream = self._opened.get((node, group_id))
        if stream is not None:
            stream.send(message)

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        stream = self._accepted.get((node, group_id))
        if stream is not None:
            stream.send(message)

    def hang_up(self, node: str, group_id: str) -> None:
        stream = self._accepted.pop((node, group_id), None)
        if stream is not None:
            stream.close()

    def _refusal(self, greeting: Greeting) -> str:
        if greeting.cluster != self._settings.cluster:
            return f"this is cluster {self._settings.cluster}"
        if greeting.holder != self._node.name:
            return f"this is node {self._node.name}"
        if not secrets.compare_digest(greeting.token.encode(), self._settings.token.encode()):
            return "wrong token"
        if self._is_full():
            return "the disk is full"
        return "" if self._is_ready else "not ready"

    def _stream_accepted(self, greeting: Greeting, sock: socket.socket, decoder: Decoder) -> None:
        key = (greeting.node, greeting.group)
        self.hang_up(*key)
        stream = Stream(
            sock,
            decoder,
            lambda message: self._from_owner(key, stream, message),
            lambda reason: self._hung_up(key, stream, reason),
        )
        self._accepted[key] = stream
        stream.run()

    def _from_owner(self, key: Key, stream: Stream, message: FromOwner) -> None:
        if self._accepted.get(key) is stream:
            self._enter()
            self.worker.from_owner(*key, message, time.monotonic())
            self._io.kick_now()

    def _hung_up(self, key: Key, stream: Stream, reason: str) -> None:
        self._log.info(f"COPIES: stream from {key[0]} for {key[1]} ended: {reason}")
        if self._accepted.get(key) is stream:
            del self._accepted[key]
            self._enter()
            self.worker.hung_up(*key)

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        self._registry.propose(base, value, absent)

    def end_session(self, session: str) -> None:
        self._registry.end_session(session)

    def claim(self, group_id: str, claim: Claim) -> None:
        self._registry.claim(group_id, claim)

    def candidates(self, group: Group) -> Sequence[str]:
        """Return nodes on machines without a member; those in other zones and those with the fewest
        groups come first."""
        members = [self._sessions[node] for node in group.members if node in self._sessions]
        machines = {session.machine for session in members} | {self._node.machine}
        zones = {session.zone for session in members if session.zone}
        counts = {
            node: 0
            for node, session in self._sessions.items()
            if session.machine not in machines and node not in group.members
        }
        for other in self.worker.groups():
            for node in other.members:
                if node in counts:
                    counts[node] += 1
        return sorted(
            counts, key=lambda node: (self._sessions[node].zone in zones, counts[node], node)
        )

    def nonce(self) -> str:
        return secrets.token_hex(8)

    def owned(self, group: Group) -> None:
        self._begun.pop(group.id, None)
        copy = self.copy(group.id)
        assert copy is not None
        copy.serves = not group.closed
        self.takeovers += group.closed
        files = self._files.get(group.id) or self._make_files(copy, group.id)
        self._log.info(
            f"COPIES: owning group {group.id}, epoch {group.epoch}",
            event="copies_owned",
            group=group.id,
            epoch=group.epoch,
            closed=group.closed,
        )
        self._topics.owned(group, files.io, self._root / group.id)

    def lost(self, group: Group) -> None:
        self._log.warn(
            f"COPIES: no longer owning group {group.id}", event="copies_lost", group=group.id
        )
        self._files.pop(group.id).io.stop()
        self._topics.lost(group)

    def committed(self, group_id: str, position: int) -> None:
        files = self._files.get(group_id)
        if files is not None:
            files.io.committed(files.mirror.first + position)
