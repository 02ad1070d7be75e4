"""The executor side of writing: sends chunks to nsqds, several of them before the first response.

A chunk is identified by its batch, its task, a checksum of the task's rows and destinations, and
the number of the row after its last one. A retried task therefore publishes only what was missing.
If it is retried with different rows or nsqds, it publishes everything: rows may then be duplicated,
but none is lost.
"""

import logging
import struct
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b

import pyarrow as pa

from nsqcy.spark.changed_batch import EPOCH_BITS
from nsqcy.spark.errors import Unreachable
from nsqcy.spark.log_client import Connection
from nsqcy.spark.options import WriteOptions

LOG = logging.getLogger("nsqcy.spark")
COMMANDS_AHEAD = 64
CHUNKS_AHEAD = 4  # unanswered chunks, of batchBytes each
TASKS_OF_EPOCH = 8192  # nsqd accepts 10,000 parts; the rest are for tasks that have changed
CONTENT_BITS = 19  # bits of a part's 32; the task's bits precede them
WARNED: set[str] = set()  # addresses that this process has already warned about


@dataclass(frozen=True)
class Producer:
    """The identity of a task that publishes chunks."""

    name: str
    epoch: int  # bits for the number of the batch, and for its plan
    task: int
    batch: int = 0
    content: int = 0  # the checksum

    def chunk(self, row: int) -> str:
        """Return LOG_PUB's parameters that follow the topic."""
        epoch = self.epoch | self.task // TASKS_OF_EPOCH % 128 << EPOCH_BITS
        content = self.content % (1 << CONTENT_BITS)
        part = self.task % TASKS_OF_EPOCH << CONTENT_BITS | content
        return f"{self.name} {epoch} {part} {row}"


@dataclass(frozen=True)
class Command:
    """Messages for one topic that are published together; a deferred message is published
    separately."""

    topic: str
    messages: int
    parts: tuple[bytes | pa.Buffer, ...]
    end_row: int
    defer_ms: int = 0

    @property
    def size(self) -> int:
        return sum(len(part) for part in self.parts)


class Publisher:
    """Sends commands to one nsqd until every command has been answered."""

    def __init__(
        self,
        options: WriteOptions,
        address: str,
        producer: Producer,
        *,
        headers: bool,
        unanswered: Iterable[Command] = (),
    ) -> None:
        self.address = address
        self.unanswered = deque(unanswered)
        self._options = options
        self._producer = producer
        self._headers = headers
        self._connection: Connection | None = None
        self._sent = 0  # unanswered commands

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._sent = 0

    def send(self, command: Command) -> None:
        self.unanswered.append(command)
        self._work(COMMANDS_AHEAD, CHUNKS_AHEAD * self._options.chunk_bytes)

    def finish(self) -> None:
        self._work(0, 0)

    def _work(self, maximum: int, max_bytes: int) -> None:
        """Wait until at most this many commands are unanswered."""
        failures = 0
        while True:
            try:
                # After a failure, send one command at a time: if more are in transit to an nsqd
                # that closes the connection, its last responses are lost.
                self._transmit(1 if failures else len(self.unanswered))
                size = sum(command.size for command in self.unanswered)
                if not failures and len(self.unanswered) <= maximum and size <= max_bytes:
                    return
                assert self._connection is not None
                self._connection.expect_ok()
                self.unanswered.popleft()
                self._sent -= 1
                failures = 0
            except Unreachable as error:
                self.close()
                failures += 1
                if failures > self._options.retries:
                    raise Unreachable(f"{error.args[0]}; {self._what()}") from None
                time.sleep(self._options.retry_interval)

    def _transmit(self, maximum: int) -> None:
        while self._sent < min(maximum, len(self.unanswered)):
            if self._connection is None:
                self._connection = self._connected()
            command = self.unanswered[self._sent]
            self._connection.publish(self._line(command), command.size, command.parts)
            self._sent += 1

    def _connected(self) -> Connection:
        connection = Connection(
            self.address, self._options.access, publisher=True, headers=self._headers
        )
        if self._options.idempotent and not connection.has_log and self.address not in WARNED:
            WARNED.add(self.address)
            LOG.warning(
                "nsq: %s does not support topic_log (version nsqd/%s): rows are sent by MPUB, at "
                "least once",
                self.address,
                connection.version,
            )
        return connection

    def _line(self, command: Command) -> str:
        assert self._connection is not None
        if command.defer_ms:
            return f"DPUB {command.topic} {command.defer_ms}"
        if self._options.idempotent and self._connection.has_log:
            return f"LOG_PUB {command.topic} {self._producer.chunk(command.end_row)}"
        return f"MPUB {command.topic}"

    def _what(self) -> str:
        command = self.unanswered[0]
        first = command.end_row - command.messages
        return f"publishing to topic {command.topic!r}, task {self._producer.task}, at row {first}"


class Nodes:
    """The nsqds of a task, by their position in a list that is the same in every attempt."""

    def __init__(self, options: WriteOptions, addresses: list[str], producer: Producer) -> None:
        self.headers = False  # whether messages have headers
        self._options = options
        self._addresses = addresses
        self._producer = producer
        self._publishers: dict[int, Publisher] = {}
        self._failed: set[str] = set()

    def close(self) -> None:
        for publisher in self._publishers.values():
            publisher.close()

    def send(self, place: int, command: Command) -> None:
        if place not in self._publishers:
            self._publishers[place] = Publisher(
                self._options, self._addresses[place], self._producer, headers=self.headers
            )
        try:
            self._publishers[place].send(command)
        except Unreachable as error:
            self._fail_over(place, error)

    def finish(self) -> None:
        for place in sorted(self._publishers):
            try:
                self._publishers[place].finish()
            except Unreachable as error:
                self._fail_over(place, error)

    def _fail_over(self, place: int, error: Unreachable) -> None:
        """Publish to one nsqd; send chunks that it does not acknowledge to the next nsqd that
        responds."""
        while self._options.failover:
            last = self._publishers[place]
            self._failed.add(last.address)
            last.close()
            turn = [*self._addresses[place:], *self._addresses[:place]]
            others = [address for address in turn if address not in self._failed]
            if not others:
                break
            LOG.warning(
                "%s; publishing to nsqd %s instead; some messages may be published twice",
                error,
                others[0],
            )
            # Use a separate epoch: rows for this nsqd are interleaved with those for the other
            # nsqd.
            both = f"{self._producer.epoch} {place}".encode()
            epoch = int.from_bytes(blake2b(both, digest_size=8).digest()) | 1 << 63
            producer = replace(self._producer, epoch=epoch)
            self._publishers[place] = Publisher(
                self._options,
                others[0],
                producer,
                headers=self.headers,
                unanswered=last.unanswered,
            )
            try:
                self._publishers[place].finish()
            except Unreachable as another:
                error = another
            else:
                return
        raise error


class Pace:
    """Limits a task's average number of messages per second."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next = 0.0
        self.maximum = max(1, int(rate / 10))  # messages sent at once

    def wait(self, messages: int) -> None:
        now = time.monotonic()
        if self._next > now:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + messages / self._rate


def batch_head(messages: int) -> bytes:
    """Return the beginning of an MPUB's body."""
    return struct.pack(">I", messages)
