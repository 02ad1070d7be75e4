"""The whole benchmark: nsqd alone, nsqd beside other brokers, and the page that tells of both.

Installs the other brokers from Debian's packages where they are missing (root), runs each in a
folder and on a port of its own, and leaves none of them running.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loadtest.bench import daemon, report

Say = Callable[[str], None]

ROOT = Path(__file__).parents[2]
MINUTES = 14.0  # after which no further round begins
ROUNDS = {False: 3, True: 7}  # by whether it is the full run
SIZES = {False: [200], True: [200, 1000, 10_000]}
BYTES = 200_000_000  # published in one measurement; each contestant has its share of them


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="more sizes, workers and rounds")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on numbers of messages")
    parser.add_argument("--rounds", type=int, default=0, help="turns of each broker")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all, if not --full")
    parser.add_argument("--brokers", default="", help="names or packages, separated by commas")
    parser.add_argument("--no-install", action="store_true", help="only brokers that are here")
    parser.add_argument("--no-alone", action="store_true", help="without nsqd's own scenarios")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page is put")
    parser.add_argument("--target", metavar="HOST:PORT", help="an NSQ that runs already, as well")
    parser.add_argument("--target-http", metavar="HOST:PORT", help="its HTTP address")
    parser.add_argument("--pid", type=int, default=0, help="its process, if it is not found")


def run_all(args: argparse.Namespace, say: Say) -> None:
    began = time.monotonic()
    contestants, skipped = find(args, say)
    figures = {
        "date": report.today(),
        "machine": report.machine(),
        "settings": settings(args),
        "contestants": [introduce(each) for each in contestants],
        "skipped": skipped,
        "nsqd": [] if args.no_alone else alone(args),
        "peers": beside(args, contestants, began, say),
    }
    say(f"{report.write(figures, args.docs)} is written, {(time.monotonic() - began) / 60:.1f} min")


def find(args: argparse.Namespace, say: Say) -> tuple[list[Any], dict[str, str]]:
    """Who takes part, and who cannot, with the reason."""
    from loadtest.bench.peers import drivers, packages

    wanted = set(args.brokers.split(",")) - {""}
    peers = [kind() for kind in drivers.PEERS if not wanted or {kind.name, kind.package} & wanted]
    names = [each.program for each in peers]
    absent = packages.why_not(names) if args.no_install else packages.install(names, say)
    for reason in absent.values():
        say(f"skipped: {reason}")
    ours = [drivers.Nsq(), drivers.Nsq(2)] if args.full else [drivers.Nsq()]
    if args.target:
        there = daemon.running(args.target, args.target_http, args.pid)
        ours.append(drivers.Target(there))
    return ours + [each for each in peers if each.program not in absent], absent


def introduce(driver: Any) -> dict[str, str]:
    from loadtest.bench.peers import packages

    keys = ["name", "durability", "settings", "publishes", "consumes"]
    version = packages.version(driver.package) if driver.package else driver.version
    return {key: getattr(driver, key) for key in keys} | {"version": version}


def settings(args: argparse.Namespace) -> dict[str, str]:
    from loadtest.bench.peers import work

    return {
        "batches": f"{work.BATCH} messages, {work.IN_THE_PIPE} under way; 2 connections, a process "
        "each",
        "consumers": f"2 connections, a process each; up to {work.WINDOW} messages in flight",
        "one by one": f"{work.CONNECTIONS} connections in 2 processes",
        "messages": f"{SIZES[args.full][0]} bytes"
        + "".join(f", {size:,} bytes" for size in SIZES[args.full][1:])
        + ("" if args.scale == 1 else f"; {args.scale:g} times as many as usual"),
    }


def alone(args: argparse.Namespace) -> list[dict[str, Any]]:
    """nsqd's own scenarios, in a process of their own."""
    with tempfile.TemporaryDirectory(prefix="nsqcy-bench-") as folder:
        figures = Path(folder) / "figures.json"
        words = [sys.executable, "-m", "loadtest.bench", "speed", f"--json={figures}"]
        words += [f"--scale={args.scale}", *(["--full"] if args.full else [])]
        # What it leaves behind, should it be killed, is in that folder as well.
        subprocess.run(words, cwd=ROOT, env=os.environ | {"TMPDIR": folder}, check=True)
        return list(json.loads(figures.read_text())["rows"])


def beside(
    args: argparse.Namespace, contestants: list[Any], began: float, say: Say
) -> list[dict[str, Any]]:
    from loadtest.bench.peers import work

    rows = []
    for size in SIZES[args.full]:
        say(f"-- {size} bytes: {', '.join(each.name for each in contestants)}")
        messages = int(BYTES / size * args.scale)
        rounds = args.rounds or ROUNDS[args.full]
        deadline = float("inf") if args.full else began + args.minutes * 60
        found = work.run(contestants, work.Settings(messages, size, rounds, deadline), say)
        for row in found:
            say(line(row))
        rows += found
    return rows


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['scenario']:38} {row['contestant']:18} {row['rate']:>10,.0f}/s "
        f"{row['daemon_us']:>8.2f} us, load {row['load_us']:>6.2f} us, "
        f"{row['rss'] / 1e6:>6.0f} MB"
    )
