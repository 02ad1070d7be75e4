"""The options of `format("nsq")`: one table, from which they are parsed, checked and documented."""

import datetime
import difflib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsqcy.spark.blocks import FIELDS
from nsqcy.spark.errors import OptionError
from nsqcy.spark.offsets import Positions, positions
from nsqcy.spark.v2 import Access

EARLIEST, LATEST = -2, -1
NAME = r"[.a-zA-Z0-9_-]{1,64}"
UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class BadValue(Exception):
    """What was expected instead."""


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise BadValue("true or false")
    return text.lower() == "true"


def whole(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            raise BadValue(f"a whole number of at least {least}")
        return int(text)

    return parse


def size(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,15})([kmg]?)b?", text.lower())
    if not found or not int(found[1]):
        raise BadValue("a number of bytes as 8m, 512k or 1048576")
    return int(found[1]) * SIZES[found[2]]


def milliseconds(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})(ms|s|m|h)", text.lower())
    if not found:
        raise BadValue("a duration as 500ms, 30s, 15m or 1h")
    return int(found[1]) * UNITS[found[2]]


def instant(text: str) -> int:
    """Nanoseconds since 1970; without a zone it is UTC."""
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text) * 1_000_000
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise BadValue("ISO 8601 as 2024-05-01T12:00:00Z, or milliseconds since 1970") from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=datetime.UTC)
    since = found - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return since // datetime.timedelta(microseconds=1) * 1000


def topic_name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise BadValue("a topic name: 1 to 64 of .a-zA-Z0-9_- (ephemeral topics have no log)")
    return text


def topic_names(text: str) -> tuple[str, ...]:
    return tuple(sorted({topic_name(name) for name in listed(text)}))


def plain_name(text: str) -> str:
    if not re.fullmatch(NAME, text):
        raise BadValue("a name: 1 to 64 of .a-zA-Z0-9_-")
    return text


def expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise BadValue(f"a regular expression ({error})") from None
    return text


def addresses(text: str) -> tuple[str, ...]:
    found = listed(text)
    for each in found:
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\s/\[\]]+):([0-9]{1,5})", each)
        if not match or not 0 < int(match[2]) < 65536:
            raise BadValue("host:port,... without http://")
    return found


def listed(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if "" in found:
        raise BadValue("a list separated by commas, without empty parts")
    return found


def places(*words: str) -> Callable[[str], int | Positions]:
    """One of the words, or JSON: {"topic": {"log_id": seq}}, or an offset as Spark shows them."""

    def parse(text: str) -> int | Positions:
        if text.lower() in words:
            return {"earliest": EARLIEST, "latest": LATEST}[text.lower()]
        expected = f'{" or ".join(words)}, or JSON as {{"topic": {{"log_id": 4711}}}}'
        try:
            found = json.loads(text)
            found = positions(found.get("pos", found))
        except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError):
            raise BadValue(expected) from None
        if any(seq < EARLIEST for logs in found.values() for seq in logs.values()):
            raise BadValue(expected)
        return found

    return parse


def column_names(text: str) -> tuple[str, ...]:
    found = listed(text)
    for name in found:
        if name not in FIELDS:
            raise BadValue(f"some of {','.join(FIELDS)}")
    return found


def one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise BadValue(" or ".join(words))
        return text.lower()

    return parse


def partitioner(text: str) -> str:
    """The column whose values choose an nsqd; empty if tasks take them in turn."""
    found = re.fullmatch(r"(?i:roundrobin|hash\(\s*([^()\s]+)\s*\))", text)
    if not found:
        raise BadValue("roundrobin or hash(column)")
    return found[1] or ""


def anything(text: str) -> str:
    return text


@dataclass(frozen=True)
class Option:
    """A row of the table. Without a default an option that is not given is None."""

    name: str
    parse: Callable[[str], Any]
    values: str
    default: str | None
    used: str  # "all"; "read": by both kinds of queries; "stream"; "batch"; "write"
    meaning: str


TABLE = (
    Option(
        "topic",
        topic_name,
        "name",
        None,
        "all",
        "one topic; when writing, of rows without one of their own",
    ),
    Option("topics", topic_names, "name,...", None, "read", "several topics"),
    Option(
        "topicsPattern",
        expression,
        "regular expression",
        None,
        "read",
        "topics whose whole name it matches, also those that come later; needs lookupds",
    ),
    Option(
        "lookupdHttpAddresses",
        addresses,
        "host:port,...",
        "",
        "all",
        "lookupds; all are asked which nsqds have the topic, or, when writing, which there are",
    ),
    Option(
        "nsqdTcpAddresses",
        addresses,
        "host:port,...",
        "",
        "all",
        "nsqds, beside those of lookupds",
    ),
    Option(
        "discoveryInterval",
        milliseconds,
        "duration",
        "30s",
        "stream",
        "how often lookupds are asked again",
    ),
    Option(
        "startingOffsets",
        places("earliest", "latest"),
        "earliest, latest, JSON",
        None,
        "read",
        "where a new query begins: `latest` for streams, `earliest` for batches, by default. In "
        "JSON -2 is the earliest, -1 the latest; logs it does not name begin at their earliest",
    ),
    Option(
        "startingTimestamp",
        instant,
        "ISO 8601, ms since 1970",
        None,
        "read",
        "begin with what was published then or later; wins over startingOffsets",
    ),
    Option(
        "endingOffsets",
        places("latest"),
        "latest, JSON",
        "latest",
        "batch",
        "where to end: before these. Fixed when the batch is planned",
    ),
    Option(
        "endingTimestamp",
        instant,
        "ISO 8601, ms since 1970",
        None,
        "batch",
        "end before what was published then; wins over endingOffsets",
    ),
    Option(
        "maxOffsetsPerTrigger",
        whole(1),
        "number",
        "1000000",
        "stream",
        "most rows of a micro-batch, split over logs in proportion to what they have",
    ),
    Option(
        "maxBytesPerTrigger",
        size,
        "size",
        "256m",
        "stream",
        "about the most bytes of a micro-batch, by the mean size of records; whichever comes first",
    ),
    Option(
        "minOffsetsPerTrigger",
        whole(1),
        "number",
        None,
        "stream",
        "wait for so many rows, at most for maxTriggerDelay. Not with availableNow",
    ),
    Option(
        "maxTriggerDelay", milliseconds, "duration", "15m", "stream", "see minOffsetsPerTrigger"
    ),
    Option(
        "minPartitions",
        whole(1),
        "number",
        None,
        "read",
        "split what is read into about so many tasks. Otherwise into as many as the driver has "
        "cores, if they have 50,000 rows each",
    ),
    Option("fetchBytes", size, "size, at most 8m", "8m", "read", "of one request"),
    Option(
        "failOnDataLoss",
        boolean,
        "true, false",
        "true",
        "read",
        "stop when rows that were to be read are gone; false: warn, and go on without them",
    ),
    Option(
        "failOnUnreachable",
        boolean,
        "true, false",
        None,
        "read",
        "stop when an nsqd does not answer: true for batches, false for streams, by default. A "
        "stream holds its position there and goes on with the others",
    ),
    Option(
        "fetchOffset.numRetries", whole(0), "number", "3", "all", "tries after one that has failed"
    ),
    Option(
        "fetchOffset.retryIntervalMs", whole(0), "milliseconds", "200", "all", "time between them"
    ),
    Option(
        "pollTimeoutMs",
        whole(0),
        "milliseconds, at most 60000",
        "500",
        "stream",
        "how long a trigger waits for the first row",
    ),
    Option(
        "cursor",
        plain_name,
        "name",
        None,
        "stream",
        "a named cursor that holds retention back behind the query, and shows its lag",
    ),
    Option(
        "waitForTopic",
        boolean,
        "true, false",
        "false",
        "stream",
        "wait for a topic that is not there",
    ),
    Option(
        "columns",
        column_names,
        "name,...",
        None,
        "read",
        "only these; without `body` none is fetched",
    ),
    Option(
        "pushdown",
        boolean,
        "true, false",
        "false",
        "batch",
        "let filters of seq, topic, nsqd and log_id choose what is fetched; needs "
        "spark.sql.python.filterPushdown.enabled",
    ),
    Option("tls", boolean, "true, false", "false", "all", "speak TLS to nsqds"),
    Option("tls.caFile", anything, "path", "", "all", "authorities, instead of the system's"),
    Option("tls.certFile", anything, "path", "", "all", "the client's certificate"),
    Option("tls.keyFile", anything, "path", "", "all", "its key"),
    Option(
        "tls.verify",
        boolean,
        "true, false",
        "true",
        "all",
        "check nsqd's certificate and its name",
    ),
    Option("authSecret", anything, "text", "", "all", "for AUTH; never shown"),
    Option(
        "connectTimeoutMs", whole(1), "milliseconds", "1000", "all", "how long connecting may take"
    ),
    Option(
        "idempotent",
        boolean,
        "true, false",
        "true",
        "write",
        "publish each row once, whatever is repeated; false: at least once",
    ),
    Option(
        "producerId",
        plain_name,
        "name",
        None,
        "write",
        "what nsqds know the producer by; otherwise the id of the query or, of a batch, a new one. "
        "A batch that is run again under its name publishes what was missing",
    ),
    Option(
        "partitioner",
        partitioner,
        "roundrobin, hash(column)",
        "roundrobin",
        "write",
        "which nsqd gets what: tasks take them in turn, or all rows of a value go to one",
    ),
    Option(
        "onNodeFailure",
        one_of("retry", "failover"),
        "retry, failover",
        "retry",
        "write",
        "when an nsqd does not answer: fail the task, or publish to the next one, which is at "
        "least once",
    ),
    Option(
        "batchBytes",
        size,
        "size",
        "1m",
        "write",
        "of a chunk, at most: not more than nsqd's --max-body-size",
    ),
    Option(
        "maxMessageBytes",
        size,
        "size",
        "1m",
        "write",
        "longer bodies are refused before anything is sent: nsqd's --max-msg-size",
    ),
    Option(
        "maxMessagesPerSecond",
        whole(1),
        "number",
        None,
        "write",
        "of the query; its tasks share it",
    ),
    Option(
        "parallelTasks",
        whole(1),
        "number",
        None,
        "write",
        "how many tasks share maxMessagesPerSecond; otherwise as many as the driver has cores",
    ),
)
BY_KEY = {option.name.lower(): option for option in TABLE}
SPARKS_OWN = ("checkpointlocation", "queryname")  # which a stream's writer gets as well
ENDS = ("endingOffsets", "endingTimestamp")


@dataclass(frozen=True)
class Options:
    """What was asked for, checked."""

    topics: tuple[str, ...]  # empty with a pattern
    pattern: str
    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    discovery_interval: float
    starting: int | Positions | None
    starting_ns: int | None
    ending: int | Positions
    ending_ns: int | None
    max_rows: int
    max_bytes: int
    min_rows: int | None
    max_delay: float
    min_partitions: int | None
    fetch_bytes: int
    fail_on_data_loss: bool
    fail_on_unreachable: bool | None
    retries: int
    retry_interval: float
    poll_timeout: float
    cursor: str
    wait_for_topic: bool
    columns: tuple[str, ...]
    pushdown: bool
    access: Access

    @property
    def subject(self) -> str:
        """For messages: what is read."""
        if self.pattern:
            return f"topics like {self.pattern!r}"
        return ", ".join(f"topic {topic!r}" for topic in self.topics)


@dataclass(frozen=True)
class WriteOptions:
    """The same of a sink."""

    topic: str  # empty: every row has its own
    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    idempotent: bool
    producer: str
    hashed: str  # a column; empty: nsqds in turn
    failover: bool
    chunk_bytes: int
    longest: int
    most_in_second: int | None
    parallel: int
    retries: int
    retry_interval: float
    access: Access


def parse(given: Mapping[str, str]) -> Options:
    """Checked options; which kind of query it is for is seen by `for_stream` and `for_batch`."""
    return assembled(values(given, lambda option: option.used != "write", "reading"))


def parse_write(given: Mapping[str, str]) -> WriteOptions:
    given = {key: text for key, text in given.items() if key.lower() not in SPARKS_OWN}
    return assembled_write(values(given, lambda option: option.used in ("all", "write"), "writing"))


def values(given: Mapping[str, str], has: Callable[[Option], bool], doing: str) -> dict[str, Any]:
    """By the names of the options that there are for `doing`."""
    texts = {name: option.default for name, option in BY_KEY.items() if has(option)}
    for key, text in given.items():
        if key.lower() not in texts:
            raise unknown(key, [BY_KEY[name].name for name in texts], doing)
        texts[key.lower()] = text.strip()
    found: dict[str, Any] = {}
    for key, value in texts.items():
        option = BY_KEY[key]
        left_out = value is None or (value == "" and option.default == "")
        found[option.name] = (
            (() if option.parse is addresses else option.default or None)
            if left_out
            else checked(option, value or "")
        )
    return found


def checked(option: Option, text: str) -> Any:
    try:
        return option.parse(text)
    except BadValue as expected:
        shown = "" if option.name == "authSecret" else f" is {text!r}:"
        raise OptionError(f"option {option.name!r}{shown} expected {expected}") from None


def unknown(key: str, known: list[str], doing: str) -> OptionError:
    if key.lower() in BY_KEY:
        return OptionError(f"option {BY_KEY[key.lower()].name!r} is not for {doing}")
    if key.lower() == "path":
        return OptionError("there is no path: option 'topic' names the topic")
    by_key = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_key, 1, 0.6)
    hint = f"did you mean {by_key[near[0]]!r}?" if near else f"there are {', '.join(known)}"
    return OptionError(f"unknown option {key!r}; {hint}")


def names() -> list[str]:
    return [option.name for option in TABLE]


def assembled(found: dict[str, Any]) -> Options:
    """The options together."""
    subjects = [name for name in ("topic", "topics", "topicsPattern") if found[name]]
    if len(subjects) != 1:
        what = " and ".join(subjects) if subjects else "none"
        raise OptionError(f"exactly one of topic, topics, topicsPattern is needed: {what} is given")
    check_addresses(found)
    if found["topicsPattern"] and not found["lookupdHttpAddresses"]:
        raise OptionError("topicsPattern needs lookupdHttpAddresses: they know the topics")
    if found["fetchBytes"] > 8 << 20:
        raise OptionError(f"option 'fetchBytes' is {found['fetchBytes']}: at most 8m is possible")
    if found["pollTimeoutMs"] > 60_000:
        raise OptionError(f"option 'pollTimeoutMs' is {found['pollTimeoutMs']}: at most 60000")
    topics = found["topics"] or ((found["topic"],) if found["topic"] else ())
    for name in ("startingOffsets", "endingOffsets"):
        check_topics(name, found[name], topics)
    return Options(
        topics=topics,
        pattern=found["topicsPattern"] or "",
        lookupds=found["lookupdHttpAddresses"],
        nsqds=found["nsqdTcpAddresses"],
        discovery_interval=found["discoveryInterval"] / 1000,
        starting=found["startingOffsets"],
        starting_ns=found["startingTimestamp"],
        ending=found["endingOffsets"],
        ending_ns=found["endingTimestamp"],
        max_rows=found["maxOffsetsPerTrigger"],
        max_bytes=found["maxBytesPerTrigger"],
        min_rows=found["minOffsetsPerTrigger"],
        max_delay=found["maxTriggerDelay"] / 1000,
        min_partitions=found["minPartitions"],
        fetch_bytes=found["fetchBytes"],
        fail_on_data_loss=found["failOnDataLoss"],
        fail_on_unreachable=found["failOnUnreachable"],
        retries=found["fetchOffset.numRetries"],
        retry_interval=found["fetchOffset.retryIntervalMs"] / 1000,
        poll_timeout=found["pollTimeoutMs"] / 1000,
        cursor=found["cursor"] or "",
        wait_for_topic=found["waitForTopic"],
        columns=found["columns"] or (),
        pushdown=found["pushdown"],
        access=access(found),
    )


def assembled_write(found: dict[str, Any]) -> WriteOptions:
    check_addresses(found)
    if found["parallelTasks"] and not found["maxMessagesPerSecond"]:
        raise OptionError("option 'parallelTasks' is of no use without maxMessagesPerSecond")
    return WriteOptions(
        topic=found["topic"] or "",
        lookupds=found["lookupdHttpAddresses"],
        nsqds=found["nsqdTcpAddresses"],
        idempotent=found["idempotent"],
        producer=found["producerId"] or "",
        hashed=found["partitioner"],
        failover=found["onNodeFailure"] == "failover",
        chunk_bytes=found["batchBytes"],
        longest=found["maxMessageBytes"],
        most_in_second=found["maxMessagesPerSecond"],
        parallel=found["parallelTasks"] or os.cpu_count() or 1,
        retries=found["fetchOffset.numRetries"],
        retry_interval=found["fetchOffset.retryIntervalMs"] / 1000,
        access=access(found),
    )


def check_addresses(found: dict[str, Any]) -> None:
    if not found["lookupdHttpAddresses"] and not found["nsqdTcpAddresses"]:
        raise OptionError("one of lookupdHttpAddresses, nsqdTcpAddresses is needed: none is given")


def access(found: dict[str, Any]) -> Access:
    used = [name for name in ("tls.caFile", "tls.certFile", "tls.keyFile") if found[name]]
    if used and not found["tls"]:
        raise OptionError(f"option {used[0]!r} is of no use without tls=true")
    if found["tls.keyFile"] and not found["tls.certFile"]:
        raise OptionError("option 'tls.keyFile' is of no use without tls.certFile")
    return Access(
        connect_timeout=found["connectTimeoutMs"] / 1000,
        auth_secret=found["authSecret"] or "",
        tls=found["tls"],
        tls_ca_file=found["tls.caFile"] or "",
        tls_cert_file=found["tls.certFile"] or "",
        tls_key_file=found["tls.keyFile"] or "",
        tls_verify=found["tls.verify"],
    )


def check_topics(name: str, value: int | Positions | None, topics: tuple[str, ...]) -> None:
    if isinstance(value, dict) and topics:
        for topic in value:
            if topic not in topics:
                raise OptionError(f"option {name!r} names topic {topic!r}, which is not read")


def check_stream(given: Mapping[str, str]) -> None:
    """A stream has no end."""
    for name in ENDS:
        if any(key.lower() == name.lower() for key in given):
            raise OptionError(f"option {name!r} is for batch queries; a stream has no end")


def check_batch(options: Options) -> None:
    starts = options.starting
    latest = (
        LATEST in [seq for logs in starts.values() for seq in logs.values()]
        if isinstance(starts, dict)
        else starts == LATEST
    )
    if latest and options.starting_ns is None:
        raise OptionError("option 'startingOffsets' is 'latest': a batch query would read nothing")


def documentation() -> str:
    """The table of docs/SPARK.md, which `make conf` puts there."""
    lines = ["| option | values | default | used by | meaning |", "|---|---|---|---|---|"]
    for option in TABLE:
        default = f"`{option.default}`" if option.default else ""
        lines.append(
            f"| `{option.name}` | {option.values} | {default} | {option.used} | {option.meaning} |"
        )
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """A page with the table that it has now in the place of the one it had."""
    start = page.index("| option |")
    return page[:start] + documentation() + page[page.index("\n\n", start) + 1 :]


if __name__ == "__main__":
    PAGE = Path(sys.argv[1])
    PAGE.write_text(rewritten(PAGE.read_text()))
