"""nsqadmin's client for nsqds and nsqlookupds: users who query the same daemon at the same time
share its response, and wait only once for a daemon that does not answer.

Threads that make the same GET request while it is under way share its response. nsqd's
RequestCoalescer begins a new round for such requests, but here that would double the waiting time.
Instead, nsqadmin's own changes end the sharing, so that a page shows all earlier changes.

After a timeout, only commands are sent to the daemon, for as long as the request was allowed to
take. Then one request determines whether the daemon answers again. Thread-safe.
"""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from urllib3.util import Url

from nsqcy.cluster.web_client import TIMED_OUT, Answer, Terms
from nsqcy.errors import RequestError
from nsqcy.nsqadmin.cluster.outages import NotAsked
from nsqcy.nsqadmin.metrics import CountedClient, Outcomes

MIN_PAUSE, MAX_PAUSE = 0.1, 30.0  # seconds
MAX_SILENT = 1000  # maximum daemons to remember: false registrations could add any number

Place = tuple[str | None, int | None]


class Silent:
    """Daemons that have not answered."""

    def __init__(self, pause: float, clock: Callable[[], float]) -> None:
        self._pause = min(max(pause, MIN_PAUSE), MAX_PAUSE)
        self._clock = clock
        self._until: dict[Place, float] = {}
        self._lock = threading.Lock()

    def check(self, place: Place) -> None:
        """Raise NotAsked for a daemon that has not answered, except once after each pause."""
        now = self._clock()
        with self._lock:
            until = self._until.get(place)
            if until is None:
                return
            if now >= until:
                self._until[place] = now + self._pause  # this request tests the address
                return
        raise NotAsked(f"did not answer, and is not queried again for {self._pause:g} s")

    def note(self, place: Place, *, answered: bool) -> None:
        with self._lock:
            self._until.pop(place, None)
            if answered:
                return
            if len(self._until) >= MAX_SILENT:
                del self._until[next(iter(self._until))]
            self._until[place] = self._clock() + self._pause


class _Flight:
    """A request under way."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: Answer | None = None
        self.error: RequestError | None = None


class SharedClient(CountedClient):
    def __init__(
        self, terms: Terms, outcomes: Outcomes, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(terms, outcomes)
        self._silent = Silent(terms.whole, clock)
        self._flights: dict[Any, _Flight] = {}
        self._lock = threading.Lock()

    def ask(
        self,
        url: Url,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        maximum: int,
    ) -> Answer:
        if method == "GET" and body is None:
            self._silent.check(_place(url))
            key = url.url, tuple((headers or {}).items()), maximum
            return self._shared(key, lambda: self._noted(url, method, headers, body, maximum))
        try:
            return self._noted(url, method, headers, body, maximum)
        finally:
            with self._lock:
                self._flights = {}

    def _noted(
        self,
        url: Url,
        method: str,
        headers: Mapping[str, str] | None,
        body: bytes | None,
        maximum: int,
    ) -> Answer:
        place = _place(url)
        try:
            answer = super().ask(url, method, headers, body, maximum=maximum)
        except RequestError as error:
            self._silent.note(place, answered=str(error) != TIMED_OUT)
            raise
        self._silent.note(place, answered=True)
        return answer

    def _shared(self, key: Any, ask: Callable[[], Answer]) -> Answer:
        with self._lock:
            flights = self._flights
            flight = flights.get(key)
            if flight is None:
                mine = flights[key] = _Flight()
        if flight is None:
            return self._lead(flights, key, mine, ask)
        if not flight.done.wait(self.terms.whole):
            raise RequestError(TIMED_OUT)
        if flight.answer is not None:
            return flight.answer
        error = flight.error or RequestError(TIMED_OUT)
        # A copy, because several threads would add their tracebacks to a shared object.
        raise type(error)(str(error), error.status, error.body)

    def _lead(
        self, flights: dict[Any, _Flight], key: Any, flight: _Flight, ask: Callable[[], Answer]
    ) -> Answer:
        try:
            flight.answer = ask()
            return flight.answer
        except RequestError as error:
            flight.error = RequestError(str(error), error.status, error.body)
            raise
        finally:
            with self._lock:
                flights.pop(key, None)
            flight.done.set()


def _place(url: Url) -> Place:
    return url.host, url.port
