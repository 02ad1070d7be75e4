"""The complete benchmark: nsqd alone, nsqd and other brokers, and the page about both.

Installs missing brokers from Debian's packages (as root), runs each in its own directory and on its
own port, and leaves none of them running.
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

from loadtest.bench import daemon, report, speed
from loadtest.bench.scenarios import SCENARIOS
from nsqcy import __version__

Say = Callable[[str], None]

ROOT = Path(__file__).parents[2]
MINUTES = 14.5  # time limit without the installation; only the first round may exceed it
ALONE = 8 / MINUTES  # share of MINUTES for nsqd alone
ROUNDS = {False: 3, True: 5}  # keyed by whether this is a full run
SIZES = {False: [200], True: [200, 1000, 10_000]}
BYTES = 120_000_000  # bytes published per measurement; each contestant gets its share of them


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--full", action="store_true", help="more sizes, workers and rounds")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on numbers of messages")
    parser.add_argument("--rounds", type=int, default=0, help="turns of each broker and scenario")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="for all, if not --full")
    parser.add_argument("--brokers", default="", help="names or packages, separated by commas")
    parser.add_argument("--no-install", action="store_true", help="only brokers that are here")
    parser.add_argument("--no-alone", action="store_true", help="without nsqd's own scenarios")
    parser.add_argument("--only", default="", help="only these scenarios of nsqd; keep the rest")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="where the page is put")
    parser.add_argument("--target", metavar="HOST:PORT", help="an NSQ that runs already, as well")
    parser.add_argument("--target-http", metavar="HOST:PORT", help="its HTTP address")
    parser.add_argument("--pid", type=int, default=0, help="its process, if it is not found")


def run_all(args: argparse.Namespace, say: Say) -> int:
    """Measure everything and write the page. Return non-zero if anything failed."""
    if args.only:
        return part(args, say)
    when = report.condition(os.getloadavg()[0])
    contestants, skipped = find(args, say)
    began = time.monotonic()
    ours = speed.Found() if args.no_alone else alone(args)
    theirs = beside(args, contestants, began, say)
    minutes = (time.monotonic() - began) / 60
    figures = {
        "date": report.today(),
        "machine": report.machine(),
        "settings": settings(args, minutes),
        "contestants": [introduce(each) for each in contestants],
        "skipped": skipped,
        "nsqd": ours.rows,
        "peers": theirs.rows,
        "failed": ours.failed + theirs.failed,
    }
    if before := report.read(args.docs):
        figures = report.kept(before, figures, "" if not args.no_alone else when)
    say(f"{report.write(figures, args.docs)} is written, {minutes:.1f} min")
    return 1 if figures["failed"] else 0


def part(args: argparse.Namespace, say: Say) -> int:
    """Measure some scenarios of nsqd, and replace their rows on the page."""
    if (before := report.read(args.docs)) is None:
        say(f"{args.docs} has no {report.DATA}: run the whole benchmark first")
        return 2
    when = report.condition(os.getloadavg()[0])
    found = alone(args)
    figures = report.joined(before, found.rows, dict.fromkeys(names(args), when))
    failed = [each for each in before["failed"] if each["what"] not in names(args)]
    say(f"{report.write(figures | {'failed': failed + found.failed}, args.docs)} is written")
    return 1 if found.failed else 0


def names(args: argparse.Namespace) -> list[str]:
    """Return the scenarios of nsqd to run."""
    if args.only:
        return str(args.only).split(",")
    return [name for name, each in SCENARIOS.items() if args.full or not each.long]


def find(args: argparse.Namespace, say: Say) -> tuple[list[Any], dict[str, str]]:
    """Return the contestants, and the missing ones, each with the reason."""
    from loadtest.bench.peers import drivers, packages

    wanted = set(args.brokers.split(",")) - {""}
    peers = [kind() for kind in drivers.PEERS if not wanted or {kind.name, kind.package} & wanted]
    names = [each.program for each in peers]
    if not args.no_alone and not wanted:
        names.append("etcd-server")  # topics with copies need etcd
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


def settings(args: argparse.Namespace, minutes: float) -> dict[str, str]:
    from loadtest.bench.peers import work

    return {
        "nsqcy": __version__,
        "duration": f"{minutes:.0f} minutes",
        "durability class": f"{speed.MEMORY}, unless stated otherwise",
        "nsqd": f"default settings and `--mem-queue-size={speed.IN_MEMORY}`, unless stated "
        "otherwise",
        "batches": f"{work.BATCH} messages, {work.IN_THE_PIPE} batches in flight; 2 connections, "
        "one process each",
        "consumers": f"2 connections, one process each; up to {work.WINDOW} messages in flight",
        "one by one": f"{work.CONNECTIONS} connections in 2 processes",
        "messages": f"{SIZES[args.full][0]} bytes"
        + "".join(f", {size:,} bytes" for size in SIZES[args.full][1:])
        + ("" if args.scale == 1 else f"; {args.scale:g} times as many as usual"),
    }


def alone(args: argparse.Namespace) -> speed.Found:
    """Run nsqd's own scenarios, in a separate process."""
    with tempfile.TemporaryDirectory(prefix="nsqcy-bench-") as folder:
        figures = Path(folder) / "figures.json"
        words = [sys.executable, "-m", "loadtest.bench", "speed", f"--json={figures}"]
        words += [f"--only={','.join(names(args))}"]
        words += [f"--scale={args.scale}", f"--repeat={rounds(args)}"]
        if not args.full and not args.only:
            words.append(f"--minutes={args.minutes * ALONE}")
        # TMPDIR: if the process is killed, its files are removed with this directory.
        done = subprocess.run(words, cwd=ROOT, env=os.environ | {"TMPDIR": folder})
        if not figures.exists():
            why = f"it ended with status {done.returncode} before it had all figures"
            return speed.Found(failed=[{"what": "nsqd alone", "why": why}])
        told = json.loads(figures.read_text())
        return speed.Found(told["rows"], told["failed"])


def beside(args: argparse.Namespace, contestants: list[Any], began: float, say: Say) -> speed.Found:
    from loadtest.bench.peers import work

    all_sizes = speed.Found()
    for size in SIZES[args.full]:
        say(f"-- {size} bytes: {', '.join(each.name for each in contestants)}")
        messages = int(BYTES / size * args.scale)
        deadline = float("inf") if args.full else began + args.minutes * 60
        found = work.run(
            contestants,
            work.Settings(size=size, repeat=rounds(args), deadline=deadline, messages=messages),
            say,
        )
        for row in found.rows:
            say(line(row))
        all_sizes.rows += found.rows
        all_sizes.failed += found.failed
    return all_sizes


def rounds(args: argparse.Namespace) -> int:
    return int(args.rounds or ROUNDS[args.full])


def line(row: dict[str, Any]) -> str:
    return (
        f"{row['scenario']:38} {row['contestant']:18} {row['rate']:>10,.0f}/s "
        f"{row['daemon_us']:>8.2f} us, load {row['load_us']:>6.2f} us, "
        f"{row['rss'] / 1e6:>6.0f} MB"
    )
