"""The batch that Spark has planned, compared with the batches that nsqds have.

Spark numbers batches, and tasks publish under that number. If a checkpoint lacks its last files or
is restored from an older copy, Spark may plan different rows under a number that nsqds already
have. The driver therefore reads the end of the batch from the checkpoint, and queries nsqds for
this query's batches before any task publishes. Knows the files of a checkpoint; does not publish.
"""

import json
import logging
import re
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from nsqcy.spark.errors import NoTopic, Refused, Unreachable
from nsqcy.spark.log_client import Connection
from nsqcy.spark.options import WriteOptions

LOG = logging.getLogger("nsqcy.spark")
PLAN_BITS = 20  # bits of an epoch: end of the batch, 0 if unknown
BATCH_BITS = 36  # the bits above: the number of the batch
EPOCH_BITS = PLAN_BITS + BATCH_BITS  # publish.py uses the remaining bits


@dataclass(frozen=True)
class Batch:
    """A batch of a query; `plan` identifies its end in each source."""

    query: str
    number: int
    plan: int = 0

    @property
    def epoch(self) -> int:
        return self.number % (1 << BATCH_BITS) << PLAN_BITS | self.plan

    @classmethod
    def of_epoch(cls, query: str, epoch: int) -> "Batch":
        return cls(query, epoch >> PLAN_BITS, epoch % (1 << PLAN_BITS))


def last_planned(checkpoint: str) -> Batch | None:
    """Return the batch that Spark has planned last. None if this process cannot read the
    checkpoint, for example because it is in an object store."""
    path = Path(re.sub("^file:(//)?(?=/)", "", checkpoint))
    try:
        query = str(json.loads((path / "metadata").read_text())["id"])
        files = (path / "offsets").iterdir()
        number = max(int(file.name) for file in files if file.name.isdecimal())
        _, _, *ends = (path / "offsets" / str(number)).read_text().splitlines()
    except (KeyError, OSError, TypeError, ValueError):
        return None
    digest = zlib.crc32("\n".join(ends).encode())
    return Batch(query, number, 1 + digest % ((1 << PLAN_BITS) - 1))


def producer_name(options: WriteOptions, query: str) -> str:
    """Return a name for nsqds. A new checkpoint counts batches from 0 again: it is a different
    query, and its name differs even if `producerId` is the same."""
    if not options.producer:
        return query
    both = f"{options.producer} {query}".encode()
    return f"{options.producer[:31]}.{blake2b(both, digest_size=16).hexdigest()}"


class PlannedBatch:
    """The driver's view of the batch that a stream is publishing."""

    def __init__(self, options: WriteOptions, addresses: list[str], checkpoint: str) -> None:
        self._options = options
        self._addresses = addresses
        self._checkpoint = checkpoint
        self._batch = last_planned(checkpoint) if checkpoint and options.idempotent else None

    def batch(self, query: str, number: int) -> Batch:
        """Return the batch of a task."""
        found = Batch(query, number)
        planned = self._batch
        return planned if planned and replace(planned, plan=0) == found else found

    def check(self, topics: Iterable[str]) -> None:
        """Raise Refused if nsqds have this batch with different rows, or only later batches."""
        if self._batch is None or self._options.publish_changed:
            return
        for topic in sorted(topics):
            there = {batch for address in self._addresses for batch in self._there(address, topic)}
            newest = max((batch.number for batch in there), default=-1)
            same = {self._batch, replace(self._batch, plan=0)}
            if newest >= self._batch.number and there.isdisjoint(same):
                raise Refused(
                    f"batch {self._batch.number} now has different rows, or nsqds have forgotten "
                    f"it: topic {topic!r} has batches up to {newest} of this query, so "
                    f"{self._checkpoint} is older than the published data, and this attempt "
                    "published nothing. Restore the newer checkpoint; or start a new one, with "
                    "startingOffsets after the last published row; or set onChangedBatch=publish "
                    f"until the query has passed batch {newest}: rows may then be published "
                    "twice, but none is lost"
                )

    def _there(self, address: str, topic: str) -> list[Batch]:
        """Return the batches of this query that an nsqd remembers."""
        options = self._options
        assert self._batch is not None
        name = producer_name(options, self._batch.query)
        for attempt in range(options.retries + 1):
            if attempt:
                time.sleep(options.retry_interval)
            try:
                epochs = remembered(address, options, topic, name)
            except Unreachable as error:
                failure = error
                continue
            found = [each for each in epochs if each < 1 << EPOCH_BITS]
            return [Batch.of_epoch(self._batch.query, epoch) for epoch in found]
        if not options.failover:
            raise failure
        LOG.warning("nsq: %s; whether the nsqd has this batch is unknown", failure)
        return []


def remembered(address: str, options: WriteOptions, topic: str, producer: str) -> list[int]:
    """Return the epochs of a producer that an nsqd remembers; NSQ's own nsqd remembers none."""
    connection = Connection(address, options.access, publisher=True)
    try:
        return connection.epochs(topic, producer) if connection.has_log else []
    except NoTopic:
        return []
    finally:
        connection.close()
