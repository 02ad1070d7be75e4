"""The channels whose dead letters a topic receives.

An nsqd reports a channel's dead-letter topic with the channel, so all topics must be queried to
find the channels that use one dead-letter topic. The result is kept for a few seconds, because
browsers often refresh their pages. Thread-safe.
"""

import threading
from collections.abc import Callable, Mapping, Sequence

from nsqcy.cluster.problems import dead_letter_topics
from nsqcy.cluster.stats import Names, TopicStats
from nsqcy.errors import HttpError

MAX_AGE = 10.0  # seconds


class DeadLetterOrigins:
    """rows: returns the statistics of all topics; may raise HttpError. clock: in seconds."""

    def __init__(
        self, rows: Callable[[], Sequence[TopicStats]], clock: Callable[[], float]
    ) -> None:
        self._rows = rows
        self._clock = clock
        self._known: Mapping[str, Sequence[Names]] = {}
        self._due = float("-inf")
        self._lock = threading.Lock()

    def of(self, topic: str) -> Sequence[Names]:
        """Return the channels that send their dead letters to this topic, sorted. If nsqds cannot
        be queried, return the channels of the last success."""
        if self._is_due():
            try:
                self._known = dead_letter_topics(self._rows())
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
