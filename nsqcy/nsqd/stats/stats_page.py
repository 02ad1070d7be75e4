"""/stats: each worker's share, and the page that the master builds from all shares.

A worker walks its topics in slices, so that deliveries continue between slices. It returns finished
pieces of the page, which the master sorts and joins without parsing.

    value   {"known", "health", "health_at", "reads", "memory", "producers", "events"}   see pack()
    blob    for each topic u16 length of its name, u32 length of its piece, name, piece;
            then `producers` bytes of producers
"""

import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import recent_rates, stats_formats
from nsqcy.nsqd.stats.recent_rates import RecentRates, count_backing_off, count_saturated, is_full
from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.nsqd.stats.stats_formats import Form, Head
from nsqcy.process.control import Answer
from nsqcy.util.slices import Slices

SLICE = 64
"""Topics, channels and clients per slice: about 0.2 ms of work."""

ENTRIES = 2048
"""Topics that the master combines in one step: about 1 ms of work."""

_ENTRY = struct.Struct("<HI")


# The worker's half


class Counted(Protocol):
    def counters(self) -> dict[str, Any]: ...


class Client(Counted, Protocol):
    @property
    def closed(self) -> bool: ...


class Consumer(Client, recent_rates.Consumer, Protocol): ...


AnyClient = TypeVar("AnyClient", bound=Client)


class Channel(Counted, recent_rates.Channel, Protocol):
    """A channel. Its individual counters are used only for rates."""


class Topic(Counted, recent_rates.Topic, Protocol):
    def ledger(self) -> dict[str, Any]: ...
    @property
    def gone(self) -> bool: ...


class Walk:
    """One share in progress. Objects that are deleted between slices are omitted. JSON includes the
    rates, if there are any."""

    def __init__(
        self,
        query: Query,
        give_way: Callable[[], None],
        now: int,
        rates: RecentRates | None = None,
    ) -> None:
        self._rates = rates if query.json else None
        self._query = query
        self._form: Form = stats_formats.form(query)
        self._now = now
        self._slices = Slices(give_way, SLICE)

    def topics(self, topics: Iterable[Topic]) -> Iterator[tuple[bytes, bytes]]:
        """Yield each selected topic's name and piece."""
        for topic in topics:
            piece = self._topic(topic)
            if piece is not None:
                yield topic.name.encode(), stats_formats.encode(piece)

    def producers(self, clients: Iterable[Client]) -> bytes:
        if not self._query.include_clients:
            return b""
        pieces = [self._client(each.counters()) for each in self._open(clients)]
        return stats_formats.encode(self._form.producers(pieces))

    def _topic(self, topic: Topic) -> str | None:
        self._slices.step()
        wanted = self._query.channel
        channels = topic.channels
        if topic.gone or (wanted and wanted not in channels):
            return None
        names = [wanted] if wanted else sorted(channels)
        pieces = [self._channel(topic.name, channels[name]) for name in names if name in channels]
        counters = self._counters(topic)
        if self._rates is not None:
            counters["publish_rate"] = self._rates.of_topic(topic)
        return self._form.topic(counters, pieces)

    def _channel(self, topic: str, channel: Channel) -> str:
        self._slices.step()
        counters = self._counters(channel)
        depth = counters["depth"]
        if self._rates is not None:
            backlog = depth + counters["in_flight_count"]
            counters["rates"] = self._rates.of_channel(topic, channel, backlog)
            counters["saturated_client_count"] = count_saturated(channel, depth)
            counters["backing_off_client_count"] = count_backing_off(channel, depth)
        shows_clients = self._query.include_clients
        clients = self._consumers(topic, channel, depth) if shows_clients else None
        return self._form.channel(counters, clients)

    def _counters(self, counted: Topic | Channel) -> dict[str, Any]:
        counters = counted.counters()
        if self._query.ledger and self._query.json:
            counters["ledger"] = counted.ledger()
        return counters

    def _consumers(self, topic: str, channel: Channel, depth: int) -> list[str]:
        pieces = []
        for consumer in self._open(list(channel.consumers)):
            counters = consumer.counters()
            if self._rates is not None:
                counters["finish_rate"] = self._rates.of_consumer(topic, channel.name, consumer)
                counters["saturated"] = depth > 0 and is_full(consumer)
            pieces.append(self._client(counters))
        return pieces

    def _open(self, clients: Iterable[AnyClient]) -> Iterator[AnyClient]:
        for client in clients:
            self._slices.step()
            if not client.closed:
                yield client

    def _client(self, counters: Mapping[str, Any]) -> str:
        return self._form.client(counters, self._query.topic, self._now)


class Health(NamedTuple):
    """The outcome and time of a worker's latest write to a log; if applicable, the topics
    that cannot be read, and the hung disk operation."""

    text: str
    at: int
    reads: str | None = None
    hung: str | None = None


def pack(
    topics: Iterable[tuple[bytes, bytes]],
    producers: bytes,
    *,
    known: bool,
    health: Health,
    memory: Mapping[str, int],
    events: Mapping[str, int] | None = None,
) -> Answer:
    """Encode a share. `known`: whether the requested topic exists; `events`: the numbers of
    published and dropped events, if events are enabled."""
    parts = []
    for name, piece in topics:
        parts += [_ENTRY.pack(len(name), len(piece)), name, piece]
    parts.append(producers)
    value = {
        "known": known,
        "health": health.text,
        "health_at": health.at,
        "reads": health.reads,
        "hung": health.hung,
        "memory": memory,
        "producers": len(producers),
        "events": events,
    }
    return Answer(value, b"".join(parts))


# The master's half


class Whole(NamedTuple):
    """All shares combined. `topics` are sorted."""

    topics: list[tuple[bytes, bytes]]
    producers: list[bytes]
    known: bool
    health: str
    memory: dict[str, int]
    complete: bool  # whether every worker has answered
    events: dict[str, int] | None = None


def merge(
    answers: Sequence[Answer], workers: int, give_way: Callable[[], None] = lambda: None
) -> Whole:
    """Combine the shares of the workers that answered; `workers` is the total number of workers.
    give_way: lets other work run"""
    topics: list[tuple[bytes, bytes]] = []
    producers = []
    slices = Slices(give_way, ENTRIES)
    for answer in answers:
        end = len(answer.blob) - answer.value["producers"]
        for entry in _entries(answer.blob, end):
            slices.step()
            topics.append(entry)
        if end < len(answer.blob):
            producers.append(answer.blob[end:])
    slices.end()
    slices.step()
    topics.sort()
    values = [answer.value for answer in answers]
    return Whole(
        topics,
        producers,
        any(value["known"] for value in values),
        overall_health(values, workers),
        stats_formats.merge_memory(value["memory"] for value in values),
        len(answers) == workers,
        stats_formats.merge_events(value["events"] for value in values),
    )


def overall_health(values: Sequence[Mapping[str, Any]], workers: int) -> str:
    """Return nsqd's health: first a missing worker, then a hung disk, unprotected copies or a topic
    that cannot be read, otherwise the outcome of the latest write."""
    if len(values) < workers:
        missing = workers - len(values)
        return f"NOK - {missing} of {workers} workers are being restarted"
    for value in values:
        if value.get("hung") is not None:
            return f"NOK - {value['hung']}"
        if value.get("copies"):
            return f"NOK - {value['copies']}"
        if value.get("reads"):
            return f"NOK - {value['reads']}"
    latest = max(values, key=lambda value: value["health_at"])
    return str(latest["health"])


def _entries(blob: bytes, end: int) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < end:
        name_length, length = _ENTRY.unpack_from(blob, at)
        start = at + _ENTRY.size
        at = start + name_length + length
        yield blob[start : start + name_length], blob[start + name_length : at]


def page(whole: Whole, query: Query, *, started: int, now: int, draining: bool = False) -> bytes:
    """Return the body of the response to /stats."""
    topics = [piece for _, piece in whole.topics]
    unknown = bool(query.topic) and not whole.known
    return stats_formats.form(query).page(
        Head(whole.health, started, now, draining),
        None if unknown else topics,
        whole.memory if query.include_mem else None,
        [] if unknown else whole.producers,
        whole.events,
    )


class StatsPages:
    """The master's answers to requests for the complete page.

    `ask_all` requests the share of every running worker. `started` is nsqd's start, wall clock ns.
    `is_draining` returns whether nsqd rejects publishes. `give_way` lets other work run.
    """

    def __init__(
        self,
        ask_all: Callable[[Query], Sequence[Answer]],
        workers: int,
        started: int,
        is_draining: Callable[[], bool],
        give_way: Callable[[], None],
    ) -> None:
        self._ask_all = ask_all
        self._is_draining = is_draining
        self._give_way = give_way
        self._workers = workers
        self._started = started
        self._pages = RequestCoalescer(self._page)

    def page(self, query: Query) -> bytes:
        """Return the page. Blocks until all workers have answered."""
        return self._pages.ask(query)

    def whole(self, query: Query) -> Whole:
        """Return the combined shares without formatting a page."""
        return merge(self._ask_all(query), self._workers, self._give_way)

    def _page(self, query: Query) -> bytes:
        whole = self.whole(query)
        self._give_way()
        now, draining = time.time_ns(), self._is_draining()
        return page(whole, query, started=self._started, now=now, draining=draining)
