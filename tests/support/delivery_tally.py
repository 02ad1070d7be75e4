"""Tally of published messages and their deliveries to each channel, with publishers that keep a
tally while nsqds stop and restart.

A body contains its publisher's name and a number, which identify the message.
"""

import threading
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from loadtest.soak.ledger import Account, Ledger, Marks
from nsqcy.client import Error, Producer
from nsqcy.testing.wire_client import RESPONSE, Address, Conn, Hangup

TOPIC = "topic"  # the topic's name in the ledger
PAUSE = 0.02  # seconds between publishes, or between runs of publishes
RUN = 5  # publishes in progress at the same time
PATIENCE = 20.0  # seconds within which a message must be accepted


class Tally:
    """The ledger of one topic, which publishers and consumers keep on their threads."""

    def __init__(self) -> None:
        self.hidden: dict[str, Counter[str]] = defaultdict(Counter)  # errors, by publisher
        self._ledger = Ledger()
        self._lock = threading.Lock()

    def attempts(self, body: bytes) -> None:
        publisher, number = _name(body)
        with self._lock:
            self._ledger.attempt(TOPIC, publisher, [number])

    def accepts(self, body: bytes) -> None:
        """Record that nsqd acknowledged the publish of this body."""
        publisher, number = _name(body)
        with self._lock:
            self._ledger.publish(TOPIC, publisher, [number])

    def receives(self, channel: str, body: bytes) -> None:
        with self._lock:
            self._ledger.finish((TOPIC, channel), *_name(body))

    def lost(self, channel: str) -> Marks:
        """Return the accepted messages that the channel has not received so far."""
        with self._lock:
            return self._ledger.lost((TOPIC, channel))

    def account(self, channel: str) -> Account:
        with self._lock:
            return self._ledger.account((TOPIC, channel))


def _name(body: bytes) -> tuple[int, int]:
    """Return the publisher and the number of a message."""
    name, _, number = body.rpartition(b" ")
    return (zlib.crc32(name), int(number)) if number.isdigit() else (zlib.crc32(body), 0)


class Publisher(threading.Thread):
    """Publishes one message after another until it is stopped. `accepted` grows as messages are
    accepted.

    continues: after a publish that failed, it publishes the next message instead of ending; the
        failed one may be delivered or not
    """

    def __init__(
        self, tally: Tally, name: str, *, continues: bool = False, pause: float = PAUSE
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._continues = continues
        self._pause = pause
        self.accepted = 0
        self.error: Exception | None = None  # errors that its client raised
        self._tally = tally
        self._ended = threading.Event()
        self._number = 0

    def run(self) -> None:
        try:
            while not self._ended.is_set():
                self.step()
                time.sleep(self._pause)
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
        self._tally.attempts(body)
        return body

    def is_accepted(self, body: bytes) -> None:
        self._tally.accepts(body)
        self.accepted += 1

    def hides(self, error: object) -> None:
        """A publisher whose client retries, or that retries itself if the client does not."""
        self._tally.hidden[self.name][str(error)] += 1


class PoolPublisher(Publisher):
    """Uses nsqcy.client's pool directly: several publishes are in progress at the same time."""

    def __init__(
        self,
        tally: Tally,
        name: str,
        topic: str,
        *,
        continues: bool = False,
        pause: float = PAUSE,
        **options: Any,
    ) -> None:
        super().__init__(tally, name, continues=continues, pause=pause)
        self._topic = topic
        self._producer = Producer(**options, on_retry=lambda publish, error: self.hides(error))

    def step(self) -> None:
        bodies = [self.next_body() for _ in range(RUN)]
        sent = [self._producer.publish_nowait(self._topic, body) for body in bodies]
        for future, body in zip(sent, bodies, strict=True):
            try:
                future.result(PATIENCE)
            except (Error, FutureTimeout) as error:
                if not self._continues:
                    raise
                self.hides(error)
            else:
                self.is_accepted(body)

    def end(self) -> None:
        super().end()
        self._producer.close()


class PlainPublisher(Publisher):
    """Publisher without a library. If one nsqd does not accept a message, it uses the next nsqd,
    for the same message unless it continues with the next one."""

    def __init__(
        self, tally: Tally, name: str, topic: str, addresses: Sequence[Address], **options: Any
    ) -> None:
        super().__init__(tally, name, **options)
        self._topic = topic
        self._addresses = list(addresses)
        self._conn: Conn | None = None

    def step(self) -> None:
        body = self.next_body()
        deadline = time.monotonic() + PATIENCE
        while not self._publish(body):
            self._hang_up()
            self._addresses.append(self._addresses.pop(0))
            if self._continues:
                return
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
