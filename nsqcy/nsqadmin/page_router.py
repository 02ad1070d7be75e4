"""Router that answers a browser with a page if no route matches. Programs receive NSQ's JSON.

Decides which requests receive the page. The page itself has its own route.
"""

from collections.abc import Sequence

from nsqcy.http.parser import Head, Reply
from nsqcy.http.router import NOT_FOUND, Route, Router
from nsqcy.nsqadmin.auth.access import is_page

_FOR_PROGRAMS = ("/api/", "/config/", "/static/", "/fonts/")


class PageRouter(Router):
    def __init__(self, routes: Sequence[Route], base: str, missing: Route) -> None:
        super().__init__(routes, base)
        self._base = base
        self._missing = missing

    def resolve(self, head: Head) -> Route | Reply:
        found = super().resolve(head)
        return self._missing if found is NOT_FOUND and self._is_for_page(head) else found

    def _is_for_page(self, head: Head) -> bool:
        path = head.path.removeprefix(self._base)
        is_below = head.path.startswith(f"{self._base}/")
        is_shown = not path.startswith(_FOR_PROGRAMS)
        return head.method == "GET" and is_below and is_shown and is_page(head)
