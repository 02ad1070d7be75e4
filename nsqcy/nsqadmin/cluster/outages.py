"""Outages of daemons: each is logged once, not for every request.

Owns the line that reports the end of an outage. The caller logs its beginning, because only the
caller knows the purpose of the query. Thread-safe.
"""

import threading
from collections.abc import Iterable, Mapping
from typing import Any

from nsqcy.errors import RequestError
from nsqcy.logging import events
from nsqcy.logging.types import Lines


class NotAsked(RequestError):
    """A request that was not sent, because the daemon has just failed to answer another one."""


class Outages:
    def __init__(self, log: Lines) -> None:
        self._log = log
        self._reasons: dict[Any, str] = {}  # by address
        self._lock = threading.Lock()

    def note(self, answered: Iterable[Any], errors: Mapping[Any, RequestError]) -> bool:
        """Record the results of queries by address; return whether an error has to be logged,
        because it does not belong to a known outage.

        A 404 counts as an answer.
        """
        failed = {at: error for at, error in errors.items() if error.status != 404}
        well = {*answered, *(errors.keys() - failed.keys())}
        with self._lock:
            reasons = {
                at: str(error)
                for at, error in failed.items()
                if not (isinstance(error, NotAsked) and at in self._reasons)
            }
            is_new = any(self._reasons.get(at) != text for at, text in reasons.items())
            ended = sorted(str(at) for at in well if self._reasons.pop(at, None) is not None)
            self._reasons |= reasons
        for address in ended:
            events.upstream_recovered(self._log, upstream=address)
        return is_new or len(failed) < len(errors)
