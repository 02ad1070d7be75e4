"""The command line of the benchmarks."""

import argparse
import json
import os
import platform
import resource
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench import clients, daemon, everything, procfs, speed
from loadtest.bench.scenarios import SCENARIOS, UNRECORDED
from loadtest.bench.tasks import scenarios as tasks

SHORT = {  # short commands, and the arguments that they stand for
    "memory": ["speed", "--only=memory,topics,idle"],
    "curves": ["all", "--only=curves"],
}
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    kinds = whole.add_subparsers(dest="kind", required=True)
    quick = kinds.add_parser(
        "speed",
        help="messages per second, CPU per message, latency",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=table(),
    )
    quick.add_argument("--workers", default="1", help="numbers of workers to try, e.g. 1,3")
    quick.add_argument("--only", default="", help="names of scenarios, separated by commas")
    quick.add_argument("--scale", type=float, default=1.0, help="factor on numbers of messages")
    quick.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    quick.add_argument("--full", action="store_true", help="every scenario")
    quick.add_argument("--repeat", type=int, default=3, help="runs of which the median is shown")
    quick.add_argument("--minutes", type=float, default=0.0, help="for all; 0: what it takes")
    quick.add_argument("--size", type=int, default=200, help="bytes of a message (at least 16)")
    quick.add_argument("--target", metavar="HOST:PORT", help="an NSQ that runs already")
    quick.add_argument("--target-http", metavar="HOST:PORT", help="its HTTP address")
    quick.add_argument("--pid", type=int, default=0, help="its process, if it is not found")
    everything.configure(kinds.add_parser("all", help=everything.__doc__))
    clients.configure(kinds.add_parser("clients", help=clients.__doc__))
    tasks.configure(kinds.add_parser("tasks", help=tasks.__doc__))
    return whole


def main(argv: Sequence[str]) -> int:
    for each in ENDING:
        signal.signal(each, leave)
    allow_many_files()
    words = list(argv)
    words[:1] = SHORT.get(words[0], words[:1]) if words else []
    if not words or words[0] not in ("all", "speed", "clients", "tasks", "-h", "--help"):
        words.insert(0, "speed")
    args = parser().parse_args(words)
    if args.kind == "all":
        return everything.run_all(args, say)
    if args.kind == "tasks":
        return tasks.run_all(args, say)
    if args.kind == "clients":
        clients.run_all(args)
        return 0
    every = SCENARIOS | UNRECORDED
    wanted = args.only.split(",") if args.only else []
    if unknown := set(wanted) - set(every):
        parser().error(f"no such scenario: {', '.join(sorted(unknown))}")
    wanted = wanted or [name for name, each in SCENARIOS.items() if each.quick or args.full]
    rows, failed = [], []
    end = time.monotonic() + args.minutes * 60 if args.minutes else float("inf")
    for workers in map(int, args.workers.split(",")):
        print(f"-- {workers} worker{'s' * (workers > 1)}, {os.cpu_count()} CPUs", flush=True)
        settings = speed.Settings(workers, args.size, args.scale, args.repeat)
        if args.target:
            settings.target = daemon.running(args.target, args.target_http, args.pid)
        found = speed.run(settings, {name: every[name] for name in wanted}, say, end)
        rows += found.rows
        failed += found.failed
    if args.json:
        machine = {"python": platform.python_version(), "kernel": platform.release()}
        figures = {"at": time.time(), "machine": machine, "argv": words, "rows": rows}
        figures["failed"] = failed
        args.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if failed else 0


def allow_many_files() -> None:
    """Raise the open-file limit to its maximum: some scenarios have thousands of connections, with
    both ends on this machine."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))


def leave(signum: int, frame: object) -> None:
    """Stop all child processes when this process is terminated. Raising an exception is not enough:
    Python ignores exceptions in destructors and during a fork."""
    for each in ENDING:  # the cleanup must not be interrupted
        signal.signal(each, signal.SIG_IGN)
    procfs.end(procfs.family(os.getpid())[1:])
    sys.exit(128 + signum)


def table() -> str:
    """Return the scenarios for --help; a mark shows when they run."""
    marked = [("*" if each.quick else " ", name, each) for name, each in SCENARIOS.items()]
    marked += [("-", name, each) for name, each in UNRECORDED.items()]
    lines = (f"  {name:11} {mark} {each.about}" for mark, name, each in marked)
    return "\n".join(["scenarios (* when none is named, - only when named):", *lines])


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
