"""nsqadmin's /metrics. Runs in a thread, as what writes the page takes a moment to be imported."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from nsqcy.http.parser import Reply
from nsqcy.http.request_counts import Requests
from nsqcy.http.router import Request, Route
from nsqcy.metrics import families
from nsqcy.nsqadmin.logins import Logins
from nsqcy.nsqadmin.upstreams import Outcomes

if TYPE_CHECKING:
    from nsqcy.http.metrics_page import Samples


def route(
    outcomes: Outcomes,
    logins: Logins | None,
    requests: Requests,
    connections: Callable[[], Mapping[str, int]],
) -> Route:
    """Tells what these have counted."""

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
