"""Cost of pipeline jobs, against a real nsqd on this machine.

    PYTHONPATH=. python -m loadtest.pipeline archive [--count 4000000] [--size 100]
    PYTHONPATH=. python -m loadtest.pipeline cold
    PYTHONPATH=. python -m loadtest.pipeline memory [--count 2000]
    PYTHONPATH=. python -m loadtest.pipeline seek [--gigabytes 10]

archive: rows per second to Parquet, with and without the JVM startup. cold: duration of the entire
command for an empty topic. memory: 1 MB messages with a heap of 2 GB, and the maximum memory of a
Python worker. seek: finding a position in a log by time. Prints a line of JSON with the figure and
its bar.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from loadtest.nsqd import Nsqd
from nsqcy.process import spawn

MB = 1_000_000
PIECE = 4 * MB  # bytes per MPUB
SAMPLES = 0.2


def nsqd(folder: Path) -> Nsqd:
    return Nsqd(
        data_path=folder,
        retention_time="24h",
        durability="os",
        max_msg_size=2 * MB,
        max_body_size=16 * MB,
    )


def publish(daemon: Nsqd, topic: str, count: int, size: int) -> None:
    """Return random hexadecimal digits, which compress as little as text does."""
    digits = random.randbytes(size + MB).hex().encode()
    conn = daemon.connect(timeout=120)
    each = max(1, PIECE // (size + 4))
    for at in range(0, count, each):
        starts = [random.randrange(MB) for _ in range(min(each, count - at))]
        conn.mpub(topic, [digits[start : start + size] for start in starts])
    conn.close()


class Family:
    """Maximum memory of a process's descendants, by kind."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.maximum = {"java": 0, "python": 0}
        self._process = process
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self._process.poll() is None:
            with suppress(psutil.Error):
                for child in psutil.Process(self._process.pid).children(recursive=True):
                    # A child that the JVM is about to start still shares the JVM's memory, under
                    # another name.
                    kind = Path(child.exe()).name.rstrip("0123456789.")
                    if kind in self.maximum:
                        self.maximum[kind] = max(self.maximum[kind], child.memory_info().rss)
            time.sleep(SAMPLES)


def archive(daemon: Nsqd, root: Path, topic: str, *words: str) -> tuple[float, list[Any], Family]:
    """Run the job once; return seconds, its output and memory."""
    start = time.monotonic()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nsqcy.pipeline", "archive", "--once", f"--topic={topic}"),
            *(f"--nsqd-tcp-address=127.0.0.1:{daemon.tcp_port}", f"--root={root}", *words),
        ],
        env=spawn.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    family = Family(process)
    out, _ = process.communicate()
    assert process.returncode == 0
    lines = [json.loads(line) for line in out.splitlines()]
    return time.monotonic() - start, lines, family


def speed(daemon: Nsqd, folder: Path, given: argparse.Namespace) -> None:
    """Return the rate excluding the first batch, in which Spark warms up."""
    publish(daemon, "t", given.count, given.size)
    seconds, lines, _ = archive(daemon, folder / "archive", "t", "--driver-memory=4g")
    batches = [(line["rows"], line["seconds"]) for line in lines if line["event"] == "progress"]
    rates = [rows / took for rows, took in batches[1:]]
    rate = statistics.median(rates)
    told(
        "archive",
        rows=sum(rows for rows, _ in batches),
        whole_seconds=round(seconds, 1),
        rows_per_second=round(rate),
        megabytes_per_second=round(rate * given.size / MB, 1),
        wanted="250,000 rows/s of 100 bytes; 80 MB/s of 1,000",
    )


def cold(daemon: Nsqd, folder: Path, _: argparse.Namespace) -> None:
    daemon.web.post("/topic/create?topic=empty")
    seconds, _, _ = archive(daemon, folder / "archive", "empty")
    told("cold", seconds=round(seconds, 1), wanted="at most 20")


def memory(daemon: Nsqd, folder: Path, given: argparse.Namespace) -> None:
    publish(daemon, "large", given.count, MB)
    seconds, lines, family = archive(daemon, folder / "archive", "large")
    told(
        "memory",
        rows=lines[-1]["rows"],
        megabytes_per_second=round(given.count / seconds, 1),
        java_megabytes=family.maximum["java"] // MB,
        python_megabytes=family.maximum["python"] // MB,
        wanted="no OutOfMemoryError with a heap of 2 GB; Python workers of at most 250 MB",
    )


def seek(daemon: Nsqd, _: Path, given: argparse.Namespace) -> None:
    """Seek to random positions in a log of this size, over separate connections."""
    from nsqcy.spark.log_client import Access, Connection

    publish(daemon, "long", given.gigabytes * 1000, MB)
    times = []
    connection = Connection(f"127.0.0.1:{daemon.tcp_port}", Access())
    meta = connection.meta("long")
    for _number in range(20):
        moment = random.randrange(meta["first_time"], meta["last_time"])
        start = time.monotonic()
        connection.seek("long", meta["log_id"], moment)
        times.append((time.monotonic() - start) * 1000)
    connection.close()
    told(
        "seek",
        gigabytes=round(meta["bytes"] / 1e9, 1),
        median_ms=round(statistics.median(times), 2),
        max_ms=round(max(times), 2),
        wanted="at most 200",
    )


def told(what: str, **fields: Any) -> None:
    print(json.dumps({"what": what} | fields), flush=True)


MODES = {"archive": speed, "cold": cold, "memory": memory, "seek": seek}
COUNTS = {"archive": 4_000_000, "memory": 2000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("mode", choices=MODES)
    parser.add_argument("--count", type=int)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--gigabytes", type=int, default=10)
    parser.add_argument("--folder", default=os.environ.get("TMPDIR"))
    given = parser.parse_args()
    given.count = given.count or COUNTS.get(given.mode, 0)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        folder = Path(name)
        (folder / "data").mkdir()
        with nsqd(folder / "data") as daemon:
            MODES[given.mode](daemon, folder, given)


if __name__ == "__main__":
    main()
