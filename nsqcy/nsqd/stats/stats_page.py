"""/stats: each worker's share, and the page that the master plans from all shares.

A worker walks its topics in slices, so that deliveries continue between slices. It writes finished
pieces of the page to the page's shared buffer (page_buffer.py). The master merges the order of the
topics without reading their pieces, and the worker that received the request reads the page.

    value   {"known", "health", "health_at", "reads", "hung", "memory", "events", "sizes"};
            `sizes`: bytes of the topics, and of the producers, which follow them
    blob    the index of the topics; see server/page_pieces.pyx
"""

import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nsqcy.http.long_answers import in_order
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import stats_formats
from nsqcy.nsqd.stats.page_buffer import REGION, Piece, SharedBuffer, Writer, plan
from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.nsqd.stats.stats_formats import Head
from nsqcy.process.control import Answer
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import PieceMerge, StatsShare, separators
from nsqcy.util.slices import finish

SLICE = 512
"""Topics, channels and clients per slice: about 0.5 ms of work."""

MERGED = 16384
"""Topics that the master merges in one step: about 1 ms of work."""

_ENTRY = struct.Struct("<IH")


# The worker's half


class Written(NamedTuple):
    """A share in the buffer."""

    sizes: tuple[int, int]
    listing: bytes


def write_share(
    manager: SessionManager,
    keys: Iterable[bytes],
    query: Query,
    writer: Writer,
    now: int,
    give_way: Callable[[], None],
) -> Written:
    """Write the topics with these keys, and the producers. `now`: wall clock, ns"""
    share = StatsShare(manager, finish(in_order(keys), give_way), query, now)
    while share.go_on(SLICE):
        share.take(writer.write)
        give_way()
    share.take(writer.write)
    return Written(share.sizes(), share.take_index(bytes))


class Health(NamedTuple):
    """The outcome and time of a worker's latest write to a log; if applicable, the topics
    that cannot be read, and the hung disk operation."""

    text: str
    at: int
    reads: str | None = None
    hung: str | None = None


def answer(
    written: Written,
    *,
    known: bool,
    health: Health,
    memory: Mapping[str, int],
    events: Mapping[str, int] | None = None,
) -> Answer:
    """Return the answer of a worker that has written its share. `known`: whether the requested
    topic exists; `events`: the numbers of published and dropped events, if events are enabled."""
    value = {
        "known": known,
        "health": health.text,
        "health_at": health.at,
        "reads": health.reads,
        "hung": health.hung,
        "memory": memory,
        "events": events,
        "sizes": written.sizes,
    }
    return Answer(value, written.listing)


# The master's half


class Share(NamedTuple):
    """A worker's share in the buffer."""

    topics: Piece
    producers: Piece
    listing: bytes


class Whole(NamedTuple):
    """All shares combined."""

    shared: SharedBuffer
    shares: list[Share]
    known: bool
    health: str
    memory: dict[str, int]
    complete: bool  # whether every worker has answered
    events: dict[str, int] | None = None

    def json_topics(self) -> Iterator[bytes]:
        """Yield each topic of a JSON page, worker by worker."""
        separator, _ = separators(True)
        for share in self.shares:
            at, place = share.topics.at, 0
            while place < len(share.listing):
                length, name_length = _ENTRY.unpack_from(share.listing, place)
                yield os.pread(self.shared.fd, length - len(separator), at)
                at += length
                place += _ENTRY.size + name_length


def combine(shared: SharedBuffer, answers: Mapping[int, Answer], workers: int) -> Whole:
    """Combine the shares of the workers that answered; `workers` is the total number of workers."""
    values = [each.value for each in answers.values()]
    return Whole(
        shared,
        [_share(index, each) for index, each in answers.items()],
        any(value["known"] for value in values),
        overall_health(values, workers),
        stats_formats.merge_memory(value["memory"] for value in values),
        len(answers) == workers,
        stats_formats.merge_events(value["events"] for value in values),
    )


def region(worker: int) -> int:
    """Return the number of a worker's region in the buffer; the master has region 0."""
    return worker + 1


def _share(worker: int, found: Answer) -> Share:
    topics, producers = found.value["sizes"]
    at = region(worker) * REGION
    return Share(Piece(at, topics), Piece(at + topics, producers), found.blob)


def overall_health(values: Sequence[Mapping[str, Any]], workers: int) -> str:
    """Return nsqd's health: first a missing worker, then a hung disk, unprotected copies or a topic
    that cannot be read, otherwise the outcome of the latest write."""
    if len(values) < workers:
        missing = workers - len(values)
        return f"NOK - workers being restarted: {missing} of {workers}"
    for value in values:
        if value.get("hung") is not None:
            return f"NOK - {value['hung']}"
        if value.get("copies"):
            return f"NOK - {value['copies']}"
        if value.get("reads"):
            return f"NOK - {value['reads']}"
    latest = max(values, key=lambda value: value["health_at"])
    return str(latest["health"])


def page_plan(
    whole: Whole,
    query: Query,
    *,
    started: int,
    now: int,
    draining: bool = False,
    give_way: Callable[[], None] = lambda: None,
) -> bytes:
    """Write the rest of the page to the master's region, and return the page's plan."""
    shares = whole.shares if whole.known or not query.topic else []
    after_topic, after_client = separators(query.json)
    merging = PieceMerge([each.listing for each in shares], [each.topics.at for each in shares])
    while merging.go_on(MERGED):
        give_way()
    topics = merging.result(len(after_topic))
    producers = [each.producers for each in shares if each.producers.length]
    if producers:
        last = producers.pop()
        producers.append(Piece(last.at, last.length - len(after_client)))
    frame = stats_formats.frame(
        query,
        Head(whole.health, started, now, draining),
        whole.memory if query.include_mem else None,
        whole.events,
        is_known=whole.known or not query.topic,
        has_topics=bool(topics),
        has_producers=bool(producers),
    )
    writer = Writer(whole.shared.fd, 0)
    start, middle, end = (writer.write(part) for part in frame)
    return plan([start]) + topics + plan([middle, *producers, end])


class StatsPages:
    """The master's answers to requests for the complete page.

    `ask_all` requests the share of every running worker, and returns the shares by worker; its
    second argument is the buffer's descriptor. `started` is nsqd's start, wall clock ns.
    `is_draining` returns whether nsqd rejects publishes. `give_way` lets other work run.
    """

    def __init__(
        self,
        ask_all: Callable[[Query, int], Mapping[int, Answer]],
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

    def page(self, query: Query) -> Answer:
        """Block until all workers have answered. Return the page's plan as a blob, with its
        buffer."""
        shared, plan = self._pages.ask(query)
        return Answer(None, plan, (os.dup(shared.fd),))

    def whole(self, query: Query) -> Whole:
        """Return the combined shares without planning a page."""
        shared = SharedBuffer()
        return combine(shared, self._ask_all(query, shared.fd), self._workers)

    def _page(self, query: Query) -> tuple[SharedBuffer, bytes]:
        whole = self.whole(query)
        self._give_way()
        plan = page_plan(
            whole,
            query,
            started=self._started,
            now=time.time_ns(),
            draining=self._is_draining(),
            give_way=self._give_way,
        )
        return whole.shared, plan
