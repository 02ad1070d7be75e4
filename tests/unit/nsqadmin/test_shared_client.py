"""The same request to daemons for several users at the same time."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from urllib3.util import parse_url

from nsqcy.cluster.web_client import Answer, Terms
from nsqcy.errors import RequestError
from nsqcy.nsqadmin.cluster.outages import NotAsked, Outages
from nsqcy.nsqadmin.cluster.shared_client import MAX_SILENT, SharedClient, Silent
from nsqcy.nsqadmin.metrics import CountedClient, Outcomes
from support.worker_core import Log

URL = parse_url("http://h:1/stats")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Server:
    """Answers the requests of a client, when `go` is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.go.set()
        self.error: RequestError | None = None

    def ask(self, client: Any, url: Any, method: str = "GET", *_: Any, **__: Any) -> Answer:
        self.asked.append(f"{method} {url.path}")
        number = len(self.asked)
        self.begun.release()
        assert self.go.wait(60)
        if self.error is not None:
            raise self.error
        return Answer(200, {}, b"%d" % number)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    server = Server()
    monkeypatch.setattr(
        CountedClient, "ask", lambda client, *about, **more: server.ask(client, *about, **more)
    )
    return server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def client(server: Server, clock: Clock) -> SharedClient:
    return SharedClient(Terms(request_timeout=5.0), Outcomes(), clock)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def get(client: SharedClient, url: Any = URL) -> bytes:
    return client.ask(url, maximum=10).body


def waiting(count: Callable[[], int], wanted: int) -> None:
    while count() < wanted:
        threading.Event().wait(0.001)


def test_a_request_under_way_is_shared(
    server: Server, client: SharedClient, pool: ThreadPoolExecutor
) -> None:
    server.go.clear()
    first = pool.submit(get, client)
    assert server.begun.acquire(timeout=60)
    (flight,) = client._flights.values()
    others = [pool.submit(get, client) for _ in range(8)]
    waiting(lambda: len(flight.done._cond._waiters), 8)  # type: ignore[attr-defined]
    server.go.set()
    assert [each.result() for each in (first, *others)] == [b"1"] * 9
    assert get(client) == b"2"  # a later request is sent again
    assert client._flights == {}


def test_a_shared_error(server: Server, client: SharedClient, pool: ThreadPoolExecutor) -> None:
    server.go.clear()
    server.error = RequestError("got response 500", 500, b"x")
    first = pool.submit(get, client)
    assert server.begun.acquire(timeout=60)
    (flight,) = client._flights.values()
    other = pool.submit(get, client)
    waiting(lambda: len(flight.done._cond._waiters), 1)  # type: ignore[attr-defined]
    server.go.set()
    for each in (first, other):
        with pytest.raises(RequestError, match="got response 500") as caught:
            each.result()
        assert (caught.value.status, caught.value.body) == (500, b"x")


def test_a_change_ends_the_sharing(
    server: Server, client: SharedClient, pool: ThreadPoolExecutor
) -> None:
    server.go.clear()
    before = pool.submit(get, client)
    assert server.begun.acquire(timeout=60)
    change = pool.submit(client.ask, URL, "POST", None, b"", maximum=10)
    assert server.begun.acquire(timeout=60)
    server.go.set()
    change.result()
    assert get(client) != before.result()
    assert sorted(server.asked) == ["GET /stats", "GET /stats", "POST /stats"]


def test_a_silent_daemon_is_asked_once_in_a_while(
    server: Server, client: SharedClient, clock: Clock
) -> None:
    server.error = RequestError("timed out")
    with pytest.raises(RequestError, match="timed out"):
        get(client)
    for path in ("/stats", "/node", "/info"):
        with pytest.raises(NotAsked, match="did not answer, and is not queried again for 5 s"):
            get(client, URL._replace(path=path))
    assert server.asked == ["GET /stats"]
    with pytest.raises(RequestError, match="timed out"):  # commands are always sent
        client.ask(URL, "POST", None, b"", maximum=10)
    clock.now += 5
    with pytest.raises(RequestError, match="timed out"):
        get(client)
    with pytest.raises(NotAsked):
        get(client)
    clock.now += 5
    server.error = None
    assert get(client) and get(client)


def test_only_silence_counts(server: Server, client: SharedClient) -> None:
    server.error = RequestError("Connection refused")
    for _ in range(2):
        with pytest.raises(RequestError, match="refused"):
            get(client)
    assert len(server.asked) == 2
    server.error = RequestError("timed out")
    with pytest.raises(RequestError):
        get(client)
    server.error = None
    assert get(client, parse_url("http://other:1/stats"))


def test_one_request_finds_out(clock: Clock) -> None:
    silent = Silent(5.0, clock)
    silent.note(("h", 1), answered=False)
    clock.now = 5.0
    silent.check(("h", 1))
    with pytest.raises(NotAsked):
        silent.check(("h", 1))
    silent.note(("h", 1), answered=True)
    silent.check(("h", 1))


def test_silent_daemons_are_limited(clock: Clock) -> None:
    silent = Silent(5.0, clock)
    for port in range(MAX_SILENT + 5):
        silent.note(("h", port), answered=False)
    assert len(silent._until) == MAX_SILENT
    with pytest.raises(NotAsked):
        silent.check(("h", MAX_SILENT))


def test_requests_that_are_not_sent_are_not_news() -> None:
    outages = Outages(Log())  # type: ignore[arg-type]
    assert outages.note((), {"a": RequestError("timed out")})
    assert not outages.note((), {"a": NotAsked("did not answer")})
    assert not outages.note((), {"a": RequestError("timed out")})
    assert outages.note((), {"b": NotAsked("did not answer")})
    assert outages.note((), {"a": RequestError("refused")})
