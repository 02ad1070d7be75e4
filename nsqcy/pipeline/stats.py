"""`nsqcy-pipeline stats`: periodically writes the /stats of nsqds as rows.

Uses HTTP, so it also works with NSQ's own nsqd. Needs neither Spark nor Java, and needs pyarrow
only for Parquet.
"""

import datetime
import fcntl
import json
import os
import time
import urllib.parse
import zlib
from collections.abc import Iterator
from http.client import responses
from pathlib import Path
from typing import IO, Any

from urllib3.util import parse_url

from nsqcy.cluster import discovery
from nsqcy.cluster.answer_forms import (
    both,
    having,
    is_amount,
    is_line,
    is_name,
    is_number,
    list_of,
    or_null,
    perhaps,
)
from nsqcy.cluster.discovery import daemon_url, trust_in
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import NsqError, RequestError
from nsqcy.options.kinds import BOOLEAN, TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline.options import (
    ADDRESSES,
    AUTH_TOKEN_FILE,
    DURATION,
    PATH,
    POSITIVE,
    TEXT,
    Options,
    choice,
)
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.session import require_packages
from nsqcy.pipeline.state_files import Damaged
from nsqcy.spark.http import MAX_ANSWER, object_of
from nsqcy.users import token_file

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
    Option("tls-root-ca-file", TEXT, "", "PEM file with CA certificates for HTTPS ports"),
    Option("tls-insecure-skip-verify", BOOLEAN, False, "accept any certificate"),
    AUTH_TOKEN_FILE,
    Option("trust-lookupd", BOOLEAN, False, token_file.TRUST.help),
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


class Denied(NsqError):
    """A daemon denies access, or its certificate is not accepted: a retry does not help."""


class Poller:
    """Query every nsqd. An nsqd that does not respond is reported once, until it responds again."""

    def __init__(self, options: Options, report: Report) -> None:
        self._options = options
        self._report = report
        lookupds, named = options["lookupd-http-address"], options["nsqd-http-address"]
        self._named = named or (() if lookupds else ("127.0.0.1:4151",))
        self._web = WebClient(
            Terms(
                connect_timeout=options["timeout"],
                request_timeout=options["timeout"],
                root_ca_file=options["tls-root-ca-file"],
                verify=not options["tls-insecure-skip-verify"],
                token=token_file.of_command(options["auth-token-file"]),
                trust=trust_in(
                    lambda: (*lookupds, *self._named), all_listed=options["trust-lookupd"]
                ),
            )
        )
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
        lookupds = self._options["lookupd-http-address"]
        if lookupds:
            found = discovery.nodes(lookupds, web=self._web)
            self._known.update(each.http_address for each in found.producers if each.http_port)
            for address in lookupds:
                self._note(address, found.errors.get(address))
        return sorted({*self._named, *self._known})

    def _ask(self, address: str, path: str) -> dict[str, Any] | None:
        try:
            url = parse_url(f"{daemon_url(address).url}{path}")
            answer = self._web.ask(url, maximum=MAX_ANSWER)
            if answer.status != 200:
                raise status_error(answer.status)
            found = object_of(answer.body)
            if not STATS(found):
                raise ValueError("the response does not contain an nsqd's statistics")
        except (RequestError, ValueError) as error:
            self._note(address, error)
            return None
        self._note(address, None)
        return found

    def _note(self, address: str, error: Exception | None) -> None:
        """Report that a daemon does not respond, or responds again. Raises Denied."""
        if isinstance(error, RequestError) and error.status in (401, 403):
            remedy = f"check {token_file.SETTINGS}"
            raise Denied(f"{address} denies access: {error}; {remedy}")
        if error is not None and "certificate" in str(error):
            raise Denied(f"{address}: {error}; check --tls-root-ca-file")
        if error is not None and address not in self.silent:
            self.silent.add(address)
            self._report.warn(f"{address} does not answer: {error}", address=address)
        elif error is None and address in self.silent:
            self.silent.discard(address)
            self._report.warn(f"{address} answers again", address=address)


_FIGURES = both(
    perhaps(**{key: or_null(is_number) for key in NUMBERS.values()}),
    perhaps(
        e2e_processing_latency=or_null(
            perhaps(percentiles=or_null(list_of(having(quantile=is_amount, value=is_amount))))
        )
    ),
)
_CHANNEL = both(having(channel_name=is_name), _FIGURES)
_TOPIC = both(having(topic_name=is_name), _FIGURES)
STATS = perhaps(
    version=is_line,
    topics=or_null(list_of(both(_TOPIC, perhaps(channels=or_null(list_of(_CHANNEL)))))),
)


def status_error(status: int) -> RequestError:
    return RequestError(f"HTTP Error {status}: {responses.get(status, '')}", status)


def rows_of(now: datetime.datetime, nsqd: str, stats: dict[str, Any]) -> Iterator[Row]:
    """Return one row for each topic, with None as its channel, and one for each of its channels."""
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
    (`root/DAY.jsonl`).

    The rows of an unfinished time span are also in a hidden file (`root/.open-PID.jsonl`): the
    next run writes them if this one is killed.
    """

    def __init__(self, root: Path, format: str, seconds: float) -> None:
        self._root = root
        self._json = format == "json"
        self._seconds = seconds
        self._rows: list[Row] = []
        self._open: IO[str] | None = None
        self.rows = 0

    def __enter__(self) -> "Files":
        for path in sorted(self._root.glob(".open-*.jsonl")):
            self._recover(path)
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        if self._open is not None:
            Path(self._open.name).unlink()
            self._open.close()

    def add(self, rows: list[Row]) -> None:
        self.rows += len(rows)
        if rows and self._rows and self._is_over(rows[0]["at"]):
            self.flush()
        self._rows += rows
        if self._json:
            self.flush()
        elif rows:
            self._keep(rows)

    def flush(self) -> None:
        if self._rows:
            if self._json:
                self._append(self._rows)
            else:
                self._write(self._rows, os.getpid())
        self._rows = []
        if self._open is not None:
            self._open.truncate(0)

    def _keep(self, rows: list[Row]) -> None:
        """Save rows in case this process is killed. The lock shows that it is running."""
        if self._open is None:
            self._root.mkdir(parents=True, exist_ok=True)
            self._open = (self._root / f".open-{os.getpid()}.jsonl").open("a")
            fcntl.flock(self._open, fcntl.LOCK_EX)
        self._open.write("".join(map(with_checksum, map(as_line, rows))))
        self._open.flush()

    def _recover(self, path: Path) -> None:
        """Write the rows of a run that was killed. Raises Damaged."""
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # that run is still active
            try:
                if rows := list(map(parsed, whole_lines(file.read()))):
                    self._write(rows, path.stem.removeprefix(".open-"))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise Damaged(f"{path} does not contain rows of stats; move it elsewhere") from None
            path.unlink()

    def _is_over(self, now: datetime.datetime) -> bool:
        first: datetime.datetime = self._rows[0]["at"]
        late = (now - first).total_seconds() >= self._seconds
        return late or first.date() != now.date()

    def _append(self, rows: list[Row]) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        with (self._root / f"{rows[0]['at']:%Y-%m-%d}.jsonl").open("a") as file:
            file.write("".join(map(as_line, rows)))

    def _write(self, rows: list[Row], writer: int | str) -> None:
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
        path = self._root / f"dt={first:%Y-%m-%d}" / f"{first:%H%M%S.%f}-{writer}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        pq.write_table(pa.Table.from_pydict(columns, schema), partial, compression="zstd")
        partial.rename(path)


def as_line(row: Row) -> str:
    return json.dumps(row, default=datetime.datetime.isoformat) + "\n"


def with_checksum(line: str) -> str:
    return f"{zlib.crc32(line.encode()):08x} {line}"


def whole_lines(text: str) -> Iterator[str]:
    """Return the lines without their checksums; the last one may be incomplete. Raises ValueError
    if a line is damaged, including at its end. Earlier versions wrote no checksums."""
    *lines, rest = text.split("\n")
    for line in lines:
        content = line if line.startswith("{") else line[9:]
        if line not in (content, with_checksum(content + "\n")[:-1]):
            raise ValueError("a line does not match its checksum")
        yield content
    if rest and rest[:-1] == with_checksum(rest[9:-1] + "\n")[:-1]:
        raise ValueError("the end of the last line is damaged")


def parsed(line: str) -> Row:
    row: Row = json.loads(line)
    return row | {"at": datetime.datetime.fromisoformat(row["at"])}
