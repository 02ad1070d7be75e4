"""GET requests that pollers repeat: health checks, monitoring, open pages, discovery.

Decides whether the log should show a request. Independent of connections and of the log; the caller
passes the time.
"""

REPEAT = 3600.0  # seconds after which a repeated request is logged again
_MAX_SEEN = 2000  # maximum number of different requests to remember


class Polls:
    def __init__(self) -> None:
        self._seen: dict[
            tuple[str, str], tuple[int, float]
        ] = {}  # status and time of the last logged request

    def is_news(self, now: float, peer: str, target: str, status: int) -> bool:
        """Return whether a GET request is the first from this host for this target in a while, or
        its status has changed; `peer` is `host:port`."""
        key = (peer.rpartition(":")[0], target)
        seen = self._seen.get(key)
        if seen is not None and seen[0] == status and now < seen[1] + REPEAT:
            return False
        if len(self._seen) >= _MAX_SEEN:
            self._seen.clear()
        self._seen[key] = (status, now)
        return True
