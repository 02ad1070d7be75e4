"""The channels whose dead letters a topic receives.

Any channel on any nsqd may use a dead-letter topic, so all nsqds must be queried. The result is
kept for a few seconds, because browsers often refresh their pages. Thread-safe.
"""

import threading
from collections.abc import Callable, Sequence

from nsqcy.cluster.stats import Names
from nsqcy.cluster.summaries import Origins
from nsqcy.errors import HttpError

MAX_AGE = 10.0  # seconds


class DeadLetterOrigins:
    """origins: returns the dead-letter topics; may raise HttpError. clock: in seconds."""

    def __init__(self, origins: Callable[[], Origins], clock: Callable[[], float]) -> None:
        self._origins = origins
        self._clock = clock
        self._known: Origins = {}
        self._due = float("-inf")
        self._lock = threading.Lock()

    def of(self, topic: str) -> Sequence[Names]:
        """Return the channels that send their dead letters to this topic, sorted. If nsqds cannot
        be queried, return the channels of the last success."""
        if self._is_due():
            try:
                self._known = self._origins()
            except HttpError:
                pass  # the page has its own queries, and shows their errors
        return self._known.get(topic, ())

    def _is_due(self) -> bool:
        """Return whether this thread has to query. Other threads do not wait for a slow nsqd."""
        with self._lock:
            is_due = self._clock() >= self._due
            if is_due:
                self._due = self._clock() + MAX_AGE
            return is_due
