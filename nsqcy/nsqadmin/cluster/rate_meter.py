"""Rates of counters that pages read, and the finish rates of consumers whose nsqd reports none.

Pure: callers pass the time. The history's sampler measures topics, channels and nodes; this module
measures values that only a page reads, such as those of processes and consumers.
"""

import threading
from collections.abc import Hashable
from dataclasses import replace

from nsqcy.cluster.stats import ChannelStats, ClientStats

# minimum seconds between two readings; the growth over a shorter span is too imprecise
_MIN_SPAN = 1.0
_MAX_SPAN = 120.0  # seconds; a mean over a longer span is not the current value
_MAX_COUNTERS = 20_000


class RateMeter:
    """Converts readings of counters to rates per second: since the previous reading if it is
    recent, otherwise since the counter began."""

    def __init__(self) -> None:
        self._readings: dict[Hashable, tuple[float, float, float]] = {}
        self._lock = threading.Lock()

    def rate(self, counter: Hashable, now: float, age: float, value: float) -> float:
        """now: seconds. age: seconds since the counter was 0."""
        with self._lock:
            known = self._readings.get(counter)
            if known is not None and now - known[0] < _MIN_SPAN:
                return known[2]
            span, grown = age, value
            if known is not None and now - known[0] <= _MAX_SPAN and value >= known[1]:
                span, grown = now - known[0], value - known[1]
            rate = grown / span if span > 0 else 0.0
            self._forget(now)
            self._readings[counter] = now, value, rate
            return rate

    def _forget(self, now: float) -> None:
        """Drop the readings that are too old to be used."""
        if len(self._readings) >= _MAX_COUNTERS:
            old = [key for key, each in self._readings.items() if now - each[0] > _MAX_SPAN]
            for key in old or [*self._readings]:
                del self._readings[key]


def with_rates(stats: ChannelStats, meter: RateMeter, now: float) -> ChannelStats:
    """Return a channel whose consumers have finish rates. nsqcy's nsqd reports them; for other
    nsqds, they follow from the counts. now: seconds since the epoch."""
    if stats.clients is None:
        return stats
    waiting = {row.node for row in stats.nodes if row.figures.depth}

    def measured(client: ClientStats) -> ClientStats:
        if client.finish_rate is not None or client.saturated:
            return client
        counter = (stats.topic, stats.name, client.node, client.remote_address, client.connect_ts)
        rate = meter.rate(counter, now, now - client.connect_ts, client.finish_count)
        is_full = client.in_flight_count >= client.ready_count > 0
        return replace(client, finish_rate=rate, saturated=is_full and client.node in waiting)

    return stats._replace(clients=tuple(map(measured, stats.clients)))
