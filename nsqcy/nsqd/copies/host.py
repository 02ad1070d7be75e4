"""The copies of a worker process: what its state machine needs of the world.

Joins the state machine, the registry, the streams and the files. Does not know topics: it calls
`Topics` when the process begins or ceases to own a group.
"""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gevent
from gevent import socket, ssl

from nsqcy.copies.group import Group
from nsqcy.copies.messages import FromHolder, FromOwner
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Limits
from nsqcy.copies.worker import Worker
from nsqcy.etcd.client import EtcdClient
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.copy_files import CopyFiles, Data
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.registry import Registry, Session
from nsqcy.nsqd.copies.streams import Listener, Stream, connect
from nsqcy.nsqd.copies.wire import Decoder, Greeting
from nsqcy.storage.io import IoThread
from nsqcy.storage.mirrored_io import MirroredIo

FLUSH_INTERVAL = 0.01  # seconds

Key = tuple[str, str]
"""A node and a group."""


class Topics(Protocol):
    """The topics of the worker."""

    def begun(self, group: Group, files: MirroredIo, directory: Path) -> None:
        """Use the files of a group that is being created."""
        ...

    def owned(self, group: Group, files: MirroredIo, directory: Path) -> None:
        """Open the topics of a group."""
        ...

    def lost(self, group: Group) -> None:
        """Close the topics of a group, whose files can no longer be changed."""
        ...

    def degraded(self, group_id: str) -> None:
        """Leave pending publishes unanswered: from now on, records of the group are visible when
        they are stored here."""
        ...

    def tick(self) -> None:
        """Do what depends on the state of the groups."""
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
    def token(self) -> str: ...
    @property
    def server_tls(self) -> ssl.SSLContext | None: ...
    @property
    def client_tls(self) -> ssl.SSLContext | None: ...


class _Mirror:
    """Passes the changes of an owned group to its owner.

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
    ) -> None:
        """
        root: directory of the copies; each group has its own below it
        enter: called whenever topics may be touched
        """
        self._io = io
        self._root = root
        self._node = node
        self._settings = settings
        self._limits = settings.limits
        self._topics = topics
        self._log = log
        self._enter = enter
        self._copies: dict[str, CopyFiles] = {}
        self._files: dict[str, _Files] = {}
        self._begun: dict[str, Group] = {}
        """Groups that are being created."""
        self._opening: dict[Key, gevent.Greenlet[Any, Any]] = {}
        self._opened: dict[Key, Stream] = {}
        self._accepted: dict[Key, Stream] = {}
        self._sessions: dict[str, Session] = {}
        self._is_ready = False
        self._listener = Listener(
            settings.listen, settings.server_tls, self._refusal, self._stream_accepted
        )
        advertised = settings.advertise or settings.listen[0]
        self.session = Session(
            node.process, node.name, node.machine, f"{advertised}:{self._listener.port}"
        )
        self.worker = Worker(node.name, self.session.id, self, settings.limits)
        self._registry = Registry(
            etcd, settings.cluster, self.session, self, settings.limits.lease, self, log
        )
        self._ticker = gevent.spawn(self._tick)

    def stop(self) -> None:
        """End all streams. Groups stay owned until the lease of the process ends."""
        self._ticker.kill()
        self._listener.close()
        for streams in (self._opened, self._accepted):
            for stream in list(streams.values()):
                stream.close()
            streams.clear()
        self.stop_waiting()
        self._registry.close()

    def stop_waiting(self) -> None:
        """Report changes as soon as they are made here: the process is about to end."""
        for files in self._files.values():
            files.io.wait(False)

    def flush(self, limit: float) -> None:
        """Wait at most `limit` seconds until the holders have all changes of the owned groups."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not self._is_flushed():
            self._io.kick_now()
            gevent.sleep(FLUSH_INTERVAL)

    def _is_flushed(self) -> bool:
        owners = [self.worker.owner(group_id) for group_id in self._files]
        return all(owner is None or owner.committed == owner.position for owner in owners)

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
        """Give a group whose files cannot be changed here to another member."""
        self._log.error(f"COPIES: group {group_id} cannot be written: {os.strerror(error).lower()}")
        owner = self.worker.owner(group_id)
        if owner is not None:
            owner.fail()

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
        for group in list(self._begun.values()):
            self._propose_begun(group)
        for group_id, files in self._files.items():
            owner = self.worker.owner(group_id)
            if owner is not None:
                waits = owner.waits(now)
                if files.io.waits and not waits:
                    self._topics.degraded(group_id)
                files.io.wait(waits)

    # -- the registry reads (registry.Reader and NodeNames)

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
            self.worker.updated(group, revision, time.monotonic())
            self._topics.tick()
            self._io.kick_now()

    def claimed(self, group_id: str, node: str, claim: Claim) -> None:
        self.worker.claimed(group_id, node, claim)

    def names(self) -> Sequence[str]:
        return self._node.names

    def registered(self, *, is_current: bool) -> None:
        self._node.registered()
        if not is_current:
            self._log.warn("COPIES: the disk is older than the registry: its copies are not whole")
            for path in self._root.iterdir():
                if path.is_dir():
                    self._open_copy(path.name, "fsync").whole = False
            self._copies.clear()

    # -- what the state machine calls (ports.Host)

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
        self._log.error(f"COPIES: copy {group_id} cannot be written: {os.strerror(error).lower()}")

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
            sock, decoder = connect((host.strip("[]"), int(port)), greeting, self._settings.client_tls)
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
        """Return nodes on other machines than the members', those with the fewest groups first."""
        machines = {
            session.machine for node in group.members if (session := self._sessions.get(node))
        } | {self._node.machine}
        counts = {
            node: 0
            for node, session in self._sessions.items()
            if session.machine not in machines and node not in group.members
        }
        for other in self.worker.groups():
            for node in other.members:
                if node in counts:
                    counts[node] += 1
        return sorted(counts, key=lambda node: (counts[node], node))

    def nonce(self) -> str:
        return secrets.token_hex(8)

    def owned(self, group: Group) -> None:
        self._begun.pop(group.id, None)
        copy = self.copy(group.id)
        assert copy is not None
        copy.serves = not group.closed
        files = self._files.get(group.id) or self._make_files(copy, group.id)
        self._log.info(
            f"COPIES: owning group {group.id}, epoch {group.epoch}",
            event="copies_owned",
            group=group.id,
            epoch=group.epoch,
            closed=group.closed,
        )
        self._topics.owned(group, files.io, self._root / group.id)
        if files.io.error:
            # A change before the group existed; `disk_failed` had no owner then.
            self.disk_failed(group.id, files.io.error)

    def lost(self, group: Group) -> None:
        self._log.warn(
            f"COPIES: no longer owning group {group.id}", event="copies_lost", group=group.id
        )
        # Ending the files reports all changes as made, which must not acknowledge a publish: the
        # new owner may not have it.
        self._topics.degraded(group.id)
        self._files.pop(group.id).io.stop()
        self._topics.lost(group)

    def committed(self, group_id: str, position: int) -> None:
        files = self._files.get(group_id)
        if files is not None:
            files.io.committed(files.mirror.first + position)
