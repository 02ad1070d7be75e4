"""Celery on nsqd beside Redis and RabbitMQ.

    python -m loadtest.tasks throughput
    python -m loadtest.tasks kills --brokers nsqd-os,redis-aof
    python -m loadtest.tasks etas --brokers nsqd,redis --etas 10000 --eta-seconds 300

Exits with 3 if a task was lost on nsqd. Needs nsqcy[celery], psutil, and, for Redis, its Python
package.
"""

import argparse
import sys
from collections.abc import Sequence

from loadtest.tasks.brokers import BROKERS, is_installed
from loadtest.tasks.scenarios import Options, etas, kills, naive_etas, throughput

SCENARIOS = {  # each with the brokers that it makes sense for
    "throughput": (throughput, "nsqd,nsqd-os,redis,redis-aof,rabbitmq"),
    "kills": (kills, "nsqd-os,redis-aof"),
    "etas": (etas, "nsqd-os,redis-aof"),
    "naive-etas": (naive_etas, "nsqd-os"),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.tasks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--brokers", help=", ".join(BROKERS))
    parser.add_argument("--tasks", type=int, default=20_000, help="of throughput")
    parser.add_argument("--kills", type=int, default=100_000, help="tasks of kills")
    parser.add_argument("--etas", type=int, default=10_000, help="tasks of etas")
    parser.add_argument("--eta-seconds", type=float, default=300.0, help="over which ETAs spread")
    args = parser.parse_args(argv)
    options = Options(args.tasks, args.kills, args.etas, args.eta_seconds)
    scenario, usual = SCENARIOS[args.scenario]
    is_lost = False
    for name in (args.brokers or usual).split(","):
        if name not in BROKERS:
            parser.error(f"unknown broker {name!r}: choose from {', '.join(BROKERS)}")
        if not is_installed(name):
            print(f"{name}: not installed", flush=True)
            continue
        with BROKERS[name]() as broker:
            figures = scenario(broker, options)
        print(name, *(f"  {title:32} {value}" for title, value in figures.items()), sep="\n")
        sys.stdout.flush()
        is_lost = is_lost or (name.startswith("nsqd") and bool(figures.get("lost")))
    return 3 if is_lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
