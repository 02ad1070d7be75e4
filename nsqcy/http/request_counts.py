"""Counts and durations of answered HTTP requests.

The label is the route's pattern, never the path, so requests for unknown paths create no series.
"""

import socket
import time
from bisect import bisect_left
from collections import Counter

from nsqcy.http.parser import Head, Reply
from nsqcy.http.server import HttpConnection, HttpServer
from nsqcy.metrics.families import REQUEST_BOUNDS

NO_ROUTE = "(none)"
OTHER_METHOD = "(other)"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class Times:
    """Request durations: counts between the bounds, and the sum in seconds."""

    def __init__(self) -> None:
        self.counts = [0] * (len(REQUEST_BOUNDS) + 1)
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(REQUEST_BOUNDS, seconds)] += 1
        self.seconds += seconds


class Requests:
    """Request counters. Updated on the hub; other threads may read them."""

    def __init__(self) -> None:
        # counts by method, route and status
        self.answers: Counter[tuple[str, str, int]] = Counter()
        self.times: dict[tuple[str, str], Times] = {}

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self.answers[method, route, status] += 1
        times = self.times.get((method, route))
        if times is None:
            times = self.times[method, route] = Times()
        times.add(seconds)


class CountedConnection(HttpConnection):
    """Connection that counts each request when it is answered."""

    __slots__ = ("_requests",)

    def __init__(
        self, requests: Requests, server: HttpServer, sock: socket.socket, peer: str
    ) -> None:
        self._requests = requests
        super().__init__(server, sock, peer)

    def _on_head(self, head: Head) -> None:
        self._route = None
        super()._on_head(head)

    def _answer(self, reply: Reply | None) -> None:
        head, route = self._head, self._route
        if reply is not None and head is not None:
            method = head.method if head.method in METHODS else OTHER_METHOD
            seconds = (time.perf_counter_ns() - self._begun) / 1e9
            self._requests.count(method, route.path if route else NO_ROUTE, reply.status, seconds)
        super()._answer(reply)
