"""Readers and writers with real nsqds, without a JVM."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.doctor.cluster import copied_disks
from nsqcy.doctor.look_cluster import Addresses, look
from nsqcy.spark.errors import CopiedDisk
from nsqcy.spark.publish import Producer
from nsqcy.spark.sink import Task
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from support.fake_auth_server import AuthServer, grant
from support.nsqd_process import Nsqd, free_port
from support.nsqlookupd_process import Lookupd
from support.spark_engine import Checkpoint, Engine
from support.spark_sinks import run, table, write, writer
from support.spark_sources import batch, rows, stream

pytestmark = pytest.mark.ours

SERVER = make("server")
KEEP: dict[str, Any] = {"workers": 2, "retention_time": "1h", "durability": "os"}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    """A daemon shared by many tests; each test uses its own topics."""
    path = tmp_path_factory.mktemp("kept")
    daemon = Nsqd(path, **KEEP, **SERVER.save(path).options).start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nsqd]]:
    daemons: list[Nsqd] = []

    def new(**options: Any) -> Nsqd:
        path = tmp_path / str(len(daemons))
        path.mkdir()
        daemons.append(Nsqd(path, **(KEEP | options)).start())
        return daemons[-1]

    yield new
    for each in daemons:
        each.destroy()


def given(daemon: Nsqd, topic: str, **options: str) -> dict[str, str]:
    return {"topic": topic, "nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}"} | options


def publish(daemon: Nsqd, topic: str, first: int, end: int) -> list[bytes]:
    bodies = [b"%d" % n * (n % 50) or b"x" for n in range(first, end)]
    conn = daemon.connect()
    for at in range(0, len(bodies), 1000):
        conn.mpub(topic, bodies[at : at + 1000])
    conn.close()
    return bodies


def count_of(daemon: Nsqd, topic: str) -> int:
    """Return the number of records in the log; 0 while nsqd does not respond."""
    try:
        return int(daemon.web.get("/topic/log", topic=topic).json()["next_seq"]) - 1
    except (OSError, KeyError, ValueError):
        return 0


def test_rows_are_what_consumers_get(daemon: Nsqd, topic: str) -> None:
    sent = publish(daemon, topic, 0, 5000)
    conn = daemon.connect()
    conn.dpub(topic, 1, b"deferred")
    found = rows(batch(given(daemon, topic, fetchBytes="20k", minPartitions="3")))
    assert [row["body"] for row in found] == [*sent, b"deferred"]
    assert [row["seq"] for row in found] == list(range(1, 5002))
    assert [row["defer_ms"] for row in found] == [0] * 5000 + [1]
    conn.sub(topic, "ch", rdy=100)
    bodies = {row["id"]: row["body"] for row in found}
    message = conn.message()
    assert bodies[message.id.decode()] == message.body
    stamps = [row["timestamp"] for row in found]
    assert stamps == sorted(stamps)
    later = str(int(stamps[-1].timestamp() * 1000))
    by_time = rows(batch(given(daemon, topic, startingTimestamp=later), "seq", "timestamp"))
    assert by_time[-1]["seq"] == 5001
    assert [row["seq"] for row in by_time] == list(range(by_time[0]["seq"], 5002))


def test_a_stream_over_tls(daemon: Nsqd, topic: str, tmp_path: Path) -> None:
    authority = str(SERVER.save(tmp_path).certificate)
    sent = publish(daemon, topic, 0, 300)
    options = given(daemon, topic, startingOffsets="earliest", maxOffsetsPerTrigger="100")
    options |= {"tls": "true", "tls.caFile": authority, "pollTimeoutMs": "5000"}
    engine = Engine(lambda: stream(options, "body"), Checkpoint())
    for _ in range(3):
        engine.trigger()
    sent += publish(daemon, topic, 300, 301)
    engine.trigger()  # the query may have to wait for the message
    assert [row["body"] for row in engine.checkpoint.rows] == sent
    engine.close()


def test_what_was_written_is_read(daemon: Nsqd, topic: str, tmp_path: Path) -> None:
    """Write over TLS, with headers, to several topics."""
    authority = str(SERVER.save(tmp_path).certificate)
    options = given(daemon, topic, tls="true", batchBytes="1k") | {"tls.caFile": authority}
    count = 1000
    written = table(
        {
            "value": [f"message {number}" for number in range(count)],
            "topic": [None if number % 2 else topic + "-even" for number in range(count)],
            "headers": [{"n": str(number)} if number % 3 else None for number in range(count)],
        },
        topic=pa.string(),
        headers=pa.map_(pa.string(), pa.string()),
    )
    made = writer(options, written)
    for _ in range(2):
        run(made, written)
    for name, first in ((topic, 1), (topic + "-even", 0)):
        found = rows(batch(given(daemon, name), "seq", "body", "headers"))
        assert found == [
            {
                "seq": at + 1,
                "body": f"message {number}".encode(),
                "headers": [("n", str(number))] if number % 3 else [],
            }
            for at, number in enumerate(range(first, count, 2))
        ]
    conn = daemon.connect().sub(topic, "ch", rdy=1)
    assert conn.message().body == b"message 1", "a client gets no headers unless it negotiates them"


def test_deferred_messages_come_later(daemon: Nsqd, topic: str) -> None:
    write(given(daemon, topic, idempotent="false"), {"defer_ms": [1, 0], "body": [b"a", b"b"]})
    found = rows(batch(given(daemon, topic), "body", "defer_ms"))
    assert sorted((row["body"], row["defer_ms"]) for row in found) == [(b"a", 1), (b"b", 0)]


def test_nsqd_is_killed_while_it_is_written_to(start: Callable[..., Nsqd], topic: str) -> None:
    """Each attempt of a task continues where the previous one failed; each row arrives once."""
    daemon = start(tcp_address=f"127.0.0.1:{free_port()}", workers=1)
    options = given(daemon, topic, batchBytes="2k")
    options |= {"fetchOffset.numRetries": "2000", "fetchOffset.retryIntervalMs": "5"}
    sent = table({"body": [b"row %d" % number for number in range(20_000)]})
    made = writer(options, sent, stream=True)
    with ThreadPoolExecutor(1) as pool:
        for kill in range(4):
            attempt = pool.submit(run, made, sent, batch=kill)
            eventually(lambda kill=kill: count_of(daemon, topic) > (kill + 0.2) * len(sent))
            daemon.kill()
            daemon.start()
            attempt.result(60)
    run(made, sent, batch=3)
    found = rows(batch(given(daemon, topic), "body"))
    assert [row["body"] for row in found] == sent["body"].to_pylist() * 4


def test_an_nsqd_on_a_copy_of_a_disk(
    start: Callable[..., Nsqd], topic: str, tmp_path: Path
) -> None:
    first = start()
    before = publish(first, topic, 0, 10)
    options = given(first, topic, startingOffsets="earliest")
    engine = Engine(lambda: stream(options, "body"), Checkpoint())
    engine.run()
    engine.close()
    first.stop()
    shutil.copytree(tmp_path / "0", tmp_path / "copy")
    first.options["tcp_address"] = options["nsqdTcpAddresses"]
    first.start()
    copy = Nsqd(tmp_path / "copy", **KEEP)
    try:
        copy.start()
        after = publish(first, topic, 10, 12)
        publish(copy, topic, 12, 15)
        other = f"127.0.0.1:{copy.tcp_port}"
        both = options | {"nsqdTcpAddresses": f"{options['nsqdTcpAddresses']},{other}"}
        later = Engine(lambda: stream(both, "body"), engine.checkpoint)
        for read in (later.run, lambda: rows(batch(both))):
            with pytest.raises(CopiedDisk, match=f"nsqd {other} .*; stop one of them"):
                read()
        addresses = [f"127.0.0.1:{each.http_port}" for each in (first, copy)]
        (found,) = copied_disks(look(Addresses(nsqds=addresses), WebClient(Terms())))
        assert all(f":{each.http_port} " in found.text for each in (first, copy))
    finally:
        copy.destroy()
    later.run()
    later.close()
    assert [row["body"] for row in later.checkpoint.rows] == before + after


def test_two_attempts_of_a_task_at_once(daemon: Nsqd, topic: str) -> None:
    """Spark's speculation starts a second attempt while the first one is running."""
    sent = table({"body": [b"row %d" % number for number in range(5000)]})
    made = writer(given(daemon, topic, batchBytes="2k"), sent, stream=True)

    def attempt(_number: int) -> int:
        task = Task(made._options, made._addresses, Producer("query", 1, 0))
        return task.write(iter(sent.to_batches())).rows

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(attempt, range(3))) == [5000] * 3
    found = rows(batch(given(daemon, topic), "body"))
    assert [row["body"] for row in found] == sent["body"].to_pylist()


def test_available_now_ends_while_a_producer_goes_on(daemon: Nsqd, topic: str) -> None:
    """The run ends where the log ended when the run began, and no batch exceeds its maximum
    size."""
    publish(daemon, topic, 0, 20_000)
    stopped = threading.Event()
    published = 0

    def produce() -> None:
        nonlocal published
        conn = daemon.connect()
        while not stopped.is_set():
            conn.mpub(topic, [b"x" * 100] * 1000)
            published += 1000
            stopped.wait(0.02)  # 50,000 per second
        conn.close()

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        eventually(lambda: published)
        options = given(daemon, topic, startingOffsets="earliest", maxOffsetsPerTrigger="3000")
        engine = Engine(lambda: stream(options, "seq"), Checkpoint(), available_now=True)
        assert engine.reader._cap is not None
        ((_, last),) = engine.reader._cap[topic].items()
        before = published
        engine.run()
        eventually(lambda: published > before + 2000)
    finally:
        stopped.set()
        producer.join()
    assert [row["seq"] for row in engine.checkpoint.rows] == list(range(1, last))
    assert max(len(found) for found in engine.checkpoint.sink.values()) == 3000
    engine.close()


def test_a_range_reads_the_same_twice(daemon: Nsqd, topic: str) -> None:
    publish(daemon, topic, 0, 5000)
    first = rows(batch(given(daemon, topic, minPartitions="3")))
    log_id = first[0]["log_id"]
    publish(daemon, topic, 5000, 6000)
    end = json.dumps({topic: {log_id: 5001}})
    again = rows(batch(given(daemon, topic, endingOffsets=end, fetchBytes="30k")))
    assert again == first


def test_the_named_cursor(daemon: Nsqd, topic: str) -> None:
    publish(daemon, topic, 0, 30)
    options = given(daemon, topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    engine = Engine(lambda: stream(options | {"cursor": "archive"}, "seq"), Checkpoint())

    def cursor() -> tuple[str, int, int]:
        (shown,) = daemon.web.topic(topic)["cursors"]
        return shown["name"], shown["seq"], shown["lag"]

    engine.trigger()
    assert cursor() == ("archive", 1, 30)
    engine.trigger()
    assert cursor() == ("archive", 11, 20)
    engine.run()  # up to a trigger with nothing to read
    assert cursor() == ("archive", 31, 0)
    engine.close()


def test_auth(start: Callable[..., Nsqd], auth_server: AuthServer, topic: str) -> None:
    auth_server.says("spark-reads", grant(topic))
    auth_server.says("spark-reads-others", grant("other"))
    daemon = start(auth_http_address=auth_server.address, workers=1)
    conn = daemon.connect()
    conn.identify()
    conn.auth("spark-reads")
    conn.mpub(topic, [b"a", b"b"])
    options = given(daemon, topic, minPartitions="1")
    assert len(rows(batch(options | {"authSecret": "spark-reads"}))) == 2
    auth_server.says("spark-writes", grant(topic, permissions=["publish"]))
    auth_server.says("spark-reads-only", grant(topic, permissions=["subscribe"]))
    for secret, text in [("spark-reads-only", "E_UNAUTHORIZED"), ("", "requires authSecret")]:
        with pytest.raises(Exception, match=text) as caught:
            write(given(daemon, topic, authSecret=secret), {"body": [b"c"]})
        assert "spark-reads" not in str(caught.value)
    write(given(daemon, topic, authSecret="spark-writes"), {"body": [b"c"]})
    for secret, text in [
        ("spark-reads-others", "E_UNAUTHORIZED"),
        ("", "requires authSecret"),
    ]:
        with pytest.raises(Exception, match=text) as caught:
            rows(batch(options | {"authSecret": secret}))
        assert "spark-reads" not in str(caught.value)


def test_three_nsqds_of_which_one_is_killed(start: Callable[..., Nsqd], topic: str) -> None:
    with Lookupd() as lookupd:
        options: dict[str, Any] = {
            "lookupd_tcp_address": lookupd.tcp_address,
            "broadcast_address": "127.0.0.1",
            "workers": 1,
        }
        daemons = [start(**options) for _ in range(3)]
        for daemon in daemons:
            publish(daemon, topic, 0, 100)
        eventually(lambda: all(daemon.tcp_port for daemon in daemons))
        reading = {
            "topic": topic,
            "lookupdHttpAddresses": lookupd.http_address,
            "startingOffsets": "earliest",
            "discoveryInterval": "0ms",
            "maxOffsetsPerTrigger": "60",
        }
        engine = Engine(lambda: stream(reading, "nsqd", "log_id", "seq"), Checkpoint())
        eventually(lambda: len(engine.reader._look().shards) == 3)
        engine.trigger()
        killed = daemons[2]
        port = killed.tcp_port
        killed.kill()
        engine.run()
        by_node = [row["nsqd"] for row in engine.checkpoint.rows]
        counts = sorted(by_node.count(f"127.0.0.1:{daemon.tcp_port}") for daemon in daemons)
        assert counts == [20, 100, 100]
        engine.close()
        killed.options["tcp_address"] = f"127.0.0.1:{port}"
        killed.start()
        publish(killed, topic, 100, 150)
        engine = Engine(lambda: stream(reading, "nsqd", "log_id", "seq"), engine.checkpoint)
        engine.run()
        found = {(row["nsqd"], row["seq"]) for row in engine.checkpoint.rows}
        assert len(found) == len(engine.checkpoint.rows) == 350
        engine.close()


BY_VALUE = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
from pyspark import cloudpickle
class NoNsqcy:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "nsqcy":
            raise ImportError(name)
sys.meta_path.insert(0, NoNsqcy())
source = cloudpickle.load(open(sys.argv[2], "rb"))
# As Spark does: from the driver's worker to that of a task.
from spark_types import read_all
print(read_all(source))
"""


def test_executors_need_no_nsqcy(daemon: Nsqd, topic: str, tmp_path: Path) -> None:
    """The source is passed by value, and read in a process where nsqcy cannot be imported."""
    from pyspark import cloudpickle

    import nsqcy.options
    import nsqcy.spark
    from nsqcy.spark.source import NsqDataSource

    publish(daemon, topic, 0, 1000)
    for package in (nsqcy.spark, nsqcy.options):
        cloudpickle.register_pickle_by_value(package)  # type: ignore[no-untyped-call]
    try:
        (tmp_path / "source").write_bytes(cloudpickle.dumps(NsqDataSource(given(daemon, topic))))
    finally:
        for package in (nsqcy.spark, nsqcy.options):
            cloudpickle.unregister_pickle_by_value(package)  # type: ignore[no-untyped-call]
    (tmp_path / "spark_types.py").write_text(READ_ALL)
    done = subprocess.run(
        [sys.executable, "-c", BY_VALUE, str(tmp_path), str(tmp_path / "source")],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": ""},
    )
    assert done.stdout == "1000\n", done.stderr


READ_ALL = """
from pyspark import cloudpickle
from pyspark.sql.types import LongType, BinaryType, StringType, StructField, StructType

def read_all(source):
    assert source.schema().startswith("topic string not null")
    schema = StructType([
        StructField("seq", LongType(), False),
        StructField("id", StringType(), False),
        StructField("body", BinaryType(), False),
    ])
    reader = source.reader(schema)
    read = cloudpickle.loads(cloudpickle.dumps(reader.read))
    parts = cloudpickle.loads(cloudpickle.dumps(reader.partitions()))
    return sum(batch.num_rows for part in parts for batch in read(part))
"""
