"""A backlog on one nsqd, with channels at different positions and deferred messages, and its
delivery by other nsqds."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Self

from nsqcy.client import Consumer
from support.copied_nsqds import CopiedNsqd

TOPIC = "orders"
CHANNELS = UNREAD, HALF, READ = ("unread", "half", "read")
BATCH = 200  # messages per publish
IN_FLIGHT = 100  # unanswered messages of the channel `unread`
MAX_READ = 20_000  # maximum number of messages that a channel finishes
DEFERRED = 200
DELAY = 20.0  # seconds
PADDING = b"." * 80


@dataclass
class Backlog:
    """Messages that one nsqd has acknowledged.

    The channel `unread` has finished none, but some are in flight; `half` has finished some;
    `read` has finished all but the deferred ones, but at most MAX_READ.
    """

    count: int
    everything: set[bytes] = field(default_factory=set)
    missing: dict[str, set[bytes]] = field(default_factory=dict)
    """Messages that each channel has neither finished nor received from the other nsqds."""
    due: dict[bytes, float] = field(default_factory=dict)
    """Earliest time at which each deferred message may arrive."""

    def publish(self, node: CopiedNsqd) -> None:
        """Publish everything, and move the channels to their positions."""
        node.web.create(TOPIC, *CHANNELS)
        conn = node.connect(timeout=60.0)
        bodies = [b"%d %s" % (number, PADDING) for number in range(self.count)]
        for first in range(0, self.count, BATCH):
            conn.mpub(TOPIC, bodies[first : first + BATCH])
        node.connect().sub(TOPIC, UNREAD, IN_FLIGHT).messages(IN_FLIGHT)
        finished: dict[str, set[bytes]] = {
            UNREAD: set(),
            HALF: self._read(node, HALF, min(self.count // 2, MAX_READ)),
            READ: self._read(node, READ, min(self.count, MAX_READ)),
        }
        for number in range(DEFERRED):
            body = b"deferred %d" % number
            self.due[body] = time.monotonic() + DELAY
            conn.dpub(TOPIC, int(DELAY * 1000), body)
        self.everything = {*bodies, *self.due}
        self.missing = {channel: self.everything - finished[channel] for channel in CHANNELS}

    def _read(self, node: CopiedNsqd, channel: str, count: int) -> set[bytes]:
        """Finish messages in a channel; return their bodies."""
        conn = node.connect(timeout=60.0).sub(TOPIC, channel, BATCH)
        bodies = {message.body for message in conn.take(count)}
        conn.cls()
        return bodies


class Receivers:
    """Consumers of a backlog's channels on other nsqds. Record times and errors."""

    def __init__(self, backlog: Backlog, nodes: list[CopiedNsqd]) -> None:
        self.backlog = backlog
        self.early: list[bytes] = []
        """Deferred messages that arrived before their time."""
        self.again: Counter[str] = Counter()
        """Per channel, the number of messages that it had already finished, or received twice."""
        self.unexpected: list[bytes] = []
        self.since = time.monotonic()
        self.first = self.last = 0.0
        """Seconds until the first and the last missing message arrived."""
        self._lock = threading.Lock()
        self._consumers = [
            Consumer(
                TOPIC,
                channel,
                nsqd_tcp_addresses=[node.tcp_address for node in nodes],
                max_in_flight=500,
                max_tries=0,
                message_handler=lambda message, channel=channel: self._take(channel, message.body),
            )
            for channel in CHANNELS
        ]

    def __enter__(self) -> Self:
        for consumer in self._consumers:
            consumer.start()
        return self

    def __exit__(self, *_: object) -> None:
        for consumer in self._consumers:
            consumer.close(graceful=False)

    def lack(self) -> dict[str, int]:
        """Return the number of missing messages for each channel that lacks messages."""
        with self._lock:
            missing = self.backlog.missing.items()
            return {channel: len(bodies) for channel, bodies in missing if bodies}

    def _take(self, channel: str, body: bytes) -> None:
        now = time.monotonic()
        backlog = self.backlog
        with self._lock:
            if now < backlog.due.get(body, now):
                self.early.append(body)
            if body not in backlog.everything:
                self.unexpected.append(body)
            elif body in backlog.missing[channel]:
                backlog.missing[channel].remove(body)
                self.last = now - self.since
                self.first = self.first or self.last
            else:
                self.again[channel] += 1
