"""nsqlookupd's TCP protocol V1, without I/O: bytes in, bytes out.

Owns the framing, the commands and the error texts. Reads no clock and no socket: callers pass the
time and the input. Buffers grow with the bytes received, not with the announced length.

    "  V1", then commands: a line; IDENTIFY adds a length (i32, big-endian) and a body
    one response per command, in order: a length and the bytes, without a type; this includes errors

Every error ends the connection, because the start of the next command is unknown.
"""

import struct
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nsqcy.config.durations import format_duration
from nsqcy.errors import ClientError
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import is_valid_name
from nsqcy.nsqlookupd.registry import CHANNEL, TOPIC, Moment, Peer, Registration, Registry
from nsqcy.util import gojson

if TYPE_CHECKING:
    from nsqcy.users.user import User

MAGIC: Final = b"  V1"
MAX_LINE: Final = 256 << 10
MAX_WORDS: Final = 4  # maximum words: a command and its parameters; further words are ignored
MAX_BODY: Final = 64 << 10
MAX_LENGTH: Final = 1 << 20  # a larger number cannot be the length of a body
MAX_TEXT: Final = 1024
"""Maximum bytes of a line, the body of IDENTIFY, and each of its strings. NSQ has no limits; an
IDENTIFY has about 200 bytes, a REGISTER at most 140."""

_STEPS_A_TURN = 16  # maximum commands, or registrations that a command removes
_LOGGED = 200  # maximum characters of a logged error, which may quote a line
_LENGTH = struct.Struct(">i")

_FIELDS: gojson.Fields = {
    "remote_address": (gojson.text, ""),  # validated, but not used
    "hostname": (gojson.text, ""),
    "broadcast_address": (gojson.text, ""),
    "tcp_port": (gojson.int64, 0),
    "http_port": (gojson.int64, 0),
    "version": (gojson.text, ""),
    "topology_zone": (gojson.text, ""),
    "topology_region": (gojson.text, ""),
}
_REQUIRED = ("broadcast_address", "tcp_port", "http_port", "version")


class SessionContext(NamedTuple):
    """State shared by all sessions."""

    registry: Registry
    identity: bytes  # response to IDENTIFY
    log: Lines
    # users by token; None without a users file
    user_of: "Callable[[bytes], User | None] | None" = None
    needs_auth: bool = False  # whether nsqds that have not authenticated are refused


class _State(Enum):
    MAGIC = auto()
    LINE = auto()
    LENGTH = auto()
    BODY = auto()
    UNREGISTER = auto()  # the registrations of a command are being removed
    ENDED = auto()


def sized(answer: bytes) -> bytes:
    return _LENGTH.pack(len(answer)) + answer


class Session:
    """Protocol state of one connection. address: the peer's address.

    Call `feed` or `feed_eof`, then `turn` until it has nothing more to do. When `closing`, send the
    last responses and close. Exhaust `leave` when the connection has ended for any reason.
    """

    __slots__ = (
        "_asked",
        "_buffer",
        "_context",
        "_eof",
        "_peer",
        "_removing",
        "_scanned",
        "_size",
        "_state",
        "address",
        "user",
    )

    def __init__(self, context: SessionContext, address: str) -> None:
        self.address = address
        self.user: User | None = None  # the user as which the nsqd has authenticated
        self._context = context
        self._peer: Peer | None = None
        self._state = _State.MAGIC
        self._buffer = bytearray()
        self._scanned = 0  # leading bytes of the buffer known to contain no line end
        self._size = 0  # size of the expected body
        self._eof = False
        self._removing: Iterator[list[Registration]] = iter(())
        self._asked = ""

    @property
    def spoke(self) -> bool:
        """Whether the protocol version has been received."""
        return self._state is not _State.MAGIC

    @property
    def closing(self) -> bool:
        return self._state is _State.ENDED

    @property
    def held(self) -> int:
        """Bytes of buffered input."""
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        if not self.closing:
            self._buffer += data

    def feed_eof(self) -> None:
        self._eof = True

    def turn(self, now: Moment) -> tuple[bytes, bool]:
        """Process input. Return the responses, and whether more input can be processed now."""
        answers: list[bytes] = []
        for _ in range(_STEPS_A_TURN):
            try:
                answer = self._step(now)
            except ClientError as error:
                answers.append(sized(error.wire))
                self._refused(error)
                return b"".join(answers), False
            if answer is None:
                if self._eof:
                    self._end()
                return b"".join(answers), False
            if answer:
                answers.append(sized(answer))
        return b"".join(answers), True

    def leave(self, now: Moment) -> Iterator[None]:
        """End the session: remove the peer's registrations, one at a time."""
        log = self._context.log
        if self._peer is not None:
            events.nsqd_left(log, client=self.address)
            for removed in self._context.registry.leave(self._peer, now):
                for registration in removed:
                    log.info(f"DB: client({self.address}) UNREGISTER {registration}")
                yield
            self._peer = None
        self._end()

    def _refused(self, error: ClientError) -> None:
        if self.spoke:
            text = str(error)[:_LOGGED]
            events.client_error(self._context.log, client=self.address, error=text)
            self._context.log.error(f"client({self.address}) - {text}")
        self._end()

    def _end(self) -> None:
        self._state = _State.ENDED
        self._buffer = bytearray()

    # Framing

    def _step(self, now: Moment) -> bytes | None:
        """Process one command. Return its response, b"" if there is none, or None if the input is
        incomplete."""
        state = self._state
        if state is _State.LINE:
            return self._next_line(now)
        if state is _State.MAGIC:
            return self._next_magic()
        if state is _State.LENGTH:
            return self._next_length()
        if state is _State.BODY:
            return self._next_body(now)
        if state is _State.UNREGISTER:
            return self._next_removal()
        return None

    def _take(self, count: int) -> bytes | None:
        if len(self._buffer) < count:
            return None
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _next_magic(self) -> bytes | None:
        magic = self._take(len(MAGIC))
        if magic is None:
            if self._eof:
                self._context.log.error("failed to read protocol version - EOF")
            return None
        if magic != MAGIC:
            shown = magic.decode("latin-1")
            self._context.log.error(f"client({self.address}) bad protocol magic '{shown}'")
            raise ClientError("E_BAD_PROTOCOL")
        self._context.log.info(f"CLIENT({self.address}): desired protocol magic '  V1'")
        self._state = _State.LINE
        return b""

    def _next_line(self, now: Moment) -> bytes | None:
        end = self._buffer.find(b"\n", self._scanned)
        if (len(self._buffer) if end < 0 else end) > MAX_LINE:
            raise ClientError("E_INVALID", f"command is longer than {MAX_LINE} bytes")
        if end < 0:
            self._scanned = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._scanned = 0
        name, *params = line.strip().decode("utf-8", "surrogateescape").split(" ", MAX_WORDS)
        command = _COMMANDS.get(name)
        if command is None:
            raise ClientError("E_INVALID", f"invalid command {name}")
        return command(self, params, now)

    def _next_length(self) -> bytes | None:
        data = self._take(_LENGTH.size)
        if data is None and not self._eof:
            return None
        self._size = -1 if data is None else _LENGTH.unpack(data)[0]
        if MAX_BODY < self._size <= MAX_LENGTH:
            raise ClientError("E_BAD_BODY", f"IDENTIFY body too big {self._size} > {MAX_BODY}")
        if not 0 <= self._size <= MAX_LENGTH:
            raise ClientError("E_BAD_BODY", "IDENTIFY failed to read body size")
        self._state = _State.BODY
        return b""

    def _next_body(self, now: Moment) -> bytes | None:
        body = self._take(self._size)
        if body is not None:
            self._state = _State.LINE
            return self._identified(body, now)
        if self._eof:
            raise ClientError("E_BAD_BODY", "IDENTIFY failed to read body")
        return None

    # Commands

    def _identify(self, params: list[str], now: Moment) -> bytes:
        if self._peer is not None:
            raise ClientError("E_INVALID", "cannot IDENTIFY again")
        self._state = _State.LENGTH
        return b""

    def _identified(self, body: bytes, now: Moment) -> bytes:
        try:
            said: dict[str, Any] = gojson.decode(body, _FIELDS)
        except ValueError:
            raise ClientError("E_BAD_BODY", "IDENTIFY failed to decode JSON body") from None
        for name, value in said.items():
            size = len(value.encode()) if isinstance(value, str) else 0
            if size > MAX_TEXT:
                raise ClientError("E_BAD_BODY", f"IDENTIFY {name} too long {size} > {MAX_TEXT}")
        if not all(said[name] for name in _REQUIRED):
            raise ClientError("E_BAD_BODY", "IDENTIFY missing fields")
        del said["remote_address"]
        context = self._context
        peer = self._peer = Peer(self.address, now, **said)
        events.nsqd_identified(
            context.log,
            peer.tcp_port,
            peer.http_port,
            peer.version,
            client=self.address,
            broadcast_address=peer.broadcast_address,
        )
        if not context.needs_auth:
            self._show(peer)
        return context.identity

    def _show(self, peer: Peer) -> None:
        for registration in self._context.registry.identify(peer):
            self._context.log.info(f"DB: client({self.address}) REGISTER {registration}")

    def _auth(self, params: list[str], now: Moment) -> bytes:
        """Authenticate an nsqd. NSQ has no AUTH, so nsqlookupd announces it after IDENTIFY."""
        context = self._context
        if context.user_of is None or self._peer is None or self.user is not None:
            raise ClientError("E_INVALID", "cannot AUTH in current state")
        token = " ".join(params).encode("utf-8", "surrogateescape")
        user = context.user_of(token)
        if user is None or not user.register:
            raise ClientError(
                "E_AUTH_FAILED",
                "AUTH failed: the user must exist and have permission to register",
            )
        self.user = user
        self._peer.authenticate()
        events.nsqd_authenticated(context.log, client=self.address, user=user.name)
        self._show(self._peer)
        return b"OK"

    def _register(self, params: list[str], now: Moment) -> bytes:
        peer, topic, channel = self._about("REGISTER", params)
        if self.user is None and self._context.needs_auth:
            raise ClientError("E_AUTH_FIRST", "REGISTER needs AUTH: set --lookupd-auth-token-file")
        if self.user is not None and not self.user.may_register(topic):
            raise ClientError(
                "E_UNAUTHORIZED", f"REGISTER {self.user.name} may not register {topic}"
            )
        for registration in self._context.registry.register(peer, topic, channel):
            self._context.log.info(f"DB: client({self.address}) REGISTER {registration}")
        return b"OK"

    def _unregister(self, params: list[str], now: Moment) -> bytes:
        peer, topic, channel = self._about("UNREGISTER", params)
        self._removing = self._context.registry.unregister(peer, topic, channel)
        self._asked = CHANNEL if channel else TOPIC
        self._state = _State.UNREGISTER
        return b""

    def _next_removal(self) -> bytes:
        """Remove one registration of an UNREGISTER; return the response after the last one."""
        log = self._context.log
        removed = next(self._removing, None)
        if removed is None:
            self._state = _State.LINE
            return b"OK"
        for registration in removed:
            if registration.category == self._asked:
                log.info(f"DB: client({self.address}) UNREGISTER {registration}")
            else:
                log.warn(f"client({self.address}) unexpected UNREGISTER {registration}")
        return b""

    def _ping(self, params: list[str], now: Moment) -> bytes:
        if self._peer is not None:
            passed = format_duration(self._context.registry.ping(self._peer, now))
            self._context.log.info(f"CLIENT({self.address}): pinged (last ping {passed})")
        return b"OK"

    def _about(self, command: str, params: list[str]) -> tuple[Peer, str, str]:
        """Return the peer, the topic and the channel (or "") of a command."""
        if self._peer is None:
            raise ClientError("E_INVALID", "client must IDENTIFY")
        if not params:
            raise ClientError("E_INVALID", f"{command} insufficient number of params")
        topic = params[0]
        channel = params[1] if len(params) > 1 else ""
        if not is_valid_name(topic.encode("utf-8", "surrogateescape")):
            raise ClientError("E_BAD_TOPIC", f"{command} topic name '{topic}' is not valid")
        if channel and not is_valid_name(channel.encode("utf-8", "surrogateescape")):
            raise ClientError("E_BAD_CHANNEL", f"{command} channel name '{channel}' is not valid")
        return self._peer, topic, channel


_COMMANDS: dict[str, Callable[[Session, list[str], Moment], bytes]] = {
    "IDENTIFY": Session._identify,
    "REGISTER": Session._register,
    "UNREGISTER": Session._unregister,
    "PING": Session._ping,
    "AUTH": Session._auth,
}
