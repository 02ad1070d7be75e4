"""Capacity model: a pure function of the load, the hosts and the measurements.

Every amount is a sum of parts, each with its source. The result is an estimate for
planning: machines differ, and so do loads that look similar.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from nsqcy.capacity import measured
from nsqcy.capacity.figure import Figure

BODY = 200  # body size in the measurements, bytes
LARGE_BODY = 100_000
RECORD = 48  # bytes on disk in addition to a body (docs/DISKFORMAT.md)
IN_MEMORY = 10_000  # --mem-queue-size, messages per topic
MICROSECOND = 1e-6
PROTOCOL = "NSQ's protocol"
DISK = "size of a record (DISKFORMAT.md)"
COMMAND = 40  # bytes of a PUB or MPUB without messages, including its OK
SIZE = 4  # bytes before a body
FRAME = 34  # bytes of a delivery in addition to the body
FIN = 21


class Load(NamedTuple):
    """A load. Times are in seconds."""

    rate: float  # messages per second
    body: int  # bytes per message
    topics: int
    channels: int  # per topic
    connections: int
    batch: int  # messages per publish
    ready: int  # a consumer's RDY
    durability: str
    tls: bool
    away: float  # maximum time that consumers are offline
    handling: float  # time a consumer takes to finish a message
    retention: float
    deferred: float  # share of messages with a delay
    delay: float
    sync: float  # duration of a disk sync

    @property
    def deliveries(self) -> float:
        return self.rate * self.channels

    @property
    def is_on_disk(self) -> bool:
        return self.durability != "memory" or self.retention > 0 or self.away > 0

    @property
    def record(self) -> int:
        """Bytes per message in a log."""
        return self.body + RECORD

    @property
    def waiting(self) -> float:
        """One channel's deferred messages."""
        return self.rate * self.deferred * self.delay


class Host(NamedTuple):
    """Resources of one host, all available to its nsqd."""

    cores: int
    speed: float  # core speed, relative to the measured machine
    memory: float  # bytes
    disk: float
    disk_rate: float  # bytes per second
    network: float  # bytes per second, in each direction


class Part(NamedTuple):
    """One part of an amount, and its source."""

    what: str
    amount: float
    source: str


class Need(NamedTuple):
    """Total need for one resource. `of` is the amount available to one nsqd."""

    name: str
    unit: str
    of: float
    parts: tuple[Part, ...]

    @property
    def amount(self) -> float:
        return sum(part.amount for part in self.parts)


class Plan(NamedTuple):
    """The result. `nsqds` is the number needed for the load; the other fields are per nsqd."""

    needs: tuple[Need, ...]
    wanted: dict[str, int]  # number of nsqds that each need requires
    nsqds: int
    workers: int
    memory: float  # bytes, including headroom
    disk: float
    notes: tuple[str, ...]


class Impossible(Exception):
    """No number of such hosts can handle the load; str() returns the reason."""


def plan(load: Load, host: Host, free: float) -> Plan:
    """Return the plan. free: share of all resources to keep free. Raises Impossible."""
    usable = 1 - free
    processes = measured.PROCESSES.value / 2
    # An nsqd's fixed needs do not depend on the number of nsqds.
    room = host.memory * usable - (host.cores + 1) * processes
    if room <= 0:
        raise Impossible(
            f"each host has too little memory for {host.cores + 1} processes of "
            f"{processes / 1e6:.0f} MB with the requested headroom"
        )
    # Each topic uses one worker per nsqd.
    cores = min(host.cores, load.topics)
    needs = (
        Need("cores", "cores", cores * host.speed, tuple(_cores(load, usable * host.speed))),
        Need("memory for messages and clients", "B", room / usable, tuple(_memory(load))),
        Need("disk, written", "B/s", host.disk_rate, tuple(_written(load))),
        Need("disk, kept", "B", host.disk, tuple(_kept(load))),
        Need("network, in", "B/s", host.network, tuple(_received(load))),
        Need("network, out", "B/s", host.network, tuple(_sent(load))),
    )
    wanted = {each.name: max(1, math.ceil(each.amount / (each.of * usable))) for each in needs}
    nsqds = max(wanted.values())
    share = {each.name: each.amount / usable / nsqds for each in needs}
    workers = min(cores, max(1, math.ceil(share["cores"] / host.speed)))
    return Plan(
        needs,
        wanted,
        nsqds,
        workers,
        share["memory for messages and clients"] + (workers + 1) * processes / usable,
        share["disk, kept"],
        tuple(_notes(load, host, wanted)),
    )


# --- cores --------------------------------------------------------------------------------------


def _cores(load: Load, usable: float) -> Iterator[Part]:
    one = [*_publishing(load), *_delivering(load)]
    busy = sum(part.amount for part in one)
    yield from one
    if (turns := _turns(load.rate) - busy) > 0:
        source = "; ".join(map(str, (measured.SLOW, measured.STEADY, measured.FAST)))
        yield Part("event-loop iterations that handle few messages", turns, source)
        busy += turns
    if busy > usable:
        figure = measured.WORKERS
        overhead = max(0.0, figure.value - 1)  # the measured difference may be negative
        yield Part("overhead of multiple workers", busy * overhead, str(figure))
    if load.deferred:
        yield _of("deferring", load.rate * load.deferred, measured.DEFER)
        yield _of("deferred messages becoming due", load.deliveries * load.deferred, measured.DUE)


def _publishing(load: Load) -> Iterator[Part]:
    by_class = {
        "memory": measured.PUBLISH_OVERFLOW if load.is_on_disk else measured.PUBLISH,
        "os": measured.PUBLISH_OS,
        "fsync": measured.PUBLISH_FSYNC,
    }
    yield _of("publishing, per message", load.rate, by_class[load.durability])
    yield _of(
        "publishing, per command",
        load.rate / load.batch,
        measured.PUBLISH_ALONE,
        less=measured.PUBLISH.value,
    )
    yield from _bytes(load, "publishing", load.rate, measured.PUBLISH_TLS, measured.PUBLISH)


def _delivering(load: Load) -> Iterator[Part]:
    figure = measured.DELIVER_OVERFLOW if load.away else measured.DELIVER
    yield _of("delivering and finishing", load.deliveries, figure)
    yield _of(
        "single deliveries",
        load.deliveries / load.ready,
        measured.DELIVER_ALONE,
        less=measured.DELIVER.value,
    )
    yield from _bytes(load, "delivering", load.deliveries, measured.DELIVER_TLS, measured.DELIVER)


def _bytes(load: Load, what: str, rate: float, tls: Figure, plain: Figure) -> Iterator[Part]:
    """Yield the extra cost of bodies larger than the measured ones, and of encrypting them."""
    if load.body > BODY:
        # The measurement includes both directions: one way is half of it.
        each = measured.LARGE.value / 2 * (load.body - BODY) / LARGE_BODY
        yield Part(f"{what}, larger bodies", rate * each * MICROSECOND, str(measured.LARGE))
    if load.tls:
        each = (tls.value - plain.value) * max(load.body, BODY) / BODY
        yield Part(f"{what}, TLS", rate * each * MICROSECOND, str(tls))


def _of(what: str, rate: float, figure: Figure, less: float = 0.0) -> Part:
    return Part(what, rate * (figure.value - less) * MICROSECOND, str(figure))


def _turns(rate: float) -> float:
    """Return the cores that a worker uses for event-loop iterations at this message rate,
    interpolated between and extrapolated beyond the measurements."""
    rates = (0, 1_000, 20_000, 200_000)
    costs = (0.0, measured.SLOW.value, measured.STEADY.value, measured.FAST.value)
    cores = [each * cost * MICROSECOND for each, cost in zip(rates, costs, strict=True)]
    for at in range(1, len(rates)):
        if rate <= rates[at]:
            within = (rate - rates[at - 1]) / (rates[at] - rates[at - 1])
            return cores[at - 1] + within * (cores[at] - cores[at - 1])
    return cores[-1]


# --- memory and disk ----------------------------------------------------------------------------


def _memory(load: Load) -> Iterator[Part]:
    record = load.body + measured.QUEUED.value - BODY
    queued = min(load.rate * load.away, load.topics * IN_MEMORY)
    if queued:
        yield Part("waiting messages, --mem-queue-size", queued * record, str(measured.QUEUED))
    taken = load.deliveries * load.handling
    yield Part("messages in flight", taken * measured.IN_FLIGHT.value, str(measured.IN_FLIGHT))
    yield Part("bodies in flight", load.rate * load.handling * record, str(measured.QUEUED))
    if load.waiting:
        amount = load.waiting * load.channels * measured.DEFERRED.value
        yield Part("deferred messages", amount, str(measured.DEFERRED))
    connection = measured.TLS_CONNECTION if load.tls else measured.CONNECTION
    yield Part("connections", load.connections * connection.value, str(connection))
    yield Part("topics", load.topics * measured.TOPIC.value, str(measured.TOPIC))
    channels = load.topics * load.channels
    yield Part("channels", channels * measured.CHANNEL.value, str(measured.CHANNEL))


def _written(load: Load) -> Iterator[Part]:
    if load.is_on_disk:
        yield Part("records", load.rate * load.record, DISK)


def _kept(load: Load) -> Iterator[Part]:
    # Waiting and retained records share one log, so only the larger amount counts.
    yield Part(
        "waiting or retained records",
        load.rate * max(load.away, load.retention) * load.record,
        DISK,
    )
    if load.waiting:
        yield Part("records for deferred messages", load.waiting * load.record, DISK)
        amount = load.waiting * load.channels * measured.DEFERRED_JOURNAL.value
        yield Part("journal entries for deferred messages", amount, str(measured.DEFERRED_JOURNAL))


# --- network ------------------------------------------------------------------------------------


def _received(load: Load) -> Iterator[Part]:
    yield Part("messages", load.rate * (load.body + SIZE), PROTOCOL)
    yield Part("commands", load.rate / load.batch * COMMAND, PROTOCOL)
    yield Part("FINs", load.deliveries * FIN, PROTOCOL)


def _sent(load: Load) -> Iterator[Part]:
    yield Part("deliveries", load.deliveries * (load.body + FRAME), PROTOCOL)


# --- notes --------------------------------------------------------------------------------------


def _notes(load: Load, host: Host, wanted: dict[str, int]) -> Iterator[str]:
    if load.topics < host.cores and wanted["cores"] == max(wanted.values()) > 1:
        yield (
            f"each topic uses one worker per nsqd, so only {load.topics} of {host.cores} cores per"
            " host are counted; more topics would use more cores"
        )
    if load.durability == "fsync":
        under_way = math.ceil(load.rate / load.batch * load.sync)
        yield (
            f"each OK waits for a sync of {load.sync * 1000:g} ms: this rate needs {under_way:,}"
            " concurrent publishes, from many connections or from a few with pipelining"
        )
    if load.deferred and load.delay > 3600:
        yield "a delay of more than an hour needs --max-defer-timeout"
    if load.body > 1 << 20:
        yield "a message of more than 1 MiB needs --max-msg-size"
    if not load.is_on_disk:
        yield (
            "no disk writes are counted, because consumers are never offline; set --consumers-away"
            " to a realistic value"
        )
