"""A worker's reports about itself: its share of /stats and of /metrics, and its remaining messages.

Walks topics in slices, so that deliveries continue between slices. The master combines the shares
of all workers.
"""

import os
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from nsqcy import __version__
from nsqcy.broker.core import Shard
from nsqcy.channels.core import Events
from nsqcy.http.server import HttpServer
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_messages.drain_remainder import Remains, Rest, summed
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.nsqd.stats import metrics_shares, page_buffer, stats_page
from nsqcy.nsqd.stats import stats_formats as stats
from nsqcy.nsqd.worker.rate_sampler import RateSampler
from nsqcy.nsqd.worker.read_health import read_health
from nsqcy.process.control import Answer
from nsqcy.protocol.core import SessionManager
from nsqcy.server.core import Exposition, Loop
from nsqcy.storage.core import IoThread
from nsqcy.util import debug
from nsqcy.util.slices import Slices

if TYPE_CHECKING:
    from nsqcy.nsqd.auth.users import FileUsers
    from nsqcy.nsqd.copies.worker_copies import Copies

SLICE = 64
"""Topics per slice of the count of remaining messages."""


class WorkerStats:
    """One worker's figures."""

    def __init__(
        self,
        shard: Shard,
        manager: SessionManager,
        http: HttpServer,
        loop: Loop,
        io: IoThread,
        *,
        options: NsqdOptions,
        workers: int,
        events: Events | None,
        users: "FileUsers | None",
        copies: "Copies | None",
        sampler: RateSampler,
        give_way: Callable[[], None],
    ) -> None:
        """give_way: lets other work run; when it returns, the counts are exact."""
        self._shard = shard
        self._manager = manager
        self._http = http
        self._loop = loop
        self._io = io
        self._options = options
        self._workers = workers
        self._events = events
        self._users = users
        self._copies = copies
        self._sampler = sampler
        self._give_way = give_way

    def share(self, query: Query, buffer: int) -> Answer:
        """Write this worker's part of /stats to a shared buffer, and close its descriptor."""
        writer = page_buffer.Writer(buffer, stats_page.region(self._manager.index))
        try:
            return self._write_share(query, writer)
        finally:
            os.close(buffer)

    def _write_share(self, query: Query, writer: page_buffer.Writer) -> Answer:
        self._give_way()
        keys = self._keys(query)
        written = stats_page.write_share(
            self._manager, keys, query, writer, time.time_ns(), self._give_way
        )
        return stats_page.answer(
            written,
            known=bool(keys),
            health=stats_page.Health(
                self._shard.host.health,
                self._shard.host.health_at,
                read_health(self._shard.unreadable()),
                self._shard.hung,
            ),
            memory=stats.process_memory(),
            events=self._event_counts(),
        )

    def metrics(self, buffer: int, compress: bool) -> dict[str, Any]:
        """Write this worker's part of /metrics to a shared buffer, and close its descriptor."""
        writer = page_buffer.Writer(buffer, self._manager.index + 1)
        try:
            return self._write_metrics(writer, compress)
        finally:
            os.close(buffer)

    def _write_metrics(self, writer: page_buffer.Writer, compress: bool) -> dict[str, Any]:
        maximum = -(-self._options.metrics_max_series // self._workers)
        lines = Exposition(self._shard, maximum, *metrics_shares.NAMES)
        figures = {
            **self._levels(),
            "nsqcy": __version__,
            "turns": self._loop.turn_times(),
            "syncs": self._io.sync_times(),
            "events": self._event_counts(),
            "copies": None if self._copies is None else self._copies.figures(),
            "saturated": metrics_shares.in_series(self._sampler.saturated, maximum),
            "quotas": [] if self._users is None else self._users.quotas_told(),
        }
        return metrics_shares.share(lines, figures, writer, compress, self._give_way)

    def figures(self) -> dict[str, Any]:
        """Of /node."""
        return {"nsqcy": __version__, **self._levels(), **metrics_shares.process_figures()}

    def _levels(self) -> dict[str, int]:
        return {
            "tcp": self._manager.connections(),
            "http": self._http.connections,
            "failing": int(self._shard.host.health != "OK"),
            "unreadable": len(self._shard.unreadable()),
            "damages": self._shard.host.damages,
            "hung": int(self._shard.hung is not None),
            "topics": len(self._shard.topics),
            "memory": self._shard.pool.resident_bytes,
            "memory_limit": self._shard.pool.budget,
        }

    def _event_counts(self) -> dict[str, int] | None:
        if self._events is None:
            return None
        return {"published": self._events.published, "dropped": self._events.dropped}

    def _keys(self, query: Query) -> list[bytes]:
        wanted = query.topic or query.topics
        if not wanted:
            return list(self._shard.topics)
        names = [query.topic] if query.topic else query.topics.split(",")
        keys = dict.fromkeys(each.encode("utf-8", "surrogateescape") for each in names)
        return [key for key in keys if key in self._shard.topics]

    def remains(self) -> Remains:
        """Return the messages that consumers of this worker's topics have not finished."""
        self._give_way()
        return summed(self._rests())

    def _rests(self) -> Iterator[Rest]:
        slices = Slices(self._give_way, SLICE)
        for topic in list(self._shard.topics.values()):
            slices.step()
            if not topic.gone:
                yield from (Rest(topic.name, *each) for each in topic.remains())

    def inspect(self, what: str) -> bytes:
        """Return the `debug.tell` report about `what`."""
        text = debug.tell(what)
        if what == "memory":
            text += debug.table(self._counters())
        return text.encode(errors="replace")

    def _counters(self) -> dict[str, int]:
        pool = self._shard.pool
        return {
            "message bytes in memory": pool.resident_bytes,
            "message bytes allowed": pool.budget,
            "arenas": pool.arenas,
            "blocks": pool.blocks,
            "entries": pool.entries,
            "deferred messages": pool.deferred,
            "topics": len(self._shard.topics),
            "TCP connections": self._manager.connections(),
            "HTTP connections": self._http.connections,
            "bytes of unfinished HTTP requests": self._http.held,
        }
