"""Cost of TLS: for other clients while thousands connect, and for a consumer on a worker other than
its topic's.

PYTHONPATH=. python loadtest/tls.py [--workers 2] [--pairs 5] [--arrivals 2000]

Arrivals: a plain consumer's delivery latency and heartbeats, alone and while `--arrivals` clients
begin their TLS handshakes at the same moment, in pairs of runs. The clients run in a separate
process and have already sent everything that precedes the handshake. The 99th percentile should not
grow by more than 50 ms.

Rates: messages per second of a TLS consumer whose topic is on another worker, compared with one
whose topic is on its own worker, in pairs of runs. The ratio should be at least 0.6. The same is
measured for plain, snappy and deflate connections.
"""

import argparse
import json
import select
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from loadtest.many_clients import owners
from loadtest.nsqd import Nsqd
from nsqcy.protocol.wire import finish_all
from nsqcy.testing.certificates import make
from nsqcy.testing.encoded_connection import client_context, connect
from nsqcy.testing.wire_client import MESSAGE, Conn, Message

BETWEEN = 0.002  # seconds between two probes
MAX_WORSE = 0.050
MIN_RATIO = 0.6
MESSAGES = 300_000
BODY = bytes(200)


# -- arrivals


def arrive(port: int, count: int) -> None:
    """Run in the other process: do everything up to the handshakes; then, on request, perform the
    handshakes."""
    context = client_context()
    hellos = []
    for _ in range(count):
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = context.wrap_bio(incoming, outgoing)
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            hellos.append((tls, incoming, outgoing))
    conns = [Conn(("127.0.0.1", port), timeout=30) for _ in hellos]
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.monotonic()
    wanted = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
    for conn in conns:
        conn.command("IDENTIFY", body=wanted)
    for conn, (_, _, outgoing) in zip(conns, hellos, strict=True):
        conn.expect_json()
        conn.socket.sendall(outgoing.read())
    failed = 0
    for conn, (tls, incoming, outgoing) in zip(conns, hellos, strict=True):
        failed += finish_handshake(conn, tls, incoming, outgoing) != b"OK"
    print(time.monotonic() - start, failed, flush=True)


def finish_handshake(
    conn: Conn, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO
) -> bytes:
    """Return the frame that completes a handshake."""
    done = False
    while True:
        received = conn.socket.recv(65536)
        if not received:
            return b""
        incoming.write(received)
        try:
            if not done:
                tls.do_handshake()
                done = True
                conn.socket.sendall(outgoing.read())
            return tls.read(100)[8:]
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return b""


class Probe:
    """A producer and a consumer of one topic, and a client that only gets heartbeats."""

    def __init__(self, daemon: Nsqd) -> None:
        daemon.web.create("probe", "c")
        self.producer = daemon.connect()
        self.consumer = daemon.connect().sub("probe", "c", rdy=1000)
        self.idler = daemon.connect(pong=False)
        self.idler.negotiate(heartbeat_interval=1000)
        self.beat = 0.0

    def run(self, ended: Callable[[], bool]) -> tuple[list[float], list[float]]:
        """Return message latencies and heartbeat delays, measured until `ended` returns true."""
        latencies: list[float] = []
        late: list[float] = []
        due = time.monotonic()
        conns = {conn.socket: conn for conn in (self.producer, self.consumer, self.idler)}
        while not ended():
            now = time.monotonic()
            if now >= due:
                self.producer.command("PUB", "probe", body=struct.pack(">d", now))
                due = now + BETWEEN
            for sock in select.select(list(conns), [], [], max(due - now, 0))[0]:
                frame = conns[sock].frame()
                now = time.monotonic()
                if frame.kind == MESSAGE:
                    message = Message.parse(frame.data)
                    latencies.append(now - struct.unpack(">d", message.body)[0])
                    self.consumer.fin(message)
                elif sock is self.idler.socket:
                    if self.beat:
                        late.append(now - self.beat - 1.0)
                    self.beat = now
                    self.idler.nop()
        return latencies, late


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)] if values else 0.0


def measure_arrivals(workers: int, pairs: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        files = make("server").save(Path(home))
        with Nsqd(workers=workers, **files.options) as daemon:
            probe = Probe(daemon)
            probe.run(after(1.0))
            worse = [arrivals_pair(daemon, probe, count) for _ in range(pairs)]
    median = statistics.median(worse)
    mark = "" if median <= MAX_WORSE else "   <-- too much"
    print(f"workers {workers}: {count} arrivals make p99 worse by {median * 1000:.1f} ms{mark}")


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def arrivals_pair(daemon: Nsqd, probe: Probe, count: int) -> float:
    words = [sys.executable, __file__, "--arrive", str(daemon.tcp_port), "--arrivals", str(count)]
    crowd = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert crowd.stdin is not None and crowd.stdout is not None
    assert crowd.stdout.readline() == "ready\n"
    quiet, quiet_beats = probe.run(after(2.0))
    crowd.stdin.write("go\n")
    crowd.stdin.flush()
    busy, busy_beats = probe.run(lambda: bool(select.select([crowd.stdout], [], [], 0)[0]))
    took, failed = crowd.stdout.readline().split() or ("nan", count)
    crowd.wait()
    for name, latencies, beats in (
        ("quiet", quiet, quiet_beats),
        (f"{float(took):.1f} s of arrivals, {failed} failed", busy, busy_beats),
    ):
        figures = [percentile(latencies, share) * 1000 for share in (0.5, 0.99, 1.0)]
        print(
            f"  {name}: p50 {figures[0]:.2f} ms, p99 {figures[1]:.2f} ms, most {figures[2]:.2f} ms,"
            f" heartbeats at most {max(beats, default=0.0) * 1000:.1f} ms late",
            flush=True,
        )
    probe.run(after(1.0))
    return percentile(busy, 0.99) - percentile(quiet, 0.99)


# -- rates


def measure_rates(workers: int, pairs: int) -> None:
    with tempfile.TemporaryDirectory() as home:
        files = make("server").save(Path(home))
        with Nsqd(workers=workers, move_sessions=False, **files.options) as daemon:
            names = [f"topic{number}" for number in range(workers)]
            placed = owners(workers, names)
            for name in names:
                daemon.web.create(name, "c")
            for tls, codec in ((False, ""), (True, ""), (False, "snappy"), (False, "deflate")):
                measure_way(daemon, placed, pairs, tls, codec)


def measure_way(daemon: Nsqd, placed: dict[str, int], pairs: int, tls: bool, codec: str) -> None:
    topic, owner = next(iter(placed.items()))
    ratios, home_rates = [], []
    for _ in range(pairs):
        rates = {}
        for at_home in (True, False):
            rates[at_home] = consume(daemon, topic, owner, at_home, tls, codec)
        ratios.append(rates[False] / rates[True])
        home_rates.append(rates[True])
    ratio = statistics.median(ratios)
    # Plain sessions are included for comparison: they would have migrated.
    mark = "" if ratio >= MIN_RATIO or not (tls or codec) else "   <-- too little"
    name = "+".join(filter(None, ["TLS" if tls else "", codec])) or "plain"
    print(
        f"{name}: {statistics.median(home_rates):.0f} messages/s at home, "
        f"foreign {ratio:.2f} of that{mark}",
        flush=True,
    )


def consume(daemon: Nsqd, topic: str, owner: int, at_home: bool, tls: bool, codec: str) -> float:
    """Return one consumer's messages per second, from a backlog."""
    producer = daemon.connect()
    for _ in range(MESSAGES // 500):
        producer.mpub(topic, [BODY] * 500)
    spare = []
    while True:
        conn = connect(daemon, tls=tls, codec=codec)
        if (daemon.home(conn) == owner) is at_home:
            break
        spare.append(conn)
    conn.sub(topic, "c", rdy=2500)
    received, count, data = 0, 0, b""
    start = time.monotonic()
    while received < MESSAGES:
        data += conn.socket.recv(262144)
        lines, used, count = finish_all(data)
        data = data[used:]
        received += count
        if lines:
            conn.socket.sendall(lines)
    seconds = time.monotonic() - start
    for each in (producer, conn, *spare):
        each.close()
    daemon.web.await_counts(topic, "c", in_flight_count=0, depth=0)
    return received / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--arrivals", type=int, default=2000)
    parser.add_argument("--arrive", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.arrive:
        arrive(args.arrive, args.arrivals)
        return
    measure_arrivals(args.workers, args.pairs, args.arrivals)
    measure_rates(args.workers, args.pairs)


if __name__ == "__main__":
    main()
