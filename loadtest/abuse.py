"""Effect of abusive clients on other clients: message rates during each kind of abuse, compared
with undisturbed rates.

    PYTHONPATH=. python loadtest/abuse.py [--workers 4] [--pairs 5] [--seconds 2]

A producer and a consumer of one topic run all the time, alternately undisturbed and alongside an
abuser. Prints the messages per second in both cases, and the median ratio; marks ratios below 0.8.
"""

import argparse
import contextlib
import resource
import statistics
import struct
import time
from collections.abc import Callable

from loadtest.many_clients import Loop, publish, send_as_far_as_it_goes
from loadtest.nsqd import Nsqd
from nsqcy.testing.wire_client import Conn, batch

ENOUGH = 0.8
BODY = bytes(200)
BATCH = 100


class Load:
    """One producer and one consumer; counts what the consumer has finished."""

    def __init__(self, daemon: Nsqd) -> None:
        daemon.web.create("load", "c")
        self.producer = Conn(daemon.address)
        self.consumer = Conn(daemon.address).sub("load", "c", rdy=BATCH)
        self.finished = 0
        self._commands = publish("load", BODY) * BATCH
        self._loop = Loop(self._step)

    def _step(self) -> None:
        self.producer.send(self._commands)
        messages = self.consumer.messages(BATCH)
        self.consumer.send(*(b"FIN %b\n" % message.id for message in messages))
        for _ in range(BATCH):
            self.producer.expect_ok()
        self.finished += BATCH

    def rate(self, seconds: float) -> float:
        before, start = self.finished, time.monotonic()
        time.sleep(seconds)
        return (self.finished - before) / (time.monotonic() - start)

    def stop(self) -> None:
        self._loop.stop()
        self.producer.close()
        self.consumer.close()


Abuse = Callable[[Nsqd], list[Conn]]


def nothing(daemon: Nsqd) -> list[Conn]:
    """The noise of the measurement itself."""
    return []


def never_reads(daemon: Nsqd) -> list[Conn]:
    return [
        Conn(daemon.address, receive_buffer=4096).sub("backlog", f"c{n}", rdy=2500)
        for n in range(16)
    ]


def half_sent_bodies(daemon: Nsqd) -> list[Conn]:
    command = b"MPUB half\n" + batch([bytes(100_000)] * 49)
    conns = [Conn(daemon.address) for _ in range(200)]
    for conn in conns:
        send_as_far_as_it_goes(conn, command[:-1], quiet=0.001)
    return conns


def half_sent_lines(daemon: Nsqd) -> list[Conn]:
    conns = [Conn(daemon.address) for _ in range(200)]
    for conn in conns:
        conn.send(publish("half", bytes(1000))[:500])
    return conns


def four_gigabytes(daemon: Nsqd) -> list[Conn]:
    conns = [Conn(daemon.address) for _ in range(200)]
    for conn in conns:
        conn.send(b"PUB half\n", struct.pack(">I", 0xFFFFFFFF), bytes(1000))
    return conns


def too_large(daemon: Nsqd) -> list[Conn]:
    conns = [Conn(daemon.address) for _ in range(20)]
    for conn in conns:
        with contextlib.suppress(OSError):
            conn.send(publish("half", bytes((1 << 20) + 1)))
    return conns


def silent(daemon: Nsqd) -> list[Conn]:
    return [Conn(daemon.address, magic=b"") for _ in range(5000)]


class Dripping:
    """A publisher that sends one byte at a time."""

    def __init__(self, daemon: Nsqd) -> None:
        self._conn = Conn(daemon.address)
        self._body = publish("half", bytes(1_000_000))
        self._at = 0
        self._loop = Loop(self._step)

    def _step(self) -> None:
        self._conn.send(self._body[self._at : self._at + 1])
        self._at = (self._at + 1) % len(self._body)
        time.sleep(0.001)

    def close(self) -> None:
        self._loop.stop()
        self._conn.close()


def drips(daemon: Nsqd) -> list[Conn]:
    return [Dripping(daemon)]  # type: ignore[list-item]


ABUSES: list[Abuse] = [
    nothing,
    never_reads,
    drips,
    four_gigabytes,
    too_large,
    half_sent_lines,
    half_sent_bodies,
    silent,
]


def compare(daemon: Nsqd, load: Load, abuse: Abuse, pairs: int, seconds: float) -> None:
    ratios, alone, beside = [], [], []
    for _ in range(pairs):
        alone.append(load.rate(seconds))
        conns = abuse(daemon)
        beside.append(load.rate(seconds))
        for conn in conns:
            conn.close()
        ratios.append(beside[-1] / alone[-1])
    ratio = statistics.median(ratios)
    mark = "" if ratio >= ENOUGH else f"  < {ENOUGH}"
    print(
        f"{abuse.__name__:18} alone {statistics.median(alone):8.0f}/s"
        f"  beside {statistics.median(beside):8.0f}/s  ratio {ratio:.2f}{mark}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with Nsqd(workers=args.workers) as daemon:
        daemon.web.create("backlog", *(f"c{number}" for number in range(16)))
        producer = daemon.connect()
        for _ in range(80):
            producer.mpub("backlog", [bytes(10_000)] * 50)
        load = Load(daemon)
        load.rate(args.seconds)
        for abuse in ABUSES:
            compare(daemon, load, abuse, args.pairs, args.seconds)
        load.stop()


if __name__ == "__main__":
    main()
