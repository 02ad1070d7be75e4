"""The sink of `format("nsq")`, for batches and streams, as Spark calls it.

A task keeps all of its rows, on disk if there are many, until it has checked each one. It then
publishes them in chunks that nsqds recognize, so a retried task publishes only the missing rows.
"""

import logging
import os
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import IO, Any, TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from nsqcy.spark.changed_batch import PlannedBatch, producer_name
from nsqcy.spark.discovery import all_nsqds
from nsqcy.spark.messages import Framed, Messages, by_value, framed, hashed, payloads
from nsqcy.spark.options import WriteOptions
from nsqcy.spark.publish import Command, Nodes, Pace, Producer, batch_head

LOG = logging.getLogger("nsqcy.spark")
MAX_MESSAGES = 1 << 31  # maximum rows per chunk, unless the chunk reaches its maximum size first
HELD_BYTES = 32 << 20  # bytes in memory; a task's remaining rows are on disk

Indices: TypeAlias = pa.Array | None  # indexes of rows; None: all rows


@dataclass
class Written(WriterCommitMessage):
    """Result of a task."""

    task: int
    rows: int


class NsqWriter(DataSourceArrowWriter):
    """Sink for a batch. It is created once per job, so a retried task has the same name."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._addresses = all_nsqds(options)
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        name = self._options.producer or self._job
        producer = Producer(name, 0, this_task().partitionId())
        return Task(self._options, self._addresses, producer).write(iterator)


class NsqStreamWriter(DataSourceStreamArrowWriter):
    """Sink for a stream, created once per batch. A batch that is retried after a crash has the same
    names."""

    def __init__(self, options: WriteOptions, checkpoint: str = "") -> None:
        self._options = options
        self._addresses = all_nsqds(options)
        self._job = uuid.uuid4().hex
        self._planned = PlannedBatch(options, self._addresses, checkpoint)
        self._planned.check({options.topic} - {""})

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        task = Task(self._options, self._addresses, self._producer(), self._planned)
        return task.write(iterator)

    def _producer(self) -> Producer:
        context = this_task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            LOG.warning(
                "nsq: this Spark version does not pass the query and batch ids to tasks, so a "
                "batch that is rerun is published again"
            )
            query, batch = self._job, "0"
        found = self._planned.batch(query, int(batch))
        name = producer_name(self._options, query)
        return Producer(name, found.epoch, context.partitionId(), found.number)


def this_task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


class Task:
    """Publishes the rows of one task to nsqds."""

    def __init__(
        self,
        options: WriteOptions,
        addresses: list[str],
        producer: Producer,
        planned: PlannedBatch | None = None,
    ) -> None:
        self._options = options
        self._addresses = addresses
        self._producer = producer
        self._planned = planned
        self._lanes: dict[tuple[int, str], Lane] = {}
        rate = options.max_per_second
        self._pace = Pace(rate / options.parallel) if rate else None

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        messages = Messages(self._options)
        with Held() as held:
            for batch in batches:
                for prepared in messages.prepare(batch):
                    if not messages.bad:
                        held.add(prepared)
            messages.check(self._producer.task)
            if self._planned is not None:
                self._planned.check(messages.topics - {self._options.topic})
            content = messages.checksum(self._addresses)
            nodes = Nodes(self._options, self._addresses, replace(self._producer, content=content))
            try:
                self._publish(held, nodes)
            finally:
                nodes.close()
        return Written(self._producer.task, messages.rows)

    def _publish(self, held: "Held", nodes: Nodes) -> None:
        first_row = 0
        for batch in held:
            nodes.headers = "headers" in batch.schema.names
            for place, command in self._commands(batch, first_row):
                self._send(nodes, place, command)
            first_row += batch.num_rows
        for (place, _), lane in self._lanes.items():
            for command in lane.flush():
                self._send(nodes, place, command)
        nodes.finish()

    def _send(self, nodes: Nodes, place: int, command: Command) -> None:
        if self._pace is not None:
            self._pace.wait(command.messages)
        nodes.send(place, command)

    def _commands(self, batch: pa.RecordBatch, first_row: int) -> Iterator[tuple[int, Command]]:
        """Distributes messages to their lanes; yields full chunks, each with its nsqd."""
        texts = payloads(batch)
        for way, indices in self._ways(batch):
            place, topic, defer_ms = way
            some = texts if indices is None else texts.take(indices)
            numbers = range(len(texts)) if indices is None else indices.to_pylist()
            rows = [first_row + number for number in numbers]
            if defer_ms:
                for text, row in zip(some, rows, strict=True):
                    yield place, Command(topic, 1, (text.as_buffer(),), row + 1, defer_ms)
            else:
                for command in self._lane(place, topic).add(framed(some, rows)):
                    yield place, command

    def _ways(self, batch: pa.RecordBatch) -> Iterator[tuple[tuple[int, str, int], Indices]]:
        """Yield each combination of place, topic and delay with its rows."""
        names = batch.schema.names
        count = len(self._addresses)
        places = hashed(batch.column("key"), count) if "key" in names else None
        topics = batch.column("topic") if "topic" in names else None
        delays = batch.column("defer_ms") if "defer_ms" in names else None
        mine = (self._producer.task + self._producer.batch) % count
        for place, at_place in values_within(places, mine, None):
            for topic, of_topic in values_within(topics, self._options.topic, at_place):
                for delay, indices in values_within(delays, 0, of_topic):
                    yield (place, topic, delay), indices

    def _lane(self, place: int, topic: str) -> "Lane":
        if (place, topic) not in self._lanes:
            maximum = self._pace.maximum if self._pace else MAX_MESSAGES
            self._lanes[place, topic] = Lane(topic, self._options.chunk_bytes, maximum)
        return self._lanes[place, topic]


class Lane:
    """Messages for one topic on one nsqd, until they fill a chunk."""

    def __init__(self, topic: str, max_bytes: int, maximum: int) -> None:
        self._topic = topic
        self._max_bytes = max_bytes
        self._maximum = maximum
        self._begin()

    def _begin(self) -> None:
        self._parts: list[pa.Buffer] = []
        self._size = len(batch_head(0))
        self._messages = 0
        self._end_row = 0

    def add(self, some: Framed) -> Iterator[Command]:
        """Return the chunks that are full now. The end of a chunk depends only on the messages."""
        first = 0
        while first < len(some.rows):
            end = some.fitting(first, self._max_bytes - self._size)
            end = min(end, first + self._maximum - self._messages)
            if end <= first and self._messages:
                yield from self.flush()
                continue
            end = max(end, first + 1)  # a message larger than a chunk is published separately
            part = some.slice(first, end)
            self._parts.append(part)
            self._size += part.size
            self._messages += end - first
            self._end_row = some.rows[end - 1] + 1
            first = end

    def flush(self) -> Iterator[Command]:
        if self._messages:
            parts = (batch_head(self._messages), *self._parts)
            command = Command(self._topic, self._messages, parts, self._end_row)
            self._begin()
            yield command


class Held:
    """The rows of a task; rows that do not fit in memory are in a private file."""

    def __init__(self) -> None:
        self._batches: list[pa.RecordBatch] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from self._batches
        if self._file is not None and self._writer is not None:
            self._writer.close()
            self._file.seek(0)
            with pa.ipc.open_stream(self._file) as stored:
                yield from stored

    def add(self, batch: pa.RecordBatch) -> None:
        if self._bytes < HELD_BYTES:
            self._batches.append(batch)
            self._bytes += batch.nbytes
            return
        if self._writer is None:
            scratch = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
            self._file = tempfile.TemporaryFile(dir=scratch or None)  # noqa: SIM115
            self._writer = pa.ipc.new_stream(self._file, batch.schema)
        self._writer.write_batch(batch)


def values_within(
    column: pa.Array | None, value: Any, indices: Indices
) -> Iterator[tuple[Any, Indices]]:
    """Return the values of a column in these rows; if the column does not exist, repeat the given
    value."""
    if column is None:
        yield value, indices
        return
    for found, within in by_value(column if indices is None else column.take(indices)):
        if indices is None or within is None:
            yield found, within if indices is None else indices
        else:
            yield found, indices.take(within)
