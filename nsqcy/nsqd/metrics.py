"""Metrics of nsqd: the share that each worker makes, and the page the master makes of all shares.

A worker walks its topics in slices, as for /stats, and answers with lines that are ready as they
are; the master joins them family by family, and adds what is not about a topic: that is little, and
prometheus_client writes it.

    value   {"lengths", "summed", "worker"}   see share()
    blob    the lines, `lengths` bytes of each of LINES

For whoever takes that each family is compressed where it is made: it is megabytes, and a tenth of
that is left to be handed on. A page is a row of gzip members then.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import cramjam
import gevent

from nsqcy import NSQ_VERSION, __version__
from nsqcy.metrics import families
from nsqcy.metrics.families import AGES, CHANNELS, EPHEMERAL, OTHER, TOPICS, Family
from nsqcy.nsqd.gathering import Slices
from nsqcy.nsqd.metrics_sums import Summed
from nsqcy.nsqd.rounds import Rounds
from nsqcy.nsqd.stats import process_memory
from nsqcy.process.control import Answer

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from nsqcy._metrics import Exposition
    from nsqcy._topic import Topic
    from nsqcy.metrics.exposition import Form

SLICE = 512
"""Topics and channels of one slice: about 0.3 ms."""

PIECE = 256 << 10
"""Bytes that are compressed in one: as long."""

TOPIC_SAMPLES = tuple(family.sample for family in TOPICS)
CHANNEL_SAMPLES = tuple(family.sample for family in CHANNELS)
LINES = (*TOPICS, AGES, *CHANNELS)
"""The families whose lines come from workers, in their order."""

_SECOND = 1_000_000_000


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


@cache
def heading(family: Family, openmetrics: bool, compress: bool) -> bytes:
    """What stands before the lines of a family."""
    text: bytes = _exposition().heading(family, openmetrics)
    return compressed(text) if compress else text


# The master's half


class Whole(NamedTuple):
    """What the master knows itself. `workers` is as Master.workers() has them."""

    workers: Sequence[Mapping[str, Any]]
    lookupds: Mapping[str, bool]
    draining: bool
    disk_refuses: bool


class Metrics:
    """The master's answers to /metrics.

    `ask_all` asks every worker that is up for its share, compressed or not, by worker; `whole`
    tells what the master knows. `started` is nsqd's start, wall clock ns.
    """

    def __init__(
        self,
        ask_all: Callable[[bool], Mapping[int, Answer]],
        whole: Callable[[], Whole],
        data_path: str,
        started: int,
    ) -> None:
        self._ask_all = ask_all
        self._whole = whole
        self._data_path = data_path or "."
        self._started = started
        self._pages = Rounds(self._page)
        self._summed = [Summed(OTHER), Summed(EPHEMERAL)]

    def page(self, accept: str, accept_encoding: str) -> Answer:
        """Blocks until all workers have answered. The page as a blob; its content type, and
        whether it is compressed."""
        write = gevent.get_hub().threadpool.apply(_exposition)
        form = write.choose(accept, accept_encoding)
        return Answer([form.content_type, form.gzip], self._pages.ask(form))

    def _page(self, form: "Form") -> bytes:
        pack = compressed if form.gzip else bytes
        disk = gevent.get_hub().threadpool.apply(disk_space, (self._data_path,))
        shares = self._ask_all(form.gzip)
        whole = self._whole()
        generations = {each["worker"]: each["generation"] for each in whole.workers}
        for summed in self._summed:
            its = {index: answer.value["summed"][summed.name] for index, answer in shares.items()}
            summed.look(its, generations)
        topics = self._of_topics(shares, form)
        others = [*self._of_workers(whole.workers, shares), *self._of_nsqd(whole, disk)]
        return b"".join([*topics, pack(_exposition().write(form, others))])

    def _of_topics(
        self, shares: Mapping[int, Answer], form: "Form"
    ) -> Iterator[bytes | memoryview]:
        """Heading and lines of each family of topics and channels."""
        pack = compressed if form.gzip else bytes
        sums = self._lines_of_sums()
        blobs = [split(answer) for answer in shares.values()]
        for number, family in enumerate(LINES):
            yield heading(family, form.is_openmetrics, form.gzip)
            yield from (lines[number] for lines in blobs)
            yield pack(sums.get(family, b""))

    def _lines_of_sums(self) -> dict[Family, bytes]:
        samples: dict[Family, list[Any]] = {}
        ages = []
        for summed in self._summed:
            for family, value in (*summed.topics(), *summed.channels()):
                labels = [summed.name] * len(family.labels)
                samples.setdefault(family, []).append((labels, value))
            found = summed.ages()
            if found is not None:
                ages.append(([summed.name], *found))
        write = _exposition()
        lines = {each: write.lines(write.metric(each, *its)) for each, its in samples.items()}
        if ages:
            lines[AGES] = write.lines(write.histogram(AGES, families.AGE_BOUNDS, *ages))
        return lines

    def _of_workers(
        self, workers: Sequence[Mapping[str, Any]], shares: Mapping[int, Answer]
    ) -> Iterator["Metric"]:
        metric, histogram = _exposition().metric, _exposition().histogram
        found = {str(index): answer.value["worker"] for index, answer in sorted(shares.items())}

        def of_each(family: Family, key: str) -> "Metric":
            return metric(family, *(([name], each[key]) for name, each in found.items()))

        yield metric(
            families.CONNECTIONS,
            *(([name, kind], each[kind]) for name, each in found.items() for kind in ("tcp", "http")),
        )
        yield metric(
            families.WORKER_UP,
            *(([str(each["worker"])], int(each["worker"] in shares)) for each in workers),
        )
        yield metric(
            families.RESTARTS, *(([str(each["worker"])], each["restarts"]) for each in workers)
        )
        turns = [([name], *each["turns"]) for name, each in found.items()]
        yield histogram(families.TURNS, families.TURN_BOUNDS, *turns)
        syncs = [
            ([name, lane], *times)
            for name, each in found.items()
            for lane, times in each["syncs"].items()
        ]
        yield histogram(families.SYNCS, families.SYNC_BOUNDS, *syncs)
        yield of_each(families.WRITES_FAIL, "failing")
        yield of_each(families.TOPIC_COUNT, "topics")
        yield of_each(families.MESSAGE_MEMORY, "memory")
        yield of_each(families.MESSAGE_MEMORY_LIMIT, "memory_limit")
        processes = {**found, "master": process_figures()}
        for family, key in ((families.RESIDENT, "resident"), (families.CPU, "cpu")):
            yield metric(family, *(([name], each[key]) for name, each in processes.items()))
        for family, key in ((families.EVENTS, "published"), (families.EVENTS_DROPPED, "dropped")):
            told = {name: each["events"] for name, each in found.items() if each["events"]}
            yield metric(family, *(([name], events[key]) for name, events in told.items()))

    def _of_nsqd(self, whole: Whole, disk: tuple[int, int]) -> Iterator["Metric"]:
        metric = _exposition().metric
        kinds = {"topics": "topic", "channels": "channel"}
        yield metric(
            families.SUMMED,
            *(
                ([summed.name, kind], summed.count(key))
                for summed in self._summed
                for key, kind in kinds.items()
            ),
        )
        size, free = disk
        yield metric(families.DISK_SIZE, ([], size))
        yield metric(families.DISK_FREE, ([], free))
        refusing = {"draining": whole.draining, "disk": whole.disk_refuses}
        yield metric(
            families.REFUSING, *(([reason], int(value)) for reason, value in refusing.items())
        )
        yield metric(
            families.LOOKUPD_CONNECTED,
            *(([name], int(knows)) for name, knows in whole.lookupds.items()),
        )
        yield metric(families.STARTED, ([], self._started / _SECOND))
        yield metric(families.BUILD, ([__version__, NSQ_VERSION], 1))


def split(answer: Answer) -> list[memoryview]:
    """The lines of each of LINES."""
    blob, at, found = memoryview(answer.blob), 0, []
    for length in answer.value["lengths"]:
        found.append(blob[at : at + length])
        at += length
    return found


def process_figures() -> dict[str, float]:
    """What a process tells of itself."""
    return {"resident": process_memory()["heap_in_use_bytes"], "cpu": time.process_time()}


def disk_space(path: str) -> tuple[int, int]:
    """Size of the disk, and what is free; may take long."""
    found = os.statvfs(path)
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


@cache
def _exposition() -> ModuleType:
    """Imported when it is first needed: it takes a moment, and megabytes."""
    return import_module("nsqcy.metrics.exposition")
