"""Greenlet that samples a worker's counters periodically, for the rates in /stats.

Walks topics in slices, so that deliveries continue between slices.
"""

import time
from collections.abc import Callable

import gevent

from nsqcy.broker.core import Shard
from nsqcy.nsqd.stats.recent_rates import PERIOD, RecentRates
from nsqcy.nsqd.stats.stats_page import SLICE
from nsqcy.util.slices import Slices


class RateSampler:
    """give_way: lets other work run; when it returns, the counts are exact."""

    def __init__(self, shard: Shard, give_way: Callable[[], None]) -> None:
        self.rates = RecentRates(time.monotonic)
        self._shard = shard
        self._give_way = give_way
        self._greenlet: gevent.Greenlet | None = None

    def start(self) -> None:
        self._greenlet = gevent.spawn(self._run)

    def stop(self) -> None:
        if self._greenlet is not None:
            self._greenlet.kill(block=False)

    def _run(self) -> None:
        while True:
            self._give_way()
            topics = (each for each in list(self._shard.topics.values()) if not each.gone)
            self.rates.sample(topics, Slices(self._give_way, SLICE).step)
            gevent.sleep(PERIOD)
