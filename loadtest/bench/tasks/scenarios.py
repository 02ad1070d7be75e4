"""Celery on nsqd beside Redis and RabbitMQ: throughput, kills and ETAs.

Exits with 3 if a task was lost on nsqd. Needs nsqcy[celery], psutil, and, for Redis, its Python
package.
"""

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from loadtest.bench.tasks import RECORD
from loadtest.bench.tasks.brokers import BROKERS, REDELIVERY, Broker, is_installed
from loadtest.bench.tasks.workers import Workers
from loadtest.soak.ledger import Account, Ledger

END_LIMIT = 1800.0  # maximum seconds; after that, a scenario fails
POLL = 0.02
SAMPLE_INTERVAL = 1.0  # seconds between samples of the workers' memory
WORKERS = 4
KILL_INTERVAL = 2.0
RESTART_INTERVAL = 20.0
QUIET = 3.0 * REDELIVERY  # seconds; after this long without a task, no more are expected

Figures = dict[str, object]


@dataclass(frozen=True, slots=True)
class Options:
    """Number of tasks in each scenario, and the delay of those with an ETA."""

    throughput: int
    kills: int
    etas: int
    eta_seconds: float


class Periodic:
    """Calls a function at an interval, from `poll()`."""

    def __init__(self, interval: float, function: Callable[[], object]) -> None:
        self._interval = interval
        self._function = function
        self._next = time.monotonic() + interval

    def poll(self) -> None:
        if time.monotonic() >= self._next:
            self._next += self._interval
            self._function()


def runs(workers: Workers) -> int:
    """Return how many tasks have run."""
    return workers.file.stat().st_size // RECORD.size


def records(workers: Workers) -> list[tuple[int, float]]:
    """Return the number and the seconds of each task that has run."""
    return list(RECORD.iter_unpack(workers.file.read_bytes()))


def account(workers: Workers, tasks: int) -> Account:
    """Return the outcome of this number of published tasks."""
    ledger = Ledger()
    ledger.publish("tasks", 0, range(tasks))
    for number, _ in records(workers):
        ledger.finish(("tasks", "workers"), 0, number)
    return ledger.account(("tasks", "workers"))


def start_publisher(workers: Workers, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "loadtest.bench.tasks.publisher", *map(str, arguments)]
    return subprocess.Popen(command, env=workers.environment, stdout=subprocess.PIPE, text=True)


def finish_publisher(process: "subprocess.Popen[str]") -> Mapping[str, float]:
    """Return the times of a publisher. Raises RuntimeError if a publish failed."""
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError("a publish failed")
    times: Mapping[str, float] = json.loads(output)
    return times


def wait(holds: Callable[[], bool], *periodic: Periodic) -> None:
    """Poll until the condition `holds`. Raises TimeoutError."""
    deadline = time.monotonic() + END_LIMIT
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError("the tasks do not end")
        for each in periodic:
            each.poll()
        time.sleep(POLL)


class Quiet:
    """Condition: no task has run for `QUIET` seconds, and the publisher has ended."""

    def __init__(self, workers: Workers, process: "subprocess.Popen[str]") -> None:
        self._workers = workers
        self._process = process
        self._runs = 0
        self.since = time.monotonic()

    def __call__(self) -> bool:
        if self._process.poll() is None or runs(self._workers) != self._runs:
            self._runs = runs(self._workers)
            self.since = time.monotonic()
        return time.monotonic() - self.since > QUIET


def throughput(broker: Broker, options: Options) -> Figures:
    """Publish tasks from one process; then one worker with two processes runs them."""
    count = options.throughput
    with Workers(broker, "--concurrency", "2") as workers:
        before = broker.cpu_seconds()
        times = finish_publisher(start_publisher(workers, "record", count))
        publishing = broker.cpu_seconds() - before
        workers.start()
        wait(lambda: runs(workers) >= count // 10)
        first, begun = runs(workers), time.monotonic()
        before, worker_before = broker.cpu_seconds(), workers.cpu_seconds()
        wait(lambda: runs(workers) >= count)
        done, seconds = runs(workers) - first, time.monotonic() - begun
        worker_cpu = workers.cpu_seconds() - worker_before
        return {
            "delay() per second": round(count / times["seconds"]),
            "client's CPU per delay(), µs": round(times["cpu"] / count * 1e6),
            "broker's CPU per delay(), µs": round(publishing / count * 1e6, 1),
            "tasks per second": round(done / seconds),
            "worker's CPU per task, µs": round(worker_cpu / done * 1e6),
            "broker's CPU per task, µs": round((broker.cpu_seconds() - before) / done * 1e6, 1),
        }


def kills(broker: Broker, options: Options) -> Figures:
    """Four workers run tasks; one is killed every two seconds, and the broker twice."""
    with Workers(broker, "--concurrency", "1", acks_late=True) as workers:
        for _ in range(WORKERS):
            workers.start()
        process = start_publisher(workers, "record", options.kills)
        begun, killed, crashes = time.monotonic(), 0, 0
        quiet = Quiet(workers, process)

        def kill_worker() -> None:
            nonlocal killed
            if runs(workers) < options.kills:
                workers.kill(random.randrange(WORKERS))
                workers.start()
                killed += 1

        def kill_broker() -> None:
            nonlocal crashes
            if crashes < 2 and runs(workers) >= options.kills * (crashes + 1) // 3:
                broker.crash()
                crashes += 1

        wait(quiet, Periodic(KILL_INTERVAL, kill_worker), Periodic(POLL, kill_broker))
        finish_publisher(process)
        found = account(workers, options.kills)
        return {
            "tasks": options.kills,
            "lost": found.lost,
            "run again": found.duplicates,
            "workers killed": killed,
            "broker killed": crashes,
            "seconds": round(quiet.since - begun),
        }


def etas(broker: Broker, options: Options, kind: str = "etas") -> Figures:
    """Two workers run tasks with ETAs; meanwhile, they are restarted in turn."""
    with Workers(broker, "--concurrency", "2") as workers:
        workers.start()
        workers.start()
        process = start_publisher(workers, kind, options.etas, options.eta_seconds)
        memory = [workers.memory()]
        restarts = 0

        def sample() -> None:
            memory.append(workers.memory())

        def restart() -> None:
            nonlocal restarts
            if runs(workers) < options.etas:
                workers.restart(0)
                restarts += 1

        quiet = Quiet(workers, process)
        wait(quiet, Periodic(SAMPLE_INTERVAL, sample), Periodic(RESTART_INTERVAL, restart))
        finish_publisher(process)
        earliest: dict[int, float] = {}
        for number, late in records(workers):
            earliest.setdefault(number, late)
        late = sorted(earliest.values())
        found = account(workers, options.etas)
        return {
            "tasks": options.etas,
            "lost": found.lost,
            "run again": found.duplicates,
            "early": sum(each < 0 for each in late),
            "late p50, ms": round(late[len(late) // 2] * 1e3, 1),
            "late p99, ms": round(late[len(late) * 99 // 100] * 1e3, 1),
            "late max, ms": round(late[-1] * 1e3, 1),
            "workers restarted": restarts,
            "workers' memory at most, MiB": round(max(memory) / 2**20, 1),
        }


def naive_etas(broker: Broker, options: Options) -> Figures:
    """Run `etas` with ETAs without a time zone, which workers hold in memory."""
    return etas(broker, options, "naive-etas")


# -- the command line

SCENARIOS = {  # each with the brokers that support it
    "throughput": (throughput, "nsqd,nsqd-os,redis,redis-aof,rabbitmq"),
    "kills": (kills, "nsqd-os,redis-aof"),
    "etas": (etas, "nsqd-os,redis-aof"),
    "naive-etas": (naive_etas, "nsqd-os"),
}
LOST = 3  # exit code


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--brokers", default="", help=", ".join(BROKERS))
    parser.add_argument("--tasks", type=int, default=20_000, help="of throughput")
    parser.add_argument("--kills", type=int, default=100_000, help="tasks of kills")
    parser.add_argument("--etas", type=int, default=10_000, help="tasks of etas")
    parser.add_argument("--eta-seconds", type=float, default=300.0, help="over which ETAs spread")


def run_all(args: argparse.Namespace, say: Callable[[str], None]) -> int:
    options = Options(args.tasks, args.kills, args.etas, args.eta_seconds)
    scenario, usual = SCENARIOS[args.scenario]
    code = 0
    for name in (args.brokers or usual).split(","):
        if not is_installed(name):
            say(f"{name}: not installed")
            continue
        with BROKERS[name]() as broker:
            figures = scenario(broker, options)
        say("\n".join([name, *(f"  {title:32} {value}" for title, value in figures.items())]))
        if name.startswith("nsqd") and figures.get("lost"):
            code = LOST
    return code
