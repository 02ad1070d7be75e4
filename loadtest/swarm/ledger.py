"""Ledger of published and delivered messages, message by message, and its evaluation.

Every message has a publisher and a number. The ledger of an entire test is the sum of the parts
that the load processes send periodically: `take` returns and forgets the new entries, and `merge`
adds them to another ledger. Independent of clocks and connections.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Self

SPAN = 9  # low bits of a number; numbers that differ only in these share an int
WITHIN = (1 << SPAN) - 1

COUNTED = ("duplicates", "again", "requeued", "out_of_order", "early", "ahead", "foreign")

Place = tuple[str, str]  # topic, channel


class Marks:
    """A set of messages (publisher, number) in which most numbers are present: half a byte each."""

    def __init__(self) -> None:
        self._bits: dict[int, int] = {}

    def add(self, publisher: int, number: int) -> bool:
        """Add a message; return whether it is new."""
        key, bit = publisher << 32 | number >> SPAN, 1 << (number & WITHIN)
        before = self._bits.get(key, 0)
        self._bits[key] = before | bit
        return not before & bit

    def merge(self, other: Self) -> int:
        """Add the messages from another set; return how many of them are not new."""
        twice = 0
        for key, bits in other._bits.items():
            before = self._bits.get(key, 0)
            twice += (before & bits).bit_count()
            self._bits[key] = before | bits
        return twice

    def minus(self, other: Self) -> Self:
        """Return the messages that are not in the other set."""
        left = type(self)()
        for key, bits in self._bits.items():
            if rest := bits & ~other._bits.get(key, 0):
                left._bits[key] = rest
        return left

    def without(self, other: Self) -> int:
        """Return the number of messages that are not in the other set."""
        return sum(
            (bits & ~other._bits.get(key, 0)).bit_count() for key, bits in self._bits.items()
        )

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for key, bits in self._bits.items():
            publisher, first = key >> 32, (key & 0xFFFFFFFF) << SPAN
            while bits:
                lowest = bits & -bits
                yield publisher, first + lowest.bit_length() - 1
                bits ^= lowest

    def __len__(self) -> int:
        return sum(bits.bit_count() for bits in self._bits.values())

    def pack(self) -> list[tuple[int, bytes]]:
        """Encode for the network."""
        return [(key, bits.to_bytes((WITHIN + 1) // 8)) for key, bits in self._bits.items()]

    @classmethod
    def unpack(cls, packed: Iterable[tuple[int, bytes]]) -> Self:
        marks = cls()
        marks._bits = {key: int.from_bytes(bits) for key, bits in packed}
        return marks


@dataclass(frozen=True)
class Account:
    """Outcome of the messages in one channel."""

    topic: str
    channel: str
    published: int  # acknowledged with OK
    finished: int  # each once
    lost: int  # acknowledged with OK, but never finished
    unconfirmed: int  # finished although their publish was not acknowledged with OK
    duplicates: int  # finished again
    again: int  # deliveries with more than one attempt
    requeued: int
    out_of_order: int  # first deliveries after a later message from the same publisher and nsqd
    early: int  # deferred messages delivered before they were due
    ahead: int  # delivered before they were published: the machines' clocks differ
    foreign: int  # from a different run or program


@dataclass
class Ledger:
    """`counters` are keyed by topic, channel and one of COUNTED."""

    published: dict[str, Marks] = field(default_factory=dict)
    finished: dict[Place, Marks] = field(default_factory=dict)
    counters: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def publish(self, topic: str, publisher: int, numbers: Iterable[int]) -> None:
        """Record messages that were acknowledged with OK."""
        marks = self.published.setdefault(topic, Marks())
        for number in numbers:
            marks.add(publisher, number)

    def finish(self, place: Place, publisher: int, number: int) -> None:
        if not self.finished.setdefault(place, Marks()).add(publisher, number):
            self.count(place, "duplicates")

    def count(self, place: Place, name: str) -> None:
        self.counters[*place, name] += 1

    def take(self) -> dict[str, Any]:
        """Return the new entries, encoded for the network, and forget them."""
        taken = {
            "published": [(topic, marks.pack()) for topic, marks in self.published.items()],
            "finished": [(*place, marks.pack()) for place, marks in self.finished.items()],
            "counters": [(*key, count) for key, count in self.counters.items()],
        }
        self.published, self.finished, self.counters = {}, {}, Counter()
        return taken

    def merge(self, taken: dict[str, Any]) -> None:
        for topic, packed in taken["published"]:
            self.published.setdefault(topic, Marks()).merge(Marks.unpack(packed))
        for topic, channel, packed in taken["finished"]:
            place = topic, channel
            marks = self.finished.setdefault(place, Marks())
            self.counters[*place, "duplicates"] += marks.merge(Marks.unpack(packed))
        for topic, channel, name, count in taken["counters"]:
            self.counters[topic, channel, name] += count

    def account(self, place: Place) -> Account:
        published = self.published.get(place[0], Marks())
        finished = self.finished.get(place, Marks())
        counted = {name: self.counters[*place, name] for name in COUNTED}
        return Account(
            topic=place[0],
            channel=place[1],
            published=len(published),
            finished=len(finished),
            lost=published.without(finished),
            unconfirmed=finished.without(published),
            **counted,
        )


class Order:
    """Checks whether first deliveries to one consumer arrive in publish order, which a channel on
    one nsqd guarantees for each publishing connection."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], int] = {}

    def breaks(self, publisher: int, number: int, nsqd: str) -> bool:
        last = self._last.get((publisher, nsqd), -1)
        self._last[publisher, nsqd] = max(last, number)
        return number < last
