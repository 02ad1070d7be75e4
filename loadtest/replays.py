"""Cost of replay and rollup, against a real nsqd on this machine.

     PYTHONPATH=. python -m loadtest.replays replay [--count 4000000] [--size 100]
    PYTHONPATH=. python -m loadtest.replays rollup [--count 4000000] [--size 100]

Measures rows per second from the times in the job's own output, excluding the JVM startup and the
first round or batch, in which Spark warms up. Prints a line of JSON.
"""

import argparse
import datetime
import json
import statistics
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadtest.pipeline import MB, nsqd, publish, told
from nsqcy.process import spawn

STEPS = 8  # rounds or batches
WORDS = {
    "replay": ("--to=again", "--round-rows={}", "--state=state.json"),
    "rollup": ("--once", "--root=rollup", "--plots=no", "--option=maxOffsetsPerTrigger={}"),
}


def progress(job: str, folder: Path, port: int, rows: int) -> list[dict[str, Any]]:
    """Return the steps in the job's output."""
    words = [word.format(rows) for word in WORDS[job]]
    command = [sys.executable, "-m", "nsqcy.pipeline", job, "--topic=t", "--driver-memory=4g"]
    done = subprocess.run(
        [*command, f"--nsqd-tcp-address=127.0.0.1:{port}", *words],
        cwd=folder,
        env=spawn.environment(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in lines if line["event"] == "progress"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=WORDS)
    parser.add_argument("--count", type=int, default=4_000_000)
    parser.add_argument("--size", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "data").mkdir()
        with nsqd(folder / "data") as daemon:
            publish(daemon, "t", given.count, given.size)
            rows = given.count // STEPS
            lines = progress(given.job, folder, daemon.tcp_port, rows)
    times = [datetime.datetime.fromisoformat(line["at"]).timestamp() for line in lines]
    rate = statistics.median(rows / (after - before) for before, after in pairwise(times))
    told(
        given.job,
        rows=lines[-1]["done"],
        rows_per_second=round(rate),
        megabytes_per_second=round(rate * given.size / MB, 1),
    )


if __name__ == "__main__":
    main()
