"""Blocking HTTP request sender for any number of threads.

Each thread keeps its own connections. Every request ends at its deadline, even if the response
trickles in. The response body is read and dropped. Proxy settings in the environment are ignored.
"""

import threading
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from urllib3 import make_headers
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError
from urllib3.util import Url, parse_url

from nsqcy.cluster.web_client import PIECE, REDIRECTS, Terms, WebClient, reason
from nsqcy.errors import RequestError

MAX_REDIRECTS = 10
SAME_METHOD = frozenset({307, 308})
OF_A_BODY = frozenset({"content-type"})
OF_A_HOST = frozenset({"authorization", "cookie"})


class Request(NamedTuple):
    method: str
    url: Url
    headers: Mapping[str, str]
    body: bytes | None = None


class HttpSender(WebClient):
    """Sends requests and returns only the response status."""

    def __init__(self, terms: Terms) -> None:
        super().__init__(terms)
        self._thread = threading.local()

    def send(self, request: Request) -> int:
        """Send a request and return the status of the response after redirects. Raises RequestError
        if there is no response."""
        deadline = time.monotonic() + self.terms.whole
        try:
            for _ in range(MAX_REDIRECTS + 1):
                status, location = self._exchange(request, deadline)
                if status not in REDIRECTS or not location:
                    return status
                request = _redirected(request, status, location)
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            raise RequestError(reason(error)) from None
        raise RequestError(f"stopped after {MAX_REDIRECTS} redirects")

    def _exchange(self, request: Request, deadline: float) -> tuple[int, str]:
        """Return the status and the redirect location."""
        url = request.url
        place = (url.scheme, url.host, url.port)
        kept: dict[Any, HTTPConnection] = self._thread.__dict__
        connection = kept.pop(place, None)
        if connection is not None and connection.is_connected:
            try:
                return self._converse(connection, request, deadline)
            except ConnectionError:
                pass  # the server closed the idle connection: retry on a new one
            finally:
                _keep(kept, place, connection)
        connection = self._connection(url, deadline)
        try:
            connection.connect()
            return self._converse(connection, request, deadline)
        finally:
            _keep(kept, place, connection)

    def _converse(
        self, connection: HTTPConnection, request: Request, deadline: float
    ) -> tuple[int, str]:
        sock: Any = connection.sock
        sock.deadline = deadline
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        headers = request.headers
        if request.url.auth:
            headers = {**make_headers(basic_auth=unquote(request.url.auth)), **headers}
        try:
            connection.request(
                request.method,
                request.url.request_uri,
                request.body,
                headers,
                preload_content=False,
                decode_content=False,
            )
            response = connection.getresponse()
            while response.read(PIECE, decode_content=False):
                pass
        except BaseException:
            connection.close()
            raise
        return response.status, response.headers.get("location", "")


def _keep(kept: dict[Any, HTTPConnection], place: Any, connection: HTTPConnection) -> None:
    if connection.sock is not None:  # neither side has closed the connection
        kept[place] = connection


def _redirected(request: Request, status: int, location: str) -> Request:
    url = parse_url(urljoin(request.url.url, location))
    if url.host != request.url.host:
        request = request._replace(headers=_without(request.headers, OF_A_HOST))
    if status not in SAME_METHOD:
        headers = _without(request.headers, OF_A_BODY)
        request = request._replace(method="GET", headers=headers, body=None)
    return request._replace(url=url)


def _without(headers: Mapping[str, str], names: frozenset[str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in names}
