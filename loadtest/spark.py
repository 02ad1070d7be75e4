"""Speed of `format("nsq")` on this machine, which also runs nsqd.

    PYTHONPATH=. python -m loadtest.spark read|write|latency|idle [--rows 4000000] [--size 100]
        [--rounds 5] [--memory 4g] [--durability os] [--seconds 30] [--workers 1]

read      a batch of all rows, discarded: rows per second, the median of the rounds after a warm-up
write     a batch of rows that Spark has in memory, to a new topic in each round
latency   1,000 messages per second: from the OK for a publish to its row in foreachBatch
idle      a stream with nothing to read: requests to nsqd, and the JVM's share of a core

Prints a line for each round and, at the end, JSON with the figures. Heavy: a JVM and nsqd compete
for this machine.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from loadtest.nsqd import Nsqd

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).parents[1]


RATE = 1000  # messages per second, for latency
PIECE = 4_000_000  # bytes per MPUB
Figures = dict[str, Any]


@contextmanager
def spark_session(memory: str, home: Path) -> Iterator["SparkSession"]:
    from pyspark.sql import SparkSession

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", memory)
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    try:
        yield session
    finally:
        session.stop()


def at(daemon: Nsqd, topic: str) -> dict[str, str]:
    return {"nsqdTcpAddresses": f"127.0.0.1:{daemon.tcp_port}", "topic": topic}


def fill(daemon: Nsqd, topic: str, rows: int, size: int) -> None:
    """Return random hex bodies, which compress as little as real bodies."""
    conn = daemon.connect(timeout=120)
    each = max(1, PIECE // (size + 4))
    for begin in range(0, rows, each):
        count = min(each, rows - begin)
        conn.mpub(topic, [os.urandom(size // 2 + 1).hex()[:size].encode() for _ in range(count)])
    conn.close()


def rounds(name: str, count: int, rows: int, size: int, run: Callable[[int], object]) -> Figures:
    """Run once as a warm-up, then return the median of the rounds."""
    found = []
    for number in range(count + 1):
        start = time.monotonic()
        run(number)
        found.append(rows / (time.monotonic() - start))
        print(f"{name} {number}: {found[-1]:,.0f} rows/s", flush=True)
    found = sorted(found[1:])
    median = statistics.median(found)
    print(f"{name}: {median:,.0f} rows/s, {median * size / 1e6:,.0f} MB/s")
    return {"rows_per_second": median, "worst": found[0], "best": found[-1]}


def read(daemon: Nsqd, spark: "SparkSession", args: argparse.Namespace) -> Figures:
    fill(daemon, "bodies", args.rows, args.size)

    def run(_: int) -> None:
        frame = spark.read.format("nsq").options(**at(daemon, "bodies")).load()
        frame.write.format("noop").mode("overwrite").save()

    return rounds("read", args.rounds, args.rows, args.size, run)


def write(daemon: Nsqd, spark: "SparkSession", args: argparse.Namespace) -> Figures:
    text = f"rpad(sha2(cast(id as string), 512), {args.size}, uuid()) as body"
    frame = spark.range(args.rows, numPartitions=2).selectExpr(text).cache()
    assert frame.count() == args.rows

    def run(number: int) -> None:
        options = at(daemon, f"written{number}")
        frame.write.format("nsq").mode("append").options(**options).save()
        daemon.web.post("/topic/delete", topic=f"written{number}")

    return rounds("write", args.rounds, args.rows, args.size, run)


def latency(daemon: Nsqd, spark: "SparkSession", args: argparse.Namespace) -> Figures:
    """Measure each message; its body contains the time of the previous acknowledgement."""
    late: list[float] = []
    ended = threading.Event()

    def produce() -> None:
        conn = daemon.connect(timeout=60)
        due = time.monotonic()
        while not ended.is_set():
            conn.mpub("stamped", [b"%d" % time.time_ns()] * (RATE // 100))
            due += 0.01
            time.sleep(max(0.0, due - time.monotonic()))

    def arrived(frame: "DataFrame", _: int) -> None:
        stamps = [int(bytes(row.body)) for row in frame.collect()]
        now = time.time_ns()
        late.extend((now - stamp) / 1e6 for stamp in stamps)

    fill(daemon, "stamped", 1, 19)
    producer = threading.Thread(target=produce)
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("nsq")
            .options(**at(daemon, "stamped"), columns="body")
            .load()
            .writeStream.foreachBatch(arrived)
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            producer.start()
            time.sleep(10)  # warm-up
            late.clear()
            time.sleep(args.seconds)
        finally:
            ended.set()
            producer.join()
            query.stop()
    late.sort()
    figures = {
        "messages": len(late),
        "p50_ms": late[len(late) // 2],
        "p99_ms": late[len(late) * 99 // 100],
        "max_ms": late[-1],
    }
    print("latency: " + ", ".join(f"{name} {value:,.0f}" for name, value in figures.items()))
    return figures


class Counting:
    """A proxy in front of an nsqd that counts log commands."""

    def __init__(self, port: int) -> None:
        self.commands = 0
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((client, server), (server, client)):
                    counted = source is client
                    args = (source, sink, counted)
                    threading.Thread(target=self._pass_on, args=args, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if counted:
                    self.commands += data.count(b"LOG_")
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


def idle(daemon: Nsqd, spark: "SparkSession", args: argparse.Namespace) -> Figures:
    fill(daemon, "quiet", 1, 10)
    proxy = Counting(daemon.tcp_port)
    options = {"nsqdTcpAddresses": f"127.0.0.1:{proxy.port}", "topic": "quiet"}
    java = next(each for each in psutil.Process().children(recursive=True) if each.name() == "java")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            spark.readStream.format("nsq")
            .options(**options)
            .load()
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        try:
            time.sleep(10)  # warm-up
            asked = proxy.commands
            used = sum(java.cpu_times()[:2])
            time.sleep(args.seconds)
            used = sum(java.cpu_times()[:2]) - used
            asked = proxy.commands - asked
        finally:
            query.stop()
            proxy.close()
    figures = {
        "requests_per_second": asked / args.seconds,
        "jvm_percent_of_a_core": 100 * used / args.seconds,
    }
    print("idle: " + ", ".join(f"{name} {value:.2f}" for name, value in figures.items()))
    return figures


MODES = {"read": read, "write": write, "latency": latency, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=30, help="of latency and idle")
    parser.add_argument("--memory", default="4g", help="heap of the JVM")
    parser.add_argument("--durability", default="os")
    parser.add_argument("--workers", type=int, default=1, help="of nsqd")
    args = parser.parse_args()
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        daemon = stack.enter_context(
            Nsqd(workers=args.workers, durability=args.durability, retention_time="24h")
        )
        spark = stack.enter_context(spark_session(args.memory, home))
        figures = MODES[args.mode](daemon, spark, args)
    print(json.dumps({args.mode: figures | vars(args)}))


if __name__ == "__main__":
    main()
