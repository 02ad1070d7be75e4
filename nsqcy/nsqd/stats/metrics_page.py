"""nsqd's /metrics page, from the shares of all workers and the master's own figures.

Topics and channels make up most of the page and are already in the shared buffer, as lines.
prometheus_client, which writes the rest, makes this module slow to import.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from prometheus_client.core import Metric

from nsqcy import NSQ_VERSION, __version__
from nsqcy.commit import commit
from nsqcy.metrics import families
from nsqcy.metrics.exposition import Form, choose, heading, histogram, lines, metric, write
from nsqcy.metrics.families import AGE_BOUNDS, AGES, SYNC_BOUNDS, TURN_BOUNDS, Family
from nsqcy.nsqd.stats.metrics_other_series import Summed
from nsqcy.nsqd.stats.metrics_shares import LINES, compressed, process_figures
from nsqcy.nsqd.stats.node_page import Disk, Whole
from nsqcy.nsqd.stats.page_buffer import Piece, SharedBuffer, Writer, pieces, plan

__all__ = ["Page", "choose"]

_SECOND = 1_000_000_000

# A worker's own figures, by name.
_OF_WORKERS = {
    "failing": families.WRITES_FAIL,
    "unreadable": families.UNREADABLE,
    "damages": families.DAMAGES,
    "hung": families.DISK_HANGS,
    "topics": families.TOPIC_COUNT,
    "memory": families.MESSAGE_MEMORY,
    "memory_limit": families.MESSAGE_MEMORY_LIMIT,
}
_OF_PROCESSES = {"resident": families.RESIDENT, "cpu": families.CPU}
_OF_EVENTS = {"published": families.EVENTS, "dropped": families.EVENTS_DROPPED}
_CONNECTIONS = ("tcp", "http")


class Page:
    """One page. `shares` are the share() results from the workers that have answered."""

    def __init__(
        self,
        form: Form,
        shares: Mapping[int, Mapping[str, Any]],
        sums: Sequence[Summed],
        whole: Whole,
        disk: Disk,
    ) -> None:
        self._form = form
        self._shares = shares
        self._sums = sums
        self._whole = whole
        self._disk = disk
        self._workers = {str(index): share["worker"] for index, share in sorted(shares.items())}

    def plan(self, shared: SharedBuffer) -> bytes:
        """Return the page's plan: the workers' lines in the buffer, and the lines that the master
        adds now."""
        writer = Writer(shared.fd, 0)
        others = write(
            self._form,
            [
                *self._of_channels(),
                *self._of_workers(),
                *self._of_copies(),
                *self._of_users(),
                *self._of_nsqd(),
            ],
        )
        return plan([*self._of_topics(writer), writer.write(self._pack(others))])

    def _pack(self, text: bytes) -> bytes:
        return compressed(text) if self._form.gzip else text

    # Topics and channels

    def _of_topics(self, writer: Writer) -> Iterator[Piece]:
        """Yield each family's heading and lines."""
        written = [pieces(index + 1, share["lengths"]) for index, share in self._shares.items()]
        summed = self._summed()
        for number, family in enumerate(LINES):
            yield writer.write(_heading(family, self._form.is_openmetrics, self._form.gzip))
            yield from chain.from_iterable(its[number] for its in written)
            if family in summed:
                yield writer.write(self._pack(lines(summed[family])))

    def _summed(self) -> dict[Family, Metric]:
        """Return the totals for topics and channels without their own lines."""
        samples: dict[Family, list[tuple[list[str], float]]] = {}
        ages = []
        for summed in self._sums:
            for family, value in (*summed.topics(), *summed.channels()):
                labels = [summed.name] * len(family.labels)
                samples.setdefault(family, []).append((labels, value))
            found = summed.ages()
            if found is not None:
                ages.append(([summed.name], *found))
        metrics = {family: metric(family, its) for family, its in samples.items()}
        return metrics | ({AGES: histogram(AGES, AGE_BOUNDS, ages)} if ages else {})

    # The rest

    def _of_channels(self) -> Iterator[Metric]:
        """Yield the channel metrics that the workers do not send as lines."""
        saturated: Counter[tuple[str, str]] = Counter()
        for its in self._workers.values():
            for topic, channel, count in its["saturated"]:
                saturated[topic, channel] += count
        yield metric(families.SATURATED, (([*key], count) for key, count in saturated.items()))

    def _of_workers(self) -> Iterator[Metric]:
        found = self._workers
        born = {str(each["worker"]): each for each in self._whole.workers}
        yield metric(
            families.CONNECTIONS,
            (([name, kind], its[kind]) for name, its in found.items() for kind in _CONNECTIONS),
        )
        yield metric(families.WORKER_UP, (([name], int(name in found)) for name in born))
        yield metric(families.RESTARTS, (([name], its["restarts"]) for name, its in born.items()))
        versions = (([name, its["nsqcy"]], 1) for name, its in found.items() if "nsqcy" in its)
        yield metric(families.WORKER_BUILD, versions)
        results = self._whole.upgrades.items()
        yield metric(families.UPGRADES, (([result], count) for result, count in results))
        yield metric(families.ACCEPT_PAUSES, [([], self._whole.accept_pauses)])
        turns = (([name], *its["turns"]) for name, its in found.items())
        yield histogram(families.TURNS, TURN_BOUNDS, turns)
        syncs = (
            ([name, lane], *times)
            for name, its in found.items()
            for lane, times in its["syncs"].items()
        )
        yield histogram(families.SYNCS, SYNC_BOUNDS, syncs)
        for key, family in _OF_WORKERS.items():
            yield metric(family, (([name], its[key]) for name, its in found.items()))
        processes = {**found, "master": process_figures()}
        for key, family in _OF_PROCESSES.items():
            yield metric(family, (([name], its[key]) for name, its in processes.items()))
        events = {name: its["events"] for name, its in found.items() if its["events"]}
        for key, family in _OF_EVENTS.items():
            yield metric(family, (([name], its[key]) for name, its in events.items()))

    def _of_copies(self) -> Iterator[Metric]:
        """Yield the metrics of workers with copies."""
        found = {name: its["copies"] for name, its in self._workers.items() if its["copies"]}
        yield metric(
            families.COPIES_GROUPS,
            (
                ([name, role], count)
                for name, its in found.items()
                for role, count in its["groups"].items()
            ),
        )
        for key, family in families.COPIES.items():
            yield metric(family, (([name], its[key]) for name, its in found.items()))

    def _of_users(self) -> Iterator[Metric]:
        """Yield the metrics for users with quotas."""
        users = together(its["quotas"] for its in self._workers.values())
        for number, family in enumerate(families.USERS):
            unit = _SECOND if family is families.USER_WAITS else 1
            yield metric(
                family,
                (
                    ([name], figures[number] / unit)
                    for name, figures in users.items()
                    if number < len(figures)
                ),
            )

    def _of_nsqd(self) -> Iterator[Metric]:
        whole, disk = self._whole, self._disk
        yield metric(
            families.SUMMED,
            (
                ([summed.name, kind], summed.count(f"{kind}s"))
                for summed in self._sums
                for kind in ("topic", "channel")
            ),
        )
        yield metric(families.DISK_SIZE, [([], disk.size)])
        yield metric(families.DISK_FREE, [([], disk.free)])
        refusing = {"draining": whole.draining, "disk": whole.disk_refuses}
        yield metric(families.REFUSING, (([why], int(is_so)) for why, is_so in refusing.items()))
        knowing = whole.lookupds.items()
        yield metric(families.LOOKUPD_CONNECTED, (([name], int(knows)) for name, knows in knowing))
        yield metric(families.STARTED, [([], whole.started / _SECOND)])
        yield metric(families.BUILD, [([__version__, NSQ_VERSION, commit()], 1)])


def together(shares: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, list[int]]:
    """Return each user's figures, given the Quotas.told() results of all workers. If all workers
    count a user's usage together, the shares are equal except for the latest changes."""
    found: dict[str, list[int]] = {}
    for each in chain.from_iterable(shares):
        before = found.get(each["user"])
        if before is None:
            found[each["user"]] = list(each["figures"])
        else:
            merge = max if each["shared"] else int.__add__
            found[each["user"]] = list(map(merge, before, each["figures"]))
    return found


@cache
def _heading(family: Family, openmetrics: bool, compress: bool) -> bytes:
    text = heading(family, openmetrics)
    return compressed(text) if compress else text
