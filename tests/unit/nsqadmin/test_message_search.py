"""The search of messages: page by page, within its limits."""

from base64 import b64encode
from typing import Any

import pytest

from nsqcy.errors import HttpError
from nsqcy.nsqadmin import message_filter
from nsqcy.nsqadmin.cluster.answers import NodeAnswer
from nsqcy.nsqadmin.message_search import MAX_EXAMINED, SECONDS, search

PAGE = 100
ENOUGH = 10  # matches


class Queue:
    """Pages of messages that are the numbers from 0 on."""

    def __init__(self, count: int, seconds_per_page: float = 0.0) -> None:
        self.count = count
        self.seconds_per_page = seconds_per_page
        self.now = 0.0
        self.failing_from = count

    def page(self, node: str, start: str) -> list[NodeAnswer]:
        first = int(start)
        if first >= self.failing_from:
            raise HttpError(502, "down")
        self.now += self.seconds_per_page
        end = min(first + PAGE, self.count)
        messages = [self._message(number) for number in range(first, end)]
        following = None if end == self.count else str(end)
        return [NodeAnswer(node, 200, {"messages": messages, "next": following})]

    def _message(self, number: int) -> dict[str, Any]:
        body = b64encode(b"%d" % number).decode()
        return {"id": f"{number:016x}", "headers": {}, "body": body, "seq": number}

    def search(self, text: str) -> dict[str, Any]:
        (found,) = search(_text(text), self.page("n:1", "0"), self.page, ENOUGH, lambda: self.now)
        value: dict[str, Any] = found.value
        return value


def _text(text: str) -> message_filter.Filter:
    return message_filter.parse(text, "")


def numbers(value: dict[str, Any]) -> list[int]:
    return [each["seq"] for each in value["messages"]]


def test_all_pages_are_read() -> None:
    found = Queue(950).search("949")
    assert (numbers(found), found["examined"], found["next"]) == ([949], 950, None)


def test_it_ends_after_enough_matches() -> None:
    found = Queue(950).search("9")
    assert len(numbers(found)) >= ENOUGH
    assert (found["examined"], found["next"]) == (PAGE, "100")


def test_it_ends_after_so_many_messages() -> None:
    found = Queue(10 * MAX_EXAMINED).search("none")
    assert (numbers(found), found["examined"]) == ([], MAX_EXAMINED)
    assert found["next"] == str(MAX_EXAMINED)


def test_it_ends_after_some_time() -> None:
    found = Queue(10_000, seconds_per_page=0.3 * SECONDS).search("none")
    assert found["examined"] == 5 * PAGE
    assert found["next"] == str(5 * PAGE)


def test_a_node_that_fails_ends_its_search() -> None:
    queue = Queue(1000)
    queue.failing_from = 300
    found = queue.search("299")
    assert (numbers(found), found["next"]) == ([299], "300")


@pytest.mark.parametrize("status", [404, 503])
def test_a_refusal_stays(status: int) -> None:
    refused = NodeAnswer("n:1", status, None)
    assert search(_text("x"), [refused], Queue(0).page, ENOUGH) == [refused]
