"""The copies in a worker process, and the state machine's environment.

Connects the state machine, the registry, the streams and the files. Independent of topics: it calls
`Topics` when the process becomes the owner of a group, or stops owning it.
"""

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gevent

from nsqcy.copies.fetching import Done, Part
from nsqcy.copies.group import Group
from nsqcy.copies.identity import BROKEN
from nsqcy.copies.messages import Filled, FromHolder, FromOwner, Refuse
from nsqcy.copies.owner import Owner
from nsqcy.copies.ports import Claim, Limits, Unreadable
from nsqcy.copies.recall import Known, Recall, Stamp, Statement
from nsqcy.copies.roles_and_takeover import Worker
from nsqcy.etcd.client import EtcdClient
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies import reports
from nsqcy.nsqd.copies.connections import NOT_READY, Connections, Event, Terms
from nsqcy.nsqd.copies.copy_files import SUFFIX, CopyFiles
from nsqcy.nsqd.copies.file_list import SEGMENT
from nsqcy.nsqd.copies.mending import Findings
from nsqcy.nsqd.copies.mirror import Mirror, OwnedFiles
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.registry import REASONS, Contents, Registry, Session
from nsqcy.nsqd.copies.run_sink import RunSink
from nsqcy.nsqd.copies.scrubber import Scrubber
from nsqcy.nsqd.copies.streams import Later, soon
from nsqcy.storage.core import IoThread, MirroredIo

FLUSH_INTERVAL = 0.01  # seconds
SYNC_INTERVAL = 2.0  # seconds, the default of --sync-timeout


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

    def write_journal(self, group_id: str, topic: str) -> None:
        """Rewrite the journal of a topic's log, because its file is damaged."""
        ...

    def degraded(self, group_id: str) -> None:
        """Leave pending publishes unanswered, because the group's records are now visible as soon
        as they are stored here."""
        ...

    def cut_off(self, is_cut_off: bool) -> None:
        """Stop deliveries, because other processes may own the groups, or resume deliveries."""
        ...

    def tick(self) -> None:
        """Handle changes in the state of the groups."""
        ...


class Settings(Terms, Protocol):
    """The options that the host uses."""

    @property
    def limits(self) -> Limits: ...
    @property
    def advertise(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def scrub_rate(self) -> int: ...
    @property
    def scrub_pause(self) -> float: ...


class Predecessor(NamedTuple):
    """State that a process gets from the process that it takes over from."""

    listener_fd: int
    """Its listener for streams; -1: none."""
    lease: int
    """Its lease in etcd; 0: none."""


NO_PREDECESSOR = Predecessor(-1, 0)


class _Opening:
    """The segments of a copy that a recovery reads to the end, while they are being verified."""

    def __init__(self, copy: CopyFiles, until: float) -> None:
        self._copy = copy
        self._until = until
        self._left: dict[str, bool] = {
            path: False for path in copy.table.paths() if path.endswith(SEGMENT)
        }
        """Files to repair, and whether a repair is in progress."""

    def is_done(self) -> bool:
        for path, is_busy in list(self._left.items()):
            if not is_busy:
                self._left[path] = True
                self._copy.mend_open(path, partial(self._mended, path))
        return not self._left or time.monotonic() > self._until

    def _mended(self, path: str, is_final: bool) -> None:
        if is_final:
            self._left.pop(path, None)
        else:
            self._left[path] = False


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
        later: Later = soon,
        predecessor: Predecessor = NO_PREDECESSOR,
    ) -> None:
        """
        root: directory for the copies; each group has its own subdirectory
        enter: called before topics may be accessed
        is_full: whether the disk has too little space for copies
        later: calls a function before the hub polls again
        predecessor: the process that this one takes over from
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
        self._unreadable: set[str] = set()
        """Groups whose copies could not be opened, because the disk could not be read."""
        self._files: dict[str, OwnedFiles] = {}
        self._begun: dict[str, Group] = {}
        """Groups that are being created."""
        self._sessions: dict[str, Session] = {}
        self._is_ready = False
        self._is_cut_off = False
        self._synced_at = 0.0
        self._done_since: dict[str, float] = {}
        self._released: set[str] | None = None
        """Groups that are being handed over."""
        self.takeovers = 0
        """Groups that this process has taken over from other nodes."""
        self.mended = 0
        """Damaged parts of files that were replaced from another copy."""
        self.verified = 0
        """Bytes of copies that were read to verify them."""
        self._opening: dict[str, _Opening] = {}
        self._connections = Connections(
            settings,
            node.name,
            self._address_of,
            self._obstacle,
            self._happened,
            self._from_holder,
            self._from_owner,
            log,
            later,
            predecessor.listener_fd,
        )
        advertised = settings.advertise or settings.listen[0]
        self.session = Session(
            node.process,
            node.name,
            node.machine,
            f"{advertised}:{self._connections.port}",
            settings.zone,
        )
        recall = Recall(node.name, node.known, is_repaired=node.is_repaired)
        self.worker = Worker(node.name, self.session.id, self, settings.limits, recall)
        self._registry = Registry(
            etcd,
            settings.cluster,
            self.session,
            node,
            settings.limits.lease,
            self,
            log,
            predecessor.lease,
        )
        self._quiet_until = time.monotonic() + settings.limits.lease if predecessor.lease else 0.0
        self._ticker = gevent.spawn(self._tick)
        self._scrubber = Scrubber(
            settings.scrub_rate,
            lambda: list(self._copies.values()),
            io.kick_now,
            settings.scrub_pause,
        )

    def stop(self) -> None:
        """End all streams. The process still owns its groups until its lease ends."""
        self._ticker.kill()
        self._scrubber.stop()
        self._connections.stop()
        self.stop_waiting()
        self._close_copies()
        self._registry.close()
        self._node.close()

    def _close_copies(self) -> None:
        for group_id, copy in self._copies.items():
            files = self._files.get(group_id)
            if files is None or not files.io.error:
                copy.close()

    def leave(self) -> None:
        """Announce this process's exit to the owners that feed copies here, so that they do not
        wait for this node."""
        self._connections.leave()

    def stop_waiting(self) -> None:
        """Report changes as soon as they are made here, because the process is about to exit."""
        for files in self._files.values():
            files.io.wait(False)

    def flush(self, limit: float) -> None:
        """Wait up to `limit` seconds until the holders have all changes to the owned groups."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and not self._is_flushed():
            self._io.kick_now()
            gevent.sleep(FLUSH_INTERVAL)

    def _is_flushed(self) -> bool:
        owners = [self.worker.owner(group_id) for group_id in self._files]
        return all(owner is None or owner.committed == owner.position for owner in owners)

    # -- the process that takes the place of this one

    def begin_rest(self) -> None:
        """Let the holders' owners know that another process follows, and extend the lease."""
        self._registry.renew()
        self._connections.leave_to_successor()

    def end_rest(self) -> None:
        """Accept streams again."""
        self._connections.stay()

    def is_at_rest(self) -> bool:
        """Return whether another process on this node can continue with the files: the holders
        have all changes, or the groups do not wait for them."""
        now = time.monotonic()
        owners = [self.worker.owner(group_id) for group_id in self._files]
        return self._node.is_idle and all(
            owner is None or owner.committed == owner.position or not owner.waits(now)
            for owner in owners
        )

    def obstacle_to_rest(self) -> str:
        """Return why another process could not continue with the groups; empty if it could."""
        if self._registry.is_away or not self._is_ready:
            return "etcd does not respond, so that it could not serve topics with copies"
        return self.trouble()

    def hurry(self) -> None:
        """Act on the state of the groups now, as every `alive_interval`."""
        if self._is_ready:
            self._watch_groups(time.monotonic())
        self._topics.tick()
        self._io.kick_now()

    def as_predecessor(self) -> Predecessor:
        """Return what the next process needs."""
        return Predecessor(self._connections.listener_fd, self._registry.lease)

    def is_caught_up(self) -> bool:
        """Return whether the members of this node's groups have all changes, as far as they have
        sessions."""
        present = {session.id for session in self._sessions.values()}
        nodes = set(self._sessions)
        return self._is_ready and all(
            self._has_caught_up(group, nodes)
            for group in self.worker.groups()
            if not group.done and self._node.name in group.members and group.session in present
        )

    def _has_caught_up(self, group: Group, nodes: set[str]) -> bool:
        owner = self.worker.owner(group.id)
        if owner is not None:
            return owner.has_fed(nodes)
        holder = self.worker.holder(group.id)
        return holder is not None and holder.is_live

    # -- handing over

    def owned_ids(self) -> list[str]:
        """Return the groups that this process owns."""
        return [group_id for group_id in self._files if self.worker.owner(group_id) is not None]

    def release(self) -> int:
        """Release the groups that this process owns now, each as soon as its members have all
        changes. Return the number of groups left. Later calls do not release groups that it has
        acquired since."""
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
            "registry": str(self._registry.standing),
            "unregistered": sorted(group.id for group in self._unregistered()),
            "sessions": sorted(self._sessions),
            "mended": self.mended,
            "groups": sorted(groups, key=lambda each: str(each["group"])),
        }

    def topics_on_disk(self, group_id: str) -> list[str]:
        """Return the topics in a copy's files, if they are in use."""
        copy = self._copies.get(group_id)
        paths = copy.table.paths() if copy is not None else []
        return sorted({path.partition("/")[0].removesuffix(SUFFIX) for path in paths})

    def figures(self) -> dict[str, Any]:
        """Return the worker's figures for /metrics."""
        groups = self.worker.groups()
        owners = [owner for each in self._files if (owner := self.worker.owner(each))]
        return {
            **reports.figures(owners),
            "groups": reports.roles(self.worker.role(group.id) for group in groups),
            "bytes": sum(copy.table.total() for copy in self._copies.values()),
            "takeovers": self.takeovers,
            "mended": self.mended,
            "verified": self.verified,
            "damaged": sum(len(copy.damaged) for copy in self._copies.values()),
            "unreadable": sum(len(copy.unreadable) for copy in self._copies.values())
            + len(self._unreadable),
            "etcd": int(not self._registry.is_away),
            "registry": int(self._registry.standing not in BROKEN),
            "unregistered": len(self._unregistered()),
        }

    def trouble(self) -> str:
        """Return why copies cannot be protected; empty if they can. An unresponsive etcd is
        not a reason."""
        standing = self._registry.standing
        if standing in BROKEN:
            return f"the registry in etcd cannot be used: {REASONS[standing]}"
        if self._is_reading() and (count := len(self.worker.recall.unprotected())):
            return f"etcd has not responded since the start; groups of copies that need it: {count}"
        count = len(self._unregistered())
        return f"groups of copies missing from the registry: {count}" if count else ""

    def _is_reading(self) -> bool:
        """Return whether this process should have read the registry by now."""
        return not self._is_ready and time.monotonic() >= self._quiet_until

    def _unregistered(self) -> list[Group]:
        """Return the groups that the registry lacks. None is known to be missing before the
        registry has been read."""
        return self.worker.recall.unprotected() if self._is_ready else []

    def _describe(self, group: Group, role: str) -> dict[str, Any]:
        copy, owner = self._copies.get(group.id), self.worker.owner(group.id)
        found = reports.describe(group, role, copy, owner)
        if group.id in self._unreadable:
            found["unreadable"] = [reports.ALL_FILES]
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

    def is_mended(self, group_id: str) -> bool:
        """Return whether the files that a recovery reads have been verified, and repaired if
        possible. Starts this work if necessary; call this again later."""
        opening = self._opening.get(group_id)
        if opening is None:
            self._opening[group_id] = opening = _Opening(
                self._copies[group_id], time.monotonic() + self._limits.damage_timeout
            )
        if opening.is_done():
            del self._opening[group_id]
            return True
        self._io.kick_now()
        return False

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

    def _make_files(self, copy: CopyFiles, group_id: str) -> OwnedFiles:
        mirror = Mirror(
            copy.table,
            lambda: self.worker.owner(group_id),
            lambda error: self._disk_failed(group_id, error),
        )
        files = OwnedFiles(MirroredIo(self._io, self._root / group_id, mirror), mirror)
        files.io.repairer = copy.mender.repair
        self._files[group_id] = files
        return files

    def _disk_failed(self, group_id: str, error: int) -> None:
        """Hand a group whose files cannot be changed here over to another member."""
        self._report_failure(group_id, "owned", error)
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
                self._sync_copies(time.monotonic())
                self._forget_done(time.monotonic())
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
                self._watch_disk(group_id, owner)
                waits = owner.waits(now)
                if files.io.waits and not waits:
                    self._topics.degraded(group_id)
                files.io.wait(waits)

    def _watch_disk(self, group_id: str, owner: Owner) -> None:
        """Hand a group over if its files have not been readable here for a while."""
        failing = self._copies[group_id].mender.failing_for()
        if failing > self._limits.copy_timeout and not owner.is_releasing:
            self._report_unreadable(group_id, "owned")
            owner.release()

    def _forget_done(self, now: float) -> None:
        """Delete the values of groups that ended a while ago: all running members have deleted
        their copies since."""
        done = {group.id: group for group in self.worker.groups() if group.done}
        self._done_since = {each: self._done_since.get(each, now) for each in done}
        for group_id, since in self._done_since.items():
            if now - since > self._limits.done_timeout:
                self._registry.forget(done[group_id])
                self.worker.forget(group_id)

    def _sync_copies(self, now: float) -> None:
        """Sync held copies in the background, as the owners sync their logs, and list the files
        that no longer grow."""
        if now - self._synced_at >= SYNC_INTERVAL:
            self._synced_at = now
            for group_id, copy in self._copies.items():
                copy.table.list_sizes()
                if group_id not in self._files:
                    copy.sync()

    def _note_cut_off(self, is_cut_off: bool) -> None:
        if is_cut_off != self._is_cut_off:
            self._is_cut_off = is_cut_off
            if is_cut_off:
                events.copies_cut_off(self._log)
            self._topics.cut_off(is_cut_off)

    # -- streams (connections.Connections)

    def _happened(self, event: Event) -> None:
        self._enter()
        event(self.worker, time.monotonic())
        self._io.kick_now()

    def _from_holder(self, node: str, group_id: str, message: FromHolder) -> None:
        self._enter()
        self.worker.from_holder(node, group_id, message, time.monotonic())
        self._io.kick_now()

    def _from_owner(self, node: str, group_id: str, message: FromOwner) -> None:
        self._enter()
        self.worker.from_owner(node, group_id, message, time.monotonic())
        self._io.kick_now()
        if isinstance(message, Filled):
            self._pass_runs(node, group_id)

    def _pass_runs(self, node: str, group_id: str) -> None:
        """Use the fast path for runs from an owner that has filled a copy."""
        holder, copy = self.worker.holder(group_id), self._copies.get(group_id)
        if holder is not None and holder.owner == node and holder.copy is copy:
            sink = RunSink(holder, copy, self._enter, self._io.kick_now)
            self._connections.pass_runs(node, group_id, sink)

    def _address_of(self, node: str) -> str:
        session = self._sessions.get(node)
        if session is None:
            raise ConnectionError("the node has no session")
        return session.address

    def _obstacle(self) -> str:
        if self._is_full():
            return "the disk is full"
        return "" if self._is_ready else NOT_READY

    # -- called by the registry (registry.Reader)

    def registry_entered(self, generation: int) -> None:
        self._enter()
        since = self._node.since
        since = generation + 1 if since is None else since
        self.worker.entered(generation, since, time.monotonic())
        self._topics.tick()

    def registry_left(self) -> None:
        self._enter()
        self.worker.left()
        self._topics.tick()

    def registry_read(self, contents: Contents) -> None:
        now = time.monotonic()
        self._enter()
        self._is_ready = True
        self._sessions = {session.node: session for session in contents.sessions}
        self.worker.registry_heard(now)
        self.worker.sessions = frozenset(session.id for session in contents.sessions)
        self.worker.listed(contents.groups, contents.revision, contents.statements, now)
        self._topics.tick()
        self._io.kick_now()

    def group_changed(self, group: Group, revision: int) -> bool:
        if not self._is_ready:
            return False
        self._enter()
        self._node.saw(revision)
        self._node.save_revision()
        is_remembered = self.worker.updated(group, revision, time.monotonic())
        self._topics.tick()
        self._io.kick_now()
        return is_remembered

    def claimed(self, group_id: str, node: str, claim: Claim) -> None:
        self.worker.claimed(group_id, node, claim)

    def knows(self, group: Group, stamp: Stamp) -> bool:
        return self.worker.knows(group, stamp)

    def registered(self, *, is_current: bool) -> None:
        self._node.registered()
        if not is_current:
            events.copies_disk_is_older(self._log)
            while not self._distrust_copies():
                gevent.sleep(self._limits.alive_interval)
            self._copies.clear()

    def _distrust_copies(self) -> bool:
        """Mark all copies as incomplete. Return False if the disk cannot be read now."""
        try:
            for path in self._root.iterdir():
                if path.is_dir():
                    self._open_copy(path.name, "fsync").whole = False
        except (OSError, Unreadable):
            return False
        return True

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
        try:
            copy = CopyFiles(
                self._io,
                self._root / group_id,
                self._node.boot,
                durability,
                lambda error: self._copy_failed(group_id, error),
                lambda part, done: self._fetch(group_id, part, done),
                lambda path, findings: self._report_findings(group_id, path, findings),
                lambda path: self._mend_journal(group_id, path),
            )
        except Unreadable:
            if group_id not in self._unreadable:
                self._unreadable.add(group_id)
                self._report_unreadable(group_id, "copy of")
            raise
        self._unreadable.discard(group_id)
        self._copies[group_id] = copy
        for path in copy.lacking:
            events.copies_file_missing(self._log, group=group_id, file=path)
        return copy

    def _fetch(self, group_id: str, part: Part, done: Done) -> None:
        self._enter()
        self.worker.fetch(group_id, part, done, time.monotonic())
        self._io.kick_now()

    def _report_findings(self, group_id: str, path: str, findings: Findings) -> None:
        self.verified += findings.verified
        self.mended += findings.mended
        if findings.mended:
            events.copies_mended(self._log, group=group_id, file=path, parts=findings.mended)
        if findings.damaged:
            events.copies_damaged(self._log, group=group_id, file=path, parts=findings.damaged)
        if findings.unreadable:
            self._report_unreadable(group_id, "file of")

    def _mend_journal(self, group_id: str, path: str) -> None:
        """Replace a damaged journal: an owner rewrites its own, and a holder's copy is refilled."""
        self._enter()
        if self.worker.owner(group_id) is not None:
            self._topics.write_journal(group_id, os.path.dirname(path).removesuffix(SUFFIX))
        else:
            self.worker.refill(group_id)
        self._io.kick_now()

    def _copy_failed(self, group_id: str, error: int) -> None:
        if group_id in self._files:
            self._disk_failed(group_id, error)
            return
        self._report_failure(group_id, "held", error)
        holder = self.worker.holder(group_id)
        if holder is not None:
            reason = "full" if error in (errno.ENOSPC, errno.EDQUOT) else "failing"
            self.reply(holder.owner, group_id, Refuse(reason))

    def _report_failure(self, group_id: str, role: str, error: int) -> None:
        reason = os.strerror(error).lower()
        events.copies_write_failed(self._log, role, group=group_id, error=reason)

    def _report_unreadable(self, group_id: str, role: str) -> None:
        reason = os.strerror(errno.EIO).lower()
        events.copies_read_failed(self._log, role, group=group_id, error=reason)

    def delete_copy(self, group_id: str) -> None:
        copy = self.copy(group_id)
        if copy is not None:
            del self._copies[group_id]
            copy.remove()

    def open(self, node: str, group_id: str) -> None:
        self._connections.open(node, group_id)

    def close(self, node: str, group_id: str) -> None:
        self._connections.close(node, group_id)

    def send(self, node: str, group_id: str, message: FromOwner) -> None:
        self._connections.send(node, group_id, message)

    def reply(self, node: str, group_id: str, message: FromHolder) -> None:
        self._connections.reply(node, group_id, message)

    def hang_up(self, node: str, group_id: str) -> None:
        self._connections.hang_up(node, group_id)

    def propose(self, base: Group | None, value: Group, absent: str = "") -> None:
        self._registry.propose(base, value, absent)

    def restore(self, value: Group) -> None:
        events.copies_restoring(self._log, group=value.id, epoch=value.epoch)
        self._registry.restore(value)

    def remember(self, known: Mapping[str, Known]) -> None:
        self._node.remember(known)

    def state(self, statement: Statement | None) -> None:
        self._registry.state(statement)

    def repaired(self) -> None:
        self._node.repaired()

    def end_session(self, session: str) -> None:
        self._registry.end_session(session)

    def claim(self, group_id: str, claim: Claim) -> None:
        self._registry.claim(group_id, claim)

    def candidates(self, group: Group) -> Sequence[str]:
        """Return nodes on machines without a member; nodes in other zones and nodes with the fewest
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
        events.copies_owned(self._log, group=group.id, epoch=group.epoch, closed=group.closed)
        self._topics.owned(group, files.io, self._root / group.id)
        if error := files.io.error or copy.error:
            # A change failed before the group existed, when `_disk_failed` had no owner yet.
            self._disk_failed(group.id, error)

    def lost(self, group: Group) -> None:
        events.copies_lost(self._log, group=group.id)
        # When the files are closed, all changes are reported as made. These reports must not
        # acknowledge a publish, because the new owner may not have the message.
        self._topics.degraded(group.id)
        self._opening.pop(group.id, None)
        self._files.pop(group.id).io.stop()
        self._topics.lost(group)

    def committed(self, group_id: str, position: int) -> None:
        files = self._files.get(group_id)
        if files is not None:
            files.io.committed(files.mirror.first + position)
