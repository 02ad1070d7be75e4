"""Graphite client: queries rates and forwards requests."""

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from urllib3.exceptions import HTTPError
from urllib3.util import Url, parse_url

from nsqcy.cluster.web_client import Answer, WebClient, reason
from nsqcy.config.durations import SECOND
from nsqcy.errors import RequestError

MAX_ANSWER = 32 << 20  # bytes
# Hop-by-hop headers, and headers that the next sender sets itself.
_HOP_BY_HOP = frozenset(
    [
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "trailers", "transfer-encoding", "upgrade", "content-length", "date"),
    ]
)


class Graphite:
    """A Graphite server. The methods raise RequestError on failure."""

    def __init__(self, url: str, interval: int, web: WebClient) -> None:
        """interval: the nsqds' statsd interval, in nanoseconds."""
        self._url = url.rstrip("/")
        self._seconds = max(1, interval // SECOND)
        self._web = web

    def rate(self, target: str) -> str:
        """Return the per-second growth of a counter series."""
        query = {
            "format": "json",
            "from": f"-{2 * self._seconds}sec",
            "target": target,
            "until": f"-{self._seconds}sec",
        }
        url = parse_url(f"{self._url}/render")._replace(query=urlencode(query))
        answer = self._web.fetch(url, maximum=MAX_ANSWER)
        value = _first_value(answer.body)
        return f"{value / self._seconds:.2f}" if value >= 0 else "N/A"

    def render(self, target: str, headers: Mapping[str, str]) -> Answer:
        """Forward a request with this path and these headers; return the response."""
        url = parse_url(self._url)
        headers = {name.title(): value for name, value in headers.items()}
        auth = None if "Authorization" in headers else url.auth
        place = Url(url.scheme, auth=auth, host=url.host, port=url.port)
        try:
            answer = self._web.request(place, "GET", target, headers, maximum=MAX_ANSWER)
        except (OSError, HTTPError, ValueError) as error:
            raise RequestError(reason(error)) from None
        if len(answer.body) > MAX_ANSWER:
            raise RequestError(f"the response has more than {MAX_ANSWER} bytes", answer.status)
        return answer


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a message's end-to-end headers."""
    return {name: value for name, value in headers.items() if name.lower() not in _HOP_BY_HOP}


def _first_value(body: bytes) -> float:
    try:
        series: Any = json.loads(body)
        return float(series[0]["datapoints"][0][0])
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError):
        raise RequestError("the response is not a series with values", 200, body) from None
