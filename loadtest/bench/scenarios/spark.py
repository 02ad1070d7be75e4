"""Spark: `format("nsq")` in a session, and the jobs of `nsqcy-pipeline`.

A JVM, nsqd and the load share this machine. Rates exclude the start of the JVM and the first round
or batch, in which Spark warms up. The CPU time is nsqd's.
"""

import datetime
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon, NotOffered
from loadtest.bench.speed import Result, Settings, percentiles, told
from nsqcy.process import spawn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[3]
MB = 1_000_000
PIECE = 4 * MB  # bytes per MPUB
ROWS = 4_000_000
RATE = 1000  # messages per second, for latency
SECONDS = 30.0  # seconds of the latency measurement and of the idle query
WARM_UP = 10.0
STEPS = 8  # batches of a job
SAMPLES = 0.2  # seconds between two measurements of a job's memory
LOG = {"durability": "os", "retention_time": "24h"}
JOBS = {  # each job with the flag for the rows of a batch
    "archive": (["--once", "--root=archive"], "--option=maxOffsetsPerTrigger="),
    "replay": (["--to=again", "--state=state.json"], "--round-rows="),
    "rollup": (["--once", "--root=rollup", "--plots=no"], "--option=maxOffsetsPerTrigger="),
}


def fill(nsqd: Daemon, topic: str, rows: int, size: int) -> None:
    """Publish random hexadecimal digits, which compress as little as text does."""
    digits = random.randbytes(size + MB).hex().encode()
    each = max(1, PIECE // (size + 4))
    with load.producer(nsqd.tcp) as sock:
        for at in range(0, rows, each):
            starts = [random.randrange(MB) for _ in range(min(each, rows - at))]
            sock.sendall(load.mpub(topic, [digits[start : start + size] for start in starts]))
            load.expect(sock, load.OK)


def timed(scenario: str, nsqd: Daemon, rows: int, work: Callable[[], object]) -> Result:
    cpu, begun = nsqd.cpu_seconds(), time.monotonic()
    work()
    seconds = time.monotonic() - begun
    return Result(scenario, rows, seconds, nsqd.cpu_seconds() - cpu, 0.0, durability="os")


def megabytes(result: Result, size: int) -> Result:
    result.note = f"{result.rate * size / MB:,.0f} MB/s"
    return result


# -- a session


def spark(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("its topics have no log")
    with settings.nsqd(**LOG) as nsqd, session() as one:
        yield from read(settings, nsqd, one)
        yield from write(settings, nsqd, one)
        yield latency(settings, nsqd, one)
        yield idle(settings, nsqd, one)
        yield seek(settings, nsqd)


@contextmanager
def session() -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with tempfile.TemporaryDirectory() as home:
        one = (
            SparkSession.builder.master("local[2]")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.driver.memory", "4g")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", home)
            .getOrCreate()
        )
        one.sparkContext.setLogLevel("OFF")
        try:
            yield one
        finally:
            one.stop()


def at(address: Address, topic: str) -> dict[str, str]:
    return {"nsqdTcpAddresses": f"127.0.0.1:{address[1]}", "topic": topic}


def read(settings: Settings, nsqd: Daemon, spark: "SparkSession") -> Iterator[Result]:
    rows = settings.count(ROWS)
    fill(nsqd, "bodies", rows, settings.size)

    def run() -> None:
        frame = spark.read.format("nsq").options(**at(nsqd.tcp, "bodies")).load()
        frame.write.format("noop").mode("overwrite").save()

    run()  # warm-up
    for _ in settings.rounds():
        yield megabytes(timed("Spark reads a batch", nsqd, rows, run), settings.size)


def write(settings: Settings, nsqd: Daemon, spark: "SparkSession") -> Iterator[Result]:
    rows = settings.count(ROWS)
    text = f"rpad(sha2(cast(id as string), 512), {settings.size}, uuid()) as body"
    frame = spark.range(rows, numPartitions=2).selectExpr(text).cache()
    assert frame.count() == rows

    def run() -> None:
        frame.write.format("nsq").mode("append").options(**at(nsqd.tcp, "written")).save()

    run()  # warm-up
    for _ in settings.rounds():
        nsqd.web.do("delete", "written")
        yield megabytes(timed("Spark writes a batch", nsqd, rows, run), settings.size)


@contextmanager
def streamed(
    address: Address,
    spark: "SparkSession",
    topic: str,
    handle: Callable[["DataFrame", int], None],
) -> Iterator[None]:
    """A running query of a topic, after its warm-up."""
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("nsq")
            .options(**at(address, topic), columns="body")
            .load()
            .writeStream.foreachBatch(handle)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            time.sleep(WARM_UP)
            yield
        finally:
            query.stop()


def latency(settings: Settings, nsqd: Daemon, spark: "SparkSession") -> Result:
    """Measure each message; its body contains the time of the previous acknowledgement."""
    late: list[int] = []
    ended = threading.Event()

    def produce() -> None:
        due = time.monotonic()
        with load.producer(nsqd.tcp) as sock:
            while not ended.is_set():
                sock.sendall(load.mpub("stamped", [b"%d" % time.time_ns()] * (RATE // 100)))
                load.expect(sock, load.OK)
                due += 0.01
                time.sleep(max(0.0, due - time.monotonic()))

    def arrived(frame: "DataFrame", _: int) -> None:
        stamps = [int(bytes(row.body)) for row in frame.collect()]
        now = time.time_ns()
        late.extend(now - stamp for stamp in stamps)

    def run() -> None:
        late.clear()
        time.sleep(settings.seconds(SECONDS))

    fill(nsqd, "stamped", 1, 19)
    producer = threading.Thread(target=produce)
    producer.start()
    try:
        with streamed(nsqd.tcp, spark, "stamped", arrived):
            result = timed("Spark streams 1,000 msg/s", nsqd, 1, run)
    finally:
        ended.set()
        producer.join()
    result.messages = len(late)
    result.note = told("ms:", percentiles(late), 1000)
    return result


def idle(settings: Settings, nsqd: Daemon, spark: "SparkSession") -> Result:
    """Measure a stream with nothing to read: its requests, and the JVM's share of a core."""
    fill(nsqd, "quiet", 1, 10)
    java = next(each for each in psutil.Process().children(recursive=True) if each.name() == "java")
    seconds = settings.seconds(SECONDS)
    with (
        counting_proxy(nsqd.tcp) as (address, commands),
        streamed(address, spark, "quiet", lambda frame, _: None),
    ):
        asked, used = len(commands), sum(java.cpu_times()[:2])
        result = timed("Spark's idle query", nsqd, 1, lambda: time.sleep(seconds))
        share = (sum(java.cpu_times()[:2]) - used) / result.seconds
        asked = len(commands) - asked
    result.note = f"{share:.1%} of a core for the JVM, {asked} requests in {seconds:.0f} s"
    return result


@contextmanager
def counting_proxy(target: Address) -> Iterator[tuple[Address, list[bytes]]]:
    """A proxy in front of an nsqd; yield its address and the log commands that it has seen."""
    commands: list[bytes] = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, server = listener.accept()[0], load.plain(target)
                for ends in ((client, server), (server, client)):
                    threading.Thread(target=forward, args=ends, daemon=True).start()

    def forward(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                commands.extend(re.findall(rb"LOG_\w+ .*\n", data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname(), commands


def seek(settings: Settings, nsqd: Daemon) -> Result:
    """Seek to random positions in a log of 10 GB."""
    from nsqcy.spark.log_client import Access, Connection

    fill(nsqd, "long", settings.some(10_000), MB)
    connection = Connection(f"127.0.0.1:{nsqd.tcp[1]}", Access())
    meta = connection.meta("long")
    took = []

    def run() -> None:
        for _ in range(20):
            moment = random.randrange(meta["first_time"], meta["last_time"])
            begun = time.monotonic_ns()
            connection.seek("long", meta["log_id"], moment)
            took.append(time.monotonic_ns() - begun)

    result = timed("LOG_SEEK by time", nsqd, 20, run)
    connection.close()
    result.note = f"a log of {meta['bytes'] / 1e9:.1f} GB; {told('ms:', percentiles(took), 1e3, 2)}"
    return result


# -- jobs


def pipeline(settings: Settings) -> Iterator[Result]:
    if settings.target is not None:
        raise NotOffered("its topics have no log")
    rows, large = settings.count(ROWS), settings.some(2000)
    with settings.nsqd(**LOG) as nsqd:
        fill(nsqd, "t", rows, settings.size)
        for name in JOBS:
            yield megabytes(batches(nsqd, name, rows), settings.size)
        nsqd.web.create("empty")
        yield job(nsqd, "archive", "empty", 1, "an empty topic")[0]
        fill(nsqd, "large", large, MB)
        yield megabytes(job(nsqd, "archive", "large", large, "1 MB messages")[0], MB)


def batches(nsqd: Daemon, name: str, rows: int) -> Result:
    """Return the rate of the median batch, excluding the first one."""
    words = ["--driver-memory=4g", f"{JOBS[name][1]}{rows // STEPS}"]
    result, lines = job(nsqd, name, "t", rows, f"{STEPS} batches", *words)
    done = [(datetime.datetime.fromisoformat(line["at"]), line["done"]) for line in lines]
    rates = [
        (after - before) / (end - begin).total_seconds()
        for (begin, before), (end, after) in pairwise(done)
    ]
    if rates:  # otherwise there are too few rows for more than one report of progress
        result.seconds = rows / statistics.median(rates)
    return result


def job(
    nsqd: Daemon, name: str, topic: str, rows: int, about: str, *words: str
) -> tuple[Result, list[dict[str, Any]]]:
    """Run a job to its end; return it and the lines of its progress."""
    command = [sys.executable, "-m", "nsqcy.pipeline", name, f"--topic={topic}", *words]
    command += [f"--nsqd-tcp-address=127.0.0.1:{nsqd.tcp[1]}", *JOBS[name][0]]
    memory = dict.fromkeys(("java", "python"), 0)
    with tempfile.TemporaryDirectory() as home, open(f"{home}/output", "w+") as output:

        def run() -> None:
            process = subprocess.Popen(command, cwd=home, env=spawn.environment(), stdout=output)
            while process.poll() is None:
                look(process.pid, memory)
                time.sleep(SAMPLES)
            assert process.returncode == 0

        result = timed(f"pipeline {name}, {about}", nsqd, rows, run)
        output.seek(0)
        lines = [json.loads(line) for line in output]
    java, python = (memory[each] / MB for each in ("java", "python"))
    result.note = f"JVM {java:,.0f} MB, each Python worker at most {python:,.0f} MB"
    return result, [line for line in lines if line["event"] == "progress"]


def look(pid: int, memory: dict[str, int]) -> None:
    """Update the maximum memory of a process's descendants, by kind."""
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            # A child that the JVM is about to start still shares the JVM's memory, under another
            # name.
            kind = Path(child.exe()).name.rstrip("0123456789.")
            if kind in memory:
                memory[kind] = max(memory[kind], child.memory_info().rss)
