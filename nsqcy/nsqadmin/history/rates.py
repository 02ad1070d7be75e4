"""Rates from counters, summed across all nodes.

Pure. A counter that decreased belongs to a restarted nsqd: its growth is unknown, not zero. NSQ
does not count the messages that leave a channel, so they are computed: messages received minus the
growth of the channel's contents.

A reading may have only the busiest topics of an nsqd. The other topics count in the sums of the
node and the cluster, with the rates that the nsqd reports; so does a topic whose earlier counters
are unknown.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from nsqcy.cluster.latency import Latency
from nsqcy.cluster.stats import ChannelStats, TopicStats
from nsqcy.cluster.summaries import Summary, Totals, totals_of
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


Growth = tuple[float, float, float, float]  # in, out, requeued and timed out, per second
Level = tuple[int, int, int, float]  # depth, in flight, deferred; and latency in seconds


class _Reported(NamedTuple):
    """The rates of a topic and its channels, as reported by the nsqd."""

    topic: Growth
    channels: Mapping[str, Growth]


class _Others(NamedTuple):
    """Sums over the topics that a reading omits, and the reported rates of the topics that it
    contains."""

    level: Level
    growth: Growth
    reported: Mapping[str, _Reported]


class Reading(NamedTuple):
    """One nsqd's counters and levels at one time. Kept small, because there are many. others: None
    if the reading contains all topics."""

    at: float  # seconds
    topics: Mapping[str, _Topic]
    levels: Sequence[tuple[Subject, Level]]
    others: _Others | None = None


def reading(at: float, summary: Summary) -> Reading:
    topics: dict[str, _Topic] = {}
    levels = []
    for row in summary.rows:
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
    return Reading(at, topics, levels, None if summary.is_complete else _others(summary))


def _others(summary: Summary) -> _Others:
    reported = {row.name: _reported(row) for row in summary.rows}
    all_topics, rows = summary.totals, totals_of(summary.rows)
    whole, shown = all_topics.of_channels, rows.of_channels
    level = (
        all_topics.backlog - rows.backlog,
        whole.in_flight_count - shown.in_flight_count,
        whole.deferred_count - shown.deferred_count,
        UNKNOWN,
    )
    depth, in_flight, deferred = (max(0, each) for each in level[:3])
    grown = zip(_growth_of(all_topics), _growth_of(rows), strict=True)
    received, left, requeued, timed_out = (max(0.0, one - other) for one, other in grown)
    return _Others(
        (depth, in_flight, deferred, UNKNOWN), (received, left, requeued, timed_out), reported
    )


def _growth_of(totals: Totals) -> Growth:
    rates = totals.rates
    return totals.publish_rate, rates.finished, rates.requeued, rates.timed_out


def _reported(row: TopicStats) -> _Reported:
    channels = {
        name: (each.rates.received, each.rates.finished, each.rates.requeued, each.rates.timed_out)
        for name, each in row.channels.items()
        if each.rates is not None
    }
    return _Reported(_growth_of(totals_of([row])), channels)


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

    def is_at(self, subject: Subject, level: Level) -> None:
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
            if now.others is not None:
                tick.is_at(here, now.others.level)
                tick.is_at(CLUSTER, now.others.level)
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
    if now.others is not None:
        for whole in (here, CLUSTER):
            tick.grown(whole, now.others.growth)
    for name, topic in now.topics.items():
        if name not in before.topics and before.others is not None:
            _grow_as_reported(tick, here, name, now)
            continue
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


def _grow_as_reported(tick: Tick, here: Subject, name: str, now: Reading) -> None:
    """Add the rates of a topic that the last reading omitted."""
    found = now.others.reported.get(name) if now.others is not None else None
    if found is None:
        return
    for channel, more in found.channels.items():
        tick.grown(Subject(topic=name, channel=channel), more)
    for subject in (Subject(topic=name), here, CLUSTER):
        tick.grown(subject, found.topic)
