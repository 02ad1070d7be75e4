"""The HTTP connections of one process: sockets and libev watchers around `HttpProtocol`.

A connection is a state machine called by its watchers. Handlers that never block run without a
greenlet; all others run in one, because they may wait for other processes. Independent of routes
and parameters: `Api` routes heads and turns requests into replies.

Requests similar to an earlier one may be answered in C (`nsqcy.server.http_fastpath`) without this
module: see `HttpConnection.learn`.
"""

import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gevent
from gevent.event import Event

from nsqcy.config.durations import SECOND, format_duration
from nsqcy.errors import HttpError
from nsqcy.http.parser import (
    CONTINUE,
    MAX_DRAIN,
    Body,
    Bytes,
    Fault,
    Head,
    HeadCache,
    HttpProtocol,
    Malformed,
    Reply,
)
from nsqcy.http.repeated_requests import Polls
from nsqcy.http.router import (
    IGNORED,
    INPUT_BUDGET_EXCEEDED,
    LOCAL_ONLY,
    Api,
    Later,
    Need,
    Request,
    Route,
)
from nsqcy.logging import events
from nsqcy.net.input_pool import InputPool, address_of
from nsqcy.server.http_fastpath import (
    RECEIVE,
    UNAUTHENTICATED_RECEIVE,
    Connection,
    Server,
    Shape,
)

_READ = 1
_WRITE = 2
_JOINED = 65536  # maximum bytes of answers that are joined and sent together
_LARGE = 262144  # size of a large body; several would take too long for one iteration
_LOGGED = 2048  # maximum characters of a target in the log; a target may be a megabyte long


Make = Callable[["HttpServer", socket.socket, str], "HttpConnection"]


@dataclass(frozen=True)
class Timeouts:
    """Peer timeouts in seconds. `sweep` is the interval between checks, and therefore their
    precision."""

    idle: float  # maximum seconds between two requests, and before the first
    head: float = 60  # maximum seconds from the first byte of a head to the last
    # maximum seconds between two pieces of a body, or of an answer that the peer is reading
    progress: float = 60
    linger: float = 5  # maximum seconds until the peer closes its side after the last answer
    sweep: float = 5


class Packed(NamedTuple):
    """A connection without a request in execution, for another process: its state as JSON can
    contain it, the input to read again, and the output that has not been sent."""

    fd: int
    state: dict[str, Any]
    unread: bytes
    unsent: bytes
    surrender: Callable[[], tuple[int, Any, bytes]] | None = None
    """If the socket's encryption cannot be packed: gives away its descriptor, its layer, and the
    encrypted output that has not been sent. The other process gets a plain socket instead."""


class HttpServer(Server):
    """One process's HTTP connections, their shared state, and one timer for all deadlines."""

    def __init__(
        self, loop: Any, api: Api, *, timeouts: Timeouts | None = None, send_buffer: int = 0
    ) -> None:
        self.loop = loop
        self.api = api
        self.heads = HeadCache(api.reads_headers)
        budget = api.limits.max_input_bytes
        self.pool: InputPool[HttpConnection] = InputPool.of_budget(budget)
        self.unauthenticated: InputPool[HttpConnection] = (
            InputPool.of_unauthenticated(budget) if api.knows_users else self.pool
        )
        self.timeouts = timeouts or Timeouts(api.limits.http_idle_timeout / SECOND)
        self.now = time.monotonic()  # time of the last sweep, which is precise enough for deadlines
        self.tls_only: Reply | None = None  # reply to every request without TLS
        self._send_buffer = send_buffer
        self._polls = Polls()
        self.is_ending = False
        self.is_resting = False  # reads no input, and begins no request
        self._all_closed = Event()
        self._connections: set[HttpConnection] = set()
        self._to_resume: list[HttpConnection] = []
        self._wake_up = loop.async_()
        self._wake_up.start(self._resume)
        self._large: deque[Callable[[], None]] = deque()
        self._next_large = loop.async_()
        self._next_large.start(self._run_large)
        self._sweeper = loop.timer(self.timeouts.sweep, self.timeouts.sweep)
        self._sweeper.start(self._sweep)

    def is_news(self, peer: str, target: str, status: int) -> bool:
        """Return whether the log should show a GET request: pollers repeat the same ones."""
        return self._polls.is_news(self.now, peer, target, status)

    def adopt(
        self, sock: socket.socket, peer: str, connection: Make | None = None
    ) -> "HttpConnection":
        """Serve an accepted socket. `peer` is the client's name in the log: `ip:port`, or `@`.

        `connection` creates the connection, if it is not plain HTTP.
        """
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer)
        adopted = (connection or HttpConnection)(self, sock, peer)
        self._connections.add(adopted)
        return adopted

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def held(self) -> int:
        """Bytes of unfinished requests."""
        others = 0 if self.unauthenticated is self.pool else self.unauthenticated.held
        return self.pool.held + others

    def unlearn(self) -> None:
        """Recheck every head, because permissions have changed."""
        super().unlearn()
        for connection in self._connections:
            connection.unlearn()

    def wind_down(self, limit: float) -> None:
        """Answer the requests whose heads have been received, and close each connection after its
        last answer. Waits until all connections are closed, for at most `limit` seconds."""
        self.is_ending = True
        for connection in list(self._connections):
            connection.wind_down()
        if self._connections:
            self._all_closed.wait(limit)

    def stop_reading(self) -> None:
        """Read no more input and begin no requests, because another process takes over."""
        self.is_resting = True
        for connection in self._connections:
            connection.wants_input()

    def resume_reading(self) -> None:
        """Continue after `stop_reading`."""
        self.is_resting = False
        for connection in list(self._connections):
            connection.go_on()

    @property
    def is_at_rest(self) -> bool:
        """Whether no request is being executed; ask after `stop_reading`."""
        return all(connection.is_packable for connection in self._connections)

    @property
    def is_in_handshake(self) -> bool:
        """Whether a client's TLS handshake is under way."""
        return any(connection.is_in_handshake for connection in self._connections)

    def clients(self) -> list["HttpConnection"]:
        """Return the connections to pack, for the process that takes over."""
        return list(self._connections)

    def adopt_packed(self, packed: Packed, connection: Make | None = None) -> "HttpConnection":
        """Continue a connection of another process; take ownership of its descriptor.

        `connection` creates an encrypted connection, if the peer has not sent anything yet.
        """
        sock, peer = socket.socket(fileno=packed.fd), packed.state["peer"]
        if packed.state["is_new"]:
            return self.adopt(sock, peer, connection)
        make = DecryptedConnection if packed.state["secure"] else HttpConnection
        adopted = make(self, sock, peer)
        self._connections.add(adopted)
        adopted.unpack(packed)
        return adopted

    def close(self) -> None:
        """Close every connection immediately and stop all watchers."""
        for connection in list(self._connections):
            connection.close()
        for watcher in (self._wake_up, self._next_large, self._sweeper):
            watcher.stop()
            watcher.close()

    # For the connections

    def resume(self, connection: "HttpConnection") -> None:
        """Process the buffered input of a connection in another event-loop iteration.

        Uses an async watcher, because an answer may come from a prepare watcher. There, a greenlet
        started for the next request would not run until the poll returned.
        """
        self._to_resume.append(connection)
        self._wake_up.send()

    def run_large(self, run: Callable[[], None]) -> None:
        """Handle requests with large bodies, one per event-loop iteration."""
        self._large.append(run)
        self._next_large.send()

    def forget(self, connection: "HttpConnection") -> None:
        self._connections.discard(connection)
        if self.is_ending and not self._connections:
            self._all_closed.set()

    def _resume(self) -> None:
        connections, self._to_resume = self._to_resume, []
        for connection in connections:
            connection.process()

    def _run_large(self) -> None:
        run = self._large.popleft()
        if self._large:
            self._next_large.send()
        run()

    def _sweep(self) -> None:
        self.now = time.monotonic()
        for connection in [c for c in self._connections if c.is_late(self.now)]:
            connection.close()


class HttpConnection(Connection):
    """One socket. Handles one request at a time, and reads no more until it is answered.

    reading     the read watcher runs; `process` turns bytes into events
    waiting     for a backend call; input stays in the socket
    sending     part of an answer is unsent; the write watcher runs, and no input is read
    lingering   all is sent and our side is shut down; input is dropped until the peer closes,
                because with unread input the kernel would reset the connection and lose the
                last answer
    """

    __slots__ = (
        "_address",
        "_begun",
        "_closed",
        "_droppable",
        "_head",
        "_held",
        "_in_process",
        "_lingering",
        "_out",
        "_peer",
        "_pool",
        "_protocol",
        "_read_watcher",
        "_reading",
        "_resuming",
        "_route",
        "_server",
        "_short",
        "_sock",
        "_unsent",
        "_waiting",
        "_write_watcher",
    )
    secure = False
    is_in_handshake = False
    events_a_turn = 64
    is_pending = False  # whether some input may not have been passed to the protocol
    certificate_names: Sequence[str] = ()  # names in the peer's verified certificate

    def __init__(self, server: HttpServer, sock: socket.socket, peer: str) -> None:
        super().__init__(server, sock.fileno())
        self._server = server
        self._sock = sock
        self._peer = peer
        self._address = address_of(peer)
        self._pool = server.unauthenticated
        if server.api.knows_users:
            self.receive_size = UNAUTHENTICATED_RECEIVE
        self._protocol = HttpProtocol(server.heads)
        self._route: Route | None = None
        self._head: Head | None = None
        self._begun = 0  # ns
        self._held = 0  # bytes of unfinished input, as counted in the pool
        self._droppable = True
        self._waiting = False
        self._resuming = False
        self._in_process = False
        self._lingering = False
        self._closed = False
        self._out: list[Bytes] = []
        self._unsent: memoryview | None = None
        self._write_watcher: Any = None
        self._read_watcher = server.loop.io(sock.fileno(), _READ)
        self._read_watcher.start(self.on_readable)
        self._reading = True
        # All connections share the heads that the fast path has learned, so only one kind of
        # connection may use it. This rule excludes plain connections if TLS is required, and
        # encrypted connections, whose bytes are not heads.
        self._short = not self.secure and server.tls_only is None
        self.at_rest = self._short

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self.fd = -1
        self.at_rest = False
        for watcher in (self._read_watcher, self._write_watcher):
            if watcher is not None:
                watcher.stop()
                watcher.close()
        self._sock.close()
        self._count(self._pool, 0, droppable=True)
        self._protocol.give_up()  # releases an unfinished head immediately
        self._unsent = None
        self._out.clear()
        self._server.forget(self)

    def wind_down(self) -> None:
        """Close once the received requests have been answered."""
        self._short = self.at_rest = False
        self.on_readable()  # the socket may contain a request
        self.process()

    @property
    def is_packable(self) -> bool:
        """Whether no request is being executed."""
        return not (self._waiting or self._in_process)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_quiet(self) -> bool:
        """Whether no request has begun, and all answers are sent."""
        sends = self._out or self._unsent is not None
        return not (sends or self._resuming) and self.is_packable and self._protocol.idle

    def withdraw(self) -> None:
        """Do nothing: only the client begins an exchange."""

    def end(self) -> None:
        """Close after the current request, if there is one."""
        if self.is_quiet or self._protocol.in_head:
            self.close()
        else:
            self._protocol.is_last = True

    def pack(self) -> Packed | None:
        """Return what another process needs; None if it cannot continue this connection, which does
        not change."""
        found = self._protocol.pack()
        if found is None:
            return None
        state, unread = found
        state |= {
            "peer": self._peer,
            "is_new": False,
            "secure": self.secure,
            "certificate_names": list(self.certificate_names),
            "lingering": self._lingering,
            "idle": self._server.now - self.since,
        }
        parts = self._out if self._unsent is None else [self._unsent, *self._out]
        return Packed(self.fd, state, unread, b"".join(parts))

    def unpack(self, packed: Packed) -> None:
        """Continue where another process was, in a new connection."""
        self.since = self._server.now - packed.state["idle"]
        self.at_rest = False
        self._lingering = packed.state["lingering"]
        self._protocol.unpack(packed.state, packed.unread)
        if packed.unsent:
            self._out.append(packed.unsent)
        self.process()

    def go_on(self) -> None:
        """Continue reading, and handle the buffered input."""
        self._read()
        if not (self._waiting or self._resuming) and self._protocol.has_input:
            self._resume()

    def is_late(self, now: float) -> bool:
        timeouts = self._server.timeouts
        if self._lingering:
            limit = timeouts.linger
        elif self._unsent is not None:
            limit = timeouts.progress
        elif self._waiting:
            return False  # this side, not the peer, is slow
        elif self._protocol.idle:
            limit = timeouts.idle
        elif self._protocol.in_head:
            limit = timeouts.head
        else:
            limit = timeouts.progress
        return now - self.since > limit

    # Input

    def wants_input(self) -> bool:
        """Return whether the socket may be read now; if not, stop its read watcher."""
        if self._waiting or self._resuming or self._unsent is not None or self._server.is_resting:
            self._read_watcher.stop()
            self._reading = False
            return False
        return True

    def received(self, data: bytes) -> None:
        """Process bytes from the socket; b"" is the end of input."""
        if self._lingering:
            if not data:
                self.close()
            return
        protocol = self._protocol
        if not protocol.in_head:  # a head's timeout starts with its first byte
            self.since = self._server.now
        if data:
            protocol.feed(data)
        else:
            protocol.feed_eof()
        self.process()

    def process(self) -> None:
        """Handle buffered input until a request must wait, or `events_a_turn` events have
        been handled."""
        self._resuming = False
        if self._closed or self._unsent is not None:
            return
        self._in_process = True
        try:
            self._handle_events()
        except Exception:
            self.broken()
            return
        finally:
            self._in_process = False
        self._account()
        if self._server.is_ending and self._head is None and not self._resuming:
            self._protocol.closing = True
        self._flush()

    def broken(self) -> None:
        """Log a bug and close only this connection."""
        self._server.api.panic()
        self.close()

    def _handle_events(self) -> None:
        protocol = self._protocol
        handled = 0
        while not (self._waiting or protocol.closing or self._server.is_resting):
            event = protocol.next_event()
            if event is None:
                if protocol.paused:
                    self._resume()
                elif self.is_pending and self._feed_more():
                    continue
                return
            if type(event) is Head:
                self._on_head(event)
            elif type(event) is Body:
                self._on_body(event)
            else:
                if type(event) is Malformed:
                    self._out.append(event.render())
                protocol.closing = True
            handled += 1
            if handled >= self.events_a_turn and (protocol.has_input or self.is_pending):
                self._resume()
                return

    def _feed_more(self) -> bool:
        """Pass waiting input to the protocol; return whether there was input."""
        return False

    def _resume(self) -> None:
        self._resuming = True
        self._server.resume(self)

    def _account(self) -> None:
        """Count buffered input; reject the requests that exceed the process's limits."""
        held = self._protocol.held
        if not (held or self._held):
            return
        # Complete requests and answers are still handled.
        droppable = not (self._waiting or self._resuming or self._unsent is not None)
        is_authenticated = (
            self._server.api.gate is not None
            and self._head is not None
            and self._route is not None
            and self._route.need is not Need.NOTHING
        )
        pool = self._server.pool if is_authenticated else self._server.unauthenticated
        self._count(pool, held, droppable=droppable)
        for each in pool.excess(self._address):
            each.drop_input()

    def _count(self, pool: "InputPool[HttpConnection]", held: int, *, droppable: bool) -> None:
        if pool is not self._pool:
            self._pool.hold(self, self._address, 0)
            self._pool = pool
        elif held == self._held and droppable == self._droppable:
            return
        self._held = held
        self._droppable = droppable
        pool.hold(self, self._address, held, droppable=droppable)

    def drop_input(self) -> None:
        """Reject the unfinished request, because there is too much unfinished input."""
        self._held = 0
        if self._head is None:
            self.close()
        else:
            self._protocol.give_up()
            self._answer(INPUT_BUDGET_EXCEEDED)

    # The fast path

    def answered(self, answers: list[bytes]) -> None:
        self._out += answers

    def learn(self, data: bytes, length: int) -> Shape | None:
        """Return the template for requests that differ from this head only in their length, or
        None."""
        api = self._server.api
        head = self._server.heads.accepted(data)
        if head is None or head.length != length or not head.is_plain:
            return None
        route = api.router.resolve(head)
        if type(route) is not Route or route.short is None:
            return None
        if api.gate is not None and not api.gate.admits(route, head, self.certificate_names):
            return None
        found = route.short(api, head)
        if found is None:
            return None
        sink, reply = found
        before, after, _ = reply.usual()
        return Shape(sink, before, after)

    def panicked(self, data: bytes) -> bytes:
        """Log the current exception and return the answer to the request with this head."""
        self._head = self._server.heads.accepted(data)
        self._begun = time.perf_counter_ns()
        reply = self._server.api.panic()
        self._log(reply)
        self._head = None
        before, after, _ = reply.usual()
        return before + self._server.date() + after

    # Requests

    def _on_head(self, head: Head) -> None:
        self._head = head
        self._begun = time.perf_counter_ns()
        api = self._server.api
        if self._server.tls_only is not None and not self.secure:
            self._answer(self._server.tls_only)
            return
        route = api.router.resolve(head)
        if type(route) is Reply:
            self._answer(route)
            return
        assert type(route) is Route
        self._route = route
        if route.local and not (self._is_local() or api.limits.debug_remote):
            self._answer(LOCAL_ONLY)
            return
        if api.gate is not None:
            found = api.gate.admit(route, head, self._peer, self.certificate_names)
            if isinstance(found, Reply):
                self._answer(found)
                return
            self._route = route = found
            if route.need is not Need.NOTHING:
                self.receive_size = RECEIVE
        if route.body is None:
            self._run(route, Request(head, _NO_BODY, self._peer))
            return
        try:
            limit = route.body(api, head)
        except HttpError as error:
            self._answer(route.error(error))
            return
        if head.length > (MAX_DRAIN if limit == IGNORED else limit):
            self._run(route, Request(head, _TOO_BIG, self._peer))
            return
        if head.expects_continue:
            self._out.append(CONTINUE)
        if limit == IGNORED:
            self._protocol.ignore_body()
        else:
            self._protocol.read_body(limit)

    def _is_local(self) -> bool:
        return self._sock.family == socket.AF_UNIX or self._peer.startswith(_LOCAL)

    def _on_body(self, body: Body) -> None:
        route, head = self._route, self._head
        assert route is not None and head is not None
        self._run(route, Request(head, body, self._peer))

    def _run(self, route: Route, request: Request) -> None:
        self._waiting = True
        if len(request.body.data) > _LARGE:
            self._server.run_large(lambda: self._handle(route, request))
        else:
            self._handle(route, request)

    def _handle(self, route: Route, request: Request) -> None:
        if route.inline:
            self._finish(self._server.api.call(route, request))
        else:
            gevent.spawn(self._run_in_greenlet, route, request)

    def _run_in_greenlet(self, route: Route, request: Request) -> None:
        self._finish(self._server.api.call(route, request))

    def _finish(self, result: Reply | Later) -> None:
        if type(result) is Reply:
            self._answer(result)
            return
        assert isinstance(result, Later)
        try:
            result.begin(self._answer)
        except Exception:
            reply = self._server.api.panic()
            if self._waiting:
                self._answer(reply)

    # Output

    def _answer(self, reply: Reply | None) -> None:
        """Answer the current request; with None, close the connection after the earlier answers.

        Unless `process` is running, send the answer and continue with the next request.
        """
        if self._closed:
            return
        server = self._server
        self._waiting = False
        self.since = server.now
        protocol = self._protocol
        if reply is None:
            protocol.closing = True
        else:
            if server.is_ending:
                more = protocol.has_input or (self.is_pending and self._feed_more())
                protocol.is_last = not more
            if reply.logged:
                self._log(reply)
            self._out += protocol.answer(reply, server.date())
        self._head = None
        if self._in_process:
            return
        self._flush()
        more = protocol.has_input or self.is_pending
        if more and not self._closed and self._unsent is None:
            self._resume()

    def _log(self, reply: Reply) -> None:
        head = self._head
        assert head is not None
        elapsed = format_duration(time.perf_counter_ns() - self._begun)
        target = head.target
        if len(target) > _LOGGED:
            target = target[:_LOGGED] + "..."
        if head.method == "GET" and not self._server.is_news(self._peer, target, reply.status):
            text = f"{reply.status} {head.method} {target} ({self._peer}) {elapsed}"
            self._server.api.log.debug(text)
            return
        events.http_request(
            self._server.api.log,
            status=reply.status,
            method=head.method,
            target=target,
            peer=self._peer,
            elapsed=elapsed,
        )

    def _flush(self) -> None:
        """Send answers. If the socket does not accept them all, the write watcher sends the
        rest."""
        if self._closed or self._unsent is not None:
            return
        while self._out:
            if not self._send(self._output()):
                return
        self._sent()

    def _output(self) -> Bytes:
        """Return and remove unsent answers: short parts together, or one long part, which is not
        copied."""
        out = self._out
        count = size = 0
        while count < len(out) and (size := size + len(out[count])) <= _JOINED:
            count += 1
        data = out[0] if count <= 1 else b"".join(out[:count])
        del out[: count or 1]
        return data

    def _send(self, data: Bytes) -> bool:
        """Send data; return whether the socket accepted all of it. `_unsent` keeps the rest."""
        sent = self.send(data)
        if sent is None:
            return False
        if sent == len(data):
            self._unsent = None
            return True
        self.send_later(memoryview(data)[sent:])
        return False

    def send_later(self, data: memoryview) -> None:
        self._unsent = data
        if self._write_watcher is None:
            self._write_watcher = self._server.loop.io(self._sock.fileno(), _WRITE)
            self._write_watcher.start(self._writable)

    def _writable(self) -> None:
        assert self._unsent is not None
        self.since = self._server.now
        if not self._send(self._unsent):
            return
        self._flush()
        if self._unsent is None and not self._closed:
            self._write_watcher.stop()
            self._write_watcher.close()
            self._write_watcher = None
            if self._protocol.has_input or self.is_pending or self._server.is_ending:
                self.process()

    def _sent(self) -> None:
        """Close, linger or resume reading, once all answers have been sent."""
        if self._protocol.closing and not self._lingering:
            if not self._protocol.unread:
                self.close()
                return
            self._linger()
        else:
            if self._short:
                self.at_rest = self._protocol.at_rest and not (self._waiting or self._resuming)
            if not self._reading:
                self._read()

    def _linger(self) -> None:
        self._lingering = True
        self.since = self._server.now
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
            return
        self._read()

    def _read(self) -> None:
        if self._server.is_resting:
            return
        if not (self._reading or self._waiting or self._resuming or self._closed):
            self._reading = True
            self._read_watcher.start(self.on_readable)


class DecryptedConnection(HttpConnection):
    """An HTTPS connection whose encryption is in another process: its socket is one end of a socket
    pair."""

    __slots__ = ("certificate_names",)
    secure = True

    def unpack(self, packed: Packed) -> None:
        self.certificate_names = tuple(packed.state["certificate_names"])
        super().unpack(packed)

    def _is_local(self) -> bool:
        return self._peer.startswith(_LOCAL)


_LOCAL = ("127.", "[::1]:")
_NO_BODY = Body(b"")
_TOO_BIG = Body(b"", Fault.TOO_BIG)
