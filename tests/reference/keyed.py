"""Channels with rules for keys: a slow and simple reference for channels/key_index.pyx.

It has no blocks, logs or turns. The caller passes the time, and each message that a client
received. It raises Disallowed if a rule of docs/internals/keys.md forbids this delivery.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reference.nsq import check

SECOND = 1_000_000_000
BURST = 10_000_000  # ns of unused credit that a key's rate keeps
ONE = 1_000_000_000  # a debt of one delivery
LEVELS = 10


class Rules(NamedTuple):
    order: bool = False
    fair: bool = False
    in_flight_per_key: int = 0
    key_rate: float = 0.0
    depth_per_key: int = 0
    urgent_first: bool = False
    priority_share: float = 0.05
    max_depth: int = 0  # with on_full = drop-oldest
    max_attempts: int = 0
    dead_letters: bool = False

    @property
    def keyed(self) -> bool:
        return bool(
            self.order
            or self.fair
            or self.in_flight_per_key
            or self.key_rate
            or self.depth_per_key
            or self.urgent_first
        )


@dataclass(eq=False)
class Message:
    number: int
    key: str | None
    priority: int
    published: int  # wall clock, ns
    expires: int | None = None  # wall clock, ns
    born: int = 0  # place of its record in the log
    place: int = 0
    attempts: int = 0
    due: int = 0  # deferred: monotonic, ns; in flight: the deadline
    client: object = None
    seq: int = 0  # of its record
    delayed: bool = False  # published with a delay
    unknown: bool = False  # deferred, and not read since the restart


@dataclass
class Channel:
    rules: Rules
    now: int = 0
    wall: int = 0
    waiting: list[Message] = field(default_factory=list)
    in_flight: list[Message] = field(default_factory=list)
    deferred: list[Message] = field(default_factory=list)
    paused: bool = False
    paused_keys: set[str] = field(default_factory=set)
    next_send: dict[str, float] = field(default_factory=dict)
    debts: dict[int, int] = field(default_factory=dict)
    served: dict[tuple[int, str | None], set[str | None]] = field(default_factory=dict)
    dropped: int = 0
    gone: int = 0  # out of attempts: dead-lettered, or dropped
    arrivals: int = 0
    deferral: int = 0
    far: bool = False  # not all messages are in the index: which key is next is not known

    # -- numbers --

    def arrive(self) -> int:
        """Return the place after all messages so far."""
        self.arrivals += 1
        return self.arrivals

    def due_after(self, delay: int) -> int:
        """Return the due time of a message deferred now: equal delays end 1 ns apart, in order."""
        self.deferral = max(self.now, self.deferral + 1)
        return self.deferral + delay

    def level(self, message: Message) -> int:
        return message.priority if self.rules.urgent_first else 0

    def is_expired(self, message: Message) -> bool:
        """Return whether a message is too old, or was out of attempts at an exit; nsqd drops it
        instead of delivering it."""
        if message.expires is not None and message.expires <= self.wall:
            return True
        return self.is_exhausted(message)

    # -- which message may go --

    def blocked_by(self, key: str | None) -> str | None:
        """Return the rule that forbids each message of a key, or None."""
        if key is None:
            return None
        if key in self.paused_keys:
            return "pause of the key"
        held = sum(each.key == key for each in self.in_flight)
        if self.rules.order and (
            held or any(each.key == key and each.attempts for each in self.deferred)
        ):
            return "order"
        if self.rules.in_flight_per_key and held >= self.rules.in_flight_per_key:
            return "in_flight_per_key"
        if self.rules.key_rate and self.next_send.get(key, 0) > self.now:
            return "key_rate"
        return None

    def heads(self) -> dict[tuple[int, str | None], Message]:
        """Return the next message of each key in each level, whether or not a rule forbids it."""
        found: dict[tuple[int, str | None], Message] = {}
        for each in self.waiting:
            where = self.level(each), each.key
            if not self.is_expired(each) and (
                where not in found or each.place < found[where].place
            ):
                found[where] = each
        return found

    def candidates(self) -> dict[tuple[int, str | None], Message]:
        """Return the heads that may be delivered now."""
        return {
            where: each for where, each in self.heads().items() if not self.blocked_by(each.key)
        }

    def chosen_level(self, levels: set[int], debts: dict[int, int]) -> int:
        first = max(levels, key=lambda level: (debts.get(level, 0), level))
        return first if debts.get(first, 0) >= ONE else max(levels)

    def update(self) -> None:
        """Note which keys wait and which levels do, after each event."""
        candidates = self.candidates()
        self.served = {where: self.served.get(where, set()) for where in candidates}
        levels = {level for level, _ in candidates}
        self.debts = {level: self.debts.get(level, 0) for level in levels}

    def may_deliver(self, message: Message) -> str | None:
        """Return the rule that forbids this delivery, or None."""
        if message not in self.waiting:
            return "the message is not waiting"
        if self.paused:
            return "pause"
        if self.is_expired(message):
            return "the message has expired"
        if not self.rules.keyed:
            return None  # the order is that of reference.nsq
        blocked = self.blocked_by(message.key)
        if blocked:
            return blocked
        where = self.level(message), message.key
        candidates = self.candidates()
        if self.far and not (self.rules.order and message.key is not None):
            return None
        if candidates[where] is not message and not self.is_being_read(candidates[where]):
            return f"message {candidates[where].number} of the same key comes first"
        if self.far:
            return None
        if self.rules.urgent_first:
            levels = {level for level, _ in candidates}
            debts = {level: self.debts.get(level, 0) + self.share for level in levels}
            chosen = self.chosen_level(levels, debts)
            if where[0] != chosen:
                return f"level {chosen} comes first"
        if self.rules.fair:
            for other, served in self.served.items():
                if (
                    other[0] == where[0]
                    and other != where
                    and message.key in served
                    and not self.is_being_read(candidates[other])
                ):
                    return f"key {other[1]} has waited since key {message.key} was served"
        else:
            first = min(
                (each for (level, _), each in candidates.items() if level == where[0]),
                key=lambda each: each.place,
            )
            if first is not message and not self.is_being_read(first):
                return f"message {first.number} is older"
        return None

    def is_being_read(self, message: Message) -> bool:
        """Return whether nsqd may have to read a message from disk before it knows its key, and
        meanwhile delivers others: one that was delivered or deferred, in a channel without an
        order."""
        return not self.rules.order and (message.attempts > 0 or message.delayed)

    @property
    def share(self) -> int:
        return round(self.rules.priority_share * ONE)

    # -- verbs --

    def publish(self, message: Message, delay: int = 0) -> None:
        message.born = message.place = self.arrive()
        if not delay:
            self.waiting.append(message)
        else:
            message.due = self.due_after(delay)
            self.deferred.append(message)
        self.update()

    def deliver(self, message: Message, client: object, deadline: int) -> None:
        forbidden = self.may_deliver(message)
        check(forbidden is None, f"message {message.number} of key {message.key}: {forbidden}")
        where = self.level(message), message.key
        if self.rules.urgent_first:
            self.debts = {level: debt + self.share for level, debt in self.debts.items()}
            self.debts[where[0]] = max(0, self.debts[where[0]] - ONE)
        for other, served in self.served.items():
            if other[0] == where[0] and other != where:
                served.add(message.key)
        self.served.pop(where, None)
        if self.rules.key_rate and message.key is not None:
            start = max(self.next_send.get(message.key, 0), self.now - BURST)
            self.next_send[message.key] = start + SECOND / self.rules.key_rate
        self.waiting.remove(message)
        message.attempts += 1
        message.client, message.due = client, deadline
        self.in_flight.append(message)
        self.update()

    def snapshot(self) -> tuple[Any, ...]:
        """Return what a delivery changes, for restore()."""
        return (
            list(self.waiting),
            list(self.in_flight),
            dict(self.next_send),
            dict(self.debts),
            {where: set(served) for where, served in self.served.items()},
        )

    def restore(self, before: tuple[Any, ...], message: Message) -> None:
        """Undo the delivery of a message."""
        self.waiting, self.in_flight, self.next_send, self.debts, self.served = before
        message.attempts -= 1

    def finish(self, message: Message) -> None:
        self.in_flight.remove(message)
        self.update()

    def put_back(self, message: Message) -> None:
        """A message that was in flight or deferred after a delivery waits again."""
        if not self.rules.order or (message.key is None and not message.unknown):
            message.place = self.arrive()
        elif message.unknown:
            message.place = message.born
        self.waiting.append(message)

    def requeue(self, message: Message, delay: int = 0) -> None:
        self.in_flight.remove(message)
        if self.is_exhausted(message):
            self.gone += 1
        elif delay:
            message.due = self.due_after(delay)
            if self.rules.order and message.key is not None and message.expires is not None:
                message.due = min(message.due, self.now + message.expires - self.wall)
            self.deferred.append(message)
        else:
            self.put_back(message)
        self.update()

    def is_exhausted(self, message: Message) -> bool:
        return bool(self.rules.max_attempts) and message.attempts >= self.rules.max_attempts

    def advance(self, ns: int) -> None:
        self.now += ns
        self.wall += ns
        due = sorted(
            (each for each in (*self.in_flight, *self.deferred) if each.due <= self.now),
            key=lambda each: each.due,
        )
        for each in due:
            if each in self.in_flight:
                self.in_flight.remove(each)
                if self.is_exhausted(each):
                    self.gone += 1
                else:
                    self.put_back(each)
            else:
                self.deferred.remove(each)
                if each.attempts:
                    self.put_back(each)
                else:
                    each.place = self.arrive()
                    self.waiting.append(each)
        for each in (*due, *self.deferred):
            each.unknown = False
        self.update()

    def disconnect(self, client: object, returns: bool) -> None:
        """The messages of a client that left stay in flight, or are returned at once."""
        for each in [each for each in self.in_flight if each.client is client]:
            if returns:
                self.requeue(each)
            else:
                each.client = None

    def drop_oldest(self) -> None:
        """Drop messages above depth_per_key: the oldest of each key. Drop messages above max_depth:
        the oldest of the key with the most."""
        for key in {each.key for each in self.waiting} - {None}:
            of_key = sorted(
                (each for each in self.waiting if each.key == key), key=lambda each: each.place
            )
            limit = self.rules.depth_per_key or len(of_key)
            for each in of_key[: max(0, len(of_key) - limit)]:
                self.waiting.remove(each)
                self.dropped += 1
        while self.rules.max_depth and len(self.waiting) > self.rules.max_depth:
            self.waiting.remove(self.next_dropped())
            self.dropped += 1
        self.update()

    def next_dropped(self) -> Message:
        if not (self.rules.fair or self.rules.order):
            return min(self.waiting, key=lambda each: each.place)
        by_key: dict[str | None, list[Message]] = {}
        for each in self.waiting:
            by_key.setdefault(each.key, []).append(each)
        oldest = {key: min(found, key=lambda one: one.place) for key, found in by_key.items()}
        key = min(by_key, key=lambda key: (-len(by_key[key]), oldest[key].place))
        return oldest[key]

    def empty(self) -> None:
        self.waiting, self.in_flight, self.deferred = [], [], []
        self.next_send, self.served, self.debts = {}, {}, {}
        self.update()

    def pause_key(self, key: str, paused: bool) -> None:
        (self.paused_keys.add if paused else self.paused_keys.discard)(key)
        self.update()

    def empty_key(self, key: str) -> None:
        """Messages in flight and deferred messages stay."""
        self.waiting = [each for each in self.waiting if each.key != key]
        self.update()

    def delete(self, message: Message) -> None:
        """The search takes all messages, so the keys take their turns anew."""
        self.served, self.debts = {}, {}
        for found in (self.waiting, self.deferred):
            if message in found:
                found.remove(message)
        self.update()

    def change(self, rules: Rules) -> None:
        """Apply another policy. The keys take their turns anew; rates begin anew."""
        self.rules = rules
        for each in self.all():
            if rules.order and each.attempts and each.key is not None:
                each.place = each.born
        self.served, self.debts = {}, {}
        if not rules.key_rate:
            self.next_send.clear()
        self.update()

    def restart(self, ahead: int) -> None:
        """`ahead`: how much later the monotonic clock is, beyond the time that has passed."""
        self.next_send.clear()
        self.served, self.debts, self.deferral = {}, {}, 0
        for each in (*self.waiting, *self.in_flight):
            known = self.rules.keyed and each not in self.in_flight
            if not known or (self.rules.order and each.attempts):
                each.place = each.born
        self.waiting += self.in_flight
        self.in_flight = []
        for each in self.deferred:
            each.due += ahead
            each.unknown = True
        self.update()

    def hand_over(self) -> None:
        """Continue in another process: messages in flight and consumers stay. What rates and levels
        remember is lost."""
        in_flight, self.in_flight = self.in_flight, []
        self.restart(0)
        self.in_flight = in_flight
        self.update()

    # -- the whole --

    def all(self) -> Iterator[Message]:
        yield from self.waiting
        yield from self.in_flight
        yield from self.deferred
