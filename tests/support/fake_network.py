"""A network for a core of the client: no sockets, a clock that the test advances, peers that
answer."""

from typing import Any

from nsqcy.client.codec import Message
from nsqcy.client.connection import Connection
from nsqcy.client.errors import ConnectionFailed
from support.fake_nsqd import Peer


class Wire:
    """The network's side of a core's connection."""

    def __init__(self, net: "Net", connection: Connection) -> None:
        self.net = net
        self.connection = connection
        self.peer = Peer(**net.peers)
        self.open = False  # the socket is connected
        self.closed = False

    def accept(self) -> None:
        """Connect the socket, and exchange data until both sides are idle."""
        self.open = True
        self.net.core.connected(self.connection, self.net.time)
        self.run()

    def run(self) -> None:
        quiet = False
        while not quiet and not self.closed:
            quiet = not (self.flush() | self.hear())

    def flush(self) -> bool:
        """Send the pending output."""
        sent = self.connection.take()
        self.peer.feed(sent)
        self.net.core.answered(self.net.time)
        return bool(sent)

    def hear(self) -> bool:
        """Deliver the output of the peer."""
        said = self.peer.take()
        if said and not self.closed:
            self.net.core.received(self.connection, said, self.net.time)
        if self.peer.hung_up and not self.closed:
            self.lose()
        return bool(said)

    def deliver(self, *bodies: bytes, attempts: int = 1) -> None:
        self.peer.deliver(*bodies, attempts=attempts)
        self.run()

    def lose(self) -> None:
        self.open, self.closed = False, True
        error = ConnectionFailed(f"{self.connection.address}: lost")
        self.net.core.lost(self.connection, error, self.net.time)


class Net:
    """Executes a core's requests as far as the test allows, and controls the core's clock."""

    core: Any  # a ConsumerCore or ProducerCore

    def __init__(self, **peers: Any) -> None:
        self.peers = peers
        self.time = 1000.0
        self.wires: list[Wire] = []
        self.lookups = 0  # begun
        self.delivered: list[Message] = []
        self.ends = 0

    def now(self) -> float:
        return self.time

    def connect(self, connection: Connection) -> None:
        self.wires.append(Wire(self, connection))

    def disconnect(self, connection: Connection) -> None:
        (wire,) = [each for each in self.wires if each.connection is connection]
        assert not wire.closed, "closed twice"
        if wire.open:
            wire.peer.feed(connection.take())
        wire.open, wire.closed = False, True

    def look_up(self) -> None:
        self.lookups += 1

    def deliver(self, messages: list[Message]) -> None:
        self.delivered += messages

    def give_up(self, message: Message) -> None:
        try:
            result = self.core.on_giving_up(message)
        except Exception as error:
            self.core.raised(message, error)
        else:
            self.core.given_up(message, result)

    def stopped(self) -> None:
        self.ends += 1

    # -- what tests do

    def pending(self) -> list[Wire]:
        """Return the connection attempts that are still unanswered."""
        return [each for each in self.wires if not each.open and not each.closed]

    def tick(self, seconds: float = 0.0) -> None:
        """Advance the clock and run each timer when it is due."""
        end = self.time + seconds
        for _ in range(10000):
            due = self.core.due
            if due > end:
                break
            self.time = max(self.time, due)
            self.core.tick(self.time)
            assert self.core.due > self.time, "the timers never stop"
        self.time = end

    def live(self) -> list[Wire]:
        return [each for each in self.wires if each.open]
