"""The content of a hand-over to a successor, apart from memory: streams to other workers, sessions
of clients, HTTP connections, and counters.

Owns the order in which the parts rest, are packed and continue. Each part owns its own form;
nsqd/worker/succession.py owns the transport.

The topics are not here: the successor finds them in the memory that the last turn has left, as
after a death.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nsqcy.broker.core import pack_counters, restore_counters
from nsqcy.formats import SESSION
from nsqcy.http.server import HttpServer, Packed
from nsqcy.ipc.core import Mesh
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.names import is_ephemeral
from nsqcy.nsqd.worker.succession import NotHandedOver, Parcel
from nsqcy.process import ancillary
from nsqcy.protocol.core import Session, SessionManager
from nsqcy.server.core import Loop, accept_handover
from nsqcy.storage.core import IoThread

MESH, TCP, HTTP, COUNTERS, LEFT_OUT = "mesh", "tcp", "http", "counters", "left out"
BATCH = 64  # maximum sessions in one parcel
BATCH_BYTES = 1 << 20  # bytes of input and output after which a parcel is sent
LAST_TURNS = 16  # maximum turns until one leaves no file operation

_MISSING = object()


def counters_in(parcels: Sequence[Parcel]) -> dict[str, Any]:
    """Return the counters of topics and channels, by topic."""
    return next((each.state for each in parcels if each.kind == COUNTERS), {})


def in_flight_in(parcels: Sequence[Parcel]) -> dict[str, dict[str, dict[int, int]]]:
    """Return the deadlines of the messages in flight to sessions, by topic, channel and id."""
    found: dict[str, dict[str, dict[int, int]]] = {}
    for parcel in parcels:
        for state, _, _ in parcel.state["sessions"] if parcel.kind == TCP else ():
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
        io: IoThread,
        log: Log,
    ) -> None:
        self._loop = loop
        self._manager = manager
        self._mesh = mesh
        self._http = http
        self._io = io
        self._log = log

    # -- the predecessor

    def begin_rest(self) -> None:
        """Read nothing more from clients; answers and messages are still sent."""
        self._loop.enter()
        self._manager.stop_reading()
        self._http.stop_reading()

    def is_at_rest(self) -> bool:
        """Return whether everything can be packed."""
        self._loop.enter()
        self._loop.end_turn()
        return self._manager.is_at_rest and self._http.is_at_rest and not self._io.outstanding

    def end_rest(self) -> None:
        """Continue to serve the clients."""
        self._loop.enter()
        self._manager.resume_reading()
        self._http.resume_reading()

    def pack(self) -> Iterator[Parcel]:
        """End the last turn, and return the parcels. Raises NotHandedOver."""
        self._end_last_turn()
        yield Parcel(COUNTERS, pack_counters(self._manager.shard))
        batch = _Batch()
        left_out = []
        for session in self._manager.clients():
            if not batch.add(session):
                left_out.append(session.subscription)
            elif batch.is_full:
                yield batch.parcel()
                batch = _Batch()
        yield batch.parcel()
        if self._mesh is not None:
            yield Parcel(MESH, self._mesh.pack())
        for packed in self._http.pack():
            state = packed.state | {"unread": len(packed.unread)}
            yield Parcel(HTTP, state, packed.unread + packed.unsent, (packed.fd,))
        if left_out:
            yield Parcel(LEFT_OUT, {"subscriptions": [each for each in left_out if each]})
            events.clients_not_handed_over(self._log, clients=len(left_out))

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
                self._http.adopt_packed(packed)
            elif each.kind == LEFT_OUT:
                self._end_ephemeral_channels(each.state["subscriptions"])

    def _end_ephemeral_channels(self, subscriptions: list[list[str]]) -> None:
        """End the channels that ended with clients which were not handed over."""
        for topic, channel in subscriptions:
            found = self._manager.shard.topic(topic.encode())
            if found is None or not is_ephemeral(channel) or channel not in found.channels:
                continue
            if not found.channels[channel].consumers:
                found.delete_channel(channel)

    def _restore_sessions(self, parcel: Parcel) -> None:
        at = 0
        fds = iter(parcel.fds)
        common = parcel.state["common"]
        for own, unread, unsent in parcel.state["sessions"]:
            state = common | own
            SESSION.check_fields(state, "a session from the predecessor")
            middle, end = at + unread, at + unread + unsent
            fd = -1 if state["remote"] else next(fds)
            accept_handover(self._loop, fd, state, parcel.blob[at:middle], parcel.blob[middle:end])
            at = end


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

    def add(self, session: Session) -> bool:
        """Pack a session. Return False if another process cannot continue its encryption or
        compression."""
        try:
            state, unread, unsent = session.pack_whole()
        except ValueError:
            return False
        self._common = state if self._common is None else _common(self._common, state)
        self._sessions.append((state, len(unread), len(unsent)))
        self._parts += [unread, unsent]
        self._bytes += len(unread) + len(unsent)
        if not state["remote"]:
            self._fds.append(session.fileno())
        return True

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
