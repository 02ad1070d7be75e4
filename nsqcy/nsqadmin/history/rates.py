"""Rates from counters, summed across all nodes.

Pure. A counter that decreased belongs to a restarted nsqd: its growth is unknown, not zero. NSQ
does not count the messages that leave a channel, so they are computed: messages received minus the
growth of the channel's contents.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from nsqcy.cluster.latency import Latency
from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.config.durations import SECOND
from nsqcy.nsqadmin.history.store import CLUSTER, METRICS, UNKNOWN, Subject


class Counters(NamedTuple):
    """A channel's counters."""

    received: int = 0
    held: int = 0
    requeued: int = 0
    timed_out: int = 0


NONE = Counters()


class _Topic(NamedTuple):
    received: int
    channels: Mapping[str, Counters]


class Reading(NamedTuple):
    """One nsqd's counters and levels at one time. Kept small, because there are many."""

    at: float  # seconds
    topics: Mapping[str, _Topic]
    levels: Sequence[tuple[Subject, tuple[int, int, int, float]]]


def reading(at: float, rows: Iterable[TopicStats]) -> Reading:
    topics: dict[str, _Topic] = {}
    levels = []
    for row in rows:
        channels = {name: _counters(each) for name, each in row.channels.items()}
        topics[row.name] = _Topic(row.figures.message_count, channels)
        depth, in_flight, deferred = row.figures.depth, 0, 0
        for name, each in row.channels.items():
            figures = each.figures
            depth += figures.depth
            in_flight += figures.in_flight_count
            deferred += figures.deferred_count
            level = (
                figures.depth,
                figures.in_flight_count,
                figures.deferred_count,
                _seconds(each.latency),
            )
            levels.append((Subject(topic=row.name, channel=name), level))
        levels.append(
            (Subject(topic=row.name), (depth, in_flight, deferred, _seconds(row.latency)))
        )
    return Reading(at, topics, levels)


def _counters(channel: ChannelStats) -> Counters:
    figures = channel.figures
    held = figures.depth + figures.in_flight_count + figures.deferred_count
    return Counters(figures.message_count, held, figures.requeue_count, figures.timeout_count)


def _seconds(latency: Latency | None) -> float:
    """Return the latency of the highest quantile; unknown if there are no quantiles or finished
    messages."""
    if latency is None or not latency.percentiles or not latency.count:
        return UNKNOWN
    return max(latency.percentiles, key=lambda each: each.quantile).max / SECOND


Growth = tuple[float, float, float, float]  # in, out, requeued and timed out, per second


def growth(before: Counters, now: Counters, seconds: float) -> Growth | None:
    received = now.received - before.received
    requeued = now.requeued - before.requeued
    timed_out = now.timed_out - before.timed_out
    if min(received, requeued, timed_out) < 0:
        return None
    left = max(0, received - (now.held - before.held))
    return received / seconds, left / seconds, requeued / seconds, timed_out / seconds


class Tick:
    """Sums for one tick: a row per subject."""

    def __init__(self) -> None:
        self._growths: dict[Subject, list[float]] = {}
        self._levels: dict[Subject, list[float]] = {}

    def grown(self, subject: Subject, more: Growth) -> None:
        known = self._growths.get(subject)
        if known is None:
            self._growths[subject] = [*more]
        else:
            for place, each in enumerate(more):
                known[place] += each

    def is_at(self, subject: Subject, level: tuple[int, int, int, float]) -> None:
        known = self._levels.get(subject)
        if known is None:
            self._levels[subject] = [*level]
            return
        for place in range(3):
            known[place] += level[place]
        if not level[3] <= known[3]:  # true as well if a value is NaN
            known[3] = level[3] if level[3] == level[3] else known[3]

    def rows(self) -> dict[Subject, list[float]]:
        """Return the values by subject, in the order of METRICS."""
        unknown = [UNKNOWN] * 4
        rows = {}
        for subject, (depth, in_flight, deferred, latency) in self._levels.items():
            received, left, requeued, timed_out = self._growths.get(subject, unknown)
            rows[subject] = [received, left, depth, in_flight, deferred, requeued, timed_out]
            rows[subject].append(latency)
        assert len(METRICS) == 8
        return rows


class Rates:
    """Computes rates from successive readings per nsqd."""

    def __init__(self, patience: float) -> None:
        """patience: maximum seconds between two readings; a mean over a longer period would be
        misleading."""
        self._patience = patience
        self._last: dict[str, Reading] = {}

    def rows(self, readings: Mapping[str, Reading]) -> dict[Subject, list[float]]:
        """Return the rates for one tick, from the nsqds' readings by name."""
        tick = Tick()
        for node, now in readings.items():
            before = self._last.get(node)
            if before is not None and 0 < now.at - before.at <= self._patience:
                _grow(tick, node, before, now)
            here = Subject(node=node)
            for whole in (here, CLUSTER):
                tick.is_at(whole, (0, 0, 0, UNKNOWN))
            for subject, level in now.levels:
                tick.is_at(subject, level)
                if not subject.channel:
                    tick.is_at(here, level)
                    tick.is_at(CLUSTER, level)
            self._last[node] = now._replace(levels=())
        self._forget(readings)
        return tick.rows()

    def _forget(self, readings: Mapping[str, Reading]) -> None:
        newest = max((each.at for each in readings.values()), default=0.0)
        gone = [node for node, each in self._last.items() if newest - each.at > self._patience]
        for node in gone:
            del self._last[node]


def _grow(tick: Tick, node: str, before: Reading, now: Reading) -> None:
    seconds = now.at - before.at
    here = Subject(node=node)
    for name, topic in now.topics.items():
        # A new topic started counting from zero after the last reading.
        old = before.topics.get(name, _Topic(0, {}))
        if topic.received < old.received:
            continue
        left = requeued = timed_out = 0.0
        for channel, counters in topic.channels.items():
            more = growth(old.channels.get(channel, NONE), counters, seconds)
            if more is not None:
                tick.grown(Subject(topic=name, channel=channel), more)
                left, requeued, timed_out = left + more[1], requeued + more[2], timed_out + more[3]
        more = ((topic.received - old.received) / seconds, left, requeued, timed_out)
        tick.grown(Subject(topic=name), more)
        tick.grown(here, more)
        tick.grown(CLUSTER, more)
    if not now.topics:
        for whole in (here, CLUSTER):
            tick.grown(whole, (0.0, 0.0, 0.0, 0.0))
