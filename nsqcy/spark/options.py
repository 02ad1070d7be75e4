"""The options of `format("nsq")`: one table, which is used to parse and check them."""

import difflib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nsqcy.options.kinds import (
    ANYTHING,
    BOOLEAN,
    EXPRESSION,
    INSTANT,
    NAME,
    SIZE,
    TOPIC_NAME,
    address,
    duration,
    matching,
    separated,
    whole,
)
from nsqcy.options.option import InvalidOption, Kind, Option, Rule
from nsqcy.spark.column_blocks import FIELDS
from nsqcy.spark.errors import OptionError
from nsqcy.spark.log_client import Access
from nsqcy.spark.offsets import Positions, positions

EARLIEST, LATEST = -2, -1
MB = 1 << 20


def places(*words: str) -> Kind:
    """Accept one of the words or JSON: {"topic": {"log_id": seq}}, or an offset as shown by
    Spark."""
    by_word = {"earliest": EARLIEST, "latest": LATEST}

    def parse(text: str) -> int | Positions:
        if text.lower() in words:
            return by_word[text.lower()]
        try:
            found = json.loads(text)
            found = positions(found.get("pos", found))
        except (ArithmeticError, AttributeError, RecursionError, TypeError):
            raise ValueError from None
        if any(seq < EARLIEST for logs in found.values() for seq in logs.values()):
            raise ValueError
        return found

    expected = f'{" or ".join(words)}, or JSON as {{"topic": {{"log_id": 4711}}}}'
    return Kind(f"{', '.join(words)}, JSON", expected, parse, lambda _: words[-1])


def column(text: str) -> str:
    if text not in FIELDS:
        raise ValueError
    return text


START, END = places("earliest", "latest"), places("latest")
TOPIC_NAMES = separated("name,...", TOPIC_NAME)
ADDRESSES = separated("host:port,...", address("host:port", "host:port,... without http://"))
COLUMNS = separated("name,...", Kind("name", f"some of {','.join(FIELDS)}", column))
PATH = Kind("path", "a path", str)
DURATION = duration("[0-9]{1,12}", "ms|s|m|h", "a duration, such as 500ms, 30s, 15m or 1h")
# The column whose values choose an nsqd; if empty, tasks use the nsqds in turn.
PARTITIONER = matching(
    "roundrobin, hash(column)",
    r"roundrobin|hash\(\s*([^()\s]+)\s*\)",
    "roundrobin or hash(column)",
    lambda found: found[1] or "",
    lambda column: f"hash({column})" if column else "roundrobin",
)
ON_FAILURE = matching(
    "retry, failover", "retry|failover", "retry or failover", lambda found: found[0].lower()
)
ON_CHANGED = matching(
    "refuse, publish", "refuse|publish", "refuse or publish", lambda found: found[0].lower()
)


class SparkOption(Option):
    """A row of the table. An option that is not set and has no default is None.

    `used` defines its scope: "all"; "read", both kinds of queries; "stream"; "batch";
    "write".
    """

    __slots__ = ("used",)

    def __init__(self, used: str, *declaration: Any, rule: Rule | None = None) -> None:
        super().__init__(*declaration, rule=rule)
        self.used = used


TABLE = (
    SparkOption(
        "all",
        "topic",
        TOPIC_NAME,
        None,
        "topic to read; when writing, the topic for rows without a topic",
    ),
    SparkOption("read", "topics", TOPIC_NAMES, None, "several topics"),
    SparkOption(
        "read",
        "topicsPattern",
        EXPRESSION,
        None,
        "regular expression that must match the entire topic name; topics that are created later "
        "are read as well. Requires lookupds",
    ),
    SparkOption(
        "all",
        "lookupdHttpAddresses",
        ADDRESSES,
        (),
        "lookupds; each is queried for the topic's nsqds or, when writing, for all nsqds",
    ),
    SparkOption(
        "all",
        "nsqdTcpAddresses",
        ADDRESSES,
        (),
        "nsqds, in addition to those that the lookupds list",
    ),
    SparkOption(
        "stream", "discoveryInterval", DURATION, 30.0, "interval between queries to the lookupds"
    ),
    SparkOption(
        "read",
        "startingOffsets",
        START,
        None,
        "where a new query begins; default: `latest` for streams, `earliest` for batches. In "
        "JSON, -2 is the earliest and -1 the latest position; logs that are not listed begin at "
        "their earliest position",
    ),
    SparkOption(
        "read",
        "startingTimestamp",
        INSTANT,
        None,
        "read messages published at this time or later; overrides startingOffsets",
    ),
    SparkOption(
        "batch",
        "endingOffsets",
        END,
        LATEST,
        "where to end, exclusive; fixed when the batch is planned",
    ),
    SparkOption(
        "batch",
        "endingTimestamp",
        INSTANT,
        None,
        "read messages published before this time; overrides endingOffsets",
    ),
    SparkOption(
        "stream",
        "maxOffsetsPerTrigger",
        whole(1),
        1_000_000,
        "maximum rows per micro-batch, divided among the logs in proportion to their backlog",
    ),
    SparkOption(
        "stream",
        "maxBytesPerTrigger",
        SIZE,
        256 * MB,
        "approximate maximum bytes per micro-batch, estimated from the mean record size. The "
        "first limit reached applies",
    ),
    SparkOption(
        "stream",
        "minOffsetsPerTrigger",
        whole(1),
        None,
        "wait for this number of rows, or until a maximum such as maxOffsetsPerTrigger is "
        "reached, for at most maxTriggerDelay; ignored with availableNow",
    ),
    SparkOption("stream", "maxTriggerDelay", DURATION, 900.0, "see minOffsetsPerTrigger"),
    SparkOption(
        "read",
        "minPartitions",
        whole(1),
        None,
        "approximate number of tasks. Default: one per driver core, if each has at least 50,000 "
        "rows",
    ),
    SparkOption(
        "read",
        "fetchBytes",
        SIZE,
        8 * MB,
        "maximum bytes per request",
        rule=Rule("at most 8m", lambda size: size <= 8 * MB),
    ),
    SparkOption(
        "read",
        "failOnDataLoss",
        BOOLEAN,
        True,
        "fail if rows to be read no longer exist; false: warn and continue without them",
    ),
    SparkOption(
        "read",
        "failOnUnreachable",
        BOOLEAN,
        None,
        "fail if an nsqd does not answer; default: true for batches, false for streams. If "
        "false, a stream keeps its position on that nsqd and continues with the others",
    ),
    SparkOption("all", "fetchOffset.numRetries", whole(0), 3, "retries of a failed request"),
    SparkOption(
        "all", "fetchOffset.retryIntervalMs", whole(0, "milliseconds"), 200, "time between retries"
    ),
    SparkOption(
        "stream",
        "pollTimeoutMs",
        whole(0, "milliseconds"),
        500,
        "maximum time that a trigger waits for the first row",
        rule=Rule("at most 60000", lambda time: time <= 60_000),
    ),
    SparkOption(
        "stream",
        "cursor",
        NAME,
        None,
        "named cursor, which makes retention keep unread messages and shows the lag",
    ),
    SparkOption(
        "stream", "waitForTopic", BOOLEAN, False, "wait for a topic that does not exist yet"
    ),
    SparkOption(
        "read",
        "columns",
        COLUMNS,
        None,
        "read only these columns; without `body`, bodies are not fetched",
    ),
    SparkOption(
        "batch",
        "pushdown",
        BOOLEAN,
        False,
        "apply filters on seq, topic, nsqd and log_id before fetching; requires "
        "spark.sql.python.filterPushdown.enabled, and a separate `load()` for each filtered query",
    ),
    SparkOption("all", "tls", BOOLEAN, False, "use TLS for connections to nsqds"),
    SparkOption("all", "tls.caFile", PATH, "", "file with trusted CAs; default: the system's CAs"),
    SparkOption("all", "tls.certFile", PATH, "", "file with the client certificate"),
    SparkOption("all", "tls.keyFile", PATH, "", "file with the client certificate's key"),
    SparkOption("all", "tls.verify", BOOLEAN, True, "verify nsqd's certificate and host name"),
    SparkOption("all", "authSecret", ANYTHING, "", "secret for AUTH; never shown"),
    SparkOption(
        "all",
        "trustLookupd",
        BOOLEAN,
        False,
        "send authSecret to every nsqd that nsqlookupds list, even if the nsqd has not "
        "authenticated to them",
    ),
    SparkOption("all", "connectTimeoutMs", whole(1, "milliseconds"), 1000, "connect timeout"),
    SparkOption(
        "write",
        "idempotent",
        BOOLEAN,
        True,
        "publish each row exactly once, even if tasks are retried; false: at least once",
    ),
    SparkOption(
        "write",
        "producerId",
        NAME,
        None,
        "name of the producer on nsqds; default: the query's id or, for a batch, a new id. A "
        "batch that is rerun with the same name publishes only the missing rows",
    ),
    SparkOption(
        "write",
        "partitioner",
        PARTITIONER,
        "",
        "how rows are distributed: tasks use the nsqds in turn, or all rows with the same value "
        "go to one nsqd",
    ),
    SparkOption(
        "write",
        "onNodeFailure",
        ON_FAILURE,
        "retry",
        "when an nsqd does not answer: fail the task, or publish to the next nsqd (at least once)",
    ),
    SparkOption(
        "write",
        "onChangedBatch",
        ON_CHANGED,
        "refuse",
        "if a stream's checkpoint is older than the published data, so that a batch is repeated "
        "with different rows: fail the query, or publish the batch (at least once)",
    ),
    SparkOption(
        "write",
        "batchBytes",
        SIZE,
        1 * MB,
        "maximum bytes per chunk; must not exceed nsqd's --max-body-size",
    ),
    SparkOption(
        "write",
        "maxMessageBytes",
        SIZE,
        1 * MB,
        "maximum body size, as in nsqd's --max-msg-size; larger bodies fail before anything is "
        "sent",
    ),
    SparkOption(
        "write",
        "maxMessagesPerSecond",
        whole(1),
        None,
        "rate limit for the query, shared by its tasks",
    ),
    SparkOption(
        "write",
        "parallelTasks",
        whole(1),
        None,
        "number of tasks that share maxMessagesPerSecond; default: the number of driver cores",
    ),
)
BY_KEY = {option.name.lower(): option for option in TABLE}
SPARKS_OWN = ("checkpointlocation", "queryname")  # values that also apply to a stream writer
ENDS = ("endingOffsets", "endingTimestamp")


@dataclass(frozen=True)
class Options:
    """The user's options, after validation."""

    topics: tuple[str, ...]  # empty if there is a pattern
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
        """Options for reading messages."""
        if self.pattern:
            return f"topics that match {self.pattern!r}"
        return ", ".join(f"topic {topic!r}" for topic in self.topics)


@dataclass(frozen=True)
class WriteOptions:
    """Options for a sink."""

    topic: str  # empty: each row has its own topic
    lookupds: tuple[str, ...]
    nsqds: tuple[str, ...]
    idempotent: bool
    producer: str
    hashed: str  # a column; empty: tasks use the nsqds in turn
    failover: bool
    publish_changed: bool  # even if a batch is repeated with other rows
    chunk_bytes: int
    longest: int
    max_per_second: int | None
    parallel: int
    retries: int
    retry_interval: float
    access: Access


def parse(given: Mapping[str, str]) -> Options:
    """Checked options; `for_stream` and `for_batch` distinguish the two kinds of query."""
    return assembled(values(given, lambda option: option.used != "write", "reading"))


def parse_write(given: Mapping[str, str]) -> WriteOptions:
    given = {key: text for key, text in given.items() if key.lower() not in SPARKS_OWN}
    return assembled_write(values(given, lambda option: option.used in ("all", "write"), "writing"))


def values(
    given: Mapping[str, str], has: Callable[[SparkOption], bool], doing: str
) -> dict[str, Any]:
    """Parse options; `doing` determines which options exist."""
    found = {option.name: option.default for option in TABLE if has(option)}
    for key, text in given.items():
        option = BY_KEY.get(key.lower())
        if option is None or option.name not in found:
            raise unknown(key, list(found), doing)
        found[option.name] = checked(option, text.strip())
    return found


def checked(option: SparkOption, text: str) -> Any:
    if option.default == () and not text:
        return ()
    try:
        return option.parse(text, f"option {option.name!r}")
    except InvalidOption as error:
        raise OptionError(str(error)) from None


def unknown(key: str, known: list[str], doing: str) -> OptionError:
    if key.lower() in BY_KEY:
        return OptionError(f"option {BY_KEY[key.lower()].name!r} does not apply to {doing}")
    if key.lower() == "path":
        return OptionError("option 'path' does not exist: specify the topic with option 'topic'")
    by_key = {name.lower(): name for name in known}
    near = difflib.get_close_matches(key.lower(), by_key, 1, 0.6)
    hint = f"did you mean {by_key[near[0]]!r}?" if near else f"allowed: {', '.join(known)}"
    return OptionError(f"unknown option {key!r}; {hint}")


def names() -> list[str]:
    return [option.name for option in TABLE]


def assembled(found: dict[str, Any]) -> Options:
    """Check combinations of options."""
    subjects = [name for name in ("topic", "topics", "topicsPattern") if found[name]]
    if len(subjects) != 1:
        what = " and ".join(subjects) if subjects else "none"
        raise OptionError(
            f"exactly one of topic, topics and topicsPattern is required (set: {what})"
        )
    check_addresses(found)
    if found["topicsPattern"] and not found["lookupdHttpAddresses"]:
        raise OptionError("topicsPattern requires lookupdHttpAddresses to find the topics")
    topics = tuple(sorted(found["topics"] or filter(None, [found["topic"]])))
    for name in ("startingOffsets", "endingOffsets"):
        check_topics(name, found[name], topics)
    return Options(
        topics=topics,
        pattern=found["topicsPattern"] or "",
        lookupds=found["lookupdHttpAddresses"],
        nsqds=found["nsqdTcpAddresses"],
        discovery_interval=found["discoveryInterval"],
        starting=found["startingOffsets"],
        starting_ns=found["startingTimestamp"],
        ending=found["endingOffsets"],
        ending_ns=found["endingTimestamp"],
        max_rows=found["maxOffsetsPerTrigger"],
        max_bytes=found["maxBytesPerTrigger"],
        min_rows=found["minOffsetsPerTrigger"],
        max_delay=found["maxTriggerDelay"],
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
        raise OptionError("option 'parallelTasks' requires maxMessagesPerSecond")
    return WriteOptions(
        topic=found["topic"] or "",
        lookupds=found["lookupdHttpAddresses"],
        nsqds=found["nsqdTcpAddresses"],
        idempotent=found["idempotent"],
        producer=found["producerId"] or "",
        hashed=found["partitioner"],
        failover=found["onNodeFailure"] == "failover",
        publish_changed=found["onChangedBatch"] == "publish",
        chunk_bytes=found["batchBytes"],
        longest=found["maxMessageBytes"],
        max_per_second=found["maxMessagesPerSecond"],
        parallel=found["parallelTasks"] or os.cpu_count() or 1,
        retries=found["fetchOffset.numRetries"],
        retry_interval=found["fetchOffset.retryIntervalMs"] / 1000,
        access=access(found),
    )


def check_addresses(found: dict[str, Any]) -> None:
    if not found["lookupdHttpAddresses"] and not found["nsqdTcpAddresses"]:
        raise OptionError("one of lookupdHttpAddresses and nsqdTcpAddresses is required")


def access(found: dict[str, Any]) -> Access:
    used = [name for name in ("tls.caFile", "tls.certFile", "tls.keyFile") if found[name]]
    if used and not found["tls"]:
        raise OptionError(f"option {used[0]!r} requires tls=true")
    if found["tls.keyFile"] and not found["tls.certFile"]:
        raise OptionError("option 'tls.keyFile' requires tls.certFile")
    return Access(
        connect_timeout=found["connectTimeoutMs"] / 1000,
        auth_secret=found["authSecret"],
        trust_lookupd=found["trustLookupd"],
        tls=found["tls"],
        tls_ca_file=found["tls.caFile"],
        tls_cert_file=found["tls.certFile"],
        tls_key_file=found["tls.keyFile"],
        tls_verify=found["tls.verify"],
    )


def check_topics(name: str, value: int | Positions | None, topics: tuple[str, ...]) -> None:
    if isinstance(value, dict) and topics:
        for topic in value:
            if topic not in topics:
                raise OptionError(f"option {name!r} names topic {topic!r}, which is not read")


def check_stream(given: Mapping[str, str]) -> None:
    """Reject an end position for a stream."""
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
