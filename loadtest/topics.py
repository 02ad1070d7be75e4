"""Memory of many topics, each created by publishing one message.

PYTHONPATH=. python loadtest/topics.py [--topics 10000] [--workers 1 3]

Prints the memory per topic in bytes, over all processes, and how long publishing and a restart
take.
"""

import argparse
import time

from loadtest.many_clients import publish
from loadtest.nsqd import Nsqd
from nsqcy.testing.wire_client import RESPONSE

AHEAD = 200


def measure(workers: int, count: int) -> None:
    with Nsqd(workers=workers, log_level="info") as daemon:
        conn = daemon.connect(timeout=60)
        conn.pub("first", b"x")
        before, start = daemon.pss(), time.monotonic()
        for begin in range(0, count, AHEAD):
            some = range(begin, min(begin + AHEAD, count))
            conn.send(*(publish(f"topic{number}", bytes(100)) for number in some))
            for _ in some:
                assert conn.frame() == (RESPONSE, b"OK")
        seconds = time.monotonic() - start
        grown = (daemon.pss() - before) / count
        conn.close()
        start = time.monotonic()
        daemon.restart()
        again = time.monotonic() - start
        print(
            f"workers {workers}: {grown:.0f} bytes per topic, {count / seconds:.0f} topics/s,"
            f" restart {again:.1f} s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 3])
    args = parser.parse_args()
    for workers in args.workers:
        measure(workers, args.topics)


if __name__ == "__main__":
    main()
