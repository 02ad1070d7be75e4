"""/stats: each worker's share, and the page that the master plans from all shares.

A worker walks its topics in slices, so that deliveries continue between slices. It writes finished
pieces of the page to the page's shared buffer (page_buffer.py). The master merges the order of the
topics without reading their pieces, and the worker that received the request reads the page.

    value   {"known", "health", "health_at", "reads", "hung", "memory", "events", "sizes",
            "summary", "ranks"}; `sizes`: bytes of the names, the topics, the producers and the
            channels with dead letters, which are at APART; `summary`: totals, or None for a
            complete page; `ranks`: bytes of the ranks
    blob    the index of the topics; see server/page_pieces.pyx. In a summary, the topics are in the
            order of busyness, and their ranks follow the index.
"""

import heapq
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from nsqcy.http.long_answers import in_order
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import stats_formats
from nsqcy.nsqd.stats.page_buffer import REGION, Piece, SharedBuffer, Writer, plan
from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.nsqd.stats.stats_formats import Head, Totals
from nsqcy.process.control import Answer
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import PieceMerge, StatsShare, StatsSummary, separators
from nsqcy.util.slices import Slices, finish

SLICE = 512
"""Topics, channels and clients per slice: about 0.5 ms of work."""

COUNTED = 2048
"""Topics and channels per slice that a summary counts: about 0.5 ms of work."""

MERGED = 16384
"""Topics that the master merges in one step: about 1 ms of work."""

RANKED = 256
"""Busiest topics that the master orders, or whose ranks a worker writes, in one step."""

APART = REGION // 2
"""Where a worker writes the channels with dead letters, so that it can write them and the names in
turn."""

NOTHING = Piece(0, 0)

_ENTRY = struct.Struct("<IH")
_RANK = struct.Struct("<QdB")  # see StatsSummary.busiest

Rank = tuple[int, float, bool]


# The worker's half


class Written(NamedTuple):
    """A share in the buffer. `summary` and `ranks`: in a summary only."""

    sizes: tuple[int, int, int, int]
    listing: bytes
    summary: Totals | None = None
    ranks: bytes = b""


def write_share(
    manager: SessionManager,
    keys: Iterable[bytes],
    query: Query,
    writer: Writer,
    now: int,
    give_way: Callable[[], None],
) -> Written:
    """Write the topics with these keys, and the producers. `now`: wall clock, ns"""
    keys = finish(in_order(keys), give_way)
    if query.is_summary:
        return _write_summary(manager, keys, query, writer, now, give_way)
    share = StatsShare(manager, keys, query, now)
    _write_all(share, writer, give_way)
    return Written((0, *share.sizes(), 0), share.take_index(bytes))


def _write_all(share: StatsShare, writer: Writer, give_way: Callable[[], None]) -> None:
    while share.go_on(SLICE):
        share.take(writer.write)
        give_way()
    share.take(writer.write)


def _write_summary(
    manager: SessionManager,
    keys: Iterable[bytes],
    query: Query,
    writer: Writer,
    now: int,
    give_way: Callable[[], None],
) -> Written:
    summary = StatsSummary(manager.shard, keys, query)
    apart, names, dead_letters = writer.shifted(APART), 0, 0
    is_over = False
    while not is_over:
        is_over = not summary.go_on(COUNTED)
        names += summary.take_names(writer.write).length
        dead_letters += summary.take_dead_letters(apart.write).length
        give_way()
    ranks = dict(summary.busiest())
    share = StatsShare(manager, ranks, query, now)
    _write_all(share, writer, give_way)
    listing = share.take_index(bytes)
    return Written(
        (names, *share.sizes(), dead_letters),
        listing,
        summary.totals(),
        _ranks_of(listing, ranks, give_way),
    )


def _ranks_of(listing: bytes, ranks: Mapping[bytes, Rank], give_way: Callable[[], None]) -> bytes:
    """Return the rank of each topic in an index."""
    slices, found = Slices(give_way, RANKED), bytearray()
    for _, name in _entries(listing):
        slices.step()
        found += _RANK.pack(*ranks[name])
    return bytes(found)


def _entries(listing: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the length and the name of each piece in an index."""
    place = 0
    while place < len(listing):
        length, name_length = _ENTRY.unpack_from(listing, place)
        place += _ENTRY.size + name_length
        yield length, listing[place - name_length : place]


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
        "summary": written.summary,
        "ranks": len(written.ranks),
    }
    return Answer(value, written.listing + written.ranks)


# The master's half


class Share(NamedTuple):
    """A worker's share in the buffer. `summary` and `ranks`: in a summary only."""

    topics: Piece
    producers: Piece
    listing: bytes
    names: Piece = NOTHING
    dead_letters: Piece = NOTHING
    summary: Totals | None = None
    ranks: bytes = b""


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
            at = share.topics.at
            for length, _ in _entries(share.listing):
                yield os.pread(self.shared.fd, length - len(separator), at)
                at += length


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
    at = region(worker) * REGION
    names, topics, producers, dead_letters = found.value["sizes"]
    producers_at = at + names + topics
    end = len(found.blob) - found.value["ranks"]
    return Share(
        Piece(at + names, topics),
        Piece(producers_at, producers),
        found.blob[:end],
        Piece(at, names),
        Piece(at + APART, dead_letters),
        found.value["summary"],
        found.blob[end:],
    )


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
    if query.is_summary:
        topics = _busiest(shares, query.busiest, len(after_topic), give_way)
    else:
        topics = _merged(shares, len(after_topic), give_way)
    producers = [each.producers for each in shares if each.producers.length]
    _cut(producers, len(after_client))
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
    rest = [middle, *producers, end]
    if query.is_summary:
        rest = [middle, *producers, *_summary(shares, query, frame.end, writer)]
    return plan([start]) + topics + plan(rest)


def _merged(shares: Sequence[Share], cut: int, give_way: Callable[[], None]) -> bytes:
    """Return the plan of all topics in the order of their names, without the last `cut` bytes."""
    merging = PieceMerge([each.listing for each in shares], [each.topics.at for each in shares])
    while merging.go_on(MERGED):
        give_way()
    return merging.result(cut)


def _busiest(shares: Sequence[Share], count: int, cut: int, give_way: Callable[[], None]) -> bytes:
    """Return the plan of the busiest topics, busiest first, without the last `cut` bytes."""
    slices, found = Slices(give_way, RANKED), []
    for _, _, piece in islice(heapq.merge(*map(_ranked, shares)), count):
        slices.step()
        found.append(piece)
    _cut(found, cut)
    return plan(found)


def _ranked(share: Share) -> Iterator[tuple[tuple[float, ...], bytes, Piece]]:
    """Yield the topics of a share, busiest first, with their sort keys."""
    at = share.topics.at
    for rank, (length, name) in zip(
        _RANK.iter_unpack(share.ranks), _entries(share.listing), strict=True
    ):
        yield tuple(-each for each in rank), name, Piece(at, length)
        at += length


def _summary(shares: Sequence[Share], query: Query, end: bytes, writer: Writer) -> list[Piece]:
    """Return the pieces at the end of a summary. end: the end of a complete page"""
    frame = stats_formats.summary_frame(
        end,
        stats_formats.merge_totals(each.summary for each in shares if each.summary is not None),
        with_names=query.names,
    )
    names = [each.names for each in shares if each.names.length]
    dead_letters = [each.dead_letters for each in shares if each.dead_letters.length]
    for rows in (names, dead_letters):
        _cut(rows, len(b","))
    start, middle, end_piece = (writer.write(part) for part in frame)
    return [start, *names, middle, *dead_letters, end_piece]


def _cut(rows: list[Piece], cut: int) -> None:
    """Remove the last `cut` bytes, which separate pieces."""
    if rows:
        last = rows.pop()
        rows.append(Piece(last.at, last.length - cut))


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
