"""Upgrade one nsqd in place again and again, under the load of real client libraries.

python -m loadtest.upgrades [--upgrades=20] [--to=PYTHON] [--rate=20000] [--connections=200]

Exit code 0 if no connection ended, no publish failed and nothing was lost, 3 otherwise.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadtest.daemons import Nsqd
from loadtest.upgrades.clients import Job
from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually

BROKEN = 3  # exit code
ROOT = Path(__file__).parents[2]
START = 60.0  # seconds until all clients are connected
AFTER = 1.0  # seconds after an upgrade, whose publishes count for its pause

PARTS = {"nsqcy": 15}  # of the rate; each other library has one: it needs more CPU for a message
KINDS = (
    ("nsqcy", "", False),
    ("nsqcy", "snappy", False),
    ("pynsq", "", False),
    ("pynsq", "snappy", False),
    ("gnsq", "", False),
    ("nsqjs", "", False),
    ("nsqjs", "snappy", False),
)
ENCODED = (
    ("nsqcy", "", True),
    ("nsqcy", "deflate", True),
    ("pynsq", "", True),
    ("pynsq", "deflate", False),
    ("nsqjs", "", True),
)


class Client:
    """A process with connections of one kind."""

    def __init__(self, library: str, job: Job) -> None:
        self.name = job.topic
        text = json.dumps(asdict(job))
        if library == "nsqjs":
            command = ["node", str(Path(__file__).with_name("nsqjs.js")), text]
        else:
            command = [sys.executable, "-m", "loadtest.upgrades.clients", library, text]
        modules = os.environ.get("NSQCY_NODE_MODULES") or str(ROOT / "node_modules")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"NSQCY_NODE_MODULES": modules},
        )
        self.record: dict[str, Any] = {}

    def end(self) -> None:
        """End its publishes, and wait for its record."""
        output, _ = self.process.communicate()
        if self.process.returncode:
            raise SystemExit(f"{self.name} exited with code {self.process.returncode}")
        self.record = json.loads(output)

    @property
    def is_unharmed(self) -> bool:
        return not (self.record["errors"] or self.record["lost"])

    def pauses(self, first: float, last: float) -> list[float]:
        """Return for each writer the time of its slowest publish between these seconds."""
        return [
            max(seconds)
            for writer in self.record["slowest"]
            if (seconds := [each for at, each in writer.items() if first <= int(at) <= last])
        ]


class Upgrades:
    def __init__(self, nsqd: Nsqd, to: str) -> None:
        self._nsqd = nsqd
        self._ways = [to, sys.executable] if to else [""]
        self.spans: list[tuple[float, float]] = []
        self.failures: list[str] = []

    def run(self) -> None:
        number = len(self.spans)
        to = self._ways[number % len(self._ways)]
        command = [sys.executable, "-m", "nsqcy", "upgrade"]
        command += [f"--nsqd-http-address={self._nsqd.http_address}"]
        command += [f"--to={to}"] if to else []
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        self.spans.append((began, time.time()))
        if done.returncode:
            self.failures.append(f"upgrade {number + 1}: {done.stderr.strip()}")
        print(f"upgrade {number + 1}: {time.time() - began:.1f} s", flush=True)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.upgrades",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--upgrades", type=int, default=20)
    parser.add_argument("--to", default="", help="Python of a second environment: there, and back")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between two upgrades")
    parser.add_argument("--rate", type=float, default=20_000.0, help="publishes per second, of all")
    parser.add_argument("--connections", type=int, default=200, help="of all clients")
    parser.add_argument("--libraries", default="nsqcy,pynsq,gnsq,nsqjs", help="of the clients")
    parser.add_argument("--encoded", action="store_true", help="also clients with TLS and deflate")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--durability", default="memory", choices=["memory", "os", "fsync"])
    options = parser.parse_args(argv)
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nsqcy-upgrades-")))
        files = make("nsqd").save(directory)
        nsqd = stack.enter_context(
            Nsqd(workers=options.workers, durability=options.durability, **files.options)
        )
        jobs = _jobs(options, nsqd.tcp_address, str(files.certificate))
        clients = []
        for library, job in jobs:
            clients.append(Client(library, job))
            stack.callback(clients[-1].process.kill)
        connections = sum(job.writers + job.readers for _, job in jobs)
        before = eventually(lambda: _all_of(connections, nsqd), START)
        upgrades = Upgrades(nsqd, options.to)
        for _ in range(options.upgrades):
            time.sleep(options.pause)
            upgrades.run()
        time.sleep(options.pause)
        ended = len(before - _connections(nsqd))
        for client in clients:
            client.end()
        print(f"connections: {connections}, ended: {ended}")
        return _report(clients, upgrades, ended)


def _jobs(options: argparse.Namespace, address: str, ca: str) -> list[tuple[str, Job]]:
    names = options.libraries.split(",")
    kinds = [each for each in KINDS + (ENCODED if options.encoded else ()) if each[0] in names]
    writers = max(1, options.connections // len(kinds) // 2)
    parts = sum(PARTS.get(library, 1) for library, *_ in kinds)
    jobs = []
    for library, codec, tls in kinds:
        topic = "-".join(filter(None, (library, codec, "tls" if tls else "")))
        rate = options.rate * PARTS.get(library, 1) / parts
        job = Job(address, topic, writers, writers, rate, codec, ca if tls else "")
        jobs.append((library, job))
    return jobs


def _connections(nsqd: Nsqd) -> set[str]:
    stats = nsqd.web.stats()
    channels = [channel for topic in stats["topics"] for channel in topic["channels"] or []]
    clients = [client for channel in channels for client in channel["clients"] or []]
    return {each["remote_address"] for each in clients + (stats["producers"] or [])}


def _all_of(count: int, nsqd: Nsqd) -> set[str] | None:
    found = _connections(nsqd)
    return found if len(found) >= count else None


def _report(clients: list[Client], upgrades: Upgrades, ended: int) -> int:
    titles = ("published", "acknowledged", "errors", "lost", "twice")
    print(f"{'client':16}", *(f"{each:>12}" for each in titles))
    for client in clients:
        print(f"{client.name:16}", *(f"{client.record[each]:12,}" for each in titles))
        for example in client.record["examples"]:
            print(f"  {example}")
    print(f"{'sum':16}", *(f"{sum(c.record[each] for c in clients):12,}" for each in titles))
    pauses = [
        pause
        for began, end in upgrades.spans
        for client in clients
        for pause in client.pauses(began, end + AFTER)
    ]
    print(
        "slowest publish of a connection during an upgrade, in ms:",
        f"median {statistics.median(pauses) * 1e3:.0f}, longest {max(pauses) * 1e3:.0f}",
    )
    print(*upgrades.failures, sep="\n", end="")
    kept = not (ended or upgrades.failures) and all(each.is_unharmed for each in clients)
    return 0 if kept else BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
