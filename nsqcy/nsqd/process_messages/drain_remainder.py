"""Messages that consumers have not finished: a worker's answer when nsqd drains, and the total."""

import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

SHOWN = 100  # maximum number of channels to list


class Rest(NamedTuple):
    """Messages that a channel's consumers have not finished; with channel "", the messages that the
    topic has not copied to any channel."""

    topic: str
    channel: str
    waiting: int
    in_flight: int
    deferred: int

    @property
    def messages(self) -> int:
        return self.waiting + self.in_flight + self.deferred

    def __str__(self) -> str:
        name = f"{self.topic}:{self.channel}" if self.channel else f"{self.topic} without a channel"
        return (
            f"{name} ({self.waiting} waiting, {self.in_flight} in flight, {self.deferred} deferred)"
        )


class Remains(NamedTuple):
    """Totals across this number of topics and channels. `places` contains the topics and channels
    with the most messages."""

    number: int = 0
    waiting: int = 0
    in_flight: int = 0
    deferred: int = 0
    places: Sequence[Rest] = ()

    @property
    def messages(self) -> int:
        return self.waiting + self.in_flight + self.deferred

    def __str__(self) -> str:
        named = ", ".join(map(str, self.places[:3]))
        messages = "1 message" if self.messages == 1 else f"{self.messages} messages"
        places = "1 place" if self.number == 1 else f"{self.number} places"
        return f"{messages} in {places}: {named}"


def summed(places: Iterable[Rest]) -> Remains:
    """Return one worker's totals."""
    found = list(places)
    return Remains(
        len(found),
        sum(each.waiting for each in found),
        sum(each.in_flight for each in found),
        sum(each.deferred for each in found),
        _maximum(found),
    )


def merged(parts: Iterable[Sequence[Any]]) -> Remains:
    """Return the totals of all workers, given a Remains per worker."""
    number = waiting = in_flight = deferred = 0
    places: list[Rest] = []
    for part in parts:
        number += part[0]
        waiting += part[1]
        in_flight += part[2]
        deferred += part[3]
        places += [Rest(*each) for each in part[4]]
    return Remains(number, waiting, in_flight, deferred, _maximum(places))


def _maximum(places: list[Rest]) -> list[Rest]:
    return heapq.nlargest(SHOWN, places, key=lambda each: each.messages)
