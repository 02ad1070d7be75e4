"""Cancelling deferred messages while they change."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.cluster.deferred import cancel_deferred, is_missing
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.errors import RequestError
from support.any_http_answer import AnyAnswer, json_answer

A, B, C, KEPT = (f"{number:016x}" for number in range(4))
MESSAGE = {"seq": 1, "timestamp": 1, "attempts": 1, "size": 0, "body": "", "cut": False}
MESSAGE |= {"headers": {}, "start": "1.0"}
MISSING = RequestError("got response 404", 404, b'{"message":"MESSAGE_NOT_FOUND"}')


class FakeNsqd:
    """An nsqd with pages of messages, which answers requests to cancel some ids with an error."""

    def __init__(self, pages: list[list[Any]], errors: dict[str, RequestError]) -> None:
        self.pages = pages
        self.errors = errors
        self.cancelled: list[str] = []
        self.requests: list[tuple[Any, ...]] = []

    def peek_channel(self, *about: Any, start: str | None, **more: Any) -> Any:
        self.requests.append((*about, more))
        number = int((start or "0").partition(".")[0])
        following = number + 1 if number + 1 < len(self.pages) else None
        return {
            "messages": [MESSAGE | {"id": id} for id in self.pages[number]],
            "next": following and f"{following}.0",
        }

    def cancel_message(self, topic: str, channel: str, id: str) -> None:
        if id in self.errors:
            raise self.errors[id]
        self.cancelled.append(id)


def cancel(
    pages: list[list[Any]], errors: dict[str, RequestError] | None = None
) -> tuple[int, FakeNsqd]:
    nsqd: Any = FakeNsqd(pages, errors or {})
    return cancel_deferred(nsqd, "t", "c", lambda each: each["id"] != KEPT, max_body=7), nsqd


def test_all_pages_are_read() -> None:
    count, nsqd = cancel([[A, KEPT], [], [B]])
    assert (count, nsqd.cancelled) == (2, [A, B])
    assert nsqd.requests == [("t", "c", "deferred", {"count": 100, "max_body": 7})] * 3


def test_messages_that_are_delivered_meanwhile_or_cannot_be_read() -> None:
    count, nsqd = cancel([[A, None, B, C]], {B: MISSING})
    assert (count, nsqd.cancelled) == (2, [A, C])


def test_other_errors_end_it() -> None:
    with pytest.raises(RequestError, match="broken"):
        cancel([[A, B]], {A: RequestError("broken", 500)})


@pytest.mark.parametrize(
    "id", ["x", "0123456789ABCDEF", 5, '0123456789abcdef"\r\nSet-Cookie: a=b', "0123456789abcde/"]
)
def test_an_id_that_is_none_reaches_no_request(id: Any) -> None:
    with AnyAnswer(json_answer({"messages": [MESSAGE | {"id": id}], "next": None})) as server:
        nsqd = NsqdHTTPClient.from_url(server.address)
        with pytest.raises(RequestError, match="not a page of messages"):
            cancel_deferred(nsqd, "t", "c", lambda each: True)


@pytest.mark.parametrize(
    "following", [itertools.repeat("1.0"), map("{}.0".format, itertools.count())]
)
def test_pages_that_lead_nowhere_end(following: Iterator[str]) -> None:
    nsqd: Any = FakeNsqd([[A]], {})
    nsqd.peek_channel = lambda *_, **__: {"messages": [], "next": next(following)}
    with pytest.raises(RequestError, match="without end"):
        cancel_deferred(nsqd, "t", "c", lambda each: True)


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (404, b'{"message":"CHANNEL_NOT_FOUND"}', True),
        (404, b'{"message":"NOT_FOUND"}', False),  # NSQ's nsqd, which has no /channel/peek
        (500, b"TOPIC_NOT_FOUND", False),
        (0, b"", False),
    ],
)
def test_what_is_missing(status: int, body: bytes, expected: bool) -> None:
    assert is_missing(RequestError("no", status, body)) is expected
