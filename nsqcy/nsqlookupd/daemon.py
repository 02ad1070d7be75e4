"""A running nsqlookupd: one process, one hub, and a greenlet for each TCP connection.

Owns the connections and the clocks. Sessions handle the TCP protocol; the Api handles HTTP
requests.
"""

import contextlib
import socket
import time
from collections.abc import Callable

import gevent
import gevent.socket

from nsqcy import NSQ_VERSION
from nsqcy.config.daemon_options import hostname
from nsqcy.daemon import single_process as daemon
from nsqcy.errors import Stop
from nsqcy.http.request_counts import Requests
from nsqcy.http.server import HttpServer
from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.net.input_pool import InputPool, address_of
from nsqcy.net.listeners import Listener
from nsqcy.nsqlookupd.api import Api
from nsqcy.nsqlookupd.options import LookupdOptions
from nsqcy.nsqlookupd.protocol import Session, SessionContext
from nsqcy.nsqlookupd.registry import Moment, Registry
from nsqcy.process.handoff import Accepted
from nsqcy.process.systemd import Notifier
from nsqcy.users.credentials import Known, read
from nsqcy.users.gate import Gate
from nsqcy.users.user import Users
from nsqcy.util import garbage
from nsqcy.util.gotext import json_bytes
from nsqcy.util.slices import Slices, Turns

_MAGIC_LIMIT = 60.0  # maximum seconds until a client has sent the protocol version
_SEND_LIMIT = 60.0  # maximum seconds until a client has accepted a response
_LINGER_LIMIT = 5.0  # maximum seconds until a client has closed its side after an error
_RECV_SIZE = 16 << 10
_TURNS_A_SEND = 64  # maximum turns whose responses are sent together
_LEAVING = 64  # registrations of an ended connection that are removed without a pause
_COLLECTED = 100
"""New objects before a garbage collection; a full one then takes less than a millisecond."""


def clock() -> Moment:
    return Moment(time.monotonic_ns(), time.time_ns())


class Daemon(daemon.Daemon):
    def __init__(
        self,
        options: LookupdOptions,
        listeners: list[Listener],
        log: Log,
        reread: Callable[[], int | None],
        notifier: Notifier,
        known: Known | None = None,
    ) -> None:
        """known: the users; None disables access control."""
        registry = Registry(options.inactive_producer_timeout, options.tombstone_lifetime)
        gate = None if known is None else Gate(known, "nsqlookupd", log)
        requests = Requests()
        api = Api(registry, clock, options, log, requests, self._count_connections, gate)
        http = HttpServer(gevent.get_hub().loop, api)
        super().__init__(listeners, http, log, reread, notifier, requests)
        self.options = options
        self._known = known
        self.input: InputPool[Connection] = InputPool.of_unauthenticated(options.max_input_bytes)
        self.turns = Turns()  # commands per connection per event-loop iteration
        self.context = SessionContext(
            registry,
            _identity(options, listeners, auth=known is not None),
            log,
            None if known is None else known.of_token,
            options.require_registration_auth,
        )
        self._connections: set[Connection] = set()

    def run(self) -> int:
        with garbage.bounded(_COLLECTED):
            code = super().run()
        for connection in list(self._connections):
            connection.kill()
        return code

    def reread_settings(self) -> None:
        super().reread_settings()
        if self._known is None:
            return
        try:
            self._known.users, warnings = read(self.options.auth_file)
        except Stop as stop:
            events.users_refused(self.log, error=str(stop))
            return
        for warning in warnings:
            events.config_warning(self.log, warning)
        events.auth_file_reloaded(self.log)
        for connection in list(self._connections):
            connection.check_user(self._known.users)

    def _count_connections(self) -> dict[str, int]:
        return {"tcp": len(self._connections), "http": self._http.connections}

    def send(self, item: Accepted) -> bool:
        if item.kind == "http":
            return super().send(item)
        events.client_connected(self.log, client=item.peer)
        connection = Connection(self, item)
        self._connections.add(connection)
        connection.rawlink(self._connections.discard)
        connection.start()
        return True


class Connection(gevent.Greenlet):  # type: ignore[misc]
    """The connection of one nsqd. Reading pauses while the nsqd does not accept responses."""

    def __init__(self, daemon: Daemon, item: Accepted) -> None:
        super().__init__()
        self._daemon = daemon
        self._session = Session(daemon.context, item.peer)
        self._address = address_of(item.peer)
        self._sock = gevent.socket.socket(fileno=item.sock.detach())

    def check_user(self, users: Users) -> None:
        """End the connection if its user has changed; the nsqd then authenticates again."""
        user = self._session.user
        if user is not None and users.get(user.name) != user:
            self.kill(block=False)

    def _run(self) -> None:
        session = self._session
        try:
            self._converse()
            if session.closing:
                self._linger()
        except OSError as error:
            self._daemon.log.info(f"client({session.address}) - {error}")
        finally:
            self._sock.close()
            slices = Slices(self._daemon.turns.wait, _LEAVING)
            for _ in session.leave(clock()):
                slices.step()
            self._account()

    def _converse(self) -> None:
        session, sock = self._session, self._sock
        while not session.closing:
            sock.settimeout(None if session.spoke else _MAGIC_LIMIT)
            data = sock.recv(_RECV_SIZE)
            if data:
                session.feed(data)
            else:
                session.feed_eof()
            more = True
            while more:
                answers, more = self._take_turns()
                if answers:
                    sock.settimeout(_SEND_LIMIT)
                    sock.sendall(answers)
            self._account()

    def _take_turns(self) -> tuple[bytes, bool]:
        """Process input. Return the responses, and whether more input can be processed now."""
        answers = []
        for _ in range(_TURNS_A_SEND):
            self._daemon.turns.wait()
            some, more = self._session.turn(clock())
            answers.append(some)
            if not more:
                break
        return b"".join(answers), more

    def _account(self) -> None:
        """Count unfinished input; end the connections that exceed the limits."""
        pool = self._daemon.input
        pool.hold(self, self._address, self._session.held)
        for each in pool.excess(self._address):
            each.drop_input()

    def drop_input(self) -> None:
        """End the connection, because there is too much unfinished input."""
        self._daemon.log.info(
            f"client({self._session.address}) - partially received commands exceed"
            " --max-input-bytes"
        )
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _linger(self) -> None:
        """Wait for the client to close. Closing with unread input would reset the connection and
        discard the last response."""
        self._sock.shutdown(socket.SHUT_WR)
        with gevent.Timeout(_LINGER_LIMIT, False):
            while self._sock.recv(_RECV_SIZE):
                pass


def _identity(options: LookupdOptions, listeners: list[Listener], *, auth: bool) -> bytes:
    """Return the response to IDENTIFY. It contains the HTTP port at which nsqds query channels.
    auth: whether AUTH is supported."""
    ports = {each.kind: each.port for each in listeners}
    return json_bytes(
        {
            "broadcast_address": options.broadcast_address,
            "hostname": hostname(),
            "http_port": ports["http"],
            "tcp_port": ports["tcp"],
            "version": NSQ_VERSION,
        }
        | ({"auth": True} if auth else {})
    )
