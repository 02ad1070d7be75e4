"""Options that users type, and the errors for invalid ones."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nsqcy.spark import options
from nsqcy.spark.errors import NsqError
from nsqcy.spark.options import parse, parse_write
from nsqcy.spark.source import NsqDataSource
from support.spark_sources import QUICK, schema

ROOT = Path(__file__).parents[2]
GOOD = {"topic": "orders", "nsqdTcpAddresses": "127.0.0.1:1"}
LOOKUPS = {"lookupdHttpAddresses": "127.0.0.1:1"}

NUMBER = "a whole number of at least"
SIZE = "a number of bytes, such as 8m, 512k or 1048576"
DURATION = "a duration, such as 500ms, 30s, 15m or 1h"
INSTANT = "ISO 8601, such as 2024-05-01T12:00:00Z, or milliseconds since 1970"
NAME = "a topic name of 1 to 64 characters: .a-zA-Z0-9_- (ephemeral topics have no log)"
PLACE = 'earliest or latest, or JSON as {"topic": {"log_id": 4711}}'
END = 'latest, or JSON as {"topic": {"log_id": 4711}}'
HOSTS = "host:port,... without http://"

BAD = [
    ("topic", "a b", NAME),
    ("topic", "a#ephemeral", NAME),
    ("topics", "a,,b", "a comma-separated list without empty items"),
    ("topics", "a,b/c", NAME),
    (
        "topicsPattern",
        "a(",
        "a regular expression (missing ), unterminated subpattern at position 1)",
    ),
    ("lookupdHttpAddresses", "http://a:4161", HOSTS),
    ("lookupdHttpAddresses", "a:99999", HOSTS),
    ("nsqdTcpAddresses", "a", HOSTS),
    ("discoveryInterval", "30", DURATION),
    ("startingOffsets", "first", PLACE),
    ("startingOffsets", '{"orders": {"x": "y"}}', PLACE),
    ("startingOffsets", '{"orders": {"x": -3}}', PLACE),
    ("startingOffsets", "7", PLACE),
    ("startingTimestamp", "yesterday", INSTANT),
    ("endingOffsets", "earliest", END),
    ("endingTimestamp", "-5", INSTANT),
    ("maxOffsetsPerTrigger", "0", f"{NUMBER} 1"),
    ("maxBytesPerTrigger", "many", SIZE),
    ("minOffsetsPerTrigger", "1.5", f"{NUMBER} 1"),
    ("maxTriggerDelay", "15 min", DURATION),
    ("minPartitions", "-1", f"{NUMBER} 1"),
    ("fetchBytes", "0", SIZE),
    ("failOnDataLoss", "no", "true or false"),
    ("failOnUnreachable", "1", "true or false"),
    ("fetchOffset.numRetries", "x", f"{NUMBER} 0"),
    ("fetchOffset.retryIntervalMs", "1s", f"{NUMBER} 0"),
    ("pollTimeoutMs", "1s", f"{NUMBER} 0"),
    ("cursor", "a b", "a name of 1 to 64 characters: .a-zA-Z0-9_-"),
    ("waitForTopic", "maybe", "true or false"),
    (
        "columns",
        "seq,value",
        "some of topic,nsqd,log_id,seq,id,timestamp,defer_ms,body,headers",
    ),
    ("pushdown", "on", "true or false"),
    ("tls", "yes", "true or false"),
    ("tls.verify", "yes", "true or false"),
    ("trustLookupd", "1", "true or false"),
    ("connectTimeoutMs", "0", f"{NUMBER} 1"),
    ("idempotent", "1", "true or false"),
    ("producerId", "a b", "a name of 1 to 64 characters: .a-zA-Z0-9_-"),
    ("partitioner", "hash", "roundrobin or hash(column)"),
    ("partitioner", "hash()", "roundrobin or hash(column)"),
    ("onNodeFailure", "panic", "retry or failover"),
    ("onChangedBatch", "ignore", "refuse or publish"),
    ("batchBytes", "-1", SIZE),
    ("maxMessageBytes", "1 kilo", SIZE),
    ("maxMessagesPerSecond", "0", f"{NUMBER} 1"),
    ("parallelTasks", "all", f"{NUMBER} 1"),
]
FREE = {"tls.caFile", "tls.certFile", "tls.keyFile", "authSecret"}  # any text is accepted


WRITING = {option.name for option in options.TABLE if option.used == "write"}


def refusal(given: dict[str, str], how: Callable[[dict[str, str]], object] = parse) -> str:
    with pytest.raises(NsqError) as caught:
        how(given)
    return str(caught.value)


@pytest.mark.parametrize(("name", "value", "expected"), BAD)
def test_bad_values(name: str, value: str, expected: str) -> None:
    said = refusal(GOOD | {name: value}, parse_write if name in WRITING else parse)
    assert said == f"nsq: option {name!r} is {value!r}: expected {expected}"


def test_every_option_has_a_bad_value() -> None:
    assert {name for name, _, _ in BAD} | FREE == set(options.names())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"nsqdTcpAddresses": "a:1"},
            "exactly one of topic, topics and topicsPattern is required (set: none)",
        ),
        (
            GOOD | {"topics": "a,b"},
            "exactly one of topic, topics and topicsPattern is required (set: topic and topics)",
        ),
        (
            {"topic": "a"},
            "one of lookupdHttpAddresses and nsqdTcpAddresses is required",
        ),
        (
            {"topicsPattern": "a.*", "nsqdTcpAddresses": "a:1"},
            "topicsPattern requires lookupdHttpAddresses to find the topics",
        ),
        (GOOD | {"fetchBytes": "9m"}, "option 'fetchBytes' is '9m': expected at most 8m"),
        (
            GOOD | {"pollTimeoutMs": "60001"},
            "option 'pollTimeoutMs' is '60001': expected at most 60000",
        ),
        (
            GOOD | {"startingOffsets": '{"other": {"x": 1}}'},
            "option 'startingOffsets' names topic 'other', which is not read",
        ),
        (GOOD | {"tls.caFile": "x"}, "option 'tls.caFile' requires tls=true"),
        (
            GOOD | {"tls": "true", "tls.keyFile": "x"},
            "option 'tls.keyFile' requires tls.certFile",
        ),
        (
            GOOD | {"startingOffset": "latest"},
            "unknown option 'startingOffset'; did you mean 'startingOffsets'?",
        ),
        (
            GOOD | {"subscribe": "t"},
            "unknown option 'subscribe'; allowed: "
            + ", ".join(name for name in options.names() if name not in WRITING),
        ),
        (GOOD | {"idempotent": "true"}, "option 'idempotent' does not apply to reading"),
        (
            GOOD | {"path": "x"},
            "option 'path' does not exist: specify the topic with option 'topic'",
        ),
    ],
)
def test_bad_combinations(given: dict[str, str], text: str) -> None:
    assert refusal(given) == f"nsq: {text}"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"topic": "a"},
            "one of lookupdHttpAddresses and nsqdTcpAddresses is required",
        ),
        (
            GOOD | {"parallelTasks": "1"},
            "option 'parallelTasks' requires maxMessagesPerSecond",
        ),
        (GOOD | {"tls.certFile": "x"}, "option 'tls.certFile' requires tls=true"),
        (
            GOOD | {"startingoffsets": "latest"},
            "option 'startingOffsets' does not apply to writing",
        ),
        (GOOD | {"batchbites": "1m"}, "unknown option 'batchbites'; did you mean 'batchBytes'?"),
    ],
)
def test_bad_combinations_of_a_sink(given: dict[str, str], text: str) -> None:
    assert refusal(given, parse_write) == f"nsq: {text}"


def test_what_a_sink_gets_of_spark_itself() -> None:
    given = GOOD | {"checkpointlocation": "/tmp/x", "queryname": "q", "authSecret": "hunter2"}
    found = parse_write(given)
    assert found.topic == "orders"
    assert "hunter2" not in repr(found)


def test_options_of_the_other_kind_of_query() -> None:
    for name, value in [("endingOffsets", "latest"), ("endingTimestamp", "5")]:
        with pytest.raises(NsqError) as caught:
            NsqDataSource(GOOD | {name.lower(): value}).streamReader(schema())
        text = f"nsq: option {name!r} is for batch queries; a stream has no end"
        assert str(caught.value) == text
    for value in ("latest", '{"orders": {"x": -1}}'):
        with pytest.raises(NsqError) as caught:
            NsqDataSource(GOOD | {"startingOffsets": value}).reader(schema())
        text = "nsq: option 'startingOffsets' is 'latest': a batch query would read nothing"
        assert str(caught.value) == text


def test_columns_are_those_of_the_schema_that_was_asked_for() -> None:
    reader = NsqDataSource(GOOD).reader(schema("body", "seq"))
    assert reader._schema.names == ["body", "seq"]  # type: ignore[attr-defined]
    wrong = schema("seq", "body")
    wrong.fields[0].name = wrong.names[0] = "offset"
    with pytest.raises(
        NsqError, match=r"^nsq: column 'offset' does not exist \(allowed: topic, nsqd,"
    ):
        NsqDataSource(GOOD).reader(wrong)
    wrong = schema("seq", "body")
    wrong.fields[0].dataType = wrong.fields[1].dataType
    with pytest.raises(NsqError, match=r"^nsq: column 'seq' is bigint, not binary$"):
        NsqDataSource(GOOD).streamReader(wrong)


def test_values() -> None:
    found = parse(
        LOOKUPS
        | {
            "TOPICS": " b, a ",
            "startingtimestamp": "2024-05-01T12:00:00+02:00",
            "endingTimestamp": "1714557600000",
            "maxBytesPerTrigger": "2G",
            "maxTriggerDelay": "2h",
            "startingOffsets": '{"v": 1, "pos": {"a": {"x": -2}}}',
        }
    )
    assert found.topics == ("a", "b")
    assert found.starting_ns == found.ending_ns == 1714557600 * 10**9
    assert found.max_bytes == 2 << 30
    assert found.max_delay == 7200
    assert found.starting == {"a": {"x": -2}}


def test_defaults_parse_to_themselves() -> None:
    assert parse(GOOD | QUICK).fail_on_data_loss
    for option in options.TABLE:
        if option.default not in (None, ()):
            assert option.parse(option.show(option.default), option.name) == option.default


def test_secrets_are_not_shown() -> None:
    found = parse(GOOD | {"authSecret": "hunter2"})
    assert "hunter2" not in repr(found)
    assert found.access.auth_secret == "hunter2"
