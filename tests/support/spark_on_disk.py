"""Spark's micro-batch engine for the jobs' queries, without a JVM: its checkpoint is on disk, and
its frames are ranges of rows. `install` lets archive and rollup run on it.

Defines the order in which Spark calls a source and a sink and writes its checkpoint (see
spark_engine.py), and computes the results of the executors. A row's content follows from its log
and seq.
"""

import datetime
import json
import struct
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nsqcy.pipeline import archive, checkpoint, rollup, streams
from nsqcy.pipeline.options import Options
from nsqcy.spark.offsets import Range
from support.archive_files import table
from support.lost_checkpoints import Trap
from support.spark_sources import stream

START = int(datetime.datetime(2026, 1, 31, 21, tzinfo=datetime.UTC).timestamp())
SECONDS = 7  # between two rows of a log
SUMMED = 512  # bytes of a checksum


class Frame:
    """Rows of a batch."""

    def __init__(self, parts: list[Range]) -> None:
        self.parts = parts

    def only(self, wanted: list[Range]) -> "Frame":
        both = [
            Range(part.topic, part.log_id, max(part.start, one.start), min(part.end, one.end))
            for part in self.parts
            for one in wanted
            if (part.topic, part.log_id) == (one.topic, one.log_id)
        ]
        return Frame([part for part in both if part.start < part.end])

    def rows(self) -> Iterator[tuple[str, str, int, int]]:
        """Return topic, log, seq and second of each row."""
        for part in self.parts:
            for seq in range(part.start, part.end):
                yield part.topic, part.log_id, seq, START + SECONDS * seq


class Query:
    """A run with `Trigger.AvailableNow`."""

    def __init__(self, given: Mapping[str, str], sink: streams.Sink, state: Path) -> None:
        self._reader = stream(dict(given), "topic", "nsqd", "log_id", "seq", "timestamp", "body")
        self._sink = sink
        self._state = state

    def run(self, trap: Trap) -> None:
        self._sink.begin(self._id())
        try:
            self._run(trap)
        finally:
            self._reader._opened().close()

    def _id(self) -> str:
        path = self._state / "metadata"
        if not path.exists():
            save(path, json.dumps({"id": str(uuid.uuid4())}))
        return str(json.loads(path.read_text())["id"])

    def _run(self, trap: Trap) -> None:
        self._reader.prepareForTriggerAvailableNow()
        limit = self._reader.getDefaultReadLimit()
        number = checkpoint.last(self._state / "offsets")
        start = self._offset(number - 1)
        if number >= 0:
            end = self._offset(number)
            if checkpoint.last(self._state / "commits") < number:
                self._batch(number, start or self._reader.initialOffset(), end, trap)
            start = end
        while True:
            begin = start or self._reader.initialOffset()
            end = self._reader.latestOffset(begin, limit)
            if end == start:
                return
            number += 1
            self._write("offsets", number, f"v1\n{{}}\n{json.dumps(end)}")
            self._batch(number, begin, end, trap)
            start = end

    def _offset(self, number: int) -> dict[str, Any] | None:
        if number < 0:
            return None
        text = (self._state / "offsets" / str(number)).read_text()
        return dict(json.loads(text.splitlines()[2]))

    def _batch(self, number: int, start: dict[str, Any], end: dict[str, Any], trap: Trap) -> None:
        trap.reached("offset")
        parts = [task.range for task in self._reader.partitions(start, end)]
        trap.call(self._sink, Frame(parts), number)
        trap.reached("before the commit")
        self._write("commits", number, 'v1\n{"nextBatchWatermarkMs":0}')

    def _write(self, folder: str, number: int, text: str) -> None:
        save(self._state / folder / str(number), text)


def save(path: Path, text: str) -> None:
    """Write a file, and its checksum as Hadoop does."""
    data = text.encode()
    pieces = [data[at : at + SUMMED] for at in range(0, len(data), SUMMED)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    head = struct.pack(">4sI", b"crc\0", SUMMED)
    sums = b"".join(struct.pack(">I", zlib.crc32(piece)) for piece in pieces)
    path.with_name(f".{path.name}.crc").write_bytes(head + sums)


class Counted:
    """The counts of rollup for a frame."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def collect(self) -> list[tuple[Any, ...]]:
        found: dict[tuple[Any, ...], list[int]] = {}
        for topic, log_id, _, second in self._frame.rows():
            key = topic, "", log_id, second // 60, "publish", "size", 0
            found.setdefault(key, []).append(second)
        return [(*key, len(each), len(each), 1, 1, max(each)) for key, each in found.items()]


def write_parquet(frame: Frame, name: str, folder: Path, trap: Trap) -> int:
    """Write the files of a batch as archive's Spark does."""
    rows = 0
    hours: dict[tuple[str, str, str], list[int]] = {}
    for topic, log_id, seq, second in frame.rows():
        when = datetime.datetime.fromtimestamp(second, datetime.UTC)
        hours.setdefault((topic, log_id, when.strftime("dt=%Y-%m-%d/hr=%H")), []).append(seq)
        rows += 1
    folder.mkdir(parents=True)
    for number, ((topic, log_id, hour), seqs) in enumerate(hours.items()):
        path = folder / f"topic={topic}" / hour / f"batch={name}" / f"part-{number:05}.zstd.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        trap.reached("writing parquet")
        pq.write_table(table(log_id, seqs), path)
    return rows


def install(monkeypatch: pytest.MonkeyPatch, trap: Trap) -> None:
    """Make archive and rollup run on this engine."""

    def run(
        _options: Options, given: Mapping[str, str], sink: Any, state: Path, _watch: object
    ) -> None:
        streams.check(state)
        streams.check_topics(given)
        trap.call(sink.prepare)
        Query(given, sink, state).run(trap)

    def write(sink: Any, frame: Frame, name: str, folder: Path) -> int:
        return write_parquet(frame, name, folder, trap)

    monkeypatch.setattr(streams, "run", run)
    monkeypatch.setattr(streams, "only", Frame.only)
    monkeypatch.setattr(archive.Files, "_write", write)
    monkeypatch.setattr(rollup, "counted", lambda frame, _options: Counted(frame))
    for job in (archive, rollup):
        monkeypatch.setattr(job, "require_spark", lambda: None)
