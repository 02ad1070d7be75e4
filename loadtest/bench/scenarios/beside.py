"""Latency at a fixed rate beside other clients: some misbehave, thousands begin TLS handshakes at
the same moment, and some poll /stats or scrape /metrics.

Each of them is a member of the team, and stops when the consumer has received everything.
"""

import http.client
import json
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from loadtest.bench import load
from loadtest.bench.daemon import Address, Daemon, NotOffered
from loadtest.bench.scenarios.encoded import certificate
from loadtest.bench.scenarios.latency import described
from loadtest.bench.speed import READY, Result, Settings, measure, on, percentiles, told
from nsqcy.protocol.wire import command, command_with_body

RATE = 1_000  # messages per second
SECONDS = 4
CONSUMER = slice(0, 1)  # the consumer's position in a team
CHANNELS = 3
LARGE = 10_000  # bytes of a message in the backlog
ROOM = 4096  # bytes of the receive buffer of a client that does not read
SENDING = 0.02  # seconds for sending to a daemon that does not read
HANDSHAKE = 30.0
EVER = 3600.0
REQUESTS = {
    "/metrics, OpenMetrics": (
        "/metrics",
        {"Accept": "application/openmetrics-text;version=1.0.0", "Accept-Encoding": "gzip"},
    ),
    "/metrics, plain text": ("/metrics", {"Accept-Encoding": "identity"}),
    "/stats": ("/stats?format=json", {}),
}

Other = Callable[[load.Team, int], Callable[[], load.Report]]


# -- loads


def _received(team: load.Team, messages: int) -> bool:
    return team.tally[0] >= messages


def holding(
    address: Address, sent: list[bytes], messages: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Connections that each send as much of their bytes as nsqd accepts, and never read."""
    socks = [_sent(address, data) for data in sent]

    def run() -> load.Report:
        while not _received(team, messages):
            time.sleep(0.01)
        return {"messages": 0, "connections": len(socks)}

    return run


def _sent(address: Address, data: bytes) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM)
    sock.connect(address)
    sock.settimeout(SENDING)
    with suppress(OSError):
        sock.sendall(data)
    return sock


def dripping(
    address: Address, topic: str, messages: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """A publisher that sends one byte at a time."""
    sock = load.connect(address)
    data = load.pub(topic, bytes(1_000_000))

    def run() -> load.Report:
        at = 0
        while not _received(team, messages):
            sock.sendall(data[at : at + 1])
            at = (at + 1) % len(data)
            time.sleep(0.001)
        return {"messages": 0}

    return run


def arriving(
    address: Address, count: int, team: load.Team, index: int
) -> Callable[[], load.Report]:
    """Clients that all begin their TLS handshakes before the first of them completes its own."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    socks = [load.connect(address) for _ in range(count)]
    wanted = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()

    def run() -> load.Report:
        for sock in socks:
            sock.sendall(command_with_body(b"IDENTIFY", (), wanted))
        for sock in socks:
            load.frame(sock)
        secured = [context.wrap_socket(s, do_handshake_on_connect=False) for s in socks]
        for each in secured:
            each.setblocking(False)
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
        return {"messages": 0, "failed": sum(not _completes(each) for each in secured)}

    return run


def _completes(sock: ssl.SSLSocket) -> bool:
    sock.settimeout(HANDSHAKE)
    try:
        sock.do_handshake()
        load.expect(sock, load.OK)
    except (OSError, RuntimeError):
        return False
    return True


def polling(
    address: Address,
    path: str,
    headers: dict[str, str],
    every: float,
    requests: int,
    messages: int,
    team: load.Team,
    index: int,
) -> Callable[[], load.Report]:
    """Send up to this number of requests at an interval, until the consumer has its messages."""
    link = http.client.HTTPConnection(*address)

    def ask() -> int:
        """Return the size of the answer."""
        link.request("GET", path, headers=headers)
        answer = link.getresponse()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{path}: {answer.status}")
        return len(answer.read())

    size = ask()  # warm-up

    def run() -> load.Report:
        took: list[int] = []
        due = time.monotonic()
        while len(took) < requests and not _received(team, messages):
            if time.monotonic() < due:
                time.sleep(0.001)
                continue
            start = time.monotonic_ns()
            ask()
            took.append(time.monotonic_ns() - start)
            due += every
        return {"messages": len(took), "took": took, "size": size}

    return run


# -- scenarios


def misbehaving(settings: Settings) -> Iterator[Result]:
    """Measure latency alone and beside each kind of client that wastes nsqd's resources."""
    with (
        certificate() as options,
        settings.nsqd(**options) as nsqd,
        settings.topics(nsqd, 2) as (backlog, half),
    ):
        channels = [f"c{number}" for number in range(settings.some(16, 2))]
        _pile_up(settings, nsqd, backlog, channels)
        some, crowd = settings.some(200, 4), settings.some(5_000, 20)
        large = load.mpub(half, [bytes(100_000)] * 49)
        held = {
            "consumers that never read": [
                b"  V2" + _subscribe(backlog, channel) for channel in channels
            ],
            "lengths of 4 GB": [
                b"  V2PUB %b\n%b" % (half.encode(), struct.pack(">I", 0xFFFFFFFF) + bytes(1000))
            ]
            * some,
            "too large messages": [b"  V2" + load.pub(half, bytes((1 << 20) + 1))]
            * settings.some(20, 2),
            "half-sent commands": [b"  V2" + load.pub(half, bytes(1000))[:500]] * some,
            "half-sent batches": [b"  V2" + large[:-1]] * some,
            "silent connections": [b""] * crowd,
        }
        messages = _messages(settings)
        others: dict[str, Other] = {
            name: partial(holding, nsqd.tcp, sent, messages) for name, sent in held.items()
        }
        others["one byte at a time"] = partial(dripping, nsqd.tcp, half, messages)
        others["TLS handshakes"] = partial(arriving, nsqd.tcp, settings.some(2_000, 10))
        yield from _alternately(settings, nsqd, others)


def _subscribe(topic: str, channel: str) -> bytes:
    return command(b"SUB", topic.encode(), channel.encode()) + command(b"RDY", b"2500")


def _pile_up(settings: Settings, nsqd: Daemon, topic: str, channels: list[str]) -> None:
    for channel in channels:
        load.consumer(nsqd.tcp, topic, channel, 0).close()
    with load.Team(1) as team:
        commands = settings.some(80, 8)
        team.add(load.pipelined, nsqd.tcp, load.mpub(topic, [bytes(LARGE)] * 50), 50, commands, 8)
        team.ready()
        team.run()


def polled(settings: Settings) -> Iterator[Result]:
    """Measure /metrics and /stats: first back-to-back requests (their rate, and the CPU time of
    each), then the latency of messages while each is requested once per second."""
    requests = settings.some(20, 2)
    for workers in settings.numbers(1, 3):
        with (
            settings.nsqd(workers) as nsqd,
            settings.topics(nsqd, settings.some(1_000, 10)) as topics,
            _inhabited(nsqd, topics, settings.some(1_000, 10)),
        ):
            if nsqd.http is None:
                raise NotOffered("its HTTP address is unknown")
            for _ in settings.rounds():
                for name, (path, headers) in REQUESTS.items():
                    with load.Team(1) as team:
                        team.add(polling, nsqd.http, path, headers, 0.0, requests, 1)
                        result, (report,) = measure(f"{name}{on(nsqd)}", nsqd, team)
                    took = told("ms:", percentiles(report["took"]), 1000, 1)
                    result.note = f"{len(topics):,} topics, {report['size']:,} bytes, {took}"
                    yield result
            ends = sys.maxsize, _messages(settings)
            others: dict[str, Other] = {
                name: partial(polling, nsqd.http, path, headers, 1.0, *ends)
                for name, (path, headers) in REQUESTS.items()
            }
            yield from _alternately(settings, nsqd, others)


@contextmanager
def _inhabited(nsqd: Daemon, topics: list[str], clients: int) -> Iterator[None]:
    """Channels and subscribed clients; every topic has a finished message and therefore a
    histogram."""
    for topic in topics:
        for number in range(CHANNELS):
            load.consumer(nsqd.tcp, topic, f"channel{number}", 0).close()
    with load.Team(1) as team:
        team.add(load.one_each, nsqd.tcp, topics, bytes(100))
        team.ready()
        team.run()
    with load.Team(1) as team:
        places = [(topic, "channel0") for topic in topics]
        team.add(load.crowd, nsqd.tcp, places, 1, len(topics), CONSUMER, 0)
        team.ready()
        team.run()
    with load.Team(1) as team:
        team.add(load.idle, nsqd.tcp, topics[0], clients, EVER)
        team.ready()
        team.go()
        yield


# -- latency


def _messages(settings: Settings) -> int:
    return max(RATE // 4, int(RATE * SECONDS * settings.scale))


def _alternately(settings: Settings, nsqd: Daemon, others: dict[str, Other]) -> Iterator[Result]:
    """Measure latency alone and then beside each of the other loads, in every round."""
    for _ in settings.rounds():
        alone = _latency(settings, nsqd, "latency alone")
        yield alone
        for name, other in others.items():
            result = _latency(settings, nsqd, f"latency beside {name}", other)
            worse = result.figures["p99_us"] - alone.figures["p99_us"]
            result.figures["worse_us"] = worse
            result.order = "worse_us"
            result.note = f"p99 {worse / 1000:+.2f} ms; {result.note}"
            yield result


def _latency(settings: Settings, nsqd: Daemon, name: str, other: Other | None = None) -> Result:
    messages, size = _messages(settings), max(settings.size, load.STAMPS.size)
    with settings.topic(nsqd) as topic, load.Team(3) as team:
        team.add(load.finishing, nsqd.tcp, topic, READY, messages, CONSUMER, size)
        team.add(load.paced, nsqd.tcp, topic, size, RATE, messages)
        if other:
            team.add(other)
        result, (received, sent, *more) = measure(f"{name}{on(nsqd)}", nsqd, team, CONSUMER)
    described(result, received, sent)
    failed = sum(report.get("failed", 0) for report in more)
    result.note += f"; {failed} failed" * bool(failed)
    return result
