"""One connection to an nsqd, sans I/O.

Owns the handshake (magic, IDENTIFY, TLS, compression, AUTH), heartbeats, the silence timeout, and
how bytes pass through the layers. Notifies its owner, a consumer or producer. Uses no sockets,
clocks or other connections: its methods receive bytes and the time.
"""

import json
import math
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn, Protocol

from nsqcy.client.codec import OK_FRAME, Codec, Message
from nsqcy.client.errors import ConnectionFailed, NsqdError, ProtocolError
from nsqcy.client.limits import UNLIMITED, Limits
from nsqcy.client.options import Address, ConnectionOptions
from nsqcy.client.tls import TlsLayer
from nsqcy.errors import TOKEN_WITHHELD, LayerEnd, NsqError
from nsqcy.net.core import ByteLayer, DeflateLayer, SnappyLayer
from nsqcy.options.other_servers import LONGEST, recognized
from nsqcy.protocol.wire import command, command_with_body

MAGIC = b"  V2"
HEARTBEAT = b"_heartbeat_"
CLOSE_WAIT = b"CLOSE_WAIT"
GOODBYE = b"_goodbye_"
NOP = b"NOP\n"
RESPONSE, ERROR = 0, 1
OLD_MAX_READY = 2500  # limit of nsqds that do not report one
MAX_TOPICS = 1000  # maximum number of topics with cached limits
MIN_HANDSHAKE = 10.0  # minimum seconds, because an auth server may be involved

_Step = Callable[[bytes, float], None]


class Owner(Protocol):
    """Notifications from a connection to its consumer or producer."""

    def ready(self, connection: "Connection", now: float) -> None:
        """Handle the completed handshake."""

    def messages(self, connection: "Connection", messages: list[Message], now: float) -> None:
        """Handle delivered messages."""

    def accepted(self, connection: "Connection", count: int, now: float) -> None:
        """Handle this number of OKs."""

    def response(self, connection: "Connection", data: bytes, now: float) -> None:
        """Handle a response that belongs neither to the handshake nor to a heartbeat."""

    def refused(self, connection: "Connection", error: NsqdError, now: float) -> None:
        """Handle an error frame. After a fatal error, nsqd closes the connection."""

    def heartbeat(self, connection: "Connection") -> None:
        """Handle a heartbeat from nsqd, which has already been answered."""


class State(Enum):
    """Connection state."""

    CONNECTING = "connecting"
    HANDSHAKE = "handshake"
    READY = "ready"
    CLOSING = "closing"  # CLS was sent
    CLOSED = "closed"


class Connection:
    """A connection of `owner` to the nsqd at `address`.

    Its driver calls begin() once the socket is connected, and feed() with received bytes. Whenever
    `codec.wake` is called, the driver sends the result of take(). The driver also calls check() by
    `due`, and close() at the end.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        owner: Owner,
        *,
        trusted: bool = True,
    ) -> None:
        """trusted: whether the nsqd may receive the secret without authenticating by its
        certificate."""
        self.address = address
        self.options = options
        self._trusted = trusted or options.trust_lookupd
        self.state = State.CONNECTING
        self.codec = Codec(address.nsqd, options.max_msg_size)
        self.ready = 0  # the last RDY sent
        self.max_ready = OLD_MAX_READY
        self._msg_timeout = math.inf  # seconds
        self.limits = UNLIMITED  # limits for publishes to topics without a policy
        self._topic_limits: dict[str, Limits] = {}
        self.last_message = -math.inf
        self.due = math.inf  # time of the next check()
        self.failure: NsqdError | None = None  # why nsqd is about to close the connection
        self.driver: Any = None  # sends and receives the connection's bytes
        self.peer: Any = None  # the owner's record of the nsqd
        self.drained = False  # nsqd has announced that it will deliver no more messages
        self.left = False  # nsqd is exiting; it executes no command that it has not answered
        self._owner = owner
        self._opening = b""  # the first bytes received
        self._layers: list[ByteLayer] = []
        self._step: _Step | None = None  # handles the next handshake response
        self._upgrades: list[Callable[[], ByteLayer]] = []
        self._auth_required = False
        self._is_encrypted = False
        self.last_received = -math.inf
        self._silence = 2 * options.heartbeat_interval if options.heartbeat_interval > 0 else None

    # -- called by the driver

    def begin(self, now: float) -> None:
        """Handle a connected socket: begin the handshake, unless it is too late."""
        if self.state is not State.CONNECTING:
            return
        self.state = State.HANDSHAKE
        self.last_received = now
        self.due = now + max(self.options.timeout, MIN_HANDSHAKE)
        self._step = self._identified
        identity = json.dumps(self.options.identity).encode()
        self.codec.write(MAGIC + command_with_body(b"IDENTIFY", (), identity))

    def feed(self, data: bytes, now: float) -> None:
        """Accept bytes from nsqd. Raises LayerError, ProtocolError, NsqdError (a refused handshake)
        and ConnectionFailed (also for a goodbye); the connection is unusable afterwards."""
        if self.state is State.CLOSED:
            return
        self.last_received = now
        if len(self._opening) < LONGEST:
            self._recognize(data)
        if not self._layers and self._step is None:
            self._frames(data, now)
        else:
            self._through(0, data, now)

    def take(self) -> bytes:
        """Return the next bytes to send. Call again until it returns none."""
        data = self.codec.take()
        for layer in reversed(self._layers):
            if data:
                layer.write(data)
            data = layer.take()
        return data

    def check(self, now: float) -> None:
        """Raise ConnectionFailed if nsqd has sent nothing for too long."""
        if now < self.due:
            return
        if self.state is State.HANDSHAKE:
            raise ConnectionFailed(f"{self.address} did not complete the handshake in time")
        self._watch(now)

    def close(self) -> None:
        """Handle the socket's close: later answers are dropped."""
        self.state = State.CLOSED
        self.due = math.inf
        self.ready = 0
        self.codec.close()

    # -- called by the owner

    @property
    def in_flight(self) -> int:
        """Number of messages delivered and not yet answered."""
        return self.codec.in_flight

    @property
    def delivered(self) -> int:
        """Number of messages delivered so far."""
        return self.codec.delivered

    @property
    def topic(self) -> str:
        """The topic to which the connection has subscribed."""
        return self.codec.topic

    @property
    def superseded_at(self) -> float:
        """Return the time by which all delivered messages will have timed out."""
        return math.inf if self.codec.touched else self.last_message + self._msg_timeout

    def blames(self, error: NsqError) -> str:
        """Return the error, with this connection's address."""
        text = str(error)
        address = str(self.address)
        return text if address in text else f"{address}: {text}"

    def send_ready(self, count: int) -> None:
        """Request at most `count` messages in flight."""
        self.ready = count
        self.codec.write(command(b"RDY", b"%d" % count))

    def limits_of(self, topic: str) -> Limits:
        """Return the limits that nsqd has announced for publishes to a topic."""
        return self._topic_limits.get(topic, self.limits)

    def ask_limits(self, topic: str) -> None:
        """Query the limits of a topic; a response follows."""
        self.codec.write(command(b"LIMITS", topic.encode()))

    def learn_limits(self, topic: str, data: bytes) -> Limits:
        """Return the limits in nsqd's response to ask_limits(). Raises ProtocolError."""
        try:
            announced = json.loads(data)
        except (ValueError, RecursionError):
            raise ProtocolError(f"{self.address} answered LIMITS with {data[:80]!r}") from None
        if len(self._topic_limits) >= MAX_TOPICS:
            self._topic_limits.clear()
        self._topic_limits[topic] = Limits(announced, headers=self.options.headers)
        return self._topic_limits[topic]

    def subscribe(self, topic: str, channel: str, now: float) -> None:
        """Subscribe to this channel."""
        self.last_message = now
        self.codec.topic = topic
        self.codec.write(command(b"SUB", topic.encode(), channel.encode()))

    def stop(self) -> None:
        """Send CLS: nsqd delivers no more messages, and accepts the remaining answers."""
        self.state = State.CLOSING
        self.codec.write(command(b"CLS"))

    def __repr__(self) -> str:
        return (
            f"<Connection to {self.address}, {self.state.value}, RDY {self.ready}, "
            f"{self.in_flight} in flight>"
        )

    # -- receiving

    def _recognize(self, data: bytes) -> None:
        """Raise ProtocolError if another kind of server has answered."""
        self._opening += data[:LONGEST]
        if (text := recognized(self._opening, self.address)) is not None:
            raise ProtocolError(text)

    def _through(self, depth: int, data: bytes, now: float) -> None:
        """Accept bytes for the layer at `depth`; 0 is next to the socket."""
        if depth == len(self._layers):
            self._frames(data, now)
            return
        layer = self._layers[depth]
        layer.feed(data)
        self._read(depth, now)

    def _read(self, depth: int, now: float) -> None:
        """Pass the output of the layer at `depth` to the next layer."""
        try:
            while self.state is not State.CLOSED and (piece := self._layers[depth].read()):
                self._through(depth + 1, piece, now)
        except LayerEnd as error:
            raise ConnectionFailed(f"{self.address}: {error}") from None
        finally:
            self._rouse()

    def _rouse(self) -> None:
        """Send a layer's own output, which bypasses the codec."""
        if self.codec.wake is not None:
            self.codec.wake()

    def _frames(self, data: bytes, now: float) -> None:
        while self._step is not None:
            # Process one response at a time, because the bytes that follow may belong to a layer
            # that the response adds.
            messages, frames = self.codec.feed(data, 1)
            if messages:
                raise ProtocolError(f"{self.address} sent a message during the handshake")
            if not frames:
                return
            depth = len(self._layers)
            self._answer(*frames[0], now)
            data = b""
            if len(self._layers) > depth:
                self._through(depth, self.codec.rest(), now)
                return
        messages, frames = self.codec.feed(data)
        if messages:
            self.last_message = now
            self._owner.messages(self, messages, now)
        accepted = 0
        for frame in frames:
            if frame is OK_FRAME:
                accepted += 1
                continue
            if accepted:
                self._owner.accepted(self, accepted, now)
                accepted = 0
            if self.state is State.CLOSED:  # closed by the receiver of the last frame
                return
            self._frame(*frame, now)
        if accepted and self.state is not State.CLOSED:
            self._owner.accepted(self, accepted, now)

    def _answer(self, type_: int, data: bytes, now: float) -> None:
        """Handle the next handshake response."""
        if type_ == ERROR:
            raise NsqdError(data)
        if type_ != RESPONSE:
            raise self._unknown(type_)
        if data == HEARTBEAT:
            self._beat()
            return
        if data == GOODBYE:
            self._leave()
        assert self._step is not None
        self._step(data, now)

    def _frame(self, type_: int, data: bytes, now: float) -> None:
        if type_ == RESPONSE:
            if data == HEARTBEAT:
                self._beat()
                return
            if data == GOODBYE:
                self._leave()
            if data == CLOSE_WAIT:
                self.drained = True
            self._owner.response(self, data, now)
        elif type_ == ERROR:
            error = NsqdError(data)
            self._owner.refused(self, error, now)
            if error.fatal:
                self.failure = error
                raise error
        else:
            raise self._unknown(type_)

    def _unknown(self, type_: int) -> ProtocolError:
        return ProtocolError(f"{self.address} sent a frame of unknown type {type_}")

    def _beat(self) -> None:
        self.codec.write(NOP)
        self._owner.heartbeat(self)

    def _leave(self) -> NoReturn:
        """Handle nsqd's goodbye. nsqd waits for the connection's end."""
        self.left = True
        raise ConnectionFailed(f"{self.address} is exiting")

    # -- handshake, step by step

    def _identified(self, data: bytes, now: float) -> None:
        try:
            # An nsqd without feature negotiation responds with OK.
            settings = {} if data == b"OK" else json.loads(data)
        except (ValueError, RecursionError):
            settings = None
        if not isinstance(settings, dict):
            raise ProtocolError(f"{self.address} answered IDENTIFY with {data[:80]!r}")
        ready = settings.get("max_rdy_count")
        if isinstance(ready, int) and ready > 0:
            self.max_ready = ready
        self._msg_timeout = self._longest_timeout(settings)
        if self._agreed("tls_v1", settings):
            self._upgrades.append(self._tls)
        elif self.options.tls_v1:
            raise ConnectionFailed(f"{self.address} does not support TLS")
        if "limits" in settings:
            self.limits = Limits(settings["limits"], headers=self.options.headers)
        self.codec.dead_letters = settings.get("dead_letters") is True
        durability = self.options.durability
        if durability not in (None, settings.get("durability")):
            raise ConnectionFailed(f"{self.address} does not support durability {durability}")
        if self.options.headers:
            if settings.get("headers") is not True:
                raise ConnectionFailed(f"{self.address} does not support headers")
            self.codec.expect_headers()
        if self._agreed("snappy", settings):
            self._upgrades.append(SnappyLayer)
        if self._agreed("deflate", settings):
            self._upgrades.append(self._deflate)
        self._auth_required = settings.get("auth_required") is True
        self._upgrade(now)

    def _longest_timeout(self, settings: dict[str, Any]) -> float:
        """Return the seconds after which nsqd has certainly redelivered an unanswered message."""
        longest = settings.get("msg_timeout")
        if not self.options.msg_timeout and "limits" in settings:
            # A channel may have its own timeout.
            limits = settings["limits"]
            longest = limits.get("longest_msg_timeout") if isinstance(limits, dict) else None
        return longest / 1000 if isinstance(longest, int) and longest > 0 else math.inf

    def _agreed(self, name: str, settings: dict[str, Any]) -> bool:
        """Return whether this layer comes next. A layer that was not requested is an error."""
        if settings.get(name) is not True:
            return False
        if not getattr(self.options, name):
            raise ProtocolError(f"{self.address} enabled {name}, which was not requested")
        return True

    def _upgrade(self, now: float) -> None:
        """Add the next layer, or continue after the last."""
        if self._upgrades:
            self._layers.append(self._upgrades.pop(0)())
            self._step = self._upgraded
            return
        if not self._auth_required:
            self._shaken(now)
            return
        if not self.options.auth_secret:
            raise ConnectionFailed(f"{self.address} requires AUTH: set auth_secret")
        if not (self._trusted or self._has_proved_itself):
            raise ConnectionFailed(
                f"{self.address} requires AUTH, but {TOKEN_WITHHELD} trust_lookupd"
            )
        self._step = self._authorized
        self.codec.write(command_with_body(b"AUTH", (), self.options.auth_secret.encode()))

    @property
    def _has_proved_itself(self) -> bool:
        """Return whether the nsqd has a certificate for its name from a CA in the options."""
        return self._is_encrypted and self.options.verifies_with_own_ca

    def _tls(self) -> ByteLayer:
        assert self.options.tls_context is not None
        self._is_encrypted = True
        return TlsLayer(self.options.tls_context, self.address.host)

    def _deflate(self) -> ByteLayer:
        return DeflateLayer(self.options.deflate_level)

    def _upgraded(self, data: bytes, now: float) -> None:
        if data != b"OK":
            raise ProtocolError(f"{self.address} answered an upgrade with {data[:80]!r}")
        self._upgrade(now)

    def _authorized(self, data: bytes, now: float) -> None:
        self._shaken(now)

    def _shaken(self, now: float) -> None:
        self._step = None
        self.state = State.READY
        self._watch(now)
        self._owner.ready(self, now)

    def _watch(self, now: float) -> None:
        """Detect two missed heartbeats."""
        if self._silence is None:
            self.due = math.inf
            return
        self.due = self.last_received + self._silence
        if now >= self.due:
            raise ConnectionFailed(f"{self.address} has sent nothing for {self._silence:g} s")
