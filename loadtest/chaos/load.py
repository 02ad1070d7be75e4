"""State shared by all load clients: the cluster, the ledger, the duration.

Owns no connection. Clients fail constantly under faults. FAILURES are the expected errors; any
other error ends the run.
"""

import asyncio
import http.client
import random
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from loadtest.chaos.cluster import PLACES, TOPICS, Cluster
from loadtest.chaos.register import MEMORY, Register
from loadtest.soak.bodies import MIN_BYTES, Bodies, Sizes, Stamp
from loadtest.soak.ledger import Ledger, Place
from loadtest.soak.timeline import Timeline
from nsqcy.client.errors import Error
from nsqcy.client.options import ConnectionKeywords

T = TypeVar("T")

FAILURES = (Error, OSError, http.client.HTTPException, TimeoutError, asyncio.IncompleteReadError)
SIZES = Sizes.parse("12-100:60,100-1000:30,1000-10000:9,10000-102400:1", minimum=MIN_BYTES)
MILLISECOND = 1_000_000  # in ns
EARLY = 50 * MILLISECOND  # tolerance for clock adjustments
REMEMBERED = 10_000  # refusals
WAYS: tuple[ConnectionKeywords, ...] = (
    {},
    {"snappy": True},
    {},
    {"deflate": True},
    {"tls_v1": True},
    {"tls_v1": True, "snappy": True},
)


class Refusal(NamedTuple):
    """nsqd has rejected a publish."""

    second: float  # since 1970
    kind: str
    publisher: int
    first: int  # number of the first message
    messages: int
    text: str


class Load:
    def __init__(self, cluster: Cluster, chance: random.Random, rate: float) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        self.register = Register(self.ledger, PLACES)
        self.chance = chance
        self.rate = rate  # messages per second, for all publishers together
        self.bodies = Bodies(chance.getrandbits(32), SIZES)
        self.timeline = Timeline()
        self.quiet = asyncio.Event()  # publishers and misbehaving clients have stopped
        self.forget = 0  # number of deliveries to finish without recording them
        self._forgotten: set[tuple[Place, int, int]] = set()
        self.refusals: deque[Refusal] = deque(maxlen=REMEMBERED)

    # -- connections

    def way(self, number: int) -> ConnectionKeywords:
        """Encoding of a client's connection: plain, compressed or encrypted."""
        way = WAYS[number % len(WAYS)].copy()
        if way.get("tls_v1"):
            way["tls_options"] = {"ca_certs": str(self.cluster.certificate.certificate)}
        way |= {"heartbeat_interval": 2.0, "timeout": 3.0}
        return way

    async def call(self, function: Callable[..., T], *args: Any, **named: Any) -> T:
        """Run blocking code in a thread."""
        return await asyncio.to_thread(function, *args, **named)

    async def rest(self, seconds: float) -> None:
        """Sleep, but only until the run becomes quiet."""
        try:
            await asyncio.wait_for(self.quiet.wait(), seconds)
        except TimeoutError:
            pass

    # -- messages

    def note(self, kind: str, milliseconds: float | None, messages: int = 1) -> None:
        """Record a completed request or, without milliseconds, a failed one."""
        failed = milliseconds is None
        second = int(time.time())
        self.timeline.add(second, kind, "", milliseconds, messages=messages, failed=failed)

    def received(self, place: Place, body: bytes, attempts: int) -> Stamp | None:
        """Record a delivery; return None if the message should just be finished."""
        stamp = self.bodies.read(body)
        if stamp is None:
            self.ledger.count(place, "corrupt")
            return None
        if not self.register.knows(place, stamp.publisher, stamp.number):
            return None
        if attempts > 1:
            self.ledger.count(place, "again")
        if stamp.due is not None:
            late = time.time_ns() - stamp.due
            if late < -EARLY:
                self.ledger.count(place, "early")
            if attempts == 1:
                self.note("deliver", max(0.0, late / MILLISECOND))
        return stamp

    def finished(self, place: Place, stamp: Stamp) -> None:
        if self._forgets(place, stamp):
            return
        self.ledger.finish(place, stamp.publisher, stamp.number)

    def _forgets(self, place: Place, stamp: Stamp) -> bool:
        """Return whether the ledger ignores the topic, no matter how often its messages are
        delivered."""
        key = place, stamp.publisher, stamp.number
        if len(self._forgotten) < self.forget and TOPICS[place[0]] != MEMORY:
            self._forgotten.add(key)
        return key in self._forgotten
