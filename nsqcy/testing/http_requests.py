"""HTTP client for tests of daemons."""

import http.client
import json
import ssl
import time
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def eventually(predicate: Callable[[], T], timeout: float = 30.0, *, interval: float = 0.01) -> T:
    """Wait until `predicate` returns a true value, and return it. After `timeout` seconds, fail and
    report the last value.

    interval: seconds between the first calls. Later, calls become rarer, because a call may take
    longer than the pause: a tenth of the time that has passed, and at most 0.1 s.
    """
    begun = time.monotonic()
    while True:
        value = predicate()
        if value:
            return value
        passed = time.monotonic() - begun
        assert passed < timeout, f"not met within {timeout} s; last value: {value!r}"
        time.sleep(max(interval, min(passed / 10, 0.1)))


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Web:
    """Makes requests to one HTTP address, each on a new connection; with a TLS context, over
    HTTPS."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout: float = 15.0,
        context: ssl.SSLContext | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """headers: added to every request."""
        self.host, self.port, self.timeout, self.context = host, port, timeout, context
        self.headers = headers or {}

    @classmethod
    def at(cls, address: str) -> "Web":
        """Return the daemon at host:port on this machine."""
        return cls(int(address.rpartition(":")[2]))

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        headers: dict[str, str] | None = None,
        **query: Any,
    ) -> Answer:
        if query:
            path += "?" + urllib.parse.urlencode(query)
        link = self.link()
        try:
            link.request(method, path, body, self.headers | (headers or {}))
            answer = link.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            link.close()

    def announce(self, method: str, path: str, length: int, **query: Any) -> Answer:
        """Send the head of a request that declares a body of this length, but send none of the
        body."""
        link = self.link()
        try:
            link.putrequest(method, f"{path}?{urllib.parse.urlencode(query)}")
            link.putheader("Content-Length", str(length))
            link.endheaders()
            answer = link.getresponse()
            told = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, told, answer.read())
        finally:
            link.close()

    def link(self) -> http.client.HTTPConnection:
        if self.context is None:
            return http.client.HTTPConnection(self.host, self.port, timeout=self.timeout)
        return http.client.HTTPSConnection(
            self.host, self.port, timeout=self.timeout, context=self.context
        )

    def get(self, path: str, **query: Any) -> Answer:
        return self.request("GET", path, **query)

    def post(self, path: str, body: bytes = b"", **query: Any) -> Answer:
        return self.request("POST", path, body, **query)

    def delete(self, path: str, body: bytes | None = None, **query: Any) -> Answer:
        return self.request("DELETE", path, body, **query)

    def put(self, path: str, body: bytes = b"", **query: Any) -> Answer:
        return self.request("PUT", path, body, **query)

    def do(self, action: str, topic: str, channel: str | None = None) -> None:
        """Run an action that must succeed: `do("pause", "t")` or `do("empty", "t", "c")`."""
        query: dict[str, Any] = {"topic": topic}
        if channel is not None:
            query["channel"] = channel
        noun = "topic" if channel is None else "channel"
        answer = self.post(f"/{noun}/{action}", **query)
        assert answer.status == 200, (action, topic, channel, answer)

    def create(self, topic: str, *channels: str) -> None:
        self.do("create", topic)
        for channel in channels:
            self.do("create", topic, channel)

    def pub(self, topic: str, body: bytes, **query: Any) -> None:
        answer = self.post("/pub", body, topic=topic, **query)
        assert (answer.status, answer.body) == (200, b"OK"), answer

    def mpub(self, topic: str, bodies: list[bytes]) -> None:
        answer = self.post("/mpub", b"\n".join(bodies), topic=topic)
        assert (answer.status, answer.body) == (200, b"OK"), answer

    def stats(self, **query: Any) -> dict[str, Any]:
        answer = self.get("/stats", format="json", **query)
        assert answer.status == 200, answer
        stats: dict[str, Any] = answer.json()
        return stats

    def topics(self) -> dict[str, dict[str, Any]]:
        return {topic["topic_name"]: topic for topic in self.stats()["topics"] or []}

    def topic(self, name: str) -> dict[str, Any] | None:
        for topic in self.stats(topic=name)["topics"] or []:
            if topic["topic_name"] == name:
                found: dict[str, Any] = topic
                return found
        return None

    def channel(self, topic: str, name: str) -> dict[str, Any] | None:
        for channel in (self.topic(topic) or {"channels": []})["channels"]:
            if channel["channel_name"] == name:
                found: dict[str, Any] = channel
                return found
        return None

    def counts(self, topic: str, channel: str | None = None) -> dict[str, int]:
        """Return a topic's or channel's figures, all 0 if it does not exist."""
        found = self.topic(topic) if channel is None else self.channel(topic, channel)
        return Figures(found or {})

    def await_counts(self, topic: str, channel: str | None = None, **want: int) -> None:
        """Wait until every named figure has the expected value."""
        last: dict[str, int] = {}

        def agree() -> bool:
            figures = self.counts(topic, channel)
            last.update({key: figures[key] for key in want})
            return last == want

        try:
            eventually(agree)
        except AssertionError:
            raise AssertionError(f"{topic}/{channel}: wanted {want}, have {last}") from None

    def client(self, topic: str, channel: str) -> dict[str, Any]:
        """Return a channel's only client."""
        found = self.channel(topic, channel)
        assert found is not None and len(found["clients"]) == 1, found
        client: dict[str, Any] = found["clients"][0]
        return client


class Figures(dict[str, Any]):
    """The counters of a stats object; absent counters are 0."""

    def __missing__(self, key: str) -> int:
        return 0
