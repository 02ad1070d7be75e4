"""Ledger of published and delivered messages, message by message, and its evaluation.

Every message has a publisher and a number. The ledger of an entire test is the sum of the parts
that the load processes send periodically: `take` returns and forgets the new entries, and `merge`
adds them to another ledger. Independent of clocks, connections and failures: the
tests report which messages were rejected, and which may be missing.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Self

SPAN = 9  # low bits of a number; numbers that differ only in these share an int
WITHIN = (1 << SPAN) - 1
SHOWN = 5  # maximum messages to list
ATTEMPTED, PUBLISHED, REFUSED = "attempted", "published", "refused"
FINISHED, EXCUSED = "finished", "excused"

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

    def add_all(self, publisher: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.add(publisher, number)

    def merge(self, other: Self) -> int:
        """Add the messages from another set; return how many of them are not new."""
        twice = 0
        for key, bits in other._bits.items():
            before = self._bits.get(key, 0)
            twice += (before & bits).bit_count()
            self._bits[key] = before | bits
        return twice

    def __sub__(self, other: Self) -> Self:
        """Return the messages that are not in the other set."""
        left = type(self)()
        for key, bits in self._bits.items():
            if rest := bits & ~other._bits.get(key, 0):
                left._bits[key] = rest
        return left

    def __and__(self, other: Self) -> Self:
        """Return the messages that are also in the other set."""
        return self - (self - other)

    def of(self, publisher: int) -> Self:
        """Return one publisher's messages."""
        found = type(self)()
        found._bits = {key: bits for key, bits in self._bits.items() if key >> 32 == publisher}
        return found

    def some(self) -> list[str]:
        """Return some of the messages, as publisher:number."""
        return [f"{publisher}:{number}" for publisher, number in islice(self, SHOWN)]

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
    published: int = 0  # acknowledged with OK
    finished: int = 0  # each once
    lost: int = 0  # acknowledged with OK, never finished, and not excused
    forgotten: int = 0  # acknowledged with OK, never finished, and excused
    unasked: int = 0  # rejected, but finished anyway
    unexpected: int = 0  # finished, but never sent; 0 if the sent messages are unknown
    unconfirmed: int = 0  # finished although their publish was not answered with OK
    duplicates: int = 0  # finished again
    again: int = 0  # deliveries with more than one attempt
    requeued: int = 0
    out_of_order: int = 0  # first received after a later message from the same publisher and nsqd
    early: int = 0  # deferred messages delivered before they were due
    ahead: int = 0  # delivered before they were published: the machines' clocks differ
    corrupt: int = 0  # changed
    foreign: int = 0  # messages from a different topic, run or program
    named: dict[str, list[str]] = field(default_factory=dict)
    """Some of the lost, unasked or unexpected messages, as publisher:number."""


class Ledger:
    """`counters` are keyed by topic, channel and the name of an account's field."""

    def __init__(self) -> None:
        self.counters: Counter[tuple[str, str, str]] = Counter()
        # Keyed by kind and topic; for consumers, also by channel.
        self._marks: dict[tuple[str, ...], Marks] = {}

    # -- entries

    def attempt(self, topic: str, publisher: int, numbers: Iterable[int]) -> None:
        """Record messages that are about to be sent."""
        self._of(ATTEMPTED, topic).add_all(publisher, numbers)

    def publish(self, topic: str, publisher: int, numbers: Iterable[int]) -> None:
        """Record messages that were acknowledged with OK."""
        self._of(PUBLISHED, topic).add_all(publisher, numbers)

    def refuse(self, topic: str, publisher: int, numbers: Iterable[int]) -> None:
        """Record messages that nsqd has rejected."""
        self._of(REFUSED, topic).add_all(publisher, numbers)

    def finish(self, place: Place, publisher: int, number: int) -> None:
        if not self._of(FINISHED, *place).add(publisher, number):
            self.count(place, "duplicates")

    def excuse(self, place: Place, messages: Marks) -> None:
        """Record that these messages, unless they are finished, may be missing."""
        self._of(EXCUSED, *place).merge(messages - self._of(FINISHED, *place))

    def count(self, place: Place, name: str) -> None:
        self.counters[*place, name] += 1

    # -- parts

    def take(self) -> dict[str, Any]:
        """Return the new entries, encoded for the network, and forget them."""
        taken = {
            "marks": [(key, marks.pack()) for key, marks in self._marks.items()],
            "counters": [(*key, count) for key, count in self.counters.items()],
        }
        self._marks, self.counters = {}, Counter()
        return taken

    def merge(self, taken: dict[str, Any]) -> None:
        for (kind, *place), packed in taken["marks"]:
            twice = self._of(kind, *place).merge(Marks.unpack(packed))
            if kind == FINISHED:
                topic, channel = place
                self.counters[topic, channel, "duplicates"] += twice
        for topic, channel, name, count in taken["counters"]:
            self.counters[topic, channel, name] += count

    # -- evaluation

    def account(self, place: Place) -> Account:
        published, finished = self._of(PUBLISHED, place[0]), self._of(FINISHED, *place)
        missing, lost = published - finished, self.lost(place)
        unasked = self._of(REFUSED, place[0]) & finished
        attempted = self._of(ATTEMPTED, place[0])
        unexpected = finished - attempted if attempted else Marks()
        named = {"lost": lost, "unasked": unasked, "unexpected": unexpected}
        return Account(
            *place,
            published=len(published),
            finished=len(finished),
            lost=len(lost),
            forgotten=len(missing) - len(lost),
            unasked=len(unasked),
            unexpected=len(unexpected),
            unconfirmed=len(finished - published) - len(unasked),
            named={name: marks.some() for name, marks in named.items() if marks},
            **{key[2]: count for key, count in self.counters.items() if key[:2] == place},
        )

    def owed(self, places: Iterable[Place]) -> int:
        """Return the number of outstanding deliveries, excluding those that are excused."""
        return sum(len(self.lost(place)) for place in places)

    def attempted(self, topic: str, publisher: int) -> Marks:
        return self._of(ATTEMPTED, topic).of(publisher)

    def lost(self, place: Place) -> Marks:
        """Return the messages that were acknowledged with OK, never finished, and not excused."""
        missing = self._of(PUBLISHED, place[0]) - self._of(FINISHED, *place)
        return missing - self._of(EXCUSED, *place)

    def _of(self, *key: str) -> Marks:
        return self._marks.setdefault(key, Marks())


class Order:
    """Checks whether first deliveries to one consumer arrive in publish order, which a channel on
    one nsqd guarantees for each publishing connection."""

    def __init__(self) -> None:
        self._last: dict[tuple[int, str], int] = {}

    def breaks(self, publisher: int, number: int, nsqd: str) -> bool:
        last = self._last.get((publisher, nsqd), -1)
        self._last[publisher, nsqd] = max(last, number)
        return number < last
