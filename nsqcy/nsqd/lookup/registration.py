"""nsqd's side of discovery: a greenlet per nsqlookupd registers the topics with it.

Each nsqlookupd first receives all topics, and then each change immediately. Changes are not queued
for an unreachable nsqlookupd: after a reconnect, it receives all topics again. This module does not
depend on workers or clients.

    connect ──► IDENTIFY ──► all topics ──► changes, and PING every 15 s
       ▲                                   │
       └── after a while, longer each time ◄── any error, or end of input
"""

import random
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import gevent
import gevent.socket
from gevent import sleep
from gevent.event import Event
from gevent.threadpool import ThreadPool

from nsqcy.logging import events, logger
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.lookup import protocol
from nsqcy.nsqd.lookup.protocol import (
    REGISTER,
    UNREGISTER,
    Command,
    Info,
    PeerFailure,
    Where,
    WrongPort,
)
from nsqcy.process.ancillary import Keep, close_all
from nsqcy.util.self_connect import refuse_itself

STEP_LIMIT = 1.0  # maximum seconds for a connect, a write and each response
PING_EVERY = 15.0
RETRY_FIRST, MAX_RETRY = 0.1, 15.0  # seconds to wait before the next attempt
RESOLVE_EVERY = 15.0  # seconds between name resolutions
NAMES_AT_ONCE = 8
IDLE_THREAD = 60.0  # seconds after which an idle thread ends
MAX_PENDING = 10_000  # maximum pending changes per nsqlookupd; beyond that, all topics are resent
BATCH = 200  # commands per write
WINDOW = 1000  # maximum unanswered commands while all topics are registered
PIECE = 1 << 16


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "i/o timeout"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


class Peer:
    """One lookupd."""

    def __init__(
        self,
        lookup: "Lookup",
        name: str,
        targets: tuple[Where, ...],
        dumped: dict[str, Any] | None = None,
    ) -> None:
        """dumped: the open connection of the previous version"""
        self.name = name
        self.info: Info | None = None  # the nsqlookupd's last report about itself
        self.settled = Event()  # whether it has answered once or failed to answer
        self._lookup = lookup
        self._targets = targets
        self._log = lookup.log
        self._sock: Any = None
        self._former: Any = None
        """Socket of the previous version, which identified itself differently."""
        self._answers = protocol.Answers(lookup.max_answer)
        self._doing = "connecting"
        self._mistake = ""  # why the configured address is wrong, if already logged
        # whether it has received all topics that existed when `_sync` was created
        self._told = False
        self._behind = False  # too many changes to send individually
        self._sync: deque[bytes] = deque()
        self._unanswered = 0  # commands from `_sync` that were sent and not answered yet
        self._pending: deque[Command] = deque()
        self._changes = self._answered = 0
        self._waiting: deque[tuple[int, Event]] = deque()  # number of changes that must be answered
        self._wake = Event()
        self.caught_up = Event()  # set while up to date, or not connected
        self.caught_up.set()
        self._is_idle = False
        self._ping_due = 0.0
        if dumped is not None:
            self._restore(dumped)
        self._greenlet = gevent.spawn(self._run)

    def dump(self, keep: Keep) -> dict[str, Any] | None:
        """Return the connection for the master's next version; None if it is in use."""
        if not self._is_idle or self._wake.is_set() or self._answers:
            return None
        return {
            "where": self._targets[0],
            "fd": keep(self._sock.fileno()),
            "info": self.info,
            "ping_due": self._ping_due,
        }

    def _restore(self, dumped: dict[str, Any]) -> None:
        sock = gevent.socket.socket(fileno=dumped["fd"])
        self.info = Info(*dumped["info"])
        self.settled.set()
        if self._lookup.has_changed:
            self._former = sock
            return
        self._sock = sock
        self._ping_due = dumped["ping_due"]
        self._told = True

    @property
    def told(self) -> bool:
        """Return whether this peer is connected and up to date."""
        return self._told

    def change(self, command: Command) -> None:
        """Send the creation or deletion of a topic or channel."""
        if not self._told:
            return  # `_sync` will include the change
        if len(self._pending) < MAX_PENDING:
            self._pending.append(command)
            self._changes += 1
        else:
            self._behind = True
        self.caught_up.clear()
        self._wake.set()

    def answered(self) -> Event:
        """Return an event that is set once this peer has acknowledged all changes so far, or is not
        connected."""
        event = Event()
        self._waiting.append((self._changes, event))
        if not self._told or self.caught_up.is_set():
            self._report_answered()
        return event

    def close(self) -> None:
        self._greenlet.kill(block=False)
        self._close_former()

    # -- a connection's lifecycle

    def _run(self) -> None:
        wait = RETRY_FIRST
        while True:
            began = time.monotonic()
            try:
                if not self._told:
                    self._connect()
                    self._register_all()
                self._serve()
            except Exception as error:
                self._report(error)
            finally:
                self._hang_up()
            self.settled.set()
            if time.monotonic() - began > MAX_RETRY:
                wait = RETRY_FIRST
            sleep(wait * random.uniform(0.8, 1.2))
            wait = min(2 * wait, MAX_RETRY)

    def _report(self, error: Exception) -> None:
        """Log an error. A wrong port is logged only once, because it stays wrong until it is
        corrected."""
        reason = _reason(error)
        if self._mistake and reason == self._mistake:
            self._log.debug(f"LOOKUPD({self.name}): {self._doing} - {reason}")
            return
        self._mistake = reason if isinstance(error, WrongPort) else ""
        events.lookupd_lost(self._log, lookupd=self.name, doing=self._doing, error=reason)

    def _hang_up(self) -> None:
        self._told = self._behind = False
        self._sync.clear()
        self._unanswered = 0
        self._pending.clear()
        self.caught_up.set()
        self._answered = self._changes
        self._report_answered()
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _close_former(self) -> None:
        """End the previous version's registrations, which this connection repeats: an nsqlookupd
        accepts only one IDENTIFY on a connection."""
        if self._former is not None:
            self._former.close()
            self._former = None

    def _connect(self) -> None:
        self._doing = "connecting"
        if not self._mistake:
            events.lookupd_connecting(self._log, lookupd=self.name)
        self._sock = self._dial()
        self._answers = protocol.Answers(self._lookup.max_answer)
        self._doing = "IDENTIFY"
        hello = protocol.MAGIC + protocol.identify(self._lookup.identity)
        (answer,) = self._exchange(hello, 1)
        if answer == b"E_INVALID":
            raise PeerFailure("lookupd returned E_INVALID")
        try:
            self.info = protocol.parse_info(answer)
        except ValueError as error:
            raise PeerFailure(f"parsing response - {error}: {answer[:100]!r}") from None
        self._mistake = ""
        events.lookupd_connected(self._log, self.info, lookupd=self.name)
        if not self.info.broadcast_address:
            self._log.error(f"LOOKUPD({self.name}): no broadcast address")
        if self._lookup.token and self.info.auth:
            self._doing = "AUTH"
            self._command(protocol.auth(self._lookup.token), 1)
        self.settled.set()

    def _dial(self) -> Any:
        for where in self._targets[:-1]:
            try:
                return _dial(where)
            except OSError:
                pass  # try the next address of the same nsqlookupd
        return _dial(self._targets[-1])

    def _register_all(self) -> None:
        # Set `_told` in the turn that reads all topics, so that every later change is queued.
        self._sync.extend(self._lookup.everything())
        self._told = True
        self.caught_up.clear()
        self._ping_due = time.monotonic() + PING_EVERY

    def _serve(self) -> None:
        while True:
            if not self._sync:
                self._report_answered()
            left = self._ping_due - time.monotonic()
            if self._behind:
                self._doing = "sending changes"
                raise PeerFailure("too far behind")
            if left <= 0:
                self._ping()
                self._ping_due = time.monotonic() + PING_EVERY
            elif self._sync:
                self._doing = "registering all topics and channels"
                self._register_more()
            elif self._pending:
                self._tell_changes()
            else:
                self.caught_up.set()
                self._close_former()
                self._idle(left)

    def _ping(self) -> None:
        self._log.debug(f"LOOKUPD({self.name}): sending heartbeat")
        self._take_answers(0)
        self._doing = "PING"
        self._command(protocol.PING, 1)

    def _register_more(self) -> None:
        """Send the next commands before the last ones are answered, so that neither side waits for
        the other. The last call waits for all responses."""
        batch = [self._sync.popleft() for _ in range(min(BATCH, len(self._sync)))]
        self._send(b"".join(batch))
        self._unanswered += len(batch)
        self._take_answers(WINDOW - BATCH if self._sync else 0)

    def _take_answers(self, left: int) -> None:
        """Receive responses until at most this number of commands is unanswered."""
        while self._unanswered > left:
            self._check(self._answer())
            self._unanswered -= 1

    def _tell_changes(self) -> None:
        batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
        for command in batch:
            events.lookupd_told(self._log, command.branch, lookupd=self.name, command=str(command))
        self._doing = str(batch[0])
        self._command(b"".join(command.wire for command in batch), len(batch))
        self._answered += len(batch)

    def _report_answered(self) -> None:
        while self._waiting and self._waiting[0][0] <= self._answered:
            self._waiting.popleft()[1].set()

    def _command(self, data: bytes, count: int) -> None:
        for answer in self._exchange(data, count):
            self._check(answer)

    def _check(self, answer: bytes) -> None:
        if answer.startswith(b"E_"):
            raise PeerFailure(answer[:200].decode("utf-8", "backslashreplace"))

    # -- bytes

    def _exchange(self, data: bytes, count: int) -> list[bytes]:
        self._send(data)
        return [self._answer() for _ in range(count)]

    def _send(self, data: bytes) -> None:
        self._sock.settimeout(STEP_LIMIT)
        self._sock.sendall(data)

    def _answer(self) -> bytes:
        deadline = time.monotonic() + STEP_LIMIT
        while True:
            answer = self._answers.next()
            if answer is not None:
                return answer
            self._sock.settimeout(max(0.001, deadline - time.monotonic()))
            data = self._sock.recv(PIECE)
            if not data:
                raise PeerFailure("EOF")
            self._answers.feed(data)
            if time.monotonic() > deadline:
                raise TimeoutError

    def _idle(self, limit: float) -> None:
        """Wait for a change, or for unsolicited input; the latter ends the connection."""
        self._wake.clear()
        if self._answers:
            raise PeerFailure("unsolicited answer")
        watcher = gevent.get_hub().loop.io(self._sock.fileno(), 1)
        watcher.start(self._wake.set)
        self._is_idle = True
        try:
            self._wake.wait(limit)
        finally:
            self._is_idle = False
            watcher.stop()
            watcher.close()
        self._doing = "waiting for changes"
        self._sock.settimeout(0.0)
        try:
            data = self._sock.recv(1)
        except BlockingIOError:
            return
        raise PeerFailure("unsolicited answer" if data else "EOF")


def _dial(where: Where) -> Any:
    family = socket.AF_INET if len(where) == 2 else socket.AF_INET6
    sock = gevent.socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(STEP_LIMIT)
        sock.connect(where)
        refuse_itself(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except BaseException:
        sock.close()
        raise
    return sock


class Address:
    """One configured address: the nsqlookupds behind it, which may change."""

    def __init__(
        self, lookup: "Lookup", text: str, places: Iterable[tuple[Where, ...]] = ()
    ) -> None:
        """places: as the name was resolved before"""
        self.places: list[tuple[Where, ...]] = list(places)
        self.settled = Event()  # set once the name has been resolved, or failed to resolve
        self._lookup = lookup
        self._text = text
        self._greenlet: gevent.Greenlet | None = None
        try:
            self._host, self._port = protocol.split(text)
        except ValueError as error:
            lookup.log.error(f"LOOKUPD({text}): connecting - {error}")
            self.settled.set()
            return
        where = protocol.literal(self._host, self._port)
        if where is None:
            self._greenlet = gevent.spawn(self._follow)
        else:
            self.places = [(where,)]
            self.settled.set()

    def close(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def title(self, place: tuple[Where, ...]) -> str:
        """Return the name used in the log."""
        if self._greenlet is None or len(self.places) == 1:
            return self._text.strip()
        return f"{self._text.strip()} at {place[0][0]}"

    def _follow(self) -> None:
        wait = RETRY_FIRST
        while True:
            found = self._lookup.resolve(self._host, self._port)
            if isinstance(found, str):
                if wait == RETRY_FIRST:
                    events.lookupd_unresolved(self._lookup.log, lookupd=self._text, error=found)
                pause, wait = wait, min(2 * wait, RESOLVE_EVERY)
            else:
                self.places = list(protocol.places(found))
                self._lookup.reconcile()
                pause, wait = RESOLVE_EVERY, RETRY_FIRST
            self.settled.set()
            sleep(pause)


def _attempt(look_up: Callable[[str, int], list[Where]], host: str, port: int) -> list[Where] | str:
    """Runs in a thread. It does not raise, because the hub would print the error."""
    try:
        return look_up(host, port)
    except (OSError, UnicodeError) as error:
        return _reason(error)


def resolve(host: str, port: int) -> list[Where]:
    """Return all addresses of a name. Blocks. Raises OSError or UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [each[4] for each in found]


def _where(dumped: list[Any]) -> Where:
    """Return an address from JSON, where it is a list."""
    return tuple(dumped)


class Lookup:
    """Registration with all configured nsqlookupds."""

    def __init__(
        self,
        known_topics: KnownTopics,
        identity: dict[str, Any],
        max_answer: int,
        lines: logger.Log,
        look_up: Callable[[str, int], list[Where]] = resolve,
        token: str = "",
    ) -> None:
        """max_answer: maximum bytes per response. look_up: blocks, and is called in a thread.
        token: authenticates this nsqd to nsqlookupds that support it."""
        self.log = lines
        self.identity = identity
        self.max_answer = max_answer
        self.token = token
        self._known_topics = known_topics
        self._look_up = look_up
        self._addresses: dict[str, Address] = {}
        self._peers: dict[Where, Peer] = {}
        self._pool: ThreadPool | None = None
        self._withdrawn = False
        self.has_changed = False
        """Whether nsqlookupds show what the previous version reported about itself."""
        # From the previous version, until `set_addresses`.
        self._dumped_places: dict[str, list[tuple[Where, ...]]] = {}
        self._dumped_peers: dict[Where, dict[str, Any]] = {}

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the master's next version. Connections that are in use are left out:
        the next version connects again."""
        peers = [peer.dump(keep) for peer in self.peers]
        return {
            "withdrawn": self._withdrawn,
            "identity": self.identity,
            "places": {text: address.places for text, address in self._addresses.items()},
            "peers": [each for each in peers if each is not None],
        }

    def take_over(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version. `set_addresses` must follow before the
        hub runs."""
        self._withdrawn = dumped["withdrawn"]
        self.has_changed = dumped.get("identity", self.identity) != self.identity
        self._dumped_places = {
            text: [tuple(map(_where, place)) for place in places]
            for text, places in dumped["places"].items()
        }
        self._dumped_peers = {_where(each["where"]): each for each in dumped["peers"]}

    @property
    def peers(self) -> list[Peer]:
        return list(self._peers.values())

    @property
    def addresses(self) -> list[Address]:
        return list(self._addresses.values())

    def set_addresses(self, texts: Iterable[str]) -> None:
        """Change the addresses; connections to unchanged addresses stay open."""
        wanted = dict.fromkeys(text.strip() for text in texts)
        for text in self._addresses.keys() - wanted:
            self._addresses.pop(text).close()
        for text in wanted:
            if text not in self._addresses:
                places = self._dumped_places.get(text, ())
                self._addresses[text] = Address(self, text, places)
        self.reconcile()
        self._dumped_places = {}
        close_all(each["fd"] for each in self._dumped_peers.values())
        self._dumped_peers = {}

    def reconcile(self) -> None:
        """Keep exactly one peer for each nsqlookupd behind the addresses."""
        wanted: dict[Where, tuple[str, tuple[Where, ...]]] = {}
        for address in self._addresses.values():
            for place in address.places:
                wanted.setdefault(place[0], (address.title(place), place))
        for where in self._peers.keys() - wanted:
            peer = self._peers.pop(where)
            events.lookupd_removed(self.log, lookupd=peer.name)
            peer.close()
        for where, (name, place) in wanted.items():
            if where not in self._peers:
                dumped = self._dumped_peers.pop(where, None)
                if dumped is None:
                    events.lookupd_added(self.log, lookupd=name)
                self._peers[where] = Peer(self, name, place, dumped)

    def resolve(self, host: str, port: int) -> list[Where] | str:
        """Return all addresses of a name, or the error. Uses a separate thread pool, because a slow
        resolution must not delay file writes."""
        if self._pool is None:
            hub = gevent.get_hub()
            self._pool = ThreadPool(NAMES_AT_ONCE, hub=hub, idle_task_timeout=IDLE_THREAD)
        found: list[Where] | str = self._pool.apply(_attempt, (self._look_up, host, port))
        return found

    def close(self) -> None:
        """Close all connections. No unregistration is sent: an nsqlookupd removes the registrations
        of a closed connection."""
        for address in self._addresses.values():
            address.close()
        for peer in self._peers.values():
            peer.close()
        if self._addresses:
            self.log.info("LOOKUP: closing")
        self._addresses = {}
        self._peers = {}

    # -- registrations

    def everything(self) -> list[bytes]:
        """Return the REGISTER commands for all known topics; a channel's command also registers its
        topic."""
        if self._withdrawn:
            return []
        return [command.wire for name in self._known_topics for command in self._registering(name)]

    def _registering(self, name: str) -> list[Command]:
        topic = self._known_topics.get(name)
        channels = (topic.channels if topic else None) or ("",)
        return [Command(REGISTER, name, channel) for channel in channels]

    def change(self, command: Command) -> None:
        """Register or unregister a topic or channel."""
        if not self._withdrawn:
            self._tell(command)

    def _tell(self, command: Command) -> None:
        for peer in self._peers.values():
            peer.change(command)

    def withdraw(self, limit: float) -> None:
        """Unregister everything until restore(), so that nsqlookupds send no clients here. Return
        when all connected nsqlookupds have been notified, or after this many seconds."""
        if not self._withdrawn:
            self._withdrawn = True
            for name in self._known_topics:
                # Channels first: nsqlookupds remove all channels together with their topic.
                for pair in reversed(self._known_topics.pairs(name)):
                    self._tell(Command(UNREGISTER, *pair))
        self._await_all(limit)

    def restore(self, limit: float) -> None:
        """Register everything again."""
        if self._withdrawn:
            self._withdrawn = False
            for name in self._known_topics:
                for command in self._registering(name):
                    self._tell(command)
        self._await_all(limit)

    def await_answers(self) -> None:
        """Return when all connected nsqlookupds have answered every change so far, or after
        STEP_LIMIT."""
        gevent.wait([peer.answered() for peer in self._peers.values()], timeout=STEP_LIMIT)

    def _await_all(self, limit: float) -> None:
        gevent.wait([peer.caught_up for peer in self._peers.values()], timeout=limit)
