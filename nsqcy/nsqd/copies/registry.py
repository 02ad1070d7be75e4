"""A worker's interface to the registry of groups in etcd.

Owns the keys below a cluster's prefix, the lease of this process, and the threads that wait for
etcd. Passes values on as read; the state machine interprets them.

    processes/<node>       name of the last process of a node
    sessions/<session>     where a running process can be reached; deleted with its lease
    groups/<group>         value of a group
    claims/<group>/<node>  claim of a member; deleted with the lease of its process
"""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, TypeVar

import gevent
from gevent.event import Event
from gevent.threadpool import ThreadPool

from nsqcy.copies.group import Group
from nsqcy.copies.ports import Claim
from nsqcy.copies.values import (
    InvalidValue,
    decode_claim,
    decode_group,
    encode_claim,
    encode_group,
)
from nsqcy.etcd.client import EtcdClient
from nsqcy.etcd.messages import Change, EtcdError, Expected, KeyValue, Put
from nsqcy.etcd.watch import Watch
from nsqcy.logging.types import Lines

THREADS = 4
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Session:
    """A running process, as seen by others."""

    id: str
    node: str
    machine: str
    """Processes on the same machine fail together."""
    address: str
    """Host and port of its listener for streams."""
    zone: str = ""
    """Machines in the same zone may fail together."""


@dataclass
class Contents:
    """All of a cluster's values."""

    groups: list[tuple[Group, int]] = field(default_factory=list)
    """Groups, each with the revision of its value."""
    sessions: list[Session] = field(default_factory=list)
    claims: list[tuple[str, str, Claim]] = field(default_factory=list)
    """Group, node and claim."""
    invalid: dict[str, str] = field(default_factory=dict)
    """Keys whose values are invalid, with the reason."""


class Reader(Protocol):
    """Receives the values of the registry."""

    def registry_read(
        self, revision: int, groups: Sequence[tuple[Group, int]], sessions: Sequence[Session]
    ) -> None:
        """Accept all groups, each with its revision, and all sessions."""
        ...

    def group_changed(self, group: Group, revision: int) -> None: ...
    def claimed(self, group_id: str, node: str, claim: Claim) -> None: ...


class NodeNames(Protocol):
    """The process names on a node's disk."""

    def names(self) -> Sequence[str]:
        """Return the process last known to be registered, and all that have started since,
        including this one."""
        ...

    @property
    def revision(self) -> int:
        """Latest revision of the registry that this node has seen."""
        ...

    def saw(self, revision: int) -> None:
        """Note a revision of the registry."""
        ...

    def registered(self, *, is_current: bool) -> None:
        """Note that this process has been registered, and whether the disk has all earlier data."""
        ...


class Registry:
    """A process's connection to the registry. Except for close(), its methods do not block."""

    def __init__(
        self,
        client: EtcdClient,
        cluster: str,
        session: Session,
        names: NodeNames,
        lease: float,
        reader: Reader,
        log: Lines,
    ) -> None:
        self._client = client
        self._prefix = prefix_of(cluster)
        self._session = session
        self._names = names
        self._lease_seconds = lease
        self._reader = reader
        self._log = log
        self._pool = ThreadPool(THREADS)
        self._lease = 0
        self._is_current = True
        self._wake = Event()
        self._watch: Watch | None = None
        self.is_away = True
        """Whether the latest request to etcd failed, or none has been answered yet."""
        self._is_reported = False
        self._greenlets = [gevent.spawn(self._run)]

    def close(self) -> None:
        """End the session. Blocks for at most a second."""
        gevent.killall(self._greenlets)
        if self._watch is not None:
            self._watch.close()
        self._pool.kill()

    # -- changes; their outcomes are read later

    def propose(self, base: Group | None, value: Group, absent: str) -> None:
        """Begin a transaction that replaces a group's value."""
        key = self._key("groups", value.id)
        expected = [Expected(key, None if base is None else encode_group(base))]
        if absent:
            expected.append(Expected(self._key("sessions", absent), None))
        self._begin(self._client.transact, expected, [Put(key, encode_group(value))])

    def forget(self, group: Group) -> None:
        """Delete the value of a group that has ended."""
        key = self._key("groups", group.id)
        self._begin(self._client.transact, [Expected(key, encode_group(group))], [], [key])

    def claim(self, group_id: str, claim: Claim) -> None:
        key = self._key("claims", f"{group_id}/{self._session.node}")
        self._begin(self._client.transact, [], [Put(key, encode_claim(claim), self._lease)])

    def end_session(self, session: str) -> None:
        self._begin(self._client.transact, [], [], [self._key("sessions", session)])

    def _begin(self, call: Callable[..., Any], *args: Any) -> None:
        gevent.spawn(self._attempt, call, *args)

    def _attempt(self, call: Callable[..., Any], *args: Any) -> None:
        try:
            self._ask(call, *args)
        except EtcdError:
            return  # the state machine will retry
        self._wake.set()

    # -- reading

    def _run(self) -> None:
        while True:
            try:
                if not self._lease:
                    self._register()
                self._renew()
                self._note_answer()
            except EtcdError as error:
                self._note_failure(error)
            self._wake.clear()
            self._wake.wait(self._lease_seconds / 4)

    def _register(self) -> None:
        """Register this process, then create its session."""
        key = self._key("processes", self._session.node)
        while True:
            found, _ = self._ask(self._client.read, key)
            known = next((each.value for each in found if each.key == key), None)
            if known == self._session.id.encode():
                break
            names = self._names.names()
            self._is_current = self._is_current and (known is None or known.decode() in names)
            put = Put(key, self._session.id.encode())
            self._ask(self._client.transact, [Expected(key, known)], [put])
        self._names.registered(is_current=self._is_current)
        self._lease = self._ask(self._client.grant, int(self._lease_seconds))

    def _renew(self) -> None:
        if not self._ask(self._client.keep_alive, self._lease):
            self._lease = self._ask(self._client.grant, int(self._lease_seconds))
            self._put_session()
        seen = self._names.revision  # a change may arrive while the keys are read
        found, revision = self._ask(self._client.read, self._prefix)
        self._check_revision(revision, seen)
        contents = decoded(self._prefix, found)
        for key, reason in contents.invalid.items():
            self._log.error(f"COPIES: {key} in etcd is invalid: {reason}")
        if self._session.id not in {each.id for each in contents.sessions}:
            self._put_session()
        self._reader.registry_read(revision, contents.groups, contents.sessions)
        for claim in contents.claims:
            self._reader.claimed(*claim)
        if self._watch is None:
            self._watch = self._ask(self._client.watch, self._prefix, revision + 1)
            self._greenlets.append(gevent.spawn(self._follow, self._watch))

    def _check_revision(self, revision: int, seen: int) -> None:
        """Raise EtcdError if etcd was restored from a backup that lacks what this node has seen.
        Its values may be wrong, so no group may change."""
        if revision < seen:
            raise EtcdError(
                f"its revision {revision} is older than {seen}, which this node has seen: etcd was "
                "restored from a backup. Stop all nsqds, run `nsqcy copies repair` on each node, "
                "and start them"
            )
        self._names.saw(revision)

    def _put_session(self) -> None:
        value = json.dumps(
            {
                "node": self._session.node,
                "machine": self._session.machine,
                "address": self._session.address,
                "zone": self._session.zone,
            }
        )
        key = self._key("sessions", self._session.id)
        put = Put(key, value.encode(), self._lease)
        self._ask(self._client.transact, [], [put])
        self._wake.set()

    def _follow(self, watch: Watch) -> None:
        """Pass on changes to groups, and read everything if anything else changes."""
        try:
            while True:
                for change in self._ask(watch.read):
                    self._changed(change)
        except EtcdError:
            self._watch = None  # the next read starts a new watch
            self._greenlets.remove(gevent.getcurrent())

    def _changed(self, change: Change) -> None:
        kind, _, name = change.key.removeprefix(self._prefix).partition("/")
        try:
            if kind == "groups" and change.value is not None:
                self._reader.group_changed(decode_group(name, change.value), change.revision)
            elif kind == "claims" and change.value is not None:
                group_id, _, node = name.partition("/")
                self._reader.claimed(group_id, node, decode_claim(change.value))
            elif kind == "sessions":
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

    def _note_answer(self) -> None:
        if self.is_away:
            self.is_away = self._is_reported = False
            self._log.info("COPIES: etcd responds", event="etcd_responds")

    def _note_failure(self, error: EtcdError) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._log.error(
                f"COPIES: etcd does not respond: {error}", event="etcd_away", error=str(error)
            )
        self.is_away = True

    def _key(self, kind: str, name: str) -> str:
        return f"{self._prefix}{kind}/{name}"


def _outcome(call: Callable[..., T], *args: Any) -> T | EtcdError:
    try:
        return call(*args)
    except EtcdError as error:
        return error


def prefix_of(cluster: str) -> str:
    """Return the prefix of a cluster's keys."""
    return f"/nsqcy/{cluster}/"


def decoded(prefix: str, found: Iterable[KeyValue]) -> Contents:
    """Return the values of all keys with the prefix of a cluster."""
    contents = Contents()
    # In order of change: of two sessions of a node, the latest one counts.
    for each in sorted(found, key=lambda each: each.revision):
        kind, _, name = each.key.removeprefix(prefix).partition("/")
        try:
            if kind == "groups":
                contents.groups.append((decode_group(name, each.value), each.revision))
            elif kind == "sessions":
                contents.sessions.append(_decoded_session(name, each.value))
            elif kind == "claims":
                group_id, _, node = name.partition("/")
                contents.claims.append((group_id, node, decode_claim(each.value)))
        except InvalidValue as error:
            contents.invalid[each.key] = str(error)
    return contents


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
