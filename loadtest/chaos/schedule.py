"""The fault schedule: the kinds of faults, and their order, which is determined by a seed.

A fault has a kind, a time, a target and a duration; faults.py injects it. The same seed gives the
same schedule. Independent of clocks and processes.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

NSQD, KILLABLE, SLOW_DISK, SMALL_DISK, LOOKUPD, KILLABLE_LOOKUPD = (
    "an nsqd",
    "an nsqd that may be killed",
    "an nsqd whose disk can be made slow",
    "an nsqd with a disk of its own",
    "an nsqlookupd",
    "an nsqlookupd that may be killed",
)


@dataclass(frozen=True)
class Kind:
    """`seconds` is the duration of the fault; for a fault that ends processes, the time until their
    restart."""

    name: str
    victims: str
    seconds: tuple[float, float]


KINDS = (
    Kind("kill a worker", KILLABLE, (0, 0)),
    Kind("kill nsqd", KILLABLE, (0, 3)),
    Kind("kill the master", KILLABLE, (0, 1)),
    Kind("restart nsqd", KILLABLE, (0, 3)),
    Kind("stop a worker", NSQD, (1, 10)),
    Kind("stop the master", NSQD, (1, 10)),
    Kind("slow disk", SLOW_DISK, (3, 10)),
    Kind("disk full", SMALL_DISK, (1, 8)),
    Kind("cut", NSQD, (0, 5)),
    Kind("reset", NSQD, (0, 2)),
    Kind("stall", NSQD, (2, 10)),
    Kind("half stall", NSQD, (2, 10)),
    Kind("delay", NSQD, (3, 10)),
    Kind("dribble", NSQD, (2, 8)),
    Kind("kill nsqlookupd", KILLABLE_LOOKUPD, (0, 5)),
    Kind("stop nsqlookupd", LOOKUPD, (1, 10)),
)


@dataclass(frozen=True)
class Fault:
    """`chance` decides the details, such as the worker or the delay of the disk."""

    at: float  # seconds since the load began
    kind: str
    victim: int
    seconds: float
    chance: float


def plan(
    seed: int,
    seconds: float,
    pause: tuple[float, float],
    victims: dict[str, Sequence[int]],
) -> list[Fault]:
    """Return all faults that begin within this time, with pauses between them. The kinds are
    shuffled in rounds, so that even a short run has every kind; kinds without a target are
    omitted."""
    chance = random.Random(seed)
    kinds = _turns([each for each in KINDS if victims.get(each.victims)], chance)
    found = []
    at = chance.uniform(*pause)
    while at < seconds:
        kind = next(kinds)
        found.append(
            Fault(
                at=at,
                kind=kind.name,
                victim=chance.choice(victims[kind.victims]),
                seconds=min(chance.uniform(*kind.seconds), seconds - at),
                chance=chance.random(),
            )
        )
        at += chance.uniform(*pause)
    return found


def _turns(kinds: Sequence[Kind], chance: random.Random) -> Iterator[Kind]:
    while True:
        yield from chance.sample(kinds, len(kinds))
