"""nsqadmin's /metrics, and counters for the outcomes of its requests to other daemons.

/metrics runs in a thread because importing the module that writes the metrics is slow.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from urllib3.util import Url

from nsqcy.cluster.web_client import TIMED_OUT, Answer, Terms, WebClient
from nsqcy.errors import RequestError
from nsqcy.http.parser import Reply
from nsqcy.http.request_counts import Requests
from nsqcy.http.router import Request, Route
from nsqcy.metrics import families
from nsqcy.nsqadmin.auth.logins import Logins

OUTCOMES = ("ok", "timeout", "unreachable", "bad")


class Outcomes:
    """Counters by outcome, for all clients. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = Counter(dict.fromkeys(OUTCOMES, 0))

    def count(self, outcome: str) -> None:
        with self._lock:
            self._counts[outcome] += 1

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)


class CountedClient(WebClient):
    """Web client that counts the outcomes of its requests."""

    def __init__(self, terms: Terms, outcomes: Outcomes) -> None:
        super().__init__(terms)
        self._outcomes = outcomes

    def ask(
        self,
        url: Url,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        maximum: int,
    ) -> Answer:
        try:
            answer = super().ask(url, method, headers, body, maximum=maximum)
        except RequestError as error:
            self._outcomes.count(outcome(error))
            raise
        self._outcomes.count("ok" if answer.status < 500 else "bad")
        return answer


def outcome(error: RequestError) -> str:
    """Return the outcome label for an error, one of a fixed set."""
    if error.status:
        return "bad"
    return "timeout" if str(error) == TIMED_OUT else "unreachable"


if TYPE_CHECKING:
    from nsqcy.http.metrics_page import Samples


def route(
    outcomes: Outcomes,
    logins: Logins | None,
    requests: Requests,
    connections: Callable[[], Mapping[str, int]],
) -> Route:
    """Return the route for /metrics."""

    def handle(api: Any, request: Request) -> Reply:
        from nsqcy.http import metrics_page

        counts = outcomes.counts()
        sessions: Samples = [([], logins.sessions())] if logins is not None else []
        return metrics_page.page(
            request.head.header("Accept"),
            {
                families.UPSTREAM_REQUESTS: [([name], counts[name]) for name in counts],
                families.SESSIONS: sessions,
            },
            families.HTTP_OF_NSQADMIN,
            requests,
            connections(),
        )

    return Route("GET", "/metrics", handle, plain=True, logged=False)
