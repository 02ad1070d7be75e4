"""nsqadmin's requests to others, counted by what became of them."""

import threading
from collections import Counter
from collections.abc import Mapping

from urllib3.util import Url

from nsqcy.cluster.web_client import TIMED_OUT, Answer, Terms, WebClient
from nsqcy.errors import RequestError

OUTCOMES = ("ok", "timeout", "unreachable", "bad")


class CountedClient(WebClient):
    """Counts what becomes of requests. Asked by many threads."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._lock = threading.Lock()
        self._outcomes = Counter(dict.fromkeys(OUTCOMES, 0))

    def ask(
        self,
        url: Url,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        most: int,
    ) -> Answer:
        try:
            answer = super().ask(url, method, headers, body, most=most)
        except RequestError as error:
            self._count(outcome(error))
            raise
        self._count("ok" if answer.status < 500 else "bad")
        return answer

    def outcomes(self) -> dict[str, int]:
        """How many there were of each so far."""
        with self._lock:
            return dict(self._outcomes)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self._outcomes[outcome] += 1


def outcome(error: RequestError) -> str:
    """One of so many, whatever was wrong."""
    if error.status:
        return "bad"
    return "timeout" if str(error) == TIMED_OUT else "unreachable"
