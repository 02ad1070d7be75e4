"""nsqd's metrics: each worker's share, and the collection of all shares.

A worker walks its topics in slices, as for /stats, and writes complete lines to the page's shared
buffer (page_buffer.py). The master plans their order (metrics_page.py), and the worker that
received the request reads the page from the buffer.

If the client accepts compression, each process compresses the lines that it writes, and the page is
a sequence of gzip members.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import cramjam
import gevent

from nsqcy.metrics.families import AGES, CHANNELS, EPHEMERAL, OTHER, TOPICS
from nsqcy.names import is_ephemeral
from nsqcy.nsqd.stats import node_page
from nsqcy.nsqd.stats.metrics_other_series import Summed
from nsqcy.nsqd.stats.node_page import Disk, Whole
from nsqcy.nsqd.stats.page_buffer import BULK, SharedBuffer, Writer
from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.nsqd.stats.stats_formats import process_memory
from nsqcy.process.control import Answer
from nsqcy.util import lazy_imports

if TYPE_CHECKING:
    from nsqcy.metrics.exposition import Form
    from nsqcy.server.core import Exposition

SLICE = 512
"""Topics and channels per slice: about 0.3 ms of work."""

COMPRESSED_SLICES = 4
"""Number of slices to write together when compressing, because each piece has an overhead."""

LINES = (*TOPICS, AGES, *CHANNELS)
"""The families whose lines come from workers, in page order."""

NAMES = (
    tuple(family.sample for family in TOPICS),
    AGES.name,
    tuple(family.sample for family in CHANNELS),
)
"""The sample names of these families, in the form that server/metrics.pyx expects."""

WRITER = "nsqcy.nsqd.stats.metrics_page"


# The worker's half


def share(
    lines: "Exposition",
    worker: Mapping[str, Any],
    writer: Writer,
    compress: bool,
    give_way: Callable[[], None],
) -> dict[str, Any]:
    """Write a worker's lines to the buffer, slice by slice; return the worker's answer.

    The answer's `lengths` are the sizes, in bytes, of each family in LINES, by slice. `worker`: the
    worker's own figures, in the form that Metrics reads.
    """

    left = 0

    def take(family: int) -> int:
        nonlocal left
        size = lines.size(family)
        if left < size:
            give_way()
            left = BULK
        left -= size
        return lines.take(family, put)

    def put(part: memoryview) -> int:
        return writer.write(compressed(part) if compress else part).length

    lengths = []
    more = True
    while more:
        more = _walk(lines, COMPRESSED_SLICES if compress else 1, give_way)
        lengths.append([take(family) for family in range(len(LINES))])
    return {
        "lengths": lengths,
        "summed": lines.summed(),
        "worker": {**worker, **process_figures()},
    }


def _walk(lines: "Exposition", slices: int, give_way: Callable[[], None]) -> bool:
    """Write up to this many slices; return whether there may be more."""
    for _ in range(slices):
        give_way()
        if not lines.go_on(SLICE):
            return False
    return True


def in_series(values: Mapping[tuple[str, str], int], maximum: int) -> list[tuple[str, str, int]]:
    """Return the values of channels as topic, channel and value, with at most this number of
    separate series. The other channels, including ephemeral ones, are summed, as in Exposition."""
    series: Counter[tuple[str, str]] = Counter()
    for (topic, channel), value in values.items():
        key = topic, EPHEMERAL if is_ephemeral(channel) else channel
        if is_ephemeral(topic):
            key = EPHEMERAL, EPHEMERAL
        elif key not in series and len(series) >= maximum:
            key = OTHER, OTHER
        series[key] += value
    return [(*key, value) for key, value in series.items()]


def compressed(part: bytes | memoryview) -> bytes:
    """Compress as a gzip member; empty input stays empty."""
    return bytes(cramjam.gzip.compress(part, level=1)) if part else b""


def process_figures() -> dict[str, float]:
    """Return this process's own figures."""
    return {"resident": process_memory()["heap_in_use_bytes"], "cpu": time.process_time()}


# The master's half


class Metrics:
    """The master's answers to /metrics.

    `ask_all` requests the share of every running worker, and returns the shares by worker; its
    arguments are the buffer's descriptor and whether to compress. `whole` returns the master's own
    figures. The page writer is imported on first use.
    """

    def __init__(
        self,
        ask_all: Callable[[int, bool], Mapping[int, Mapping[str, Any]]],
        whole: Callable[[], Whole],
        data_path: str,
    ) -> None:
        self._ask_all = ask_all
        self._whole = whole
        self._data_path = data_path or "."
        self._pages = RequestCoalescer(self._page)
        self._sums = [Summed(OTHER), Summed(EPHEMERAL)]

    def dump(self) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {each.name: each.dump() for each in self._sums}

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version."""
        for each in self._sums:
            if each.name in dumped:
                each.restore(dumped[each.name])

    def page(self, accept: str, accept_encoding: str) -> Answer:
        """Block until all workers have answered. Return the page's plan as a blob, the descriptor
        of its buffer, the page's content type, and whether the page is compressed."""
        writer = lazy_imports.module(WRITER)
        form = writer.choose(accept, accept_encoding)
        shared, plan = self._pages.ask(form)
        return Answer([form.content_type, form.gzip], plan, (os.dup(shared.fd),))

    def node(self, figures: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return the /node object, given the figures of the workers."""
        return node_page.page(self._whole(), figures, process_figures(), self._disk())

    def _disk(self) -> Disk:
        found: Disk = gevent.get_hub().threadpool.apply(disk_space, (self._data_path,))
        return found

    def _page(self, form: "Form") -> tuple[SharedBuffer, bytes]:
        disk = self._disk()
        shared = SharedBuffer()
        shares = self._ask_all(shared.fd, form.gzip)
        whole = self._whole()
        generations = {each["worker"]: each["generation"] for each in whole.workers}
        for summed in self._sums:
            its = {index: share["summed"][summed.name] for index, share in shares.items()}
            summed.look(its, generations)
        writer = lazy_imports.module(WRITER)
        plan: bytes = writer.Page(form, shares, self._sums, whole, disk).plan(shared)
        return shared, plan


def disk_space(path: str) -> Disk:
    """Return the size and the free bytes of a disk. This may take a long time."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
