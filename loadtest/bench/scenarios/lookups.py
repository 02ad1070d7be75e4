"""nsqlookupd with the topics of many nsqds: registrations, the latency of lookups, large responses.

The nsqlookupd is real. The nsqds are connections that register topics, each with one channel.
"""

import http.client
import json
import random
import re
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial

from loadtest.bench import daemon, load
from loadtest.bench.daemon import Address, Daemon
from loadtest.bench.scenarios.many import SETTLE, each
from loadtest.bench.speed import Result, Settings, measure, percentiles, told
from nsqcy import testing
from nsqcy.protocol.wire import command_with_body

TOPICS, NSQDS = 100_000, 100
RATE = 1_000  # lookups per second
SECONDS = 5
AHEAD = 200  # commands of an nsqd that are unanswered
OK = b"\x00\x00\x00\x02OK"
EVERYWHERE = "everywhere"  # a topic that all nsqds have
LARGE = ("/topics", "/nodes")
LOOKUP = b"GET /lookup?topic=%b HTTP/1.1\r\nHost: nsqlookupd\r\n\r\n"
HEAD = re.compile(rb"HTTP/1.1 200 OK\r\n.*?Content-Length: ([0-9]+).*?\r\n\r\n", re.S)
PARTS = slice(0, 1)  # the member of a team that looks topics up


def lookups(settings: Settings) -> Iterator[Result]:
    names = [f"orders.{number:06d}" for number in range(settings.some(TOPICS, NSQDS))]
    parts = [names[number::NSQDS] for number in range(NSQDS)]
    for _ in settings.rounds():
        with testing.Nsqlookupd(log_level="warn") as lookupd:
            one = Daemon(
                daemon.parse_address(lookupd.tcp_address),
                daemon.parse_address(lookupd.http_address),
                lookupd.process.pid,
                workers=1,
            )
            with load.Team(1) as nsqds:
                yield registered(settings, one, nsqds, parts)
                yield from beside(settings, one, names)


def registered(
    settings: Settings, lookupd: Daemon, nsqds: load.Team, parts: list[list[str]]
) -> Result:
    before, used, began = lookupd.memory()["Pss"], lookupd.cpu_seconds(), time.monotonic()
    nsqds.add(registering, lookupd.tcp, parts)
    nsqds.ready()
    took, used = time.monotonic() - began, lookupd.cpu_seconds() - used
    time.sleep(settings.seconds(SETTLE))
    memory, topics = lookupd.memory(), sum(map(len, parts))
    result = Result(f"{topics:,} topics registered", topics, took, used, 0.0, workers=1)
    result.rss, result.pss = memory["Rss"], memory["Pss"]
    return each(result, before, "topic", topics)


def beside(settings: Settings, lookupd: Daemon, names: list[str]) -> Iterator[Result]:
    """Measure lookups alone, and beside each kind of other work."""
    others = {
        "": None,
        ", beside registrations": partial(joining, lookupd.tcp, len(names) // NSQDS),
        **{f", beside {path}": partial(polling, lookupd.http, path) for path in LARGE},
    }
    count = max(100, int(RATE * SECONDS * settings.scale))
    for what, other in others.items():
        with load.Team(2) as team:
            team.add(looking_up, lookupd.http, names, count)
            if other is not None:
                team.add(other, count)
            result, reports = measure(f"lookups{what}", lookupd, team, PARTS)
        figures = percentiles(reports[0]["latencies"])
        result.figures = {f"{name}_us": us for name, us in figures.items()}
        result.order = "p99_us"
        result.note = told("us:", figures)
        if other is not None:
            result.note += f"; {reports[1]['note']}"
        yield result


def nsqd(address: Address, number: int) -> socket.socket:
    """Return the connection of an nsqd to nsqlookupd."""
    sock = load.plain(address)
    about = {
        "broadcast_address": f"nsqd{number}.example.com",
        "hostname": f"nsqd{number}",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
    }
    sock.sendall(b"  V1" + command_with_body(b"IDENTIFY", (), json.dumps(about).encode()))
    load.exactly(sock, int.from_bytes(load.exactly(sock, 4), "big"))
    return sock


def register(sock: socket.socket, names: list[str]) -> None:
    """Register topics, with a channel each."""
    for begin in range(0, len(names), AHEAD):
        some = names[begin : begin + AHEAD]
        sock.sendall(b"".join(b"REGISTER %b work\n" % name.encode() for name in some))
        load.expect(sock, OK * len(some))


def registering(
    address: Address, parts: list[list[str]], team: load.Team, index: int
) -> Callable[[], load.Report]:
    """nsqds that register their topics, one nsqd after another, and stay connected."""
    socks = [nsqd(address, number) for number in range(len(parts))]
    for sock, names in zip(socks, parts, strict=True):
        register(sock, [*names, EVERYWHERE])
    return lambda: {"messages": len(socks)}


def answered(sock: socket.socket) -> None:
    """Receive a response that has a length."""
    data = bytearray()
    while not (found := HEAD.match(data)) or len(data) < found.end() + int(found[1]):
        received = sock.recv(1 << 16)
        if not received:
            raise RuntimeError(f"closed after {bytes(data)!r}")
        data += received


def looking_up(
    address: Address, names: list[str], count: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Look topics up on a schedule. A late request is sent at once, and its latency counts from the
    time at which it was due."""
    sock = load.plain(address)
    chosen = random.Random(1)
    load.wake_precisely()

    def run() -> load.Report:
        latencies = []
        start = time.monotonic_ns()
        for number in range(count):
            due = start + number * 1_000_000_000 // RATE
            wait = due - time.monotonic_ns()
            if wait > 0:
                time.sleep(wait / 1e9)
            sock.sendall(LOOKUP % chosen.choice(names).encode())
            answered(sock)
            latencies.append(time.monotonic_ns() - due)
            team.tally[index] += 1
        return {"messages": count, "latencies": latencies}

    return run


def joining(
    address: Address, topics: int, count: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """An nsqd that registers its topics, leaves and returns, until all lookups are answered."""
    names = [f"more.{number:06d}" for number in range(topics)]

    def run() -> load.Report:
        began, rounds = time.monotonic(), 0
        while team.tally[0] < count:
            with nsqd(address, NSQDS) as sock:
                register(sock, names)
            rounds += 1
        rate = rounds * len(names) / (time.monotonic() - began)
        return {"messages": rounds, "note": f"{rate:,.0f} registrations per second"}

    return run


def polling(
    address: Address, path: str, count: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Request a large response for half of the time, until all lookups are answered."""
    conn = http.client.HTTPConnection(*address)

    def run() -> load.Report:
        rounds, size, took = 0, 0, 0.0
        while team.tally[0] < count:
            began = time.monotonic()
            conn.request("GET", path)
            size = len(conn.getresponse().read())
            last = time.monotonic() - began
            rounds += 1
            took += last
            time.sleep(last)
        note = f"{size / 1e6:.1f} MB in {took / rounds:.2f} s each"
        return {"messages": rounds, "note": note}

    return run
