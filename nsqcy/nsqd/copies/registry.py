"""A worker's interface to the registry of groups in etcd.

Owns the keys below a cluster's prefix, the lease of this process, and the threads that wait for
etcd. Passes values on unchanged; the state machine interprets them.

    identity               the registry's identity; every transaction requires it
    processes/<node>       name of the last process of a node
    marks/<node>           revision of the latest value that the node remembers
    sessions/<session>     address of a running process; deleted with its lease
    groups/<group>         value of a group
    claims/<group>/<node>  claim of a member; deleted with the lease of its process
    recalls/<node>         values that a node remembers, while needed; deleted with the lease

Keys that were last changed before the identity of a later generation are ignored.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, TypeVar

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from nsqcy.copies.group import Group
from nsqcy.copies.identity import BROKEN, Found, Identity, Standing, judge, successor
from nsqcy.copies.ports import Claim
from nsqcy.copies.recall import Statement
from nsqcy.copies.values import (
    InvalidValue,
    decode_claim,
    decode_group,
    decode_identity,
    decode_mark,
    decode_statement,
    encode_claim,
    encode_group,
    encode_identity,
    encode_mark,
    encode_statement,
)
from nsqcy.etcd.client import EtcdClient
from nsqcy.etcd.messages import Change, EtcdError, Expected, KeyValue, Put
from nsqcy.etcd.watch import Watch
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies.node import Node

THREADS = 4
IDENTITY = "identity"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """A running process, as other processes see it."""

    id: str
    node: str
    machine: str
    """Id of the machine: processes on the same machine fail together."""
    address: str
    """Host and port of its listener for streams."""
    zone: str = ""
    """Machines in the same zone may fail together."""


@dataclass
class Contents:
    """Contents of a cluster's registry at one revision."""

    revision: int = 0
    identity: Identity | None = None
    values: dict[str, bytes] = field(default_factory=dict)
    """All keys with their values, even keys that the other fields omit."""
    groups: list[tuple[Group, int]] = field(default_factory=list)
    """Groups, each with the revision of its value."""
    sessions: list[Session] = field(default_factory=list)
    claims: list[tuple[str, str, Claim]] = field(default_factory=list)
    """Group, node and claim."""
    processes: dict[str, str] = field(default_factory=dict)
    """Name of each node's last process."""
    marks: dict[str, int] = field(default_factory=dict)
    statements: dict[str, Statement] = field(default_factory=dict)
    """By node."""
    invalid: dict[str, str] = field(default_factory=dict)
    """Keys whose values are invalid, with the reason."""


class Reader(Protocol):
    """Receives the values of the registry."""

    def registry_entered(self, generation: int) -> None:
        """Use another registry from now on."""
        ...

    def registry_left(self) -> None:
        """Do not use the registry until it is read again."""
        ...

    def registry_read(self, contents: Contents) -> None:
        """Accept all values."""
        ...

    def group_changed(self, group: Group, revision: int) -> bool:
        """Accept a value; return whether this node remembers it."""
        ...

    def claimed(self, group_id: str, node: str, claim: Claim) -> None: ...
    def knows(self, group: Group, stamp: tuple[int, int]) -> bool:
        """Return whether this process knows a value, or a later value of the same group."""
        ...

    def registered(self, *, is_current: bool) -> None:
        """Handle the registration of this process. is_current: whether the disk has all earlier
        data."""
        ...


class Registry:
    """A process's connection to the registry. Except for close(), its methods do not block."""

    def __init__(
        self,
        client: EtcdClient,
        cluster: str,
        session: Session,
        node: Node,
        lease: float,
        reader: Reader,
        log: Lines,
        left_lease: int = 0,
    ) -> None:
        """
        left_lease: the lease of the process that this one takes over from; it is extended once, so
            that no other node takes over the groups in the meantime
        """
        self._left_lease = left_lease
        self._client = client
        self._prefix = prefix_of(cluster)
        self._session = session
        self._node = node
        self._lease_seconds = lease
        self._reader = reader
        self._log = log
        self._pool = ThreadPool(THREADS)
        self._identity: Expected | None = None
        """The identity of the registry that this process uses, as a condition for transactions."""
        self._values: dict[str, bytes] = {}
        """The values from the last read."""
        self._lease = 0
        self._is_registered = False
        self._is_current = True
        self._remembered = 0
        """Revision of the latest value that the node remembers."""
        self._is_marking = False
        self._wake = Event()
        self._watch: Watch | None = None
        self.is_away = True
        """Whether the latest request to etcd failed, or none has been answered yet."""
        self.standing = Standing.CURRENT
        """Relation of the registry, at the last read, to the one that this node knows."""
        self._is_reported = False
        self._greenlets = [gevent.spawn(self._run)]

    def close(self) -> None:
        """End the session. Blocks for at most a second."""
        gevent.killall(self._greenlets)
        self._end_watch()
        self._pool.kill()

    @property
    def lease(self) -> int:
        """The lease of this process; 0 if it has none."""
        return self._lease

    def renew(self) -> None:
        """Extend the lease now."""
        self._wake.set()

    # -- changes; their outcomes are read later

    def propose(self, base: Group | None, value: Group, absent: str) -> None:
        """Begin a transaction that replaces a group's value."""
        key = self._key("groups", value.id)
        expected = [Expected(key, None if base is None else encode_group(base))]
        if absent:
            expected.append(Expected(self._key("sessions", absent), None))
        self._begin(expected, [Put(key, encode_group(value))])

    def restore(self, value: Group) -> None:
        """Begin a transaction that restores a group, unless its value has changed since it was
        read."""
        key = self._key("groups", value.id)
        self._begin([Expected(key, self._values.get(key))], [Put(key, encode_group(value))])

    def forget(self, group: Group) -> None:
        """Delete the value of a group that has ended."""
        key = self._key("groups", group.id)
        self._begin([Expected(key, encode_group(group))], [], [key])

    def claim(self, group_id: str, claim: Claim) -> None:
        key = self._key("claims", f"{group_id}/{self._session.node}")
        self._begin([], [Put(key, encode_claim(claim), self._lease)])

    def state(self, statement: Statement | None) -> None:
        key = self._key("recalls", self._session.node)
        if statement is None:
            self._begin([], [], [key])
        else:
            self._begin([], [Put(key, encode_statement(statement), self._lease)])

    def end_session(self, session: str) -> None:
        self._begin([], [], [self._key("sessions", session)])

    def _begin(
        self, expected: Sequence[Expected], puts: Sequence[Put], deletes: Sequence[str] = ()
    ) -> None:
        if self._identity is not None:
            gevent.spawn(self._attempt, self._identity, expected, puts, deletes)

    def _attempt(self, *args: Any) -> None:
        try:
            self._transact(*args)
        except EtcdError:
            return  # the state machine will retry
        self._wake.set()

    def _transact(
        self,
        condition: Expected,
        expected: Sequence[Expected],
        puts: Sequence[Put],
        deletes: Sequence[str] = (),
    ) -> bool:
        """Run a transaction in the registry with this identity, and wait for it. All changes to
        keys use this method."""
        return self._ask(self._client.transact, [condition, *expected], puts, deletes)

    # -- reading

    def _run(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._renew()
                self._note_answer()
            except EtcdError as error:
                self._note_failure(error)
            self._wake.wait(self._lease_seconds / 4)

    def _renew(self) -> None:
        """Extend the lease, and read everything."""
        if self._left_lease:
            self._ask(self._client.keep_alive, self._left_lease)
            self._left_lease = 0
        if self._lease and not self._ask(self._client.keep_alive, self._lease):
            self._lease = 0
        memory = self._node.memory()  # a change may arrive while the keys are read
        contents = self._read()
        mark = contents.marks.get(self._session.node, 0)
        groups = {group.id: revision for group, revision in contents.groups}
        found = Found(contents.identity, contents.revision, groups, mark)
        standing = judge(memory, found)
        self._note_standing(standing)
        if standing is Standing.NEW or standing in BROKEN:
            self._leave()
            if self._may_replace(standing, contents):
                self._replace(standing, contents)
            return
        condition = self._enter(contents)
        if self._register(contents, condition):
            self._use(contents, mark, condition)

    def _read(self) -> Contents:
        found, revision = self._ask(self._client.read, self._prefix)
        contents = decoded(self._prefix, found)
        contents.revision = revision
        for key, reason in contents.invalid.items():
            self._log.error(f"COPIES: {key} in etcd is invalid: {reason}")
        if self._prefix + IDENTITY in contents.invalid:
            raise EtcdError(f"{self._prefix}{IDENTITY} is invalid")
        return contents

    def _may_replace(self, standing: Standing, contents: Contents) -> bool:
        """Return whether the registry's identity may be replaced. If other nodes use the registry,
        `nsqcy copies repair` is needed."""
        if standing in (Standing.NEW, Standing.LOST) or self._node.is_repaired:
            return True
        generation = contents.identity.generation if contents.identity is not None else 0
        sessions = {each.id for each in contents.sessions}
        return not any(
            group.is_complete
            and group.session in sessions
            and not self._reader.knows(group, (generation, revision))
            for group, revision in contents.groups
        )

    def _replace(self, standing: Standing, contents: Contents) -> None:
        """Create the registry's identity, unless another node creates it first."""
        name = secrets.token_hex(8)
        identity = Identity(name)
        if standing is not Standing.NEW:
            identity = successor(self._node.memory(), contents.identity, name)
        key = self._prefix + IDENTITY
        put = Put(key, encode_identity(identity))
        self._transact(Expected(key, contents.values.get(key)), [], [put])
        self._wake.set()

    def _leave(self) -> None:
        if self._identity is not None:
            self._identity = None
            self._end_watch()
            self._reader.registry_left()

    def _enter(self, contents: Contents) -> Expected:
        """Use the registry that was read; return its identity as a condition for transactions.

        The watch may leave the registry while its caller waits for etcd or for the disk."""
        identity = contents.identity
        assert identity is not None
        key = self._prefix + IDENTITY
        condition = Expected(key, contents.values[key])
        if condition == self._identity:
            return condition
        self._leave()
        self._is_registered = False
        if identity != self._node.identity:
            if identity.generation > 1:
                events.etcd_registry_replaced(
                    self._log, registry=identity.id, generation=identity.generation
                )
            self._node.adopt(identity)
            self._node.flush()
        self._identity = condition
        self._remembered = self._node.mark
        self._reader.registry_entered(identity.generation)
        return condition

    def _register(self, contents: Contents, condition: Expected) -> bool:
        """Register this process; return whether it is registered. If not, the registry is read
        again."""
        if self._is_registered:
            return True
        node = self._session.node
        known = contents.processes.get(node)
        if known == self._session.id:
            self._is_registered = True
            self._reader.registered(is_current=self._is_current)
            self._is_current = True  # the reader has handled the node's copies
            return True
        if not self._node.is_named:
            self._node.retry()
            self._node.flush()
            if not self._node.is_named:
                return False
        self._is_current = self._is_current and (known is None or known in self._node.names)
        key = self._key("processes", node)
        expected = Expected(key, contents.values.get(key))
        self._transact(condition, [expected], [Put(key, self._session.id.encode())])
        self._wake.set()
        return False

    def _use(self, contents: Contents, mark: int, condition: Expected) -> None:
        if not self._lease:
            self._lease = self._ask(self._client.grant, int(self._lease_seconds))
            self._put_session(condition)
        elif self._session.id not in {each.id for each in contents.sessions}:
            self._put_session(condition)
        if condition != self._identity:
            return
        self._node.saw(contents.revision)
        self._node.retry()
        self._values = contents.values
        self._reader.registry_read(contents)
        for claim in contents.claims:
            self._reader.claimed(*claim)
        if self._watch is None:
            self._watch = self._ask(self._client.watch, self._prefix, contents.revision + 1)
            self._greenlets.append(gevent.spawn(self._follow, self._watch))
        self._remembered = max(self._remembered, *self._node.remembered().values(), 0)
        if mark < self._remembered:
            self._mark()

    def _put_session(self, condition: Expected) -> None:
        value = json.dumps(
            {
                "node": self._session.node,
                "machine": self._session.machine,
                "address": self._session.address,
                "zone": self._session.zone,
            }
        )
        key = self._key("sessions", self._session.id)
        self._transact(condition, [], [Put(key, value.encode(), self._lease)])
        self._wake.set()

    # -- the mark

    def _mark(self) -> None:
        if not self._is_marking:
            self._is_marking = True
            self._greenlets.append(gevent.spawn(self._write_mark))

    def _write_mark(self) -> None:
        """Set this node's mark in the registry. A registry with an older mark has lost values since
        then. A delayed transaction must not replace a newer mark with an older one."""
        key = self._key("marks", self._session.node)
        try:
            while self._identity is not None:
                revision, identity = self._remembered, self._identity
                if not self._node.flush() or self._identity is not identity:
                    break  # retried after the next full read
                put = Put(key, encode_mark(revision))
                expected = Expected(key, self._values.get(key))
                is_set = self._transact(identity, [expected], [put])
                if not is_set or self._identity is not identity:
                    break
                self._values[key] = put.value
                self._node.marked(revision)
                if self._remembered == revision:
                    break
        except EtcdError:
            pass  # retried after the next full read
        finally:
            self._is_marking = False
            self._greenlets.remove(gevent.getcurrent())

    # -- the watch

    def _follow(self, watch: Watch) -> None:
        """Pass on changes to groups, and read everything if anything else changes."""
        began = time.monotonic()
        try:
            while True:
                for change in self._ask(watch.read):
                    if self._watch is watch:
                        self._changed(change)
        except EtcdError:
            if self._watch is watch:
                self._watch = None  # the next read starts a new watch
                if time.monotonic() - began > self._lease_seconds / 4:
                    self._wake.set()  # etcd may have been replaced
            self._greenlets.remove(gevent.getcurrent())

    def _end_watch(self) -> None:
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _changed(self, change: Change) -> None:
        kind, _, name = change.key.removeprefix(self._prefix).partition("/")
        try:
            if kind == IDENTITY:
                self._leave()
                self._wake.set()
            elif kind == "groups" and change.value is not None:
                self._values[change.key] = change.value
                group = decode_group(name, change.value)
                if self._reader.group_changed(group, change.revision):
                    self._remembered = max(self._remembered, change.revision)
                    self._mark()
            elif kind == "claims" and change.value is not None:
                group_id, _, node = name.partition("/")
                self._reader.claimed(group_id, node, decode_claim(change.value))
            elif kind in ("sessions", "recalls", "groups"):
                self._wake.set()
        except InvalidValue as error:
            self._log.error(f"COPIES: {change.key} in etcd is invalid: {error}")

    def _ask(self, call: Callable[..., T], *args: Any) -> T:
        """Make a call in a thread. EtcdError is raised here, because the pool logs exceptions
        raised there."""
        found: T | EtcdError = self._pool.apply(_outcome, (call, *args))
        if isinstance(found, EtcdError):
            raise found
        return found

    def _note_standing(self, standing: Standing) -> None:
        if standing in BROKEN and self.standing is not standing:
            events.etcd_registry_broken(self._log, REASONS[standing], standing=str(standing))
        self.standing = standing

    def _note_answer(self) -> None:
        if self.is_away:
            self.is_away = self._is_reported = False
            events.etcd_responds(self._log)

    def _note_failure(self, error: EtcdError) -> None:
        if not self._is_reported:
            self._is_reported = True
            events.etcd_away(self._log, error=str(error))
        self.is_away = True

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}/{name}"


def _outcome(call: Callable[..., T], *args: Any) -> T | EtcdError:
    try:
        return call(*args)
    except EtcdError as error:
        return error


REASONS = {
    Standing.LOST: "etcd has lost its data",
    Standing.OLDER: "etcd has been restored from a backup",
    Standing.FOREIGN: "it is another registry",
}


def prefix_of(cluster: str) -> str:
    """Return the prefix of a cluster's keys."""
    return f"/nsqcy/{cluster}/"


def decoded(prefix: str, found: Iterable[KeyValue]) -> Contents:
    """Return the values of all keys with the prefix of a cluster."""
    pairs = list(found)
    contents = Contents(values={each.key: each.value for each in pairs})
    begin = _decode_identity(prefix, pairs, contents)
    # In order of change: if a node has two sessions, the latest one is used.
    for each in sorted(pairs, key=lambda each: each.revision):
        kind, _, name = each.key.removeprefix(prefix).partition("/")
        if each.revision < begin:
            continue
        try:
            if kind == "groups":
                contents.groups.append((decode_group(name, each.value), each.revision))
            elif kind == "sessions":
                contents.sessions.append(_decoded_session(name, each.value))
            elif kind == "claims":
                group_id, _, node = name.partition("/")
                contents.claims.append((group_id, node, decode_claim(each.value)))
            elif kind == "processes":
                contents.processes[name] = each.value.decode("utf-8", "replace")
            elif kind == "marks":
                contents.marks[name] = decode_mark(each.value)
            elif kind == "recalls":
                contents.statements[name] = decode_statement(each.value, each.revision)
        except InvalidValue as error:
            contents.invalid[each.key] = str(error)
    return contents


def _decode_identity(prefix: str, found: Sequence[KeyValue], contents: Contents) -> int:
    """Decode the identity; return the first revision whose values are valid."""
    pair = next((each for each in found if each.key == prefix + IDENTITY), None)
    if pair is None:
        return 0
    try:
        contents.identity = decode_identity(pair.value)
    except InvalidValue as error:
        contents.invalid[pair.key] = str(error)
        return 0
    return pair.revision if contents.identity.generation > 1 else 0


def _decoded_session(name: str, data: bytes) -> Session:
    try:
        value = json.loads(data)
        session = Session(
            name, value["node"], value["machine"], value["address"], value.get("zone", "")
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InvalidValue("not a session") from None
    if not all(isinstance(each, str) for each in astuple(session)):
        raise InvalidValue("not a session")
    return session
