"""The publishers, the messages that they attempted, and the losses that the death of a worker
excuses.

A publisher has one topic on one nsqd. In durability class `memory`, nsqd may lose the messages that
were not finished when one of its workers died, but no others. Independent of clocks and
connections; the messages themselves are in the ledger.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from loadtest.soak.ledger import Account, Ledger, Place

MEMORY = "memory"  # the durability class that may lose messages
# messages that are in no account
GUARANTEED = ("lost", "unasked", "unexpected", "early", "corrupt", "foreign")


@dataclass(frozen=True)
class Publisher:
    number: int
    topic: str
    node: int
    durability: str


class Register:
    def __init__(self, ledger: Ledger, places: Iterable[Place]) -> None:
        self._ledger = ledger
        self._places = list(places)
        self._publishers: list[Publisher] = []
        self._next: list[int] = []  # number of each publisher's next message

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
        self._ledger.attempt(publisher.topic, publisher.number, numbers)
        return numbers

    def died(self, node: int) -> None:
        """Handle the death of all processes of that nsqd, and the loss of messages that were only
        in memory."""
        for publisher in self._publishers:
            if publisher.node == node and publisher.durability == MEMORY:
                messages = self._ledger.attempted(publisher.topic, publisher.number)
                for place in self._places:
                    if place[0] == publisher.topic:
                        self._ledger.excuse(place, messages)

    def knows(self, place: Place, publisher: int, number: int) -> bool:
        """Return whether the message belongs to this topic; if not, record it."""
        found = publisher < len(self._publishers) and number < self._next[publisher]
        if not found or self._publishers[publisher].topic != place[0]:
            self._ledger.count(place, "foreign")
            return False
        return True

    def accounts(self) -> list[Account]:
        return [self._ledger.account(place) for place in self._places]

    @property
    def owed(self) -> int:
        return self._ledger.owed(self._places)

    @property
    def strays(self) -> dict[str, int]:
        """Return errors that count even in channels without an account."""
        found: Counter[str] = Counter()
        for (topic, channel, name), count in self._ledger.counters.items():
            if (topic, channel) not in self._places and name in ("corrupt", "foreign"):
                found[name] += count
        return dict(found)


def broken(account: Account) -> dict[str, int]:
    """Return the broken guarantees."""
    found = {name: getattr(account, name) for name in GUARANTEED}
    return {name: count for name, count in found.items() if count}
