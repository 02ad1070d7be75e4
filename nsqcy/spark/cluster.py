"""The driver's view of the logs of all nsqds, with as few requests as possible.

A request to an nsqd without new records stays open until it has some, even between two triggers. An
idle query makes one request per log every WAIT_MS.
"""

import logging
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from nsqcy.spark.discovery import Discovery
from nsqcy.spark.errors import (
    CopiedDisk,
    CorruptBlock,
    LogUnknown,
    NoTopic,
    NsqError,
    Silent,
    Unreachable,
)
from nsqcy.spark.log_client import ANSWER_SECONDS, Connection
from nsqcy.spark.offsets import Log, Shard, View, distinct
from nsqcy.spark.options import Options

LOG = logging.getLogger("nsqcy.spark")
WAIT_MS = 20_000
MAX_WATCHES = 64  # maximum open requests, each on its own connection
MAX_PAUSE = 15.0  # maximum seconds until an nsqd that was down is retried
PATIENCE = 5.0  # maximum seconds for which an unresponsive nsqd may delay the other nsqds

Place = tuple[str, str]  # topic, address
Answer = TypeVar("Answer")


@dataclass
class Down:
    """An nsqd did not respond."""

    until: float
    pause: float
    error: str


@dataclass
class Watch:
    """An open request."""

    connection: Connection
    since: float = field(default_factory=time.monotonic)


class Cluster:
    """Connections to nsqds, and their last responses."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._discovery = Discovery(options)
        self._connections: dict[str, list[Connection]] = {}
        self._watches: dict[Place, Watch] = {}
        self._shards: dict[Place, Shard | None] = {}  # None: this nsqd does not have the topic
        self._down: dict[str, Down] = {}
        self._patience = ANSWER_SECONDS

    def close(self) -> None:
        for spare in self._connections.values():
            for connection in spare:
                connection.close()
        self._connections.clear()
        self._drop_watches()

    def _drop_watches(self) -> None:
        for watch in self._watches.values():
            watch.connection.close()
        self._watches.clear()

    def topics(self) -> list[str]:
        return self._discovery.topics()

    # Available records

    def view(self, *, tries: int = 1) -> View:
        """Return the current state of all nsqds.

        With one try, nsqds that were down a moment ago are skipped, and an nsqd that hangs delays
        the others only briefly. Its logs stay at their positions, and the others continue. Raises
        CopiedDisk.
        """
        self._patience = PATIENCE if tries == 1 else ANSWER_SECONDS
        self._discovery.refresh(tries=tries)
        try:
            return self._look(tries)
        except CopiedDisk:
            # The state from an open request may be outdated, if its nsqd has moved to a different
            # address.
            self._drop_watches()
            return self._look(tries)

    def _look(self, tries: int) -> View:
        shards: dict[Place, Shard] = {}
        away: dict[str, set[str]] = {}
        asked: dict[str, None] = {}
        for topic in self.topics():
            for address in self._discovery.nsqds(topic):
                asked[address] = None
                try:
                    shard = self._shard(topic, address, tries)
                except Unreachable:
                    away.setdefault(topic, set()).add(address)
                    continue
                if shard is not None:
                    shards[topic, address] = shard
        self._forget_moved(shards, away)
        return View(tuple(distinct(shards.values())), away, tuple(asked))

    def _shard(self, topic: str, address: str, tries: int) -> Shard | None:
        place = topic, address
        watch = self._watches.get(place)
        if watch is not None and not self._is_over(watch):
            return self._shards[place]
        if watch is None:  # an open request already shows whether the nsqd responds
            self._pause(address, tries)
        for attempt in range(tries):
            if attempt:
                time.sleep(self._options.retry_interval)
            try:
                self._shards[place] = self._ask(place, self._watches.pop(place, None))
                self._is_up(address)
                return self._shards[place]
            except Unreachable as error:
                failed = error
                if isinstance(error, Silent):
                    break
        self._is_down(address, failed)
        raise failed

    def _ask(self, place: Place, watch: Watch | None) -> Shard | None:
        """Return the state from the response to an open request, or send a request."""
        topic, address = place
        try:
            found = self._answer(place, watch.connection) if watch is not None else None
            if found is None:
                found = self._call(
                    address, lambda connection: shard_of(topic, connection, connection.meta(topic))
                )
        except NoTopic:
            return None
        return found

    def _answer(self, place: Place, connection: Connection) -> Shard | None:
        """Return None if the connection has been lost, because nsqd may have been restarted."""
        topic, address = place
        try:
            connection.patience = self._patience
            connection.expect_soon()
            found = shard_of(topic, connection, connection.answer_json())
        except NsqError as error:
            connection.close()
            if isinstance(error, Silent) or not isinstance(error, Unreachable):
                raise
            return None
        self._spare(address).append(connection)
        return found

    def _is_over(self, watch: Watch) -> bool:
        if time.monotonic() - watch.since > 2 * WAIT_MS / 1000:
            return True
        return bool(select.select([watch.connection], [], [], 0)[0])

    def _forget_moved(self, shards: dict[Place, Shard], away: dict[str, set[str]]) -> None:
        """Detect an unreachable nsqd that has moved: all its logs are now at a different
        address."""
        there = {(topic, log.log_id) for (topic, _), shard in shards.items() for log in shard.logs}
        for topic, addresses in away.items():
            for address in sorted(addresses):
                last = self._shards.get((topic, address))
                if last is not None and all((topic, log.log_id) in there for log in last.logs):
                    self._discovery.forget(topic, address)
                    if address not in self._options.nsqds:
                        addresses.discard(address)
                        del self._shards[topic, address]

    # waiting

    def wait(self, view: View, seconds: float) -> None:
        """Wait up to this number of seconds until some log in the view has more records."""
        for shard in view.shards:
            place = shard.topic, shard.address
            if place not in self._watches and len(self._watches) < MAX_WATCHES:
                self._watch(place, shard)
        if self._watches:
            connections = [watch.connection for watch in self._watches.values()]
            select.select(connections, [], [], seconds)
        else:
            time.sleep(seconds)

    def _watch(self, place: Place, shard: Shard) -> None:
        topic, address = place
        try:
            connection = self._connection(address)
            connection.ask_meta(topic, WAIT_MS, shard.logs[-1].next_seq)
        except Unreachable as error:
            self._is_down(address, error)
        else:
            self._watches[place] = Watch(connection)

    # single questions

    def seek(self, shard: Shard, log_id: str, timestamp_ns: int) -> int:
        return self._call(
            shard.address, lambda connection: connection.seek(shard.topic, log_id, timestamp_ns)
        )

    def set_cursor(self, shard: Shard, log_id: str, seq: int) -> None:
        name = self._options.cursor
        self._call(
            shard.address,
            lambda connection: connection.set_cursor(shard.topic, log_id, name, seq),
        )

    def _call(self, address: str, question: Callable[[Connection], Answer]) -> Answer:
        """Send on an existing connection, or on a new one if the existing one turns out to be
        lost."""
        fresh = not self._spare(address)
        connection = self._connection(address)
        try:
            answer = question(connection)
        except (NoTopic, LogUnknown):
            self._spare(address).append(connection)
            raise
        except NsqError as error:
            connection.close()
            if fresh or isinstance(error, Silent) or not isinstance(error, Unreachable):
                raise
            return self._call(address, question)
        self._spare(address).append(connection)
        return answer

    # connections

    def _spare(self, address: str) -> list[Connection]:
        """Return the connections without an open request."""
        return self._connections.setdefault(address, [])

    def _connection(self, address: str) -> Connection:
        spare = self._spare(address)
        if not spare:
            return Connection(address, self._options.access, patience=self._patience)
        connection = spare.pop()
        connection.patience = self._patience
        return connection

    # nsqds that are down

    def _pause(self, address: str, tries: int) -> None:
        down = self._down.get(address)
        if down is not None and tries == 1 and time.monotonic() < down.until:
            raise Unreachable(down.error)

    def _is_down(self, address: str, error: Unreachable) -> None:
        known = self._down.get(address)
        if known is None:
            LOG.warning("%s; its logs stay at their positions", error)
        pause = min(known.pause * 2, MAX_PAUSE) if known else 0.5
        if isinstance(error, Silent):
            pause = max(pause, PATIENCE)  # at least as long as a retry delays other nsqds
        self._down[address] = Down(time.monotonic() + pause, pause, error.args[0])

    def _is_up(self, address: str) -> None:
        if self._down.pop(address, None) is not None:
            LOG.warning("nsq: nsqd %s is back", address)


def shard_of(topic: str, connection: Connection, meta: dict[str, Any]) -> Shard:
    """Parse the response to LOG_META. Raises CorruptBlock."""
    try:
        logs = tuple(
            Log(
                str(each["log_id"]),
                int(each["first_seq"]),
                int(each["next_seq"]),
                each["log_id"] != meta["log_id"],
            )
            for each in meta["incarnations"]
        )
        size, kept = int(meta["bytes"]), meta["retention"] is not None
        return Shard(topic, connection.address, logs, size, kept, connection.instance)
    except (ArithmeticError, KeyError, TypeError, ValueError):
        raise CorruptBlock(f"{connection.address} sent an invalid answer to LOG_META") from None
