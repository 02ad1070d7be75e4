"""The frame of /stats, as JSON and as text: everything except topics and producers.

Pure functions; callers supply the numbers. The workers write topics and producers
(server/stats.pyx).
"""

import gc
import resource
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, NamedTuple

from nsqcy import NSQ_VERSION, __version__
from nsqcy.config.durations import format_duration
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.server.core import no_totals
from nsqcy.util import procfs
from nsqcy.util.gotext import json_bytes, rfc3339, utf8

MEMORY_KEYS = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
    "gc_total_runs",
)
Totals = Mapping[str, Any]
"""The totals of a summary; see StatsSummary.totals."""

LATENCY = "e2e_processing_latency"


class Head(NamedTuple):
    """The start of a page. Both times are wall clock, in nanoseconds."""

    health: str
    started: int
    now: int
    draining: bool = False


class Frame(NamedTuple):
    """The parts of a page before the topics, between topics and producers, and after them."""

    start: bytes
    middle: bytes
    end: bytes


def frame(
    query: Query,
    head: Head,
    memory: Mapping[str, int] | None,
    events: Mapping[str, int] | None,
    *,
    is_known: bool,
    has_topics: bool,
    has_producers: bool,
) -> Frame:
    """Return the frame of the page that a query requests. `memory` is None if it is not shown, and
    `events` is None if no events are published. `is_known`: whether the requested topic exists"""
    if query.json:
        return _json_frame(head, memory, events, is_known, has_producers)
    return _text_frame(head, memory, events, has_topics, has_producers)


def _json_frame(
    head: Head,
    memory: Mapping[str, int] | None,
    events: Mapping[str, int] | None,
    is_known: bool,
    has_producers: bool,
) -> Frame:
    start = {
        "version": NSQ_VERSION,
        "health": head.health,
        "start_time": head.started // 1_000_000_000,
    }
    if head.draining:
        start["draining"] = True
    # Typed clients distinguish null from []: null if the requested topic does not exist, [] if
    # there are no topics.
    middle = b"]" if is_known else b""
    if memory is not None:
        middle += b',"memory":' + json_bytes({key: memory[key] for key in MEMORY_KEYS})
    end = b"]" if has_producers else b""
    if events is not None:
        end += b',"events":' + json_bytes(dict(events))
    return Frame(
        json_bytes(start)[:-1] + b',"topics":' + (b"[" if is_known else b"null"),
        middle + b',"producers":' + (b"[" if has_producers else b"null"),
        end + b"}",
    )


def _text_frame(
    head: Head,
    memory: Mapping[str, int] | None,
    events: Mapping[str, int] | None,
    has_topics: bool,
    has_producers: bool,
) -> Frame:
    lines = [
        f"nsqd v{NSQ_VERSION} (built w/nsqcy-{__version__})",
        f"start_time {rfc3339(head.started // 1_000_000_000)}",
        f"uptime {format_duration(head.now - head.started)}",
        "",
        f"Health: {head.health}",
    ]
    if head.draining:
        lines += ["Draining: publishes are refused"]
    if memory is not None:
        lines += ["", "Memory:"]
        lines += [f"   {key:<25}\t{memory[key]}" for key in MEMORY_KEYS]
    if events is not None:
        lines += ["", "Events: {published} published, {dropped} dropped".format_map(events)]
    return Frame(
        utf8("\n".join(lines)) + b"\n\nTopics:" + (b"\n" if has_topics else b" None"),
        b"\n\nProducers:" + (b"\n" if has_producers else b" None"),
        b"\n",
    )


# Summaries


def summary_frame(end: bytes, totals: Totals, *, with_names: bool) -> Frame:
    """Return the end of a summary: the parts before the names, before the channels with dead
    letters, and after them. end: the end of a complete page"""
    start = end[: -len(b"}")] + b',"totals":' + json_bytes(totals)
    names = (b',"topic_names":[', b"]") if with_names else (b"", b"")
    return Frame(start + names[0], names[1] + b',"dead_letter_channels":[', b"]}")


def merge_totals(parts: Iterable[Totals]) -> Totals:
    """Return the sums over the workers."""
    return reduce(_added, parts, no_totals())


def _added(one: Totals, other: Totals) -> Totals:
    return {
        key: _added(value, other[key]) if isinstance(value, Mapping) else value + other[key]
        for key, value in one.items()
    }


# Memory


def process_memory() -> dict[str, int]:
    """Return this process's share of the memory object. Figures that exist only for Go's heap are
    0."""
    memory = dict.fromkeys(MEMORY_KEYS, 0)
    pages = procfs.read("/proc/self/statm").split()
    if pages:
        memory["heap_in_use_bytes"] = int(pages[1]) * resource.getpagesize()
    memory["gc_total_runs"] = sum(generation["collections"] for generation in gc.get_stats())
    return memory


def merge_events(parts: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    """Return the sums over the workers; None if no events are published."""
    counts = [part for part in parts if part is not None]
    if not counts:
        return None
    return {key: sum(part[key] for part in counts) for key in ("published", "dropped")}


def merge_memory(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the sums over the processes, and the maximum of the GC pauses."""
    columns = list(parts)
    return {
        key: (max if key.startswith("gc_pause") else sum)([part[key] for part in columns] or [0])
        for key in MEMORY_KEYS
    }
