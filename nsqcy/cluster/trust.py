"""Which servers may receive a program's token: those in its options, and nsqds that have
authenticated to an nsqlookupd in its options.

Any program can register as an nsqd, so an nsqlookupd's list alone proves nothing. An nsqd
authenticates with AUTH (`"authenticated": true` in responses of nsqcy's nsqlookupd). Thread-safe.
"""

import threading
from collections.abc import Callable, Iterable

from urllib3.util import Url

Place = tuple[str, int | None]


class Trust:
    def __init__(self, named: Callable[[], Iterable[Url]], *, all_listed: bool = False) -> None:
        """named: the servers currently set in options. all_listed: also trust every nsqd that an
        nsqlookupd lists."""
        self._named = named
        self._all_listed = all_listed
        self._proved: dict[str, frozenset[Place]] = {}  # by nsqlookupd
        self._lock = threading.Lock()

    def note(self, lookupd: str, places: Iterable[Place], *, all_nodes: bool) -> None:
        """Record the nsqds that have authenticated to an nsqlookupd. all_nodes: the list is
        complete."""
        found = frozenset((host.lower(), port) for host, port in places)
        with self._lock:
            before = frozenset() if all_nodes else self._proved.get(lookupd, frozenset())
            self._proved[lookupd] = found | before

    def covers(self, url: Url) -> bool:
        place = _place(url)
        if self._all_listed or any(place == _place(each) for each in self._named()):
            return True
        with self._lock:
            return any(place in places for places in self._proved.values())


def _place(url: Url) -> Place:
    host = (url.host or "").strip("[]").lower()
    return host, url.port or (443 if url.scheme == "https" else 80)
