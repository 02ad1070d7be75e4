"""Tally of published messages and their deliveries to each channel, with publishers that keep a
tally while nsqds come and go.

A body contains its publisher's name and a number, which identify the message.
"""

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from nsqcy.client import Producer
from nsqcy.testing.wire_client import RESPONSE, Address, Conn, Hangup

PAUSE = 0.02  # seconds between publishes, or between runs of publishes
RUN = 5  # publishes in progress at the same time
PATIENCE = 20.0  # seconds within which a message must be accepted


class Tally:
    """Tally of one topic."""

    def __init__(self) -> None:
        self.published: set[bytes] = set()  # attempted
        self.accepted: set[bytes] = set()  # answered with OK
        self.hidden: dict[str, Counter[str]] = defaultdict(Counter)  # errors, by publisher
        self._received: dict[str, Counter[bytes]] = defaultdict(Counter)  # by channel

    def receives(self, channel: str, body: bytes) -> None:
        self._received[channel][body] += 1

    def lost(self, channel: str) -> set[bytes]:
        """Return the acknowledged messages that the channel never received."""
        return self.accepted - self._received[channel].keys()

    def unexpected(self, channel: str) -> set[bytes]:
        return self._received[channel].keys() - self.published

    def again(self, channel: str) -> int:
        """Return how many arrived more than once."""
        return sum(count > 1 for count in self._received[channel].values())

    def most(self, channel: str) -> int:
        """Return how often the most frequent message arrived."""
        return max(self._received[channel].values(), default=0)


class Publisher(threading.Thread):
    """Publishes one message after another until it is stopped. `accepted` grows as messages are
    accepted."""

    pause = PAUSE

    def __init__(self, tally: Tally, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.accepted = 0
        self.error: Exception | None = None  # errors that its client did not hide
        self._tally = tally
        self._ended = threading.Event()
        self._number = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.step()
                time.sleep(self.pause)
        except Exception as error:
            self.error = error

    def step(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self._ended.set()
        self.join(2 * PATIENCE)
        assert not self.is_alive(), f"{self.name} did not stop"

    def next_body(self) -> bytes:
        self._number += 1
        body = b"%s %d" % (self.name.encode(), self._number)
        self._tally.published.add(body)
        return body

    def is_accepted(self, body: bytes) -> None:
        self._tally.accepted.add(body)
        self.accepted += 1

    def hides(self, error: object) -> None:
        """A publisher whose client retries, or that retries itself if the client does not."""
        self._tally.hidden[self.name][str(error)] += 1


class PoolPublisher(Publisher):
    """Uses nsqcy.client's pool directly: several publishes are in progress at the same time."""

    def __init__(self, tally: Tally, name: str, topic: str, **options: Any) -> None:
        super().__init__(tally, name)
        self._topic = topic
        self._producer = Producer(**options, on_retry=lambda publish, error: self.hides(error))

    def step(self) -> None:
        bodies = [self.next_body() for _ in range(RUN)]
        sent = [self._producer.publish_nowait(self._topic, body) for body in bodies]
        for future, body in zip(sent, bodies, strict=True):
            future.result(PATIENCE)
            self.is_accepted(body)

    def end(self) -> None:
        super().end()
        self._producer.close()


class PlainPublisher(Publisher):
    """Publisher without a library. If one nsqd does not accept a message, it sends the message to
    the next."""

    def __init__(self, tally: Tally, name: str, topic: str, addresses: Sequence[Address]) -> None:
        super().__init__(tally, name)
        self._topic = topic
        self._addresses = list(addresses)
        self._conn: Conn | None = None

    def step(self) -> None:
        body = self.next_body()
        deadline = time.monotonic() + PATIENCE
        while not self._publish(body):
            self._hang_up()
            self._addresses.append(self._addresses.pop(0))
            assert time.monotonic() < deadline, f"no nsqd has accepted {body!r}"
        self.is_accepted(body)

    def _publish(self, body: bytes) -> bool:
        try:
            self._conn = self._conn or Conn(self._addresses[0])
        except OSError:
            self.hides("not there")
            return False
        try:
            self._conn.command("PUB", self._topic, body=body)
            kind, answer = self._conn.frame()
        except (OSError, Hangup):
            self.hides("no answer")
            return False
        if kind != RESPONSE:
            self.hides(answer.decode())
        return kind == RESPONSE

    def _hang_up(self) -> None:
        if self._conn is not None:
            self._conn.close()
        self._conn = None

    def end(self) -> None:
        super().end()
        self._hang_up()
