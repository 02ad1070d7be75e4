"""nsqd's bars (performance targets), each with the row that contains its figure.

Measures nothing. The rows come from loadtest.bench.report, for nsqd alone (`nsqd`) and for all
brokers (`peers`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """A figure in a row. `key` is its field, or one of the "figures" that only some scenarios have.
    For most figures, smaller is better; `more` marks figures for which larger is better."""

    about: str
    key: str
    unit: str
    more: bool = False
    scale: float = 1.0  # converts the row's unit to `unit`
    digits: int = 2

    def of(self, row: Row) -> float:
        found = row[self.key] if self.key in row else row["figures"][self.key]
        return float(found) * self.scale

    def told(self, value: float) -> str:
        return f"{value:,.{self.digits}f} {self.unit}"


CPU = Figure("CPU per message", "daemon_us", "µs")
FLOORS = Figure("CPU, relative to the floor", "floors", "×")
MILLIONS = Figure("messages per second", "rate", "M", more=True, scale=1e-6)
THOUSANDS = Figure("messages per second", "rate", "k", more=True, scale=1e-3, digits=0)
P50 = Figure("p50", "p50_us", "ms", scale=1e-3, digits=3)
P99 = Figure("p99", "p99_us", "ms", scale=1e-3)
BYTES = Figure("memory", "bytes", "B", digits=0)
BUSY_TIMES = Figure("speed-up of the busiest process", "busy_ratio", "×", more=True)
MEMORY_TIMES = Figure("messages per second, relative to class memory", "ratio", "×", more=True)
REDIS_TIMES = Figure("messages per second, relative to Redis", "ratio", "×", more=True)
ALONE_TIMES = Figure("ratio of messages per second", "ratio", "×", more=True)
CPU_TIMES = Figure("ratio of CPU per message", "ratio", "×")
COPIED_CPU_TIMES = Figure("ratio of CPU per message", "cpu_ratio", "×")
BEYOND_TWICE = Figure("p99, minus twice that of 1 copy", "beyond_us", "ms", scale=1e-3)
FIRST = Figure("time to the first message", "first_s", "s")
WHOLE = Figure("time until the index is whole", "whole_s", "s")
READY = Figure("time to the first publish after a kill", "ready_s", "s")
DISK_BYTES = Figure("size on disk", "disk_bytes", "B", digits=0)
EXTRA = Figure("CPU, minus that of a publish without ids", "extra_us", "µs")
CALM_TIMES = Figure("ratio of p99", "ratio", "×")


@dataclass(frozen=True)
class Bar:
    work: str  # the name shown to readers
    scenario: str  # the name in SCENARIOS
    row: str  # title of the scenario's row; may contain shell wildcards
    figure: Figure
    bar: float
    go: str = ""  # recorded value for NSQ's own nsqd 1.3.0

    @property
    def promise(self) -> str:
        return f"{'≥' if self.figure.more else '≤'} {self.figure.told(self.bar)}"

    def find(self, rows: Iterable[Row]) -> Row | None:
        """Return the row with the bar's figure; None if it was not measured."""
        found = [
            row
            for row in rows
            if row["name"] == self.scenario and fnmatchcase(row["scenario"], self.row)
        ]
        if len(found) > 1:
            raise ValueError(f"{self.work}: {len(found)} rows are like {self.row}")
        return found[0] if found else None

    def kept(self, row: Row) -> bool:
        value = self.figure.of(row)
        return value >= self.bar if self.figure.more else value <= self.bar


MPUB = "MPUB of 200, 2 connections, recycled memory"
SUB_FIN = "SUB and FIN, RDY 2500, 2 connections"
PUB_WAIT = "PUB, each waiting for its OK, 50 connections"
FAN_OUT = "1 topic to 10 channels, all copies queued, per published message"
TO_DISK, FROM_DISK = "overflow: MPUB to disk", "overflow: SUB and FIN from disk"
SYNCED = "MPUB of 100, 16 connections waiting for a sync"
HTTP = "HTTP /pub, keep-alive, 32 connections"
COPIED = "MPUB of 200, 2 copies vs. 1"
COPIED_WAIT = f"{PUB_WAIT}, 2 copies vs. 1"
NATS_REPLICAS = "MPUB of 200, 3 copies vs. 3 replicas of NATS JetStream"
RABBITMQ_REPLICAS = "MPUB of 200, 3 copies vs. 3 replicas of RabbitMQ"
NATS_WAIT = f"{PUB_WAIT}, 3 copies vs. 3 replicas of NATS JetStream"
RABBITMQ_WAIT = f"{PUB_WAIT}, 3 copies vs. 3 replicas of RabbitMQ"
KEYED = "SUB and FIN, RDY 2500, 10,000 keys"
STILL = "1,000 keys in order, one of them stands still, vs. none"
IDS = "publishing once, class os: an id"
AT_20_K = "publish to delivery at 20 k/s, default settings"

BARS = [
    Bar(MPUB, "batches", "MPUB x200, 2 conn", CPU, 0.30, "0.81 to 0.98 µs"),
    Bar(MPUB, "batches", "MPUB x200, 2 conn", FLOORS, 3.0),
    Bar(MPUB, "batches", "MPUB x200, 2 conn", MILLIONS, 1.8, "0.73 to 1.3 M"),
    Bar(SUB_FIN, "batches", "SUB+FIN RDY 2500, 2 conn", CPU, 0.30, "1.57 to 1.73 µs"),
    Bar(SUB_FIN, "batches", "SUB+FIN RDY 2500, 2 conn", FLOORS, 4.0),
    Bar(SUB_FIN, "batches", "SUB+FIN RDY 2500, 2 conn", MILLIONS, 1.7, "0.67 to 0.71 M"),
    Bar(
        "PUB, 100 pipelined, 1 connection",
        "pipe",
        "PUB, 100 pipelined, 1 conn",
        MILLIONS,
        1.0,
        "0.12 M",
    ),
    Bar(PUB_WAIT, "wait", "PUB, wait for OK, 50 conn, 1 worker", FLOORS, 1.4),
    Bar(
        f"{PUB_WAIT}, 2 workers",
        "wait",
        "PUB, wait for OK, 50 conn, 2 workers",
        THOUSANDS,
        110,
        "63 to 96 k",
    ),
    Bar(
        f"{PUB_WAIT}, 2 workers",
        "wait",
        "PUB, wait for OK, 50 conn, 2 workers",
        CPU,
        8.5,
        "10.2 µs",
    ),
    Bar(
        "PUB over TLS, each waiting for its OK, 16 connections",
        "encoded",
        "PUB, wait for OK, 16 conn, tls",
        CPU,
        22,
        "30.6 µs",
    ),
    Bar(
        "MPUB of 200 over TLS",
        "encoded",
        "MPUB x200, 1 conn, tls",
        CPU,
        1.5,
        "2.23 µs",
    ),
    Bar(
        "SUB and FIN over TLS, RDY 2500",
        "encoded",
        "SUB+FIN RDY 2500, 1 conn, tls",
        CPU,
        4.5,
        "18.8 µs",
    ),
    Bar(AT_20_K, "latency", "latency at 20 k msg/s", P50, 0.06, "2.1 ms"),
    Bar(AT_20_K, "latency", "latency at 20 k msg/s", P99, 2.0, "46 ms"),
    Bar(FAN_OUT, "fanout", "1 topic to 10 channels", CPU, 0.5, "2.8 µs"),
    Bar(FAN_OUT, "fanout", "1 topic to 10 channels", BYTES, 330, "1,450 B"),
    Bar(TO_DISK, "disk", "MPUB x200, to disk", MILLIONS, 1.2, "0.31 to 0.38 M"),
    Bar(TO_DISK, "disk", "MPUB x200, to disk", CPU, 0.8, "3.1 µs"),
    Bar(FROM_DISK, "disk", "SUB+FIN, from disk", MILLIONS, 1.0, "0.31 to 0.38 M"),
    Bar(FROM_DISK, "disk", "SUB+FIN, from disk", CPU, 0.8, "2.5 µs"),
    Bar("MPUB of 200, class os", "durable", "MPUB x200, 2 conn, os", MEMORY_TIMES, 0.6),
    Bar(
        f"{SYNCED}, vs. XADD",
        "synced",
        "Redis streams x100, 16 waiting clients",
        REDIS_TIMES,
        1.0,
    ),
    Bar(
        f"{SYNCED}, vs. LPUSH",
        "synced",
        "Redis lists x100, 16 waiting clients",
        REDIS_TIMES,
        1.0,
    ),
    Bar("a queued message", "memory", "messages queued", BYTES, 270, "350 B"),
    Bar(
        "an idle subscribed connection",
        "idle",
        "idle subscribed connections",
        BYTES,
        4096,
        "36 KB",
    ),
    Bar(HTTP, "http", "HTTP /pub, keep-alive, 32 conn", THOUSANDS, 70, "62 k"),
    Bar(HTTP, "http", "HTTP /pub, keep-alive, 32 conn", CPU, 13, "17.8 µs"),
    Bar(
        "a million deferred messages, due within a minute: lateness",
        "deferred",
        "... due over *",
        P99,
        10,
    ),
    Bar(
        "10,000 new channels, one deferred message each: lateness",
        "young",
        "* channels, 1 deferred each",
        P99,
        10,
        "up to 5,000 ms",
    ),
    Bar(
        "one hot topic (4 channels, 8 consumers, 50 publishers), 2 workers vs. 1",
        "hot",
        "one hot topic, 2 workers",
        BUSY_TIMES,
        1.4,
    ),
    Bar(
        "SUB and FIN, RDY 2500, with a log reader vs. without",
        "replay",
        "SUB+FIN with a log reader",
        ALONE_TIMES,
        0.75,
    ),
    Bar(
        f"{PUB_WAIT}, with retention vs. without",
        "replay",
        "PUB, wait for OK, retention",
        ALONE_TIMES,
        0.85,
    ),
    Bar("4 topics, 2 workers vs. 1", "scaling", "4 topics, 2 workers", CPU_TIMES, 1.15),
    Bar(
        "a TLS consumer, topic on another worker vs. on its own",
        "foreign",
        "TLS consumer, topic on another worker",
        CPU_TIMES,
        1.3,
    ),
    Bar(COPIED, "copies", "MPUB x200, 2 conn, 2 copies", COPIED_CPU_TIMES, 2.5),
    Bar(COPIED, "copies", "MPUB x200, 2 conn, 2 copies", ALONE_TIMES, 0.5),
    Bar(COPIED_WAIT, "copies", "PUB, wait for OK, 50 conn, 2 copies", BEYOND_TWICE, 1.0),
    *(
        Bar(work, "copies", row, figure, 1.0)
        for work, row in (
            (NATS_REPLICAS, "NATS JetStream x200, 2 conn, 3 replicas"),
            (RABBITMQ_REPLICAS, "RabbitMQ x200, 2 conn, 3 replicas"),
            (NATS_WAIT, "NATS JetStream x1, 50 waiting clients, 3 replicas"),
            (RABBITMQ_WAIT, "RabbitMQ x1, 50 waiting clients, 3 replicas"),
        )
        for figure in (ALONE_TIMES, COPIED_CPU_TIMES)
    ),
    *(
        Bar(
            f"{KEYED}, {kind} vs. none",
            "keys",
            f"SUB+FIN, 10,000 keys, {kind}",
            COPIED_CPU_TIMES,
            2.0,
        )
        for kind in ("order", "fair")
    ),
    *(
        Bar(
            f"{KEYED}, from disk, {kind} vs. none",
            "keys",
            f"SUB+FIN from disk, * waiting, {kind}",
            ALONE_TIMES,
            0.25,
        )
        for kind in ("order", "fair")
    ),
    Bar(
        "a key floods with 1,000,000 messages; 99 others, to delivery, fair",
        "tenants",
        "flood: nsqcy, `fair`",
        P99,
        25,
    ),
    Bar(
        "a key floods; others, to FIN, in_flight_per_key, vs. no flood",
        "keys",
        "in_flight_per_key, others to FIN, a flood",
        CALM_TIMES,
        1.2,
    ),
    Bar(STILL, "keys", "1,000 keys, order, one stands still", ALONE_TIMES, 0.95),
    Bar(
        f"{STILL}, with many messages",
        "keys",
        "1,000 keys, order, one with many messages stands still",
        ALONE_TIMES,
        0.9,
    ),
    Bar("a waiting message in an index of keys", "keys", "memory of a waiting *", BYTES, 24),
    Bar("a key that is remembered for its rate", "keys", "memory of a remembered *", BYTES, 64),
    Bar(IDS, "keys", "MPUB x200, os, with ids", BYTES, 40),
    Bar(IDS, "keys", "MPUB x200, os, with ids", DISK_BYTES, 24.4),
    Bar("publishing once, class os", "keys", "MPUB x200, os, with ids", READY, 3),
    Bar("a duplicate, class os", "keys", "MPUB x200, os, duplicates", EXTRA, 1),
    *(
        Bar("restart with an index, a tenth requeued", "keys", "restart, * requeued", figure, most)
        for figure, most in ((FIRST, 1), (WHOLE, 10))
    ),
    Bar(
        "1,000,000 messages of a killed node, lease of 3 s",
        "copies",
        "takeover after kill -9, lease 3 s",
        FIRST,
        8.0,
    ),
]

ACKNOWLEDGED = ("consume, acknowledging each", "consume one by one, 50 waiting clients")


@dataclass(frozen=True)
class Rival:
    """Comparison of nsqd with another broker, consuming with one acknowledgement per message."""

    name: str
    scenario: str
    rate: float  # nsqd's value as a multiple of the other broker's
    cpu: float

    @property
    def ahead(self) -> bool:
        return self.rate > 1 > self.cpu


def rivals(peers: Sequence[Row], ours: str) -> list[Rival]:
    """Compare nsqd with every other broker, but not with a target or with nsqd itself running a
    different number of workers."""
    return [
        Rival(row["contestant"], row["scenario"], 1 / row["rate_times"], 1 / row["cpu_times"])
        for scenario in ACKNOWLEDGED
        for row in peers
        if row["scenario"] == scenario
        and not row["contestant"].startswith((ours, "nsqd"))
        and row["rate_times"]
        and row["cpu_times"]
    ]
