"""Responses of daemons that are not as documented: hypothesis strategies."""

import copy
import json
from typing import Any

from hypothesis import strategies as st

from support.any_http_answer import answer

MESSAGE: dict[str, Any] = {  # a message as documented
    "id": "0123456789abcdef",
    "seq": 1,
    "timestamp": 1,
    "attempts": 1,
    "cut": False,
    "headers": {"cancel-key": "k"},
    "start": "1.0",
    "size": 3,
    "body": "YWJj",
    "due": 1,
    "consumer": {"client_id": "c", "remote_address": "r"},
}
ODD_TEXTS = ["", "x", "\ud800", "\x1b[31m\n", "a\u202eb", "x" * 5000]
ODD_NUMBERS = [0, -1, 1 << 70, 1.5, float("nan"), float("inf")]
ODD = st.sampled_from([None, True, [], {}, [1], {"a": 1}, *ODD_TEXTS, *ODD_NUMBERS])
TEXTS = st.sampled_from(
    [b"", b"x", b"\xff\xfe", b"{", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000]
) | st.binary(max_size=50)
HEADS = st.sampled_from(
    [
        b"",
        b"HTTP/1.1 200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 1000 + b"\r\n{}",
        b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n{}",
        b"HTTP/1.1 404 \x1b[31mred\x1b[0m\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nLocation: http://\x1b[31m/\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[\r\n\r\n",
        b"HTTP/1.1 999 OK\r\n\r\n",
        b"HTTP/1.1 0 OK\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n{}",
        b"HTTP/1.1 403 No\r\n\r\n" + b'{"https_port": "x"}',
        b"\x00\x00\x00\x06\x00\x00\x00\x00OK",
    ]
)


@st.composite
def altered(draw: st.DrawFn, valid: Any) -> Any:
    """A valid value in which a part is missing or replaced."""
    value = copy.deepcopy(valid)
    places = list(_places(value))
    if not places or draw(st.integers(0, 9)) == 0:
        return draw(ODD)
    container, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        del container[key]
    else:
        container[key] = draw(ODD)
    return value


def _places(value: Any) -> Any:
    keys = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
    for key in keys:
        yield value, key
        yield from _places(value[key])


def answers(*valid: Any) -> st.SearchStrategy[bytes]:
    """Responses that are nearly these values, or no responses at all."""
    nearly = st.one_of(*map(altered, valid)).map(lambda value: json.dumps(value).encode())
    wrapped = nearly.map(lambda body: b'{"status_code":200,"data":' + body + b"}")
    bodies = nearly | nearly.map(lambda body: body[: len(body) // 2]) | wrapped | TEXTS
    statuses = st.sampled_from([200] * 9 + [204, 400, 401, 403, 404, 500, 503])
    return st.builds(answer, bodies, statuses) | HEADS
