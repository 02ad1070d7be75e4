"""HTTP requests to nsqlookupds and nsqds, with the standard library only.

A request ends at its deadline, no matter how slowly the bytes arrive. Redirects are not followed:
they may lead anywhere. A response that is too long is not read to its end.
"""

import http.client
import json
import re
import socket
import time
from typing import Any

MAX_ANSWER = 64 << 20  # bytes
MAX_OBJECTS, MAX_VALUES = 200_000, 4_000_000  # limits on a response
PIECE = 1 << 16
MAX_SHOWN = 100  # maximum characters of an announced address, or of a status line
MAX_ERROR = 200  # maximum bytes of an error response that are read
NO_SUCH_PATH = b'"NOT_FOUND"'  # in the response of a daemon without this path
HEADERS = {"Accept": "application/vnd.nsq; version=1.0"}


PORTS = "use the HTTP port, by default 4161 for nsqlookupd and 4151 for nsqd"


class BadStatus(ValueError):
    """A response with a status other than 200. `is_stranger`: another kind of daemon answered."""

    def __init__(self, status: int, reason: str, body: bytes = b"") -> None:
        hint = " (redirects are not followed)" if 300 <= status < 400 else ""
        self.is_stranger = NO_SUCH_PATH in body
        if self.is_stranger:
            hint = f" (another daemon answered: {PORTS})"
        shown = "".join(filter(str.isprintable, reason))[:MAX_SHOWN]
        super().__init__(f"HTTP Error {status}: {shown}{hint}")
        self.status = status


class _Socket(socket.socket):
    """Socket that receives until a deadline, even if bytes arrive slowly."""

    deadline = 0.0

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self.settimeout(left)
        return super().recv_into(*args, **kwargs)


def get(address: str, target: str, timeout: float) -> dict[str, Any]:
    """Return the JSON object at an address. timeout: seconds for the whole request.

    Raises OSError, http.client.HTTPException, ValueError for an invalid response, or BadStatus for
    a status other than 200.
    """
    deadline = time.monotonic() + timeout
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.connect()
        sock = _Socket(fileno=connection.sock.detach())
        sock.deadline = deadline
        sock.settimeout(timeout)
        connection.sock = sock
        connection.request("GET", target, headers=HEADERS)
        with _response(connection) as answer:
            if answer.status != 200:
                raise BadStatus(answer.status, answer.reason, answer.read(MAX_ERROR))
            url = f"http://{address}{target}"
            body = _body(answer, url)
            _check_counts(body, url)
            return object_of(body)
    finally:
        connection.close()


def _response(connection: http.client.HTTPConnection) -> http.client.HTTPResponse:
    try:
        return connection.getresponse()
    except http.client.RemoteDisconnected:
        raise
    except http.client.BadStatusLine as error:
        line = repr("".join(filter(str.isprintable, str(error))).strip()[:MAX_SHOWN])
        raise ValueError(f"{line} is not an HTTP response: {PORTS}") from None


def _body(answer: http.client.HTTPResponse, url: str) -> bytes:
    pieces, size = [], 0
    while piece := answer.read(PIECE):
        size += len(piece)
        if size > MAX_ANSWER:
            raise ValueError(f"the response of {url} has more than {MAX_ANSWER} bytes")
        pieces.append(piece)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(pieces)


def _check_counts(body: bytes, url: str) -> None:
    for what, count, limit in (
        ("objects", body.count(b"{") + body.count(b"["), MAX_OBJECTS),
        ("values", body.count(b","), MAX_VALUES),
    ):
        if count > limit:
            raise ValueError(f"the response of {url} has {count} {what}: the limit is {limit}")


def object_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a response. Raises ValueError."""
    try:
        found = json.loads(body)
    except RecursionError:
        raise ValueError("the response is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the response is not a JSON object")
    wrapped = found.get("data")  # older versions wrap the response
    return wrapped if isinstance(wrapped, dict) else found


def addresses(found: dict[str, Any], port: str, *, proved: bool = False) -> list[str]:
    """Return the addresses of a response's producers, with the port of this name.

    Omits producers with an impossible address, because every nsqd chooses the address that it
    announces. proved: raise ValueError for a producer that has not authenticated with the
    nsqlookupd, because omitting it would hide its messages.
    """
    producers = found.get("producers") or []
    if not (isinstance(producers, list) and all(isinstance(each, dict) for each in producers)):
        raise ValueError("the response is not a list of nsqds")
    for each in producers:
        if proved and each.get("authenticated") is not True:
            name = f"{each['broadcast_address']}:{each[port]}"
            raise ValueError(
                f"authSecret withheld: nsqd {name[:MAX_SHOWN]!r} has not authenticated to"
                " nsqlookupd; set --lookupd-auth-token-file on this nsqd, list all nsqds, or set"
                " trustLookupd"
            )
    pairs = [(str(each["broadcast_address"]), each[port]) for each in producers]
    return [
        f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
        for host, number in pairs
        if type(number) is int
        and 0 < number < 65536
        and _HOST.fullmatch(host)
        and host.isprintable()
    ]


_HOST = re.compile(r"[^\s/?#@\\\x00-\x1f\x7f-\x9f]{1,255}")
