"""Memory of many topics: each is created by publishing one message to it.

    PYTHONPATH=. python loadtest/topics.py [--topics 10000] [--workers 1 3]

Prints bytes of memory a topic over all processes, and how long publishing and a restart take.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from support.many_clients import pss, publish  # noqa: E402
from support.nsqd_process import Nsqd  # noqa: E402
from support.wire_client import RESPONSE  # noqa: E402

AHEAD = 200


def measure(workers: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        daemon = Nsqd(Path(home), workers=workers, log_level="info").start()
        try:
            conn = daemon.connect(timeout=60)
            conn.pub("first", b"x")
            before, start = pss(daemon), time.monotonic()
            for begin in range(0, count, AHEAD):
                some = range(begin, min(begin + AHEAD, count))
                conn.send(*(publish(f"topic{number}", bytes(100)) for number in some))
                for _ in some:
                    assert conn.frame() == (RESPONSE, b"OK")
            seconds = time.monotonic() - start
            grown = (pss(daemon) - before) / count
            start = time.monotonic()
            daemon.restart()
            again = time.monotonic() - start
            print(
                f"workers {workers}: {grown:.0f} bytes a topic, {count / seconds:.0f} topics/s,"
                f" restart {again:.1f} s",
                flush=True,
            )
        finally:
            daemon.destroy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3])
    args = parser.parse_args()
    for workers in args.workers:
        measure(workers, args.topics)


if __name__ == "__main__":
    main()
