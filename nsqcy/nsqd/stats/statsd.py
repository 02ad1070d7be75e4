"""statsd: lines, packets, and the greenlet that pushes them periodically.

Pure functions create lines and packets; `Pusher` uses the socket and the clock. The caller provides
the figures.
"""

import json
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import gevent
import gevent.socket

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.names import is_ephemeral
from nsqcy.net.listeners import parse
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats.stats_formats import LATENCY
from nsqcy.nsqd.stats.stats_page import Whole
from nsqcy.util.slices import Turns

SECOND = 1_000_000_000
LOOKUP_LIMIT = 1.0  # maximum seconds for resolving a name
DEFAULT_PACKET = 4096  # bytes per packet, if the option's value is unusable
TOPICS_A_TURN = 20
FIGURES = Query(json=True, include_clients=False)

_TOPIC = (("message_count", "c"), ("message_bytes", "c"), ("depth", "g"), ("backend_depth", "g"))
_CHANNEL = (
    ("message_count", "c"),
    ("depth", "g"),
    ("backend_depth", "g"),
    ("in_flight_count", "g"),
    ("deferred_count", "g"),
    ("requeue_count", "c"),
    ("timeout_count", "c"),
)
_MEMORY_GAUGES = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
)

Counters = Mapping[str, Any]


class Increases:
    """Computes how much each counter has grown since the previous push.

    A smaller value comes from a new object, and is treated as growth from 0.
    """

    def __init__(self) -> None:
        self._before: dict[tuple[str, ...], int] = {}
        self._now: dict[tuple[str, ...], int] = {}

    def of(self, key: tuple[str, ...], value: int) -> int:
        before = self._before.get(key, 0)
        self._now[key] = value
        return value - before if value >= before else value

    def dump(self) -> list[Any]:
        """Return the values of the previous push, for the master's next version."""
        return [[key, value] for key, value in self._before.items()]

    def restore(self, dumped: list[Any]) -> None:
        """Continue with the values of the previous version."""
        self._before = {tuple(key): value for key, value in dumped}

    def end_push(self, complete: bool) -> None:
        """`complete`: whether a missing object was deleted, rather than being unreachable."""
        self._before = self._now if complete else self._before | self._now
        self._now = {}


class Writer:
    """Creates the lines of each push."""

    def __init__(self, prefix: str, *, exclude_ephemeral: bool) -> None:
        self._prefix = prefix
        self._exclude_ephemeral = exclude_ephemeral
        self.increases = Increases()

    def topic(self, topic: Counters) -> Iterator[bytes]:
        """Yield the lines for a topic, in the form of /stats, and for its channels."""
        name = topic["topic_name"]
        if self._excluded(name):
            return
        stat = f"topic.{name}."
        yield from self._figures(stat, (name,), topic, _TOPIC)
        yield from self._latency(stat, topic)
        for channel in topic["channels"]:
            if not self._excluded(channel["channel_name"]):
                yield from self._channel(stat, name, channel)

    def memory(self, memory: Mapping[str, int]) -> Iterator[bytes]:
        for key in _MEMORY_GAUGES:
            yield self._line(f"mem.{key}", memory[key], "g")
        runs = self.increases.of(("gc_runs",), memory["gc_total_runs"])
        yield self._line("mem.gc_runs", runs, "c")

    def end_push(self, complete: bool) -> None:
        self.increases.end_push(complete)

    def _channel(self, stat: str, topic: str, channel: Counters) -> Iterator[bytes]:
        name = channel["channel_name"]
        stat = f"{stat}channel.{name}."
        yield from self._figures(stat, (topic, name), channel, _CHANNEL)
        yield self._line(f"{stat}clients", channel["client_count"], "g")
        yield from self._latency(stat, channel)

    def _figures(
        self,
        stat: str,
        key: tuple[str, ...],
        counters: Counters,
        figures: Iterable[tuple[str, str]],
    ) -> Iterator[bytes]:
        for name, kind in figures:
            value = counters[name]
            if kind == "c":
                value = self.increases.of((*key, name), value)
            yield self._line(stat + name, value, kind)

    def _latency(self, stat: str, counters: Counters) -> Iterator[bytes]:
        for item in counters[LATENCY]["percentiles"] or ():
            name = f"{stat}{LATENCY}_{_percent(item['quantile'])}"
            yield self._line(name, item["value"], "g")

    def _excluded(self, name: str) -> bool:
        return self._exclude_ephemeral and is_ephemeral(name)

    def _line(self, stat: str, value: float, kind: str) -> bytes:
        return f"{self._prefix}{stat}:{int(value)}|{kind}\n".encode()


def _percent(quantile: float) -> str:
    """Return 99 for 0.99 and 99_9 for 0.999: a dot would begin another level in Graphite."""
    return f"{quantile * 100:.9f}".rstrip("0").rstrip(".").replace(".", "_")


def packets(lines: Iterable[bytes], size: int) -> list[bytes]:
    """Pack lines into datagrams of at most `size` bytes; a longer line is sent on its own without
    being split."""
    limit = size if size > 0 else DEFAULT_PACKET
    packed: list[bytes] = []
    open_lines: list[bytes] = []
    length = 0
    for line in lines:
        if open_lines and length + len(line) > limit:
            packed.append(b"".join(open_lines))
            open_lines, length = [], 0
        open_lines.append(line)
        length += len(line)
    if open_lines:
        packed.append(b"".join(open_lines))
    return packed


class Pusher:
    """Pushes periodically; the first push is one interval after the start.

    `gather` returns the figures."""

    def __init__(self, options: NsqdOptions, gather: Callable[[Query], Whole], log: Lines) -> None:
        self._options = options
        self._gather = gather
        self._log = log
        self._turns = Turns()
        self._writer = Writer(
            options.statsd_prefix, exclude_ephemeral=options.statsd_exclude_ephemeral
        )
        self._greenlet: gevent.Greenlet | None = None
        self._due: float | None = None  # of the latest push, on the monotonic clock
        self._sock: socket.socket | None = None
        self._unsent: deque[bytes] = deque()  # datagrams of a push

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def rest(self) -> None:
        """Send the rest of a push at once, and push no more until `start`."""
        if self._greenlet is not None:
            self._greenlet.kill(block=False)
            self._greenlet = None
        while self._sock is not None and self._unsent:
            self._send_next(self._sock)

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {"due": self._due, "before": self._writer.increases.dump()}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        self._due = dumped["due"]
        self._writer.increases.restore(dumped["before"])

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
            self._log.info("STATSD: closing")

    def _run(self) -> None:
        interval = self._options.statsd_interval / SECOND
        if self._due is None:
            self._due = time.monotonic()
        while True:
            due = self._due + interval
            late = time.monotonic() - due
            if late > 0:  # missed pushes are not repeated
                due += late // interval * interval
            gevent.sleep(max(0.0, due - time.monotonic()))
            self._due = due
            self._push()

    def _push(self) -> None:
        address = self._options.statsd_address
        try:
            sock = dial(address)
        except (OSError, UnicodeError, gevent.Timeout):
            events.statsd_failed(self._log, address=address)
            return
        with sock:
            self._log.info(f"STATSD: pushing stats to {address}")
            self._send(sock, packets(self._lines(), self._options.statsd_udp_packet_size))

    def _lines(self) -> Iterator[bytes]:
        whole = self._gather(FIGURES)
        for number, piece in enumerate(whole.json_topics()):
            if number % TOPICS_A_TURN == 0:
                self._turns.wait()
            yield from self._writer.topic(json.loads(piece))
        if self._options.statsd_mem_stats:
            yield from self._writer.memory(whole.memory)
        self._writer.end_push(whole.complete)

    def _send(self, sock: socket.socket, datagrams: list[bytes]) -> None:
        """Send the datagrams spread over the interval, except for its last second."""
        self._sock, self._unsent = sock, deque(datagrams)
        while self._unsent:
            self._send_next(sock)
            gevent.sleep((self._options.statsd_interval - SECOND) / SECOND / len(datagrams))

    def _send_next(self, sock: socket.socket) -> None:
        try:
            sock.send(self._unsent.popleft())
        except OSError:
            pass  # ignored, like any lost datagram


def dial(address: str) -> socket.socket:
    """Return a socket to `host:port`; the name is resolved outside the hub."""
    where = parse(address)
    if where.path is not None:
        raise OSError("missing port in address")
    with gevent.Timeout(LOOKUP_LIMIT):
        found = gevent.socket.getaddrinfo(
            where.host or "localhost", where.port, type=socket.SOCK_DGRAM
        )
    family, kind, protocol, _, target = found[0]
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, protocol)
    try:
        sock.connect(target)
    except OSError:
        sock.close()
        raise
    return sock
