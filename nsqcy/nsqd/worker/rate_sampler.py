"""Greenlet that samples a worker's counters periodically, for the rates in /stats.

Walks topics in slices, so that deliveries continue between slices.
"""

from collections.abc import Callable, Mapping

import gevent

from nsqcy.broker.core import Shard
from nsqcy.server.core import Sampling

PERIOD = 5.0  # seconds between samples

SLICE = 512
"""Topics and channels per slice: about 0.2 ms of work."""


class RateSampler:
    """give_way: lets other work run; when it returns, the counts are exact."""

    def __init__(self, shard: Shard, give_way: Callable[[], None]) -> None:
        self.saturated: Mapping[tuple[str, str], int] = {}
        """The saturated consumers of the latest sample by topic and channel, without channels that
        have none."""
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
            sampling = Sampling(self._shard)
            while sampling.go_on(SLICE):
                self._give_way()
            self.saturated = sampling.saturated
            gevent.sleep(PERIOD)
