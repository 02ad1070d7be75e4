"""Ledger of published messages and their outcomes, across restarts of nsqds.

Every message has a publisher and a number, and a publisher has one topic on one nsqd. Messages
answered with OK must be finished in every channel. In class `memory`, nsqd may lose the messages
that were not finished when one of its workers died, but no others. Independent of clocks and
connections.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from loadtest.swarm.ledger import Marks, Place

MEMORY = "memory"  # the durability class that may lose messages
SHOWN = 5  # maximum messages to list
COUNTED = ("duplicates", "again", "requeued", "early", "corrupt", "foreign")


@dataclass(frozen=True)
class Publisher:
    number: int
    topic: str
    node: int
    durability: str


@dataclass(frozen=True)
class Account:
    """Outcome of the messages in one channel."""

    topic: str
    channel: str
    durability: str
    accepted: int  # acknowledged with OK
    finished: int  # each once
    lost: int  # accepted, never finished, and not explained by a death
    forgotten: int  # accepted, never finished: of class memory, and lost with a worker
    unasked: int  # rejected, but delivered anyway
    unconfirmed: int  # finished although their publish was not acknowledged
    duplicates: int  # finished again
    again: int  # deliveries with more than one attempt
    requeued: int
    early: int  # delivered before they were due
    corrupt: int  # changed
    foreign: int  # from a different topic
    named: dict[str, list[str]]  # some of the lost or unasked messages, as publisher:number

    @property
    def broken(self) -> dict[str, int]:
        """Broken guarantees."""
        bad = ("lost", "unasked", "early", "corrupt", "foreign")
        return {name: getattr(self, name) for name in bad if getattr(self, name)}


class Ledger:
    def __init__(self, places: Iterable[Place]) -> None:
        self.counters: Counter[tuple[str, str, str]] = Counter()
        self._places = list(places)
        self._publishers: list[Publisher] = []
        self._next: list[int] = []  # number of each publisher's next message
        self._attempted: dict[int, Marks] = defaultdict(Marks)  # by publisher
        self._accepted: dict[str, Marks] = defaultdict(Marks)  # by topic
        self._refused: dict[str, Marks] = defaultdict(Marks)
        self._finished: dict[Place, Marks] = defaultdict(Marks)
        self._excused: dict[Place, Marks] = defaultdict(Marks)

    # -- publishing

    def enter(self, topic: str, node: int, durability: str) -> Publisher:
        """A new publisher."""
        publisher = Publisher(len(self._publishers), topic, node, durability)
        self._publishers.append(publisher)
        self._next.append(0)
        return publisher

    def attempt(self, publisher: Publisher, count: int) -> range:
        """Return the numbers of messages that are about to be published."""
        first = self._next[publisher.number]
        self._next[publisher.number] += count
        numbers = range(first, first + count)
        _mark(self._attempted[publisher.number], publisher, numbers)
        return numbers

    def accept(self, publisher: Publisher, numbers: range) -> None:
        _mark(self._accepted[publisher.topic], publisher, numbers)

    def refuse(self, publisher: Publisher, numbers: range) -> None:
        """Record messages that nsqd has rejected."""
        _mark(self._refused[publisher.topic], publisher, numbers)

    # -- deaths

    def died(self, node: int) -> None:
        """Handle the death of one of that nsqd's workers, and the loss of messages that existed
        only in the worker's memory."""
        for publisher in self._publishers:
            if publisher.node == node and publisher.durability == MEMORY:
                attempted = self._attempted[publisher.number]
                for place in self._places:
                    if place[0] == publisher.topic:
                        self._excused[place].merge(attempted.minus(self._finished[place]))

    # -- consuming

    def knows(self, place: Place, publisher: int, number: int) -> bool:
        """Return whether the message belongs to this topic; if not, record it."""
        found = publisher < len(self._publishers) and number < self._next[publisher]
        if not found or self._publishers[publisher].topic != place[0]:
            self.count(place, "foreign")
            return False
        return True

    def finish(self, place: Place, publisher: int, number: int) -> None:
        if not self._finished[place].add(publisher, number):
            self.count(place, "duplicates")

    def count(self, place: Place, name: str) -> None:
        self.counters[*place, name] += 1

    # -- the end

    def accounts(self) -> list[Account]:
        return [self._account(place) for place in self._places]

    @property
    def owed(self) -> int:
        """Return the number of outstanding deliveries of accepted messages, excluding those lost
        through deaths."""
        return sum(
            self._accepted[place[0]].minus(self._finished[place]).without(self._excused[place])
            for place in self._places
        )

    @property
    def strays(self) -> dict[str, int]:
        """Record errors that count even in channels outside the ledger."""
        found: Counter[str] = Counter()
        for (topic, channel, name), count in self.counters.items():
            if (topic, channel) not in self._places and name in ("corrupt", "foreign"):
                found[name] += count
        return dict(found)

    def _account(self, place: Place) -> Account:
        topic, channel = place
        accepted, finished = self._accepted[topic], self._finished[place]
        gone = accepted.minus(finished)
        lost = gone.minus(self._excused[place])
        refused = self._refused[topic]
        unasked = refused.minus(refused.minus(finished))
        return Account(
            topic=topic,
            channel=channel,
            durability=next(
                (each.durability for each in self._publishers if each.topic == topic), MEMORY
            ),
            accepted=len(accepted),
            finished=len(finished),
            lost=len(lost),
            forgotten=len(gone) - len(lost),
            unasked=len(unasked),
            unconfirmed=finished.without(accepted) - len(unasked),
            named={"lost": _named(lost), "unasked": _named(unasked)},
            **{name: self.counters[topic, channel, name] for name in COUNTED},
        )


def _named(marks: Marks) -> list[str]:
    return [f"{publisher}:{number}" for publisher, number in islice(marks, SHOWN)]


def _mark(marks: Marks, publisher: Publisher, numbers: range) -> None:
    for number in numbers:
        marks.add(publisher.number, number)
