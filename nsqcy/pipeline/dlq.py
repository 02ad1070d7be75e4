"""`nsqcy-pipeline dlq`: counts dead letters by origin and reason, and republishes them.

The headers of a dead letter contain its origin (nsqcy/broker/dead_letter_headers.py). Messages are
published in the same way as in replay.
"""

import datetime
from collections.abc import Iterator
from functools import reduce
from typing import TYPE_CHECKING, Any

from nsqcy.broker.dead_letter_headers import NAMES, OWN_TTL
from nsqcy.options.kinds import TOPIC_NAME
from nsqcy.options.option import Option
from nsqcy.pipeline.options import POSITIVE, SOURCE, SPARK, Options
from nsqcy.pipeline.replay import DESTINATION, PLACE, Work, chosen, publish
from nsqcy.pipeline.report import Report
from nsqcy.pipeline.rows import HEADERS, Source, source_of
from nsqcy.pipeline.session import make_session, require_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

HELP = """\
counts dead letters by channel, client and reason; can republish them

--topic is the dead-letter topic; --root is its archive, with headers. --where may also use
origin_topic, origin_channel, origin_id, attempts, first_time, last_client and reason."""

OPTIONS = (
    Option(
        "republish", TOPIC_NAME, None, "publish the messages to this topic, with their own headers"
    ),
    Option("top", POSITIVE, 20, "number of groups to show, largest first"),
    *PLACE,
    *DESTINATION,
    *SPARK,
    *SOURCE,
)

# The headers of a dead letter, as SQL.
LETTER = {
    "origin_topic": "try_element_at(headers, 'origin-topic')",
    "origin_channel": "try_element_at(headers, 'origin-channel')",
    "origin_id": "try_element_at(headers, 'origin-id')",
    "attempts": "try_cast(try_element_at(headers, 'attempts') as int)",
    "first_time": (
        "timestamp_micros(try_cast(try_element_at(headers, 'first-time') as long) div 1000)"
    ),
    "last_client": "try_element_at(headers, 'last-client')",
    "reason": "try_element_at(headers, 'reason')",
}
TIMES = ("first", "last")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
GROUP = ("origin_topic", "origin_channel", "reason", "last_client")


def run(options: Options, report: Report) -> int:
    source = source_of(options, headers=True)
    require_spark()
    choose = chosen(options)

    def letters(frame: "DataFrame") -> "DataFrame":
        return choose(with_origin(frame).where("origin_topic is not null"))

    if options["republish"]:
        publish(options, report, Work("dlq", options["republish"], source, letters, own))
    else:
        look(options, report, source)
    return 0


def with_origin(frame: "DataFrame") -> "DataFrame":
    from pyspark.sql import functions as f

    if HEADERS not in frame.columns:
        raise ValueError(
            "the archive has no headers: run archive with "
            "--option columns=topic,nsqd,log_id,seq,id,timestamp,defer_ms,body,headers"
        )
    return frame.withColumns({name: f.expr(text) for name, text in LETTER.items()})


def own(frame: "DataFrame") -> "DataFrame":
    """Return the bodies with their original headers."""
    return frame.selectExpr("body", f"{own_headers()} as headers")


def own_headers() -> str:
    ours = ", ".join(f"'{name}'" for name in sorted(NAMES))
    ttl = f"try_element_at(headers, '{OWN_TTL}')"
    return (
        f"if({ttl} is null, map_filter(headers, (name, value) -> name not in ({ours})), "
        f"map_concat(map_filter(headers, (name, value) -> name not in ({ours}, 'ttl')), "
        f"map('ttl', {ttl})))"
    )


# --- the report -------------------------------------------------------------------------------


def look(options: Options, report: Report, source: Source) -> None:
    parts = source.parts()
    spark = make_session(options, "dlq")
    frames = (source.frame(spark, part) for part in parts)
    found = [frame for frame in frames if frame is not None]
    if not found:
        report.done(letters=0)
        return
    rows = with_origin(reduce(lambda one, other: one.unionByName(other, True), found))
    groups = [with_times(row.asDict()) for row in grouped(chosen(options)(rows)).collect()]
    others = sum(group["letters"] for group in groups if group["origin_topic"] is None)
    groups = [group for group in groups if group["origin_topic"] is not None]
    for group in groups[: options["top"]]:
        report.line(described(group), **as_fields(group))
    for text in summary(groups, options["top"], others):
        report.warn(text)
    channels = {(group["origin_topic"], group["origin_channel"]) for group in groups}
    report.done(letters=sum(group["letters"] for group in groups), channels=len(channels))


def grouped(rows: "DataFrame") -> "DataFrame":
    """Yield groups, the largest first."""
    from pyspark.sql import functions as f

    groups = rows.groupBy(*GROUP).agg(
        f.count(f.lit(1)).alias("letters"),
        f.max("attempts").alias("most_attempts"),
        f.unix_micros(f.min("timestamp")).alias("first"),
        f.unix_micros(f.max("timestamp")).alias("last"),
        f.max_by("id", "timestamp").alias("last_id"),
    )
    return groups.orderBy(f.desc("letters"), *GROUP)


def with_times(group: dict[str, Any]) -> dict[str, Any]:
    """Return a group with times in UTC: Spark would return them in this machine's time zone."""
    found = {name: EPOCH + datetime.timedelta(microseconds=group[name]) for name in TIMES}
    return group | found


def described(group: dict[str, Any]) -> str:
    client = group["last_client"] or "nobody"
    return (
        f"{group['letters']:>10,}  {group['origin_topic']}/{group['origin_channel']}  "
        f"{group['reason']}  {client}  up to {group['most_attempts']} attempts, "
        f"{group['first']:%Y-%m-%d %H:%M} to {group['last']:%Y-%m-%d %H:%M}"
    )


def as_fields(group: dict[str, Any]) -> dict[str, Any]:
    times = {name: group[name].isoformat() for name in TIMES}
    return group | times


def summary(groups: list[dict[str, Any]], top: int, others: int) -> Iterator[str]:
    """Summarize the groups that are omitted."""
    rest = groups[top:]
    if rest:
        letters = sum(group["letters"] for group in rest)
        yield f"{letters:,} dead letters in {len(rest)} more groups; raise --top to show them"
    if others:
        yield f"{others:,} messages in the topic are not dead letters"
