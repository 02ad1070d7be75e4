"""Topics and channels: a slow and simple reference for broker/topic.pyx and
channels/channel.pyx.

It has no blocks, logs or turns. The caller passes the time and the messages that a client received.
Each received message must be one of those at the head of its channel.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

MILLISECOND = 1_000_000


@dataclass(eq=False)
class Message:
    body: bytes
    timestamp: int
    delay: int = 0
    id: bytes | None = None  # known after a client has received it


@dataclass(eq=False)
class Copy:
    """State of a message in a channel."""

    message: Message
    attempts: int = 0
    rank: int = 0  # messages of equal rank may be delivered in any order
    due: int = 0
    delivered: int = 0
    client: object = None


@dataclass(eq=False)
class Client:
    msg_timeout: int
    ready: int = 0
    in_flight: int = 0


class Disallowed(AssertionError):
    """The daemon has violated the rules."""


def check(condition: object, what: str) -> None:
    if not condition:
        raise Disallowed(what)


class Channel:
    def __init__(self, name: str, mem_queue_size: int, max_msg_timeout: int) -> None:
        self.name = name
        self.ephemeral = name.endswith("#ephemeral")
        self.mem_queue_size = mem_queue_size
        self.max_msg_timeout = max_msg_timeout
        self.paused = False
        self.waiting: list[Copy] = []
        self.in_flight: dict[bytes, Copy] = {}
        self.deferred: list[Copy] = []
        self.clients: list[Client] = []
        self.ranks = 0
        self.arrived: list[Copy] = []  # in an ephemeral channel, messages of this turn
        self.message_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.finish_count = 0
        self.dropped_count = 0
        self.lost_count = 0  # removed by emptying
        self.cancelled_count = 0  # taken out one by one
        self.missing_count = 0  # lost in a crash
        self.carried = 0  # left from before a restart
        self.latencies: list[int] = []  # from publish to finish

    def next_rank(self) -> int:
        self.ranks += 1
        return self.ranks

    def receive(self, message: Message, now: int) -> None:
        """Receive a message from the topic."""
        self.message_count += 1
        copy = Copy(message)
        if message.delay:
            copy.due = now + message.delay
            self.deferred.append(copy)
            return
        copy.rank = self.next_rank()
        self.waiting.append(copy)
        self.arrived.append(copy)

    def drop_newest(self, count: int) -> None:
        """Drop the newest messages: the ephemeral channel was full when they arrived."""
        check(self.ephemeral and count <= len(self.arrived), f"{self.name} dropped {count}")
        for copy in self.arrived[len(self.arrived) - count :]:
            self.waiting.remove(copy)
        self.dropped_count += count

    def put_back(self, copies: Iterable[Copy]) -> None:
        """Move messages to the tail together, so their relative order is undefined."""
        rank = self.next_rank()
        for copy in copies:
            copy.rank = rank
            self.waiting.append(copy)

    def drop(self, copies: Iterable[Copy]) -> None:
        """Drop messages that were requeued into a full ephemeral channel."""
        check(self.ephemeral, f"{self.name} is not ephemeral, but drops messages")
        for copy in copies:
            self.waiting.remove(copy)
            self.dropped_count += 1

    def deliver(
        self, client: Client, id: bytes, body: bytes, attempts: int, timestamp: int, now: int
    ) -> None:
        """Deliver a message to a client; it must be one of those at the head."""
        rank = self.waiting[0].rank
        for i, copy in enumerate(self.waiting):  # noqa: B007, used after the loop
            check(copy.rank == rank, f"{body[:20]!r} is not at the head")
            if copy.message.body == body:
                break
        else:
            check(False, f"{body[:20]!r} is not queued in {self.name}")
        del self.waiting[i]
        message = copy.message
        copy.attempts += 1
        check(attempts == copy.attempts, f"the attempt is {attempts} instead of {copy.attempts}")
        check(timestamp == message.timestamp, "the timestamp differs from that of the publish")
        check(message.id in (None, id), "the id has changed")
        check(id not in self.in_flight, "the message is in flight twice")
        message.id = id
        copy.delivered = now
        copy.due = now + client.msg_timeout
        copy.client = client
        self.in_flight[id] = copy
        client.in_flight += 1

    def may_deliver(self, body: bytes) -> bool:
        """Return whether the message with this body is one of those at the head."""
        return any(
            copy.message.body == body for copy in self.waiting if copy.rank == self.waiting[0].rank
        )

    def take_back(self, client: Client, id: bytes) -> Copy | None:
        copy = self.in_flight.get(id)
        if copy is None or copy.client is not client:
            return None
        del self.in_flight[id]
        client.in_flight -= 1
        return copy

    def finish(self, client: Client, id: bytes, wall: int) -> bool:
        copy = self.take_back(client, id)
        if copy is None:
            return False
        self.finish_count += 1
        self.latencies.append(wall - copy.message.timestamp)
        return True

    def requeue(self, client: Client, id: bytes, delay: int, now: int) -> Copy | None:
        copy = self.take_back(client, id)
        if copy is None:
            return None
        self.requeue_count += 1
        if delay:
            copy.due = now + delay
            self.deferred.append(copy)
        else:
            self.put_back([copy])
        return copy

    def touch(self, client: Client, id: bytes, now: int) -> bool:
        copy = self.in_flight.get(id)
        if copy is None or copy.client is not client:
            return False
        # The time of delivery is stored with a precision of a millisecond.
        held = (now // MILLISECOND - copy.delivered // MILLISECOND) * MILLISECOND
        copy.due = now + client.msg_timeout
        if held + client.msg_timeout >= self.max_msg_timeout:
            copy.due = now + self.max_msg_timeout - held
        return True

    def expire(self, now: int) -> list[Copy]:
        """Move messages whose deadline or delay has expired to the tail, and return them."""
        late = [copy for copy in self.in_flight.values() if copy.due <= now]
        for copy in late:
            del self.in_flight[copy.message.id or b""]
            if isinstance(copy.client, Client):
                copy.client.in_flight -= 1
        self.timeout_count += len(late)
        ripe = [copy for copy in self.deferred if copy.due <= now]
        self.deferred = [copy for copy in self.deferred if copy.due > now]
        if late or ripe:
            self.put_back(late + ripe)
        return late + ripe

    def empty(self) -> None:
        self.lost_count += len(self.waiting) + len(self.in_flight) + len(self.deferred)
        self.waiting.clear()
        self.arrived.clear()
        self.in_flight.clear()
        self.deferred.clear()
        for client in self.clients:
            client.in_flight = 0

    def take_out(self, copy: Copy) -> None:
        """Drop a waiting message. The search has made all others explicit entries."""
        self.waiting.remove(copy)
        self.cancelled_count += 1
        for each in self.waiting:
            each.due = each.due or 1

    def restart(self, passed: int) -> None:
        """Exit cleanly and start again: messages in flight are queued before all others, and
        deferred ones stay deferred. `passed`: jump of the deadlines' clock beyond the elapsed
        time."""
        back = sorted(self.waiting, key=lambda copy: copy.rank)
        once = list(self.in_flight.values())
        once += [copy for copy in back if copy.attempts or copy.due]
        fresh = [copy for copy in back if not (copy.attempts or copy.due)]
        self.in_flight.clear()
        self.waiting.clear()
        self.clients.clear()
        self.put_back(once)
        for copy in fresh:
            copy.rank = self.next_rank()
            self.waiting.append(copy)
        for copy in self.deferred:
            copy.due += passed
        self.message_count = self.requeue_count = self.timeout_count = self.finish_count = 0
        self.dropped_count = self.lost_count = self.missing_count = self.cancelled_count = 0
        self.latencies.clear()
        self.carried = len(self.waiting) + len(self.deferred)

    def hand_over(self) -> None:
        """Continue in another process: all messages, consumers and counters stay."""
        self.latencies.clear()

    def balance(self) -> bool:
        """Return whether all messages are accounted for."""
        return self.message_count + self.carried == (
            len(self.waiting)
            + len(self.in_flight)
            + len(self.deferred)
            + self.finish_count
            + self.dropped_count
            + self.lost_count
            + self.cancelled_count
            + self.missing_count
        )


@dataclass
class Topic:
    name: str
    mem_queue_size: int
    max_msg_timeout: int
    paused: bool = False
    held: bool = False  # until the channels registered elsewhere exist
    backlog: list[Message] = field(default_factory=list)
    channels: dict[str, Channel] = field(default_factory=dict)
    message_count: int = 0
    message_bytes: int = 0

    @property
    def ephemeral(self) -> bool:
        return self.name.endswith("#ephemeral")

    def publish(self, message: Message, now: int) -> None:
        """Accept a publish."""
        self.message_count += 1
        self.message_bytes += len(message.body)
        flowing = self.channels and not self.paused and not self.held
        if self.ephemeral and not flowing and len(self.backlog) >= self.mem_queue_size:
            return
        self.backlog.append(message)
        self.fan_out(now)

    def fan_out(self, now: int) -> None:
        if self.paused or self.held or not self.channels:
            return
        for message in self.backlog:
            for channel in self.channels.values():
                channel.receive(message, now)
        self.backlog.clear()

    def channel(self, name: str, now: int) -> Channel:
        if name not in self.channels:
            self.channels[name] = Channel(name, self.mem_queue_size, self.max_msg_timeout)
            self.fan_out(now)
        return self.channels[name]

    def pause(self, paused: bool, now: int) -> None:
        self.paused = paused
        self.fan_out(now)

    def end_hold(self, now: int) -> None:
        self.held = False
        self.fan_out(now)
