"""The source of `format("nsq")`, for batches and streams, as Spark calls it.

Spark creates these objects in several processes and sends them from one process to another. Only
the process that Spark queries for offsets has sockets. tests/support/spark_engine.py makes the
calls in Spark's order.
"""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from nsqcy.spark.batch_plan import advance, ranges, split
from nsqcy.spark.cluster import Cluster
from nsqcy.spark.column_blocks import DEFAULT_FIELDS, FIELDS, arrow_schema
from nsqcy.spark.errors import LogUnknown, NoTopic, OptionError, Refused, Unreachable
from nsqcy.spark.fetch import read_range
from nsqcy.spark.messages import check_columns
from nsqcy.spark.offsets import (
    Log,
    Loss,
    Offset,
    Positions,
    Range,
    Shard,
    View,
    fit,
    settle,
    vanished,
)
from nsqcy.spark.options import (
    EARLIEST,
    LATEST,
    Options,
    WriteOptions,
    check_batch,
    check_stream,
    parse,
    parse_write,
)
from nsqcy.spark.sink import NsqStreamWriter, NsqWriter

LOG = logging.getLogger("nsqcy.spark")
MIN_ROWS = 50_000  # minimum rows per task, unless minPartitions requests more tasks
# seconds after which an unchanged cursor is set again, so that it does not expire
CURSOR_SECONDS = 3600.0
BOUNDS = (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


class NsqDataSource(DataSource):
    """Topics of nsqds as rows."""

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        """Called by `load()`, which therefore raises the errors."""
        options = parse(dict(self.options))
        check_topics(options)
        names = options.columns or DEFAULT_FIELDS
        return ", ".join(f"{name} {FIELDS[name][0]} not null" for name in names)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse(dict(self.options))
        check_batch(options)
        kind = NsqFilteredReader if options.pushdown else NsqReader
        return kind(options, projection(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given = dict(self.options)
        check_stream(given)
        return NsqStreamReader(parse(given), projection(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return NsqWriter(self._write_options(schema, overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        options = self._write_options(schema, overwrite)
        given = {name.lower(): value for name, value in self.options.items()}
        return NsqStreamWriter(options, given.get("checkpointlocation", ""))

    def _write_options(self, schema: StructType, overwrite: bool) -> WriteOptions:
        if overwrite:
            raise OptionError(
                "a topic cannot be overwritten: use mode('append') or, for a stream, output "
                "mode append or update"
            )
        options = parse_write(dict(self.options))
        check_columns(schema, options)
        return options


class Part(InputPartition):
    """A task: a range, and its nsqd."""

    def __init__(self, range_: Range, address: str) -> None:
        super().__init__(None)
        self.range = range_
        self.address = address

    def __repr__(self) -> str:
        return f"Part({self.range}, nsqd {self.address})"


def projection(schema: StructType) -> pa.Schema:
    """Return the Arrow schema for Spark's schema, which selects some of our columns and their
    types."""
    for field in schema.fields:
        if field.name not in FIELDS:
            raise OptionError(
                f"column {field.name!r} does not exist (allowed: {', '.join(FIELDS)})"
            )
        kind = field.dataType.simpleString()
        if kind != FIELDS[field.name][0]:
            raise OptionError(f"column {field.name!r} is {FIELDS[field.name][0]}, not {kind}")
    return arrow_schema([(field.name, field.nullable) for field in schema.fields])


def check_topics(options: Options) -> None:
    """Reject a schema that cannot be read before anything is planned."""
    cluster = Cluster(options)
    try:
        view = cluster.view(tries=options.retries + 1)
        check_view(options, view, wait=options.wait_for_topic)
    finally:
        cluster.close()


def check_view(options: Options, view: View, *, wait: bool) -> None:
    for topic in options.topics:
        shards = [shard for shard in view.shards if shard.topic == topic]
        if shards or wait:
            continue
        away = view.away.get(topic)
        if away:
            raise Unreachable(
                f"topic {topic!r}: no answer from nsqd {', '.join(sorted(away))}; start nsqd "
                "there, or correct its address"
            )
        asked = f" (nsqlookupd {','.join(options.lookupds)})" if options.lookupds else ""
        nsqds = "1 nsqd" if len(view.asked) == 1 else f"{len(view.asked)} nsqds"
        raise Refused(
            f"topic {topic!r} not found on {nsqds}{asked}; publish a message to "
            "it, or correct the name"
        )
    check_kept(options, view)


def check_kept(options: Options, view: View) -> None:
    for shard in view.shards:
        if not shard.kept and not options.cursor:
            raise Refused(
                f"topic {shard.topic!r} keeps no log on nsqd {shard.address}; start nsqd with "
                f"--retention-time, or set a retention policy for the topic"
            )


def check_reachable(view: View) -> None:
    away = sorted({address for each in view.away.values() for address in each})
    if away:
        raise Unreachable(
            f"no answer from nsqd {', '.join(away)}; set failOnUnreachable=false "
            "to continue without it"
        )


def lose(options: Options, losses: list[Loss]) -> None:
    """Fail, or log a warning about the lost rows."""
    if losses and options.fail_on_data_loss:
        raise losses[0].error()
    for loss in losses:
        LOG.warning("nsq: %s", loss.text)


def place(shard: Shard, log: Log, wanted: int | Positions) -> int | None:
    """Return the seq for this log; None if `wanted` is a table that does not contain it."""
    seq = wanted.get(shard.topic, {}).get(log.log_id) if isinstance(wanted, dict) else wanted
    if seq == EARLIEST:
        return log.first_seq
    return log.next_seq if seq == LATEST else seq


def beginning(cluster: Cluster, options: Options, shard: Shard, log: Log, wanted: int) -> int:
    """Return a new query's start in this log; `wanted` is the default for this kind of
    query."""
    if options.starting_ns is not None:
        return cluster.seek(shard, log.log_id, options.starting_ns)
    found = place(shard, log, wanted if options.starting is None else options.starting)
    return log.first_seq if found is None else found


def not_there(pos: int | Positions | None, view: View) -> list[Loss]:
    """Return the logs in an option that no nsqd has."""
    if not isinstance(pos, dict):
        return []
    return [
        vanished(topic, log_id, seq, view)
        for topic, logs in pos.items()
        for log_id, seq in logs.items()
        if view.find(topic, log_id) is None
    ]


def tasks(options: Options) -> tuple[int, int]:
    """Return the approximate number of tasks, and the minimum number of rows per task."""
    if options.min_partitions is None:
        return os.cpu_count() or 1, MIN_ROWS
    return options.min_partitions, 1


def parts(found: list[Range], wanted: tuple[int, int], view: View) -> list[Part]:
    """Return tasks for ranges that all have an nsqd."""
    result: list[Part] = []
    for piece in split([each for each in found if each.rows], *wanted):
        located = view.find(piece.topic, piece.log_id)
        assert located is not None
        result.append(Part(piece, located[0].address))
    return result


class NsqReader(DataSourceReader):
    """Reader of a batch query: reads the rows that are available when the query is planned."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        cluster = Cluster(options)
        try:
            view = cluster.view(tries=options.retries + 1)
            check_view(options, view, wait=False)
            if options.fail_on_unreachable is not False:
                check_reachable(view)
            elif view.away:
                LOG.warning("nsq: skipping the logs of nsqds that do not answer: %s", view.away)
            for named in (options.starting, options.ending):
                lose(options, not_there(named, view))
            found = [
                self._range(cluster, shard, log) for shard in view.shards for log in shard.logs
            ]
            return list(parts(found, tasks(options), view))
        finally:
            cluster.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if type(partition) is InputPartition:
            return iter(())  # PySpark's replacement for an empty list of tasks
        assert isinstance(partition, Part)
        return read_range(self._options, self._schema, partition.range, partition.address)

    def _range(self, cluster: Cluster, shard: Shard, log: Log) -> Range:
        options = self._options
        start = beginning(cluster, options, shard, log, EARLIEST)
        if options.ending_ns is not None:
            end: int | None = cluster.seek(shard, log.log_id, options.ending_ns)
        else:
            end = place(shard, log, options.ending)
        asked = Range(shard.topic, log.log_id, start, log.next_seq if end is None else end)
        found, losses = fit(shard, log, asked)
        lose(options, losses)
        return found


class NsqFilteredReader(NsqReader):
    """A batch that derives ranges from filters. Spark applies the filters again, so ranges may be
    too wide."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._filters: list[Filter] = []

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._filters = list(filters)
        return filters

    def _range(self, cluster: Cluster, shard: Shard, log: Log) -> Range:
        found = super()._range(cluster, shard, log)
        facts = {"topic": shard.topic, "nsqd": shard.address, "log_id": log.log_id}
        start, end = found.start, found.end
        for each in self._filters:
            if not isinstance(each, BOUNDS):
                continue
            column, value = each.attribute[0], each.value
            if isinstance(each, EqualTo) and facts.get(column, value) != value:
                end = start
            if column != "seq":
                continue
            if isinstance(each, EqualTo | GreaterThanOrEqual | GreaterThan):
                start = max(start, value + isinstance(each, GreaterThan))
            if isinstance(each, EqualTo | LessThanOrEqual | LessThan):
                end = min(end, value + 1 - isinstance(each, LessThan))
        return Range(found.topic, found.log_id, start, max(start, end))


class Standing(NamedTuple):
    """A cursor's position, and the time when it was set."""

    log_id: str
    seq: int
    at: float

    def is_elsewhere(self, other: "Standing") -> bool:
        return self[:2] != other[:2]


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream. One instance serves a run of a query; Spark creates more for its tasks."""

    def __init__(self, options: Options, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._cluster: Cluster | None = None
        self._view: View | None = None  # the latest offset
        self._initial: Offset | None = None
        self._cap: Positions | None = None  # the end for Trigger.AvailableNow
        self._ends: dict[str, int] = {}  # the end of each log, as last seen
        self._held_since: float | None = None  # for minOffsetsPerTrigger
        self._cursors: dict[tuple[str, str], Standing] = {}  # cursors by topic and nsqd

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the parts that tasks need, but not the sockets."""
        return NsqStreamReader(self._options, self._schema).__dict__

    # offsets

    def prepareForTriggerAvailableNow(self) -> None:
        self._cap = ends(self._look(first=True))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def initialOffset(self) -> dict[str, Any]:
        """Return the initial offset. Spark calls this twice in a query's first batch, and both
        results must be equal."""
        if self._initial is None:
            view = self._look(first=True)
            check_view(self._options, view, wait=self._options.wait_for_topic)
            lose(self._options, not_there(self._options.starting, view))
            cluster = self._opened()
            pos: Positions = {topic: {} for topic in self._options.topics}
            for shard in view.shards:
                pos.setdefault(shard.topic, {}).update(
                    (log.log_id, beginning(cluster, self._options, shard, log, LATEST))
                    for log in shard.logs
                )
            self._initial = Offset(pos, init=True)
        return self._initial.as_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset = self._parse(start)
        deadline = time.monotonic() + self._options.poll_timeout
        while True:
            view = self._look(first=self._view is None)
            end, is_enough = self._next(offset, view, limit)
            left = deadline - time.monotonic()
            if offset.init or (end.pos != offset.pos and is_enough):
                self._held_since = None
                return end.as_json()
            if self._cap is not None or not self._options.poll_timeout:
                return start
            # Querying all nsqds may take longer than the timeout. The requests that stay open spare
            # the next trigger these queries.
            self._opened().wait(view, max(0.0, left))
            if left <= 0:
                return start

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the latest offset. Spark calls this very often, so the result comes from
        memory."""
        return Offset(ends(self._view)).as_json() if self._view is not None else None

    def _next(self, offset: Offset, view: View, limit: ReadLimit) -> tuple[Offset, bool]:
        """Return the end of the batch that begins at this offset, and whether it has enough
        rows."""
        options = self._options
        settled = settle(offset, view, self._ends, options.topics)
        self._ends.update((log.log_id, log.next_seq) for shard in view.shards for log in shard.logs)
        lose(options, settled.losses)
        self._move_cursors(view, settled.pos)
        everything = isinstance(limit, ReadAllAvailable)
        maximum = limit.max_rows if isinstance(limit, ReadMaxRows) else options.max_rows
        pos, rows, is_full = advance(
            settled,
            view,
            None if everything else maximum,
            None if everything else options.max_bytes,
            self._cap,
        )
        start = settled.start
        if offset.init:
            start = settled.pos
        end = Offset(pos, start, split=tasks(options), lost=settled.lost)
        return end, is_full or self._enough(rows)

    def _enough(self, rows: int) -> bool:
        """Return whether to start a batch now."""
        minimum = self._options.min_rows
        if minimum is None or rows >= minimum or self._cap is not None or not rows:
            return True
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        return now - self._held_since >= self._options.max_delay

    # batches

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch, which may date from before a crash."""
        options = self._options
        offset = self._parse(end)
        found = ranges(self._parse(start), offset)
        view = self._view
        if view is None or any(view.find(each.topic, each.log_id) is None for each in found):
            view = self._look(first=True)
        there = []
        for each in found:
            located = view.find(each.topic, each.log_id)
            if located is None:
                away = sorted(view.away.get(each.topic, ()))
                if away:
                    raise Unreachable(
                        f"{each} cannot be read: no responding nsqd has it; no answer "
                        f"from {', '.join(away)}"
                    )
                lose(options, [vanished(each.topic, each.log_id, each.start, view)])
                continue
            fitted, losses = fit(*located, each)
            lose(options, losses)
            there.append(fitted)
        return list(parts(there, offset.split or tasks(options), view))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return read_range(self._options, self._schema, partition.range, partition.address)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing when everything before this offset has been written.

        Spark reports a commit one batch late, and never for the last batch. When Spark requests the
        next offset, however, it has written everything before that offset: the cursor moves at that
        time.
        """

    # Available records

    def _opened(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._options)
        return self._cluster

    def _look(self, *, first: bool = False) -> View:
        """Query nsqds; wait longer in the first query."""
        options = self._options
        view = self._opened().view(tries=options.retries + 1 if first else 1)
        if options.fail_on_unreachable:
            check_reachable(view)
        check_kept(options, view)
        self._view = view
        return view

    def _parse(self, value: dict[str, Any]) -> Offset:
        offset = Offset.parse(value)
        topics = self._options.topics
        if topics and set(offset.pos) != set(topics):
            raise OptionError(
                f"the checkpoint has topics {', '.join(sorted(offset.pos))}, but the query reads "
                f"{', '.join(topics)}; use a new checkpointLocation"
            )
        return offset

    # The named cursor

    def _move_cursors(self, view: View, pos: Positions) -> None:
        """Set the cursor on each nsqd, in the oldest log that still has records to read."""
        if not self._options.cursor:
            return
        now = time.monotonic()
        for shard in view.shards:
            there = pos.get(shard.topic, {})
            log = next((log for log in shard.logs if log.log_id in there), None)
            if log is None:
                continue
            seq = min(max(there[log.log_id], log.first_seq), log.next_seq)
            known = self._cursors.get((shard.topic, shard.address))
            wanted = Standing(log.log_id, seq, now)
            if known is None or known.is_elsewhere(wanted) or now - known.at >= CURSOR_SECONDS:
                self._set_cursor(shard, wanted)

    def _set_cursor(self, shard: Shard, wanted: Standing) -> None:
        name = self._options.cursor
        try:
            self._opened().set_cursor(shard, wanted.log_id, wanted.seq)
        except (Unreachable, NoTopic, LogUnknown) as error:
            LOG.warning("nsq: cursor %r is not set: %s", name, error.args[0])
        except Refused as error:
            raise Refused(f"cursor {name!r} cannot be set: {error.args[0]}") from None
        else:
            self._cursors[shard.topic, shard.address] = wanted


def ends(view: View) -> Positions:
    """Return the end of each log."""
    found: Positions = {}
    for shard in view.shards:
        found.setdefault(shard.topic, {}).update((log.log_id, log.next_seq) for log in shard.logs)
    return found
