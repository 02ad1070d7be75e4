"""Tests with Spark itself. They form a single test, so they run in one process."""

import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nsqcy.pipeline.report import Metrics, Report
from nsqcy.pipeline.streams import Watch
from nsqcy.spark import register
from nsqcy.testing.http_requests import eventually
from support.doc_examples import Reader, blocks
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd, free_port
from support.spark_session import patiently, to_its_end
from support.strict_html import read

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.ours]

ROOT = Path(__file__).parents[2]
COUNT = 20_000
WORDS = [(b"be", 2), (b"not", 1), (b"or", 1), (b"to", 2)]


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(
        tmp_path_factory.mktemp("kept"), workers=1, retention_time="1h", durability="os"
    ).start()
    conn = daemon.connect()
    for at in range(0, COUNT, 5000):
        conn.mpub("orders", [b"order %d" % n for n in range(at, at + 5000)])
    yield daemon
    daemon.destroy()


@pytest.fixture
def session(spark: "SparkSession") -> "SparkSession":
    """A session in which `register` has not been called."""
    session = spark.newSession()
    session.conf.set("spark.sql.shuffle.partitions", "1")
    session.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    return session


def python_after(heading: str) -> str:
    """Return the program below this heading in docs/SPARK.md."""
    page = (ROOT / "docs/SPARK.md").read_text()
    start = page.index("```python\n", page.index(heading)) + len("```python\n")
    return page[start : page.index("```", start)]


def given(daemon: Nsqd, **options: Any) -> dict[str, str]:
    return {"topic": "orders", "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"} | options


def check_a_batch_found_by_spark_itself(
    spark: "SparkSession", daemon: Nsqd, tmp_path: Path
) -> None:
    """`register` is not called: Spark finds pyspark_nsq on its own."""
    frame = spark.read.format("nsq").options(**given(daemon, minPartitions="3")).load()
    assert frame.schema.simpleString() == (
        "struct<topic:string,nsqd:string,log_id:string,seq:bigint,id:string,timestamp:timestamp,"
        "defer_ms:int,body:binary>"
    )
    found = frame.selectExpr("count(*)", "sum(seq)", "min(seq)", "max(seq)", "max(body)").first()
    assert found is not None
    assert tuple(found) == (COUNT, COUNT * (COUNT + 1) // 2, 1, COUNT, b"order 9999")


def check_pushdown_and_projection(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    frame = (
        spark.read.format("nsq").options(**given(daemon, pushdown="true", columns="seq,id")).load()
    )
    assert [row.seq for row in frame.where("seq > 5 and seq <= 7").orderBy("seq").collect()] == [
        6,
        7,
    ]


FILTERS = [
    "seq = 7",
    "seq >= 19990 or seq < 3",
    "not (seq > 5)",
    "seq in (1, 20000, 20001)",
    "topic = 'orders' and seq <= 3",
    "topic like 'ord%' and seq > 19995 and length(body) > 3",
    "log_id = 'none' or seq % 9999 = 1",
    "seq > -1 and seq < 9223372036854775807 and seq % 10000 = 0",
    "seq > 2.5 and seq <= 4.5",
    "seq > null",
]


def check_filters_that_are_pushed_down(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """Filters select the same rows as in a cached DataFrame, where Spark applies them."""
    cached = spark.read.format("nsq").options(**given(daemon)).load().cache()
    for condition in FILTERS:
        live = spark.read.format("nsq").options(**given(daemon, pushdown="true")).load()
        found, wanted = (
            sorted(row.seq for row in each.where(condition).select("seq").collect())
            for each in (live, cached)
        )
        assert found == wanted, condition
    cached.unpersist()


def check_headers_in_a_struct(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """Values of headers are strings or bytes: nested ones are refused."""
    from pyspark.errors import AnalysisException

    nested = spark.sql("select 'x' as value, map('a', map('b', 'c')) as headers")
    with pytest.raises(AnalysisException, match=r"nsq: column 'headers' is .*map<string,string>"):
        nested.write.format("nsq").mode("append").options(**given(daemon, topic="nested")).save()
    flat = spark.sql("select named_struct('value', 'x', 'headers', map('a', null, 'b', '')) as r")
    flat = flat.select("r.*")
    flat.write.format("nsq").mode("append").options(**given(daemon, topic="nested")).save()
    options = given(daemon, topic="nested", columns="body,headers")
    (row,) = spark.read.format("nsq").options(**options).load().collect()
    assert (bytes(row.body), row.headers) == (b"x", {"a": "", "b": ""})


def check_a_batch_without_rows(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    frame = spark.read.format("nsq").options(**given(daemon, pushdown="true")).load()
    assert frame.where(f"seq > {COUNT}").collect() == []


def check_a_schema_chooses_columns(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    frame = spark.read.format("nsq").schema("seq long").options(**given(daemon)).load()
    assert frame.count() == COUNT


def check_a_stream_with_a_checkpoint(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """Two availableNow runs: one to the current end, and one that continues there; limits apply."""
    options = given(daemon, startingOffsets="earliest", maxOffsetsPerTrigger="8000")

    def start() -> Any:
        return (
            spark.readStream.format("nsq")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def sizes() -> list[int]:
        return [each["numInputRows"] for each in to_its_end(start).recentProgress]

    first = sizes()
    assert sum(first) == COUNT and max(first) == 8000
    daemon.connect().mpub("orders", [b"late 1", b"late 2"])
    assert sum(sizes()) == 2
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == found.select("log_id", "seq").distinct().count() == COUNT + 2


def check_lag_is_what_there_is_to_read(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """In each batch, nsqd, nsqadmin and the metrics show the cursor's correct lag."""
    port = free_port()
    watch = Watch(Report("lag", json_lines=True), Metrics("lag", port))
    seen: list[tuple[int, int]] = []
    left = daemon.web.get("/topic/log", topic="orders").json()["next_seq"] - 1

    def cursor() -> int:
        (shown,) = daemon.web.topic("orders")["cursors"]
        return int(shown["lag"])

    def metric() -> float | None:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        found = [
            line.split()[1] for line in lines if line.startswith("nsqcy_pipeline_lag_records{")
        ]
        return float(found[0]) if found else None

    def written(frame: Any, _: int) -> None:
        nonlocal left
        if seen:  # for the previous batch: Spark reports it in a separate thread
            eventually(lambda: metric() == left)
        seen.append((left, cursor()))
        left -= frame.count()

    def run() -> None:
        with watch.on(spark):
            query = (
                spark.readStream.format("nsq")
                .options(**given(daemon, startingOffsets="earliest", maxOffsetsPerTrigger="8000"))
                .option("cursor", "lake")
                .load()
                .writeStream.foreachBatch(written)
                .option("checkpointLocation", str(tmp_path / "lag"))
                .trigger(availableNow=True)
                .start()
            )
            assert query.awaitTermination(200)

    patiently(run)
    assert len(seen) == 3 and all(real == shown for real, shown in seen), seen
    assert (left, cursor(), metric()) == (0, 0, 0)
    with Admin(nsqd_http_address=f"127.0.0.1:{daemon.http_port}") as admin:
        page = read(admin.web.get("/topics/orders").body)
    (row,) = page.table("Log Readers")[1:]
    assert (row[0], row[2]) == ("lake", "0")


def check_words_of_a_live_topic(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """Kafka's quick start as docs/SPARK.md shows it, with nsq in place of kafka. The page publishes
    some words first."""
    ports = {4150: daemon.tcp_port, 4151: daemon.http_port}
    page = (ROOT / "docs/SPARK.md").read_text()
    Reader(tmp_path, ports=ports).type(blocks(page, "quick-start")[0])
    program = python_after("## Kafka's quick start").replace(
        "127.0.0.1:4150", f"127.0.0.1:{daemon.tcp_port}"
    )
    program = program.replace('format("console")', 'format("memory").queryName("counts")')
    program = program.replace("query.awaitTermination()\n", "")
    names: dict[str, Any] = {"spark": spark}

    def begin() -> None:
        exec(program, names)
        names["query"].processAllAvailable()

    def counts() -> dict[str, int]:
        query.processAllAvailable()
        return {row["word"]: row["count"] for row in spark.table("counts").collect()}

    patiently(begin)
    query = names["query"]
    try:
        daemon.connect().mpub("words", [b"be"])
        while counts().get("be") != 3:
            pass
        assert counts() == {"to": 2, "be": 3, "or": 1, "not": 1}
    finally:
        query.stop()


def check_rows_of_a_stream_in_a_fixed_order(
    spark: "SparkSession", daemon: Nsqd, tmp_path: Path
) -> None:
    """The program below this text in docs/SPARK.md publishes each row once, even if its driver
    died between publishing and the commit. Spark's refusals match the page."""
    from pyspark.errors import AnalysisException

    daemon.connect().mpub("written", [b"to be or", b"not to be"])
    names: dict[str, Any] = {}
    names["counts"] = (
        spark.readStream.format("nsq")
        .options(**given(daemon, topic="written", startingOffsets="earliest"))
        .load()
        .selectExpr("explode(split(string(body), ' ')) as word")
        .groupBy("word")
        .count()
    )
    with pytest.raises(AnalysisException, match="Sorting is not supported on streaming DataFrames"):
        names["counts"].sortWithinPartitions("word").writeStream.outputMode("update").format(
            "memory"
        ).queryName("sorted").start()
    checkpoint = tmp_path / "counts"
    program = python_after("**Rows in a fixed order.**")
    program = program.replace("counts.checkpoint", str(checkpoint))
    program = program.replace(":4150", f":{daemon.tcp_port}")
    program = program.replace(".start()", ".trigger(availableNow=True).start()")

    def start() -> Any:
        exec(program, names)
        return names["query"]

    def published() -> list[bytes]:
        asked = given(daemon, topic="counts", columns="body")
        return sorted(
            row.body for row in spark.read.format("nsq").options(**asked).load().collect()
        )

    to_its_end(start)
    wanted = [b'{"word":"%b","count":%d}' % each for each in WORDS]
    assert published() == wanted
    (checkpoint / "commits" / "0").unlink()
    (checkpoint / "commits" / ".0.crc").unlink(missing_ok=True)
    to_its_end(start)
    assert published() == wanted


def check_a_batch_is_written(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """Write the DataFrame from docs/SPARK.md, with all kinds of columns."""
    frame = spark.range(5000).selectExpr(
        "concat('row ', id) as value",
        "if(id % 2 = 0, 'even', null) as topic",
        "map('n', cast(id as string)) as headers",
        "id as user",
    )
    options = given(daemon, topic="odd", partitioner="hash(user)")
    frame.write.format("nsq").mode("append").options(**options).save()
    for topic, first in (("even", 0), ("odd", 1)):
        asked = given(daemon, topic=topic, columns="body,headers")
        found = spark.read.format("nsq").options(**asked).load()
        assert found.schema.simpleString() == "struct<body:binary,headers:map<string,string>>"
        numbers = found.selectExpr("int(substr(string(body), 5)) as n", "int(headers['n']) as h")
        sums = numbers.selectExpr("count(*)", "sum(n)", "sum(h)", "min(n)", "max(n)").first()
        assert sums is not None
        total = sum(range(first, 5000, 2))
        assert tuple(sums) == (2500, total, total, first, 4998 + first)


def check_from_topic_to_topic(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    """A batch is retried if its driver died between publishing and the commit; each row arrives
    once. If the batch would now have other rows, nothing is published."""
    from pyspark.errors import StreamingQueryException

    checkpoint = tmp_path / "copy"

    def remove_last(folder: str) -> None:
        numbers = [path.name for path in (checkpoint / folder).iterdir() if path.name.isdigit()]
        last = max(numbers, key=int)
        (checkpoint / folder / last).unlink()
        (checkpoint / folder / f".{last}.crc").unlink(missing_ok=True)

    def start() -> Any:
        return (
            spark.readStream.format("nsq")
            .options(**given(daemon, startingOffsets="earliest", maxOffsetsPerTrigger="8000"))
            .load()
            .select("body")
            .writeStream.format("nsq")
            .queryName("copy")
            .options(**given(daemon, topic="copies", batchBytes="10k"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )

    to_its_end(start)
    remove_last("commits")
    to_its_end(start)
    found = spark.read.format("nsq").options(**given(daemon, topic="copies")).load()
    orders = spark.read.format("nsq").options(**given(daemon)).load()
    assert found.count() == found.select("body").distinct().count() == orders.count() >= COUNT
    remove_last("commits")
    remove_last("offsets")
    before = found.count()
    daemon.connect().pub("orders", b"a row for the last batch")
    text = "nsq: batch [0-9]+ now has different rows"
    with pytest.raises(StreamingQueryException, match=text):
        to_its_end(start)
    assert found.count() == before


def check_what_users_see_of_a_mistake(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="nsq: unknown option 'startingofsets'; did you"):
        spark.read.format("nsq").options(**given(daemon, startingOfsets="latest")).load()
    with pytest.raises(AnalysisException, match="nsq: topic 'none' not found on 1 nsqd"):
        spark.readStream.format("nsq").options(**given(daemon, topic="none")).load()
    frame = spark.sql("select cast(null as string) as body")
    writing = frame.write.format("nsq")
    text = "nsq: a topic cannot be overwritten: use mode\\('append'\\) or, for a stream, output"
    with pytest.raises(AnalysisException, match=text):
        writing.mode("overwrite").options(**given(daemon)).save()
    with pytest.raises(
        AnalysisException, match="nsq: option 'path' does not exist: specify the topic"
    ):
        writing.mode("append").options(**given(daemon)).save("orders")
    with pytest.raises(Exception, match="nsq: 1 of 1 rows of task 0 cannot be published, so none"):
        writing.mode("append").options(**given(daemon)).save()


def check_by_value(spark: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    import nsqcy.options
    import nsqcy.spark

    register(spark)
    try:
        assert spark.read.format("nsq").options(**given(daemon)).load().count() >= COUNT
        frame = spark.sql("select 'by value' as body")
        options = given(daemon, topic="by-value")
        frame.write.format("nsq").mode("append").options(**options).save()
        assert spark.read.format("nsq").options(**options).load().count() == 1
    finally:
        for package in (nsqcy.spark, nsqcy.options):
            cloudpickle.unregister_pickle_by_value(package)  # type: ignore[no-untyped-call]


CHECKS = [
    check_a_batch_found_by_spark_itself,
    check_pushdown_and_projection,
    check_filters_that_are_pushed_down,
    check_headers_in_a_struct,
    check_a_batch_without_rows,
    check_a_schema_chooses_columns,
    check_a_stream_with_a_checkpoint,
    check_lag_is_what_there_is_to_read,
    check_words_of_a_live_topic,
    check_rows_of_a_stream_in_a_fixed_order,
    check_a_batch_is_written,
    check_from_topic_to_topic,
    check_what_users_see_of_a_mistake,
    check_by_value,
]


@pytest.mark.timeout(600)
def test_spark_itself(session: "SparkSession", daemon: Nsqd, tmp_path: Path) -> None:
    for check in CHECKS:
        check(session, daemon, tmp_path)
