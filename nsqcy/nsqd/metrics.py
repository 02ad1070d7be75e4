"""Metrics of nsqd: the share that each worker makes, and who asks for all shares.

A worker walks its topics in slices, as for /stats, and answers with lines that are ready as they
are; the master puts them together (metrics_page.py).

    value   {"lengths", "summed", "worker"}   see share()
    blob    the lines, `lengths` bytes of each of LINES

For whoever takes that each family is compressed where it is made: it is megabytes, and a tenth of
that is left to be handed on. A page is a row of gzip members then.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import gevent

from nsqcy.metrics.families import AGES, CHANNELS, EPHEMERAL, OTHER, TOPICS
from nsqcy.nsqd.gathering import Slices
from nsqcy.nsqd.metrics_sums import Summed
from nsqcy.nsqd.rounds import Rounds
from nsqcy.nsqd.stats import process_memory
from nsqcy.process.control import Answer

if TYPE_CHECKING:
    from nsqcy._metrics import Exposition
    from nsqcy._topic import Topic
    from nsqcy.metrics.exposition import Form

SLICE = 512
"""Topics and channels of one slice: about 0.3 ms."""

PIECE = 256 << 10
"""Bytes that are compressed in one: as long."""

LINES = (*TOPICS, AGES, *CHANNELS)
"""The families whose lines come from workers, in their order."""

NAMES = (
    tuple(family.sample for family in TOPICS),
    AGES.name,
    tuple(family.sample for family in CHANNELS),
)
"""Of their samples, as nsqcy._metrics wants them."""


# The worker's half


def walk(lines: "Exposition", topics: Iterable["Topic"], give_way: Callable[[], None]) -> None:
    """Put down all topics with their channels."""
    slices = Slices(give_way, SLICE)
    for topic in topics:
        slices.step()
        if topic.gone:
            continue
        lines.topic(topic)
        for channel in list(topic.channels.values()):
            slices.step()
            lines.channel(channel)


def share(
    lines: "Exposition",
    worker: Mapping[str, Any],
    compress: bool,
    give_way: Callable[[], None],
) -> Answer:
    """What a worker answers. `worker`: its own figures, as Metrics reads them."""
    summed = lines.summed()
    parts = lines.take()
    if compress:
        _compress(parts, give_way)
    value = {
        "lengths": [len(part) for part in parts],
        "summed": summed,
        "worker": {**worker, **process_figures()},
    }
    return Answer(value, b"".join(parts))


def _compress(parts: list[bytes], give_way: Callable[[], None]) -> None:
    left = 0
    for number, part in enumerate(parts):
        if left < len(part):
            give_way()
            left = PIECE
        left -= len(part)
        parts[number] = compressed(part)


def compressed(part: bytes) -> bytes:
    """As a member of gzip; nothing stays nothing."""
    return bytes(cramjam.gzip.compress(part, level=1)) if part else b""


def process_figures() -> dict[str, float]:
    """What a process tells of itself."""
    return {"resident": process_memory()["heap_in_use_bytes"], "cpu": time.process_time()}


# The master's half


class Whole(NamedTuple):
    """What the master knows itself. `workers` is as Master.workers() has them."""

    workers: Sequence[Mapping[str, Any]]
    lookupds: Mapping[str, bool]
    draining: bool
    disk_refuses: bool
    started: int  # wall clock, ns


class Disk(NamedTuple):
    size: int
    free: int


class Metrics:
    """The master's answers to /metrics.

    `ask_all` asks every worker that is up for its share, compressed or not, by worker; `whole`
    tells what the master knows. What writes the page is imported when it is first wanted, in a
    thread: it takes a moment, and megabytes.
    """

    def __init__(
        self,
        ask_all: Callable[[bool], Mapping[int, Answer]],
        whole: Callable[[], Whole],
        data_path: str,
    ) -> None:
        self._ask_all = ask_all
        self._whole = whole
        self._data_path = data_path or "."
        self._pages = Rounds(self._page)
        self._sums = [Summed(OTHER), Summed(EPHEMERAL)]

    def page(self, accept: str, accept_encoding: str) -> Answer:
        """Blocks until all workers have answered. The page as a blob; its content type, and
        whether it is compressed."""
        writer = gevent.get_hub().threadpool.apply(import_module, (_WRITER,))
        form = writer.choose(accept, accept_encoding)
        return Answer([form.content_type, form.gzip], self._pages.ask(form))

    def _page(self, form: "Form") -> bytes:
        disk = gevent.get_hub().threadpool.apply(disk_space, (self._data_path,))
        shares = self._ask_all(form.gzip)
        whole = self._whole()
        generations = {each["worker"]: each["generation"] for each in whole.workers}
        for summed in self._sums:
            its = {index: share.value["summed"][summed.name] for index, share in shares.items()}
            summed.look(its, generations)
        writer = import_module(_WRITER)
        page: bytes = writer.Page(form, shares, self._sums, whole, disk).text()
        return page


_WRITER = "nsqcy.nsqd.metrics_page"


def disk_space(path: str) -> Disk:
    """May take long."""
    found = os.statvfs(path)
    return Disk(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
