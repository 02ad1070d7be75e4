"""The content of a hand-over to a successor, apart from memory: streams to other workers, sessions
of clients, HTTP connections, and counters.

The state of TLS and deflate stays in the predecessor, which becomes a pump (nsqd/worker/pump.py):
the session, or the HTTP connection, moves like any other, but with one end of a socket pair as its
socket.

Owns the order in which the parts rest, are packed and continue. Each part owns its own form;
nsqd/worker/succession.py owns the transport.

The topics are not here: the successor finds them in the memory that the last turn has left, as
after a death.
"""

import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from nsqcy.broker.core import pack_counters, restore_counters
from nsqcy.formats import SESSION
from nsqcy.http.server import HttpConnection, HttpServer, Make, Packed
from nsqcy.ipc.core import Mesh
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.nsqd.worker.pump import Layer, Pumped
from nsqcy.nsqd.worker.succession import NotHandedOver, Parcel
from nsqcy.nsqd.worker.upgrade_drain import UpgradeDrain
from nsqcy.process import ancillary
from nsqcy.protocol.core import Session, SessionManager
from nsqcy.server.core import Loop, accept_handover
from nsqcy.storage.core import IoThread

MESH, TCP, HTTP, COUNTERS = "mesh", "tcp", "http", "counters"
PUMPED = "pumped"  # when the first worker of a pumped connection was replaced
BATCH = 64  # maximum sessions in one parcel
BATCH_BYTES = 1 << 20  # bytes of input and output after which a parcel is sent
LAST_TURNS = 16  # maximum turns until one leaves no file operation
HANDSHAKES_LIMIT = 0.5  # maximum seconds for which the rest waits for clients' TLS handshakes

Surrender = Callable[[], tuple[int, Layer, bytes]]
"""Gives away a packed connection's descriptor, its layer, and the encoded output not sent yet."""


class _Kept(NamedTuple):
    """A connection whose TLS or codec stays in this process, and the two ends of its pair."""

    surrender: Surrender
    peer: str
    ours: socket.socket
    theirs: socket.socket


_MISSING = object()


def counters_in(parcels: Sequence[Parcel]) -> dict[str, Any]:
    """Return the counters of topics and channels, by topic."""
    return next((each.state for each in parcels if each.kind == COUNTERS), {})


def in_flight_in(parcels: Sequence[Parcel]) -> dict[str, dict[str, dict[int, int]]]:
    """Return the deadlines of the messages in flight to sessions, by topic, channel and id."""
    found: dict[str, dict[str, dict[int, int]]] = {}
    for parcel in parcels:
        for own, _, _ in parcel.state["sessions"] if parcel.kind == TCP else ():
            state = parcel.state["common"] | own
            if "topic" in state:
                deadlines = found.setdefault(state["topic"], {}).setdefault(state["channel"], {})
                deadlines.update((int(id, 16), due) for id, due in state["in_flight"])
    return found


class WholeHandover:
    """Packs all clients of this worker, or continues those of the predecessor."""

    def __init__(
        self,
        loop: Loop,
        manager: SessionManager,
        mesh: Mesh | None,
        http: HttpServer,
        https: Make | None,
        io: IoThread,
        drain: UpgradeDrain,
        log: Log,
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._mesh = mesh
        self._http = http
        self._https = https
        self._io = io
        self._drain = drain
        self._log = log
        self._kept: list[_Kept] = []
        self._handshakes_until = 0.0

    # -- the predecessor

    def begin_rest(self) -> None:
        """Read nothing more from clients; answers and messages are still sent."""
        self._loop.enter()
        self._handshakes_until = time.monotonic() + HANDSHAKES_LIMIT
        self._manager.stop_reading()
        self._http.stop_reading()

    def is_at_rest(self) -> bool:
        """Return whether everything can be packed."""
        self._loop.enter()
        self._loop.end_turn()
        return (
            self._manager.is_at_rest
            and self._http.is_at_rest
            and not self._io.outstanding
            and not self._awaits_handshakes()
        )

    def _awaits_handshakes(self) -> bool:
        """Return whether handshakes may still end: a client's handshake cannot be packed."""
        is_under_way = self._manager.is_upgrading or self._http.is_in_handshake
        return is_under_way and time.monotonic() < self._handshakes_until

    def end_rest(self) -> None:
        """Continue to serve the clients."""
        for each in self._kept:
            each.ours.close()
            each.theirs.close()
        self._kept.clear()
        self._loop.enter()
        self._manager.resume_reading()
        self._http.resume_reading()

    def pack(self) -> Iterator[Parcel]:
        """End the last turn, and return the parcels. Raises NotHandedOver."""
        self._end_last_turn()
        yield Parcel(COUNTERS, pack_counters(self._manager.shard))
        batch = _Batch()
        left_out = 0
        for session in self._manager.clients():
            if not self._add(batch, session):
                left_out += 1
            elif batch.is_full:
                yield from self._sent(batch.parcel())
                batch = _Batch()
        yield from self._sent(batch.parcel())
        if self._mesh is not None:
            yield Parcel(MESH, self._mesh.pack())
        for connection in self._http.clients():
            parcel = self._pack_http(connection)
            if parcel is None:
                left_out += 1
            else:
                yield from self._sent(parcel)
        if left_out:
            events.clients_not_handed_over(self._log, clients=left_out)

    def pumped(self) -> list[Pumped]:
        """Return the connections that this process must pump after the hand-over, and give up their
        descriptors."""
        found = []
        for each in self._kept:
            client, layer, unsent = each.surrender()
            found.append(Pumped(client, each.ours.detach(), layer, unsent, each.peer))
        return found

    def _add(self, batch: "_Batch", session: Session) -> bool:
        """Pack a session. Return False if its client's handshake is under way."""
        try:
            state, unread, unsent = session.pack_whole()
        except ValueError:
            return False
        since = self._drain.since(session)
        if since is not None:
            state[PUMPED] = since
        if state["remote"]:
            batch.add(state, unread, unsent, None)
        elif session.needs_pump:
            state[PUMPED] = time.monotonic_ns()
            fd = self._keep(session.surrender, state["remote_address"])
            batch.add(state, unread, unsent, fd)
        else:
            batch.add(state, unread, unsent, session.fileno())
        return True

    def _pack_http(self, connection: HttpConnection) -> Parcel | None:
        packed = connection.pack()
        if packed is None:
            return None
        fd, since = packed.fd, self._drain.since(connection)
        state = packed.state | {"unread": len(packed.unread)}
        if packed.surrender is not None:
            since = time.monotonic_ns()
            fd = self._keep(packed.surrender, state["peer"])
        if since is not None:
            state[PUMPED] = since
        return Parcel(HTTP, state, packed.unread + packed.unsent, (fd,))

    def _keep(self, surrender: Surrender, peer: str) -> int:
        """Keep a connection's socket in this process. Return the descriptor of the one that the
        successor gets instead. Raises NotHandedOver."""
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            raise NotHandedOver(f"cannot create a socket pair: {error.strerror}") from None
        for end in (ours, theirs):
            end.setblocking(False)
        self._kept.append(_Kept(surrender, peer, ours, theirs))
        return theirs.fileno()

    def _sent(self, parcel: Parcel) -> Iterator[Parcel]:
        """Send a parcel; then only the successor needs its ends of the socket pairs."""
        yield parcel
        for each in self._kept:
            each.theirs.close()

    def _end_last_turn(self) -> None:
        """End a turn after which nothing is left to write."""
        for _ in range(LAST_TURNS):
            self._io.drain_now()
            if self.is_at_rest():
                self._manager.shard.settle()
                if not self._io.outstanding:
                    return
        raise NotHandedOver("file operations do not end")

    # -- the successor

    def restore_streams(self, parcels: list[Parcel]) -> None:
        """Continue the streams between the workers, before there is a session."""
        for each in parcels:
            if each.kind == MESH and self._mesh is not None:
                self._mesh.unpack(each.state)

    def restore_clients(self, parcels: list[Parcel]) -> None:
        """Continue the sessions and connections, after the topics have been loaded, and before the
        first turn."""
        self._loop.enter()
        for each in parcels:
            if each.kind == COUNTERS:
                restore_counters(self._manager.shard, each.state)
            elif each.kind == TCP:
                self._restore_sessions(each)
        if self._mesh is not None:
            self._mesh.close_unclaimed()
        for each in parcels:
            if each.kind == HTTP:
                unread = each.state["unread"]
                packed = Packed(each.fds[0], each.state, each.blob[:unread], each.blob[unread:])
                self._watch(self._http.adopt_packed(packed, self._https), each.state)

    def _restore_sessions(self, parcel: Parcel) -> None:
        at = 0
        fds = iter(parcel.fds)
        common = parcel.state["common"]
        for own, unread, unsent in parcel.state["sessions"]:
            state = common | own
            SESSION.check_fields(state, "a session from the predecessor")
            middle, end = at + unread, at + unread + unsent
            fd = -1 if state["remote"] else next(fds)
            session = accept_handover(
                self._loop, fd, state, parcel.blob[at:middle], parcel.blob[middle:end]
            )
            self._watch(session, state)
            at = end

    def _watch(self, connection: Session | HttpConnection | None, state: dict[str, Any]) -> None:
        """Let a pumped connection end some time after the upgrade."""
        if connection is not None and PUMPED in state:
            self._drain.add(connection, state[PUMPED])


class _Batch:
    """Sessions that travel together, because a datagram for each one would take much longer.

    Most of their state is the same: it is stated once, because the clients wait for every byte of
    JSON.
    """

    def __init__(self) -> None:
        self._common: dict[str, Any] | None = None  # what all states contain
        self._sessions: list[tuple[dict[str, Any], int, int]] = []
        self._parts: list[bytes] = []
        self._bytes = 0
        self._fds: list[int] = []

    @property
    def is_full(self) -> bool:
        return (
            len(self._fds) == ancillary.MAX_FDS
            or len(self._sessions) == BATCH
            or self._bytes >= BATCH_BYTES
        )

    def add(self, state: dict[str, Any], unread: bytes, unsent: bytes, fd: int | None) -> None:
        """Add a packed session. fd: None for the far end of a stream."""
        self._common = state if self._common is None else _common(self._common, state)
        self._sessions.append((state, len(unread), len(unsent)))
        self._parts += [unread, unsent]
        self._bytes += len(unread) + len(unsent)
        if fd is not None:
            self._fds.append(fd)

    def parcel(self) -> Parcel:
        common = self._common or {}
        sessions = [
            ({key: value for key, value in state.items() if key not in common}, *sizes)
            for state, *sizes in self._sessions
        ]
        state = {"common": common, "sessions": sessions}
        return Parcel(TCP, state, b"".join(self._parts), tuple(self._fds))


def _common(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the part of `one` that `other` contains, too."""
    return {key: value for key, value in one.items() if other.get(key, _MISSING) == value}
