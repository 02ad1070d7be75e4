"""What a load takes: a pure function of the load, the hosts and what was measured.

Every amount is a sum of parts, and every part names the figure that it comes from. It is an
estimate for planning: machines differ, and so do loads that look alike.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from nsqcy.capacity import measured
from nsqcy.capacity.figure import Figure

BODY = 200  # bytes of the messages that were measured
LARGE_BODY = 100_000
RECORD = 48  # bytes on disk beside a body (docs/DISKFORMAT.md)
IN_MEMORY = 10_000  # --mem-queue-size, messages of a topic
MICROSECOND = 1e-6
PROTOCOL = "NSQ's protocol"
DISK = "a record, DISKFORMAT.md"
COMMAND = 40  # bytes of a PUB or MPUB without messages, with its OK
SIZE = 4  # bytes before a body
FRAME = 34  # bytes of a delivery beside the body
FIN = 21


class Load(NamedTuple):
    """What comes, and for how long it stays. Times are seconds."""

    rate: float  # messages a second
    body: int  # bytes of one
    topics: int
    channels: int  # of each topic
    connections: int
    batch: int  # messages in a publish
    ready: int  # RDY of a consumer
    durability: str
    tls: bool
    away: float  # how long consumers may be away
    handling: float  # how long a consumer has a message
    retention: float
    deferred: float  # the share of messages with a delay
    delay: float
    sync: float  # what a sync of the disk takes

    @property
    def deliveries(self) -> float:
        return self.rate * self.channels

    @property
    def is_on_disk(self) -> bool:
        return self.durability != "memory" or self.retention > 0 or self.away > 0

    @property
    def record(self) -> int:
        """Bytes of a message in a log."""
        return self.body + RECORD

    @property
    def waiting(self) -> float:
        """Messages with a delay that are not due, of one channel."""
        return self.rate * self.deferred * self.delay


class Host(NamedTuple):
    """What one nsqd may have, all of it."""

    cores: int
    speed: float  # of a core, beside that of the measured machine
    memory: float  # bytes
    disk: float
    disk_rate: float  # bytes a second
    network: float  # bytes a second, each way


class Part(NamedTuple):
    """A part of an amount, and what it comes from."""

    what: str
    amount: float
    source: str


class Need(NamedTuple):
    """What all nsqds together need of one thing. `of` is what one has of it."""

    name: str
    unit: str
    of: float
    parts: tuple[Part, ...]

    @property
    def amount(self) -> float:
        return sum(part.amount for part in self.parts)


class Plan(NamedTuple):
    """What it takes. `nsqds` carry the load; each of them has the rest."""

    needs: tuple[Need, ...]
    wanted: dict[str, int]  # nsqds that each need asks for
    nsqds: int
    workers: int
    memory: float  # bytes, with what is left free
    disk: float
    notes: tuple[str, ...]


class Impossible(Exception):
    """No number of such hosts would do; str() says why."""


def plan(load: Load, host: Host, free: float) -> Plan:
    """How many nsqds, of which a share `free` of everything is left free. Raises Impossible."""
    usable = 1 - free
    processes = measured.PROCESSES.value / 2
    # What each nsqd needs for itself is no matter of how many there are.
    room = host.memory * usable - (host.cores + 1) * processes
    if room <= 0:
        raise Impossible(
            f"memory of a host is too small for {host.cores + 1} processes of"
            f" {processes / 1e6:.0f} MB with so much of it free"
        )
    # A topic has one worker on each nsqd.
    cores = min(host.cores, load.topics)
    needs = (
        Need("cores", "cores", cores * host.speed, tuple(_cores(load, usable * host.speed))),
        Need("memory of messages and clients", "B", room / usable, tuple(_memory(load))),
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
        share["memory of messages and clients"] + (workers + 1) * processes / usable,
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
        yield Part("turns with few messages each", turns, source)
        busy += turns
    if busy > usable:
        figure = measured.WORKERS
        yield Part("more than one worker", busy * (figure.value - 1), str(figure))
    if load.deferred:
        yield _of("deferring", load.rate * load.deferred, measured.DEFER)
        yield _of("deferred messages that are due", load.deliveries * load.deferred, measured.DUE)


def _publishing(load: Load) -> Iterator[Part]:
    by_class = {
        "memory": measured.PUBLISH_OVERFLOW if load.is_on_disk else measured.PUBLISH,
        "os": measured.PUBLISH_OS,
        "fsync": measured.PUBLISH_FSYNC,
    }
    yield _of("publishing, by message", load.rate, by_class[load.durability])
    yield _of(
        "publishing, by command",
        load.rate / load.batch,
        measured.PUBLISH_ALONE,
        less=measured.PUBLISH.value,
    )
    yield from _bytes(load, "publishing", load.rate, measured.PUBLISH_TLS, measured.PUBLISH)


def _delivering(load: Load) -> Iterator[Part]:
    figure = measured.DELIVER_OVERFLOW if load.away else measured.DELIVER
    yield _of("delivering and finishing", load.deliveries, figure)
    yield _of(
        "deliveries that come alone",
        load.deliveries / load.ready,
        measured.DELIVER_ALONE,
        less=measured.DELIVER.value,
    )
    yield from _bytes(load, "delivering", load.deliveries, measured.DELIVER_TLS, measured.DELIVER)


def _bytes(load: Load, what: str, rate: float, tls: Figure, plain: Figure) -> Iterator[Part]:
    """What a larger body costs than those that were measured, and its encryption."""
    if load.body > BODY:
        # In and out was measured: one way is half of it.
        each = measured.LARGE.value / 2 * (load.body - BODY) / LARGE_BODY
        yield Part(f"{what}, larger bodies", rate * each * MICROSECOND, str(measured.LARGE))
    if load.tls:
        each = (tls.value - plain.value) * max(load.body, BODY) / BODY
        yield Part(f"{what}, TLS", rate * each * MICROSECOND, str(tls))


def _of(what: str, rate: float, figure: Figure, less: float = 0.0) -> Part:
    return Part(what, rate * (figure.value - less) * MICROSECOND, str(figure))


def _turns(rate: float) -> float:
    """Cores of a worker to which so many messages come a second, evenly: between and beyond what
    was measured."""
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
        yield Part("messages that wait, --mem-queue-size", queued * record, str(measured.QUEUED))
    taken = load.deliveries * load.handling
    yield Part("messages in flight", taken * measured.IN_FLIGHT.value, str(measured.IN_FLIGHT))
    yield Part("their bodies", load.rate * load.handling * record, str(measured.QUEUED))
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
    # Both are of one log: what is retained is what waits as well.
    yield Part(
        "records that wait or are retained",
        load.rate * max(load.away, load.retention) * load.record,
        DISK,
    )
    if load.waiting:
        yield Part("records of deferred messages", load.waiting * load.record, DISK)
        amount = load.waiting * load.channels * measured.DEFERRED_JOURNAL.value
        yield Part("their places in the journal", amount, str(measured.DEFERRED_JOURNAL))


# --- network ------------------------------------------------------------------------------------


def _received(load: Load) -> Iterator[Part]:
    yield Part("messages", load.rate * (load.body + SIZE), PROTOCOL)
    yield Part("commands", load.rate / load.batch * COMMAND, PROTOCOL)
    yield Part("FINs", load.deliveries * FIN, PROTOCOL)


def _sent(load: Load) -> Iterator[Part]:
    yield Part("deliveries", load.deliveries * (load.body + FRAME), PROTOCOL)


# --- what else there is to know -----------------------------------------------------------------


def _notes(load: Load, host: Host, wanted: dict[str, int]) -> Iterator[str]:
    if load.topics < host.cores and wanted["cores"] == max(wanted.values()) > 1:
        yield (
            f"a topic is one worker's on each nsqd, so {load.topics} of {host.cores} cores of a"
            " host are counted; more topics would use more of them"
        )
    if load.durability == "fsync":
        under_way = math.ceil(load.rate / load.batch * load.sync)
        yield (
            f"an OK takes a sync of {load.sync * 1000:g} ms: {under_way:,} publishes have to be"
            " under way at a time, of many connections or of few that do not wait"
        )
    if load.deferred and load.delay > 3600:
        yield "a delay of more than an hour needs --max-defer-timeout"
    if load.body > 1 << 20:
        yield "a message of more than 1 MiB needs --max-msg-size"
    if not load.is_on_disk:
        yield (
            "nothing is counted as written, as consumers are never away; they will be: see"
            " --consumers-away"
        )
