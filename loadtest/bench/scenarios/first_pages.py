"""Time until nsqadmin's pages and the table of `nsqcy top` appear, with many topics on one nsqd.

The nsqd, nsqlookupd and nsqadmin are real. Topics are created over HTTP, each with a channel, and
none has messages.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from tempfile import TemporaryDirectory
from typing import Any

from loadtest.bench import procfs
from loadtest.bench.speed import Result, Settings
from loadtest.daemons import Nsqadmin, Nsqd
from nsqcy import testing
from nsqcy.testing.http_requests import Web, eventually

TOPICS = 100_000
PATHS = ("/", "/topics", "/channels", "/nodes", "/counter")
AHEAD = 200  # topics created at once
WITHIN = 600.0  # maximum seconds until nsqlookupd lists all topics
TOP = (sys.executable, "-m", "nsqcy", "top", "--json", "--interval=1ms")  # queries twice


def first_pages(settings: Settings) -> Iterator[Result]:
    names = [f"orders.{number:06d}" for number in range(settings.some(TOPICS, 100))]
    lookupd = testing.Nsqlookupd()
    with TemporaryDirectory(prefix="nsqcy-bench-") as data, lookupd:
        options = {"data_path": data, "workers": settings.workers}
        with Nsqd(**options) as nsqd:  # without an nsqlookupd, which each new topic would query
            create(nsqd, names)
        yield from measured(settings, lookupd, options, len(names))


def measured(
    settings: Settings, lookupd: testing.Nsqlookupd, options: dict[str, Any], topics: int
) -> Iterator[Result]:
    with Nsqd(lookupd_tcp_address=lookupd.tcp_address, **options) as nsqd:
        registered = Web.at(lookupd.http_address)
        eventually(lambda: are_listed(registered, topics), WITHIN, interval=1.0)
        with Nsqadmin(lookupd_http_address=lookupd.http_address, history_interval="10s") as admin:
            daemons = [each.process.pid for each in (lookupd, nsqd, admin)]
            for _ in settings.rounds():
                for path in PATHS:
                    yield timed(f"nsqadmin {path}", topics, daemons, fetching(admin, path))
                command = [*TOP, f"--lookupd-http-address={lookupd.http_address}"]
                yield timed("nsqcy top, 2 samples", topics, daemons[:2], running(command))


def are_listed(lookupd: Web, topics: int) -> bool:
    return lookupd.get("/topics").body.count(b'"orders.') == topics


def fetching(admin: Nsqadmin, path: str) -> Callable[[], float]:
    def fetch() -> float:
        answer = admin.web.get(path)
        assert answer.status == 200, answer
        return 0.0

    return fetch


def running(command: list[str]) -> Callable[[], float]:
    """Return a function that runs a command, and returns its CPU time."""

    def run() -> float:
        before = os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        return sum(after[2:4]) - sum(before[2:4])

    return run


def timed(what: str, topics: int, daemons: Iterable[int], work: Callable[[], float]) -> Result:
    """Return the time of a request, and the CPU time of all daemons and the command."""
    pids = [pid for each in daemons for pid in procfs.family(each)]
    before = sum(map(procfs.cpu_seconds, pids))
    began = time.monotonic()
    own = work()
    took = time.monotonic() - began
    used = own + sum(map(procfs.cpu_seconds, pids)) - before
    result = Result(f"{what}, {topics:,} topics", 1, took, used, 0.0)
    result.note = f"{took:.2f} s, {used:.2f} s of CPU"
    return result


def create(nsqd: Nsqd, names: list[str]) -> None:
    """Create the topics with a channel each, pipelined."""
    host, _, port = nsqd.http_address.rpartition(":")
    with socket.create_connection((host, int(port))) as conn, conn.makefile("rb") as answers:
        for begin in range(0, len(names), AHEAD):
            some = names[begin : begin + AHEAD]
            paths = [f"/topic/create?topic={name}" for name in some]
            paths += [f"/channel/create?topic={name}&channel=work" for name in some]
            heads = (
                f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nContent-Length: 0\r\n\r\n" for path in paths
            )
            conn.sendall("".join(heads).encode())
            for _ in paths:
                assert b" 200 " in answers.readline()
                while answers.readline().strip():
                    pass  # the body is empty
