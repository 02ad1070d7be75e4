"""`nsqcy-pipeline stats`: periodically writes the /stats of nsqds as rows.

Uses HTTP, so it also works with NSQ's own nsqd. Needs neither Spark nor Java, and needs pyarrow
only for Parquet.
"""

import datetime
import json
import os
import time
import urllib.parse
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

from nsqcy.options.kinds import TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline.options import ADDRESSES, DURATION, PATH, POSITIVE, Options, choice
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import require_packages
from nsqcy.spark.http import addresses, get

HELP = """\
writes the /stats of nsqds to Parquet or JSON lines

Records depths, messages in flight, requeues, timeouts and latencies per topic and channel. Works
with NSQ's own nsqd. Does not need java. Runs until ^C or SIGTERM."""

OPTIONS = (
    Option("root", PATH, "stats", "output directory"),
    Option("every", DURATION, 10.0, "interval between polls"),
    Option("polls", POSITIVE, None, "exit after this number of polls"),
    Option(
        "format",
        choice("parquet", "json"),
        "parquet",
        "file format",
    ),
    Option("file-every", DURATION, 300.0, "time span per Parquet file"),
    Option("topic", TOPIC_NAME, None, "only this topic"),
    Option(
        "nsqd-http-address",
        ADDRESSES,
        (),
        "nsqds; 127.0.0.1:4151 by default, if no lookupd is given",
    ),
    Option("lookupd-http-address", ADDRESSES, (), "nsqlookupds that list the nsqds"),
    Option("timeout", DURATION, 5.0, "request timeout"),
)

Row = dict[str, Any]
MILLISECOND = 1_000_000
# Our column names, and the keys of /stats.
NUMBERS = {
    "depth": "depth",
    "backend_depth": "backend_depth",
    "messages": "message_count",
    "bytes": "message_bytes",
    "in_flight": "in_flight_count",
    "deferred": "deferred_count",
    "requeued": "requeue_count",
    "timed_out": "timeout_count",
    "clients": "client_count",
}


def run(options: Options, report: Report) -> int:
    if options["format"] == "parquet":
        require_packages("pyarrow")
    poller = Poller(options, report)
    files = Files(Path(options["root"]), options["format"], options["file-every"])
    polls, begun = 0, time.monotonic()
    with files:
        while True:
            files.add(poller.poll())
            polls += 1
            report.progress(done=polls, rows=files.rows, nsqds=poller.answered)
            if polls == options["polls"]:
                break
            due = begun + polls * options["every"]
            time.sleep(max(0.0, due - time.monotonic()))
    report.done(rows=files.rows, polls=polls, root=options["root"])
    return int(not files.rows and bool(poller.silent))


# --- asking -----------------------------------------------------------------------------------


class Poller:
    """Query every nsqd. An nsqd that does not respond is reported once, until it responds again."""

    def __init__(self, options: Options, report: Report) -> None:
        self._options = options
        self._report = report
        self._known: set[str] = set()  # of lookupds
        self.silent: set[str] = set()
        self.answered = 0

    def poll(self) -> list[Row]:
        now = datetime.datetime.now(datetime.UTC)
        rows: list[Row] = []
        self.answered = 0
        query = {"format": "json", "include_clients": "false"}
        if self._options["topic"]:
            query["topic"] = self._options["topic"]
        for address in self._addresses():
            found = self._ask(address, f"/stats?{urllib.parse.urlencode(query)}")
            if found is not None:
                self.answered += 1
                rows += rows_of(now, address, found)
        return rows

    def _addresses(self) -> list[str]:
        lookupds, named = self._options["lookupd-http-address"], self._options["nsqd-http-address"]
        for lookupd in lookupds:
            found = self._ask(lookupd, "/nodes")
            self._known.update(addresses(found or {}, "http_port"))
        if not lookupds and not named:
            return ["127.0.0.1:4151"]
        return sorted({*named, *self._known})

    def _ask(self, address: str, path: str) -> dict[str, Any] | None:
        try:
            found = get(address, path, self._options["timeout"])
        except (OSError, HTTPException, ValueError) as error:
            if address not in self.silent:
                self.silent.add(address)
                self._report.warn(f"{address} does not answer: {error}", address=address)
            return None
        if address in self.silent:
            self.silent.discard(address)
            self._report.warn(f"{address} answers again", address=address)
        return found


def rows_of(now: datetime.datetime, nsqd: str, stats: dict[str, Any]) -> Iterator[Row]:
    """Return one row for each topic, without a channel, and one for each of its channels."""
    head = {"at": now, "nsqd": nsqd, "version": stats.get("version", "")}
    for topic in stats.get("topics") or []:
        name = topic["topic_name"]
        yield head | {"topic": name, "channel": None} | numbers(topic)
        for channel in topic.get("channels") or []:
            yield head | {"topic": name, "channel": channel["channel_name"]} | numbers(channel)


def numbers(found: dict[str, Any]) -> Row:
    latency = found.get("e2e_processing_latency") or {}
    return {name: found.get(key) for name, key in NUMBERS.items()} | {
        "paused": bool(found.get("paused")),
        "latency_ms": {
            f"{each['quantile']:.12g}": each["value"] / MILLISECOND
            for each in latency.get("percentiles") or []
        },
    }


# --- files ------------------------------------------------------------------------------------


class Files:
    """Writes either Parquet files, each atomically and for one time span
    (`root/dt=DAY/TIME.parquet`), or one file of JSON lines per day, to which every poll is appended
    (`root/DAY.jsonl`)."""

    def __init__(self, root: Path, format: str, seconds: float) -> None:
        self._root = root
        self._json = format == "json"
        self._seconds = seconds
        self._rows: list[Row] = []
        self.rows = 0

    def __enter__(self) -> "Files":
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()

    def add(self, rows: list[Row]) -> None:
        self.rows += len(rows)
        if rows and self._rows and self._is_over(rows[0]["at"]):
            self.flush()
        self._rows += rows
        if self._json:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            (self._append if self._json else self._write)(self._rows)
        self._rows = []

    def _is_over(self, now: datetime.datetime) -> bool:
        first: datetime.datetime = self._rows[0]["at"]
        late = (now - first).total_seconds() >= self._seconds
        return late or first.date() != now.date()

    def _append(self, rows: list[Row]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(row, default=datetime.datetime.isoformat) + "\n" for row in rows]
        with (self._root / f"{rows[0]['at']:%Y-%m-%d}.jsonl").open("a") as file:
            file.write("".join(lines))

    def _write(self, rows: list[Row]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema(
            {
                "at": pa.timestamp("us", "UTC"),
                "nsqd": pa.string(),
                "version": pa.string(),
                "topic": pa.string(),
                "channel": pa.string(),
                **{name: pa.int64() for name in NUMBERS},
                "paused": pa.bool_(),
                "latency_ms": pa.map_(pa.string(), pa.float64()),
            }
        )
        columns = {name: [row[name] for row in rows] for name in schema.names}
        columns["latency_ms"] = [list(each.items()) for each in columns["latency_ms"]]
        first = rows[0]["at"]
        path = self._root / f"dt={first:%Y-%m-%d}" / f"{first:%H%M%S.%f}-{os.getpid()}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        pq.write_table(pa.Table.from_pydict(columns, schema), partial, compression="zstd")
        partial.rename(path)
