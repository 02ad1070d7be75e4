"""Queries for a part of a file: which nodes are queried, and what their answers mean."""

from collections.abc import Callable
from typing import Any

import pytest

from nsqcy.copies.fetching import Fetches, Outcome, Part
from nsqcy.copies.messages import Fetch, Fetched

TIMEOUT = 10.0
GOOD = b"good"


class Nodes:
    """The other nodes: they answer a request only when the test makes them."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Fetch]] = []
        self.unreachable: set[str] = set()
        self.results: list[tuple[Outcome, Any]] = []
        self.fetches = Fetches(self._send)

    def _send(self, node: str, request: Fetch) -> bool:
        if node in self.unreachable:
            return False
        self.requests.append((node, request))
        return True

    def fetch(self, *names: str, has_everyone: bool = True, now: float = 0.0) -> None:
        part = Part("t.topic/1.seg", b"header", 64, 4, lambda data: data == GOOD)
        self.fetches.fetch(
            part, names, lambda *result: self.results.append(result), now, has_everyone=has_everyone
        )

    def answer(
        self, outcome: str = "", data: Any = None, node: str = "", number: int | None = None
    ) -> None:
        """Answer the last request. node, number: used instead of the correct ones"""
        asked, request = self.requests[-1]
        number = request.number if number is None else number
        self.fetches.received(node or asked, Fetched(number, outcome, data), 0.0)

    def asked(self) -> list[str]:
        return [node for node, _ in self.requests]


@pytest.fixture
def nodes() -> Nodes:
    return Nodes()


def test_the_first_intact_answer_counts(nodes: Nodes) -> None:
    nodes.fetch("a", "b", "c")
    assert nodes.asked() == ["a"]
    request = nodes.requests[0][1]
    assert (request.path, request.identity) == ("t.topic/1.seg", b"header")
    assert (request.offset, request.size) == (64, 4)
    nodes.answer("missing")
    nodes.answer("", GOOD)
    assert nodes.asked() == ["a", "b"]
    assert nodes.results == [(Outcome.FOUND, GOOD)]


@pytest.mark.parametrize(
    "data", [b"", b"goo", b"good!", b"evil", None, "good", 4], ids=lambda data: repr(data)
)
def test_a_wrong_answer_is_one_of_a_node_without_the_part(nodes: Nodes, data: Any) -> None:
    """The data may be too short, too long, forged, or damaged on that node as well."""
    nodes.fetch("a", "b")
    nodes.answer("", data)
    assert nodes.asked() == ["a", "b"] and nodes.results == []
    nodes.answer("", data)
    assert nodes.results == [(Outcome.MISSING, None)]


@pytest.mark.parametrize(
    "silence",
    [
        pytest.param(lambda nodes: nodes.answer("unreadable"), id="unreadable"),
        pytest.param(lambda nodes: nodes.answer("a later version's"), id="unknown"),
        pytest.param(lambda nodes: nodes.fetches.lost("a", 1.0), id="gone"),
        pytest.param(lambda nodes: nodes.fetches.tick(TIMEOUT + 1, TIMEOUT), id="silent"),
    ],
)
def test_a_node_that_gives_no_answer_may_have_the_part(
    nodes: Nodes, silence: Callable[[Nodes], None]
) -> None:
    nodes.fetch("a", "b")
    silence(nodes)
    assert nodes.asked() == ["a", "b"]
    nodes.answer("missing")
    assert nodes.results == [(Outcome.LATER, None)]


def test_a_node_that_cannot_be_reached_may_have_the_part(nodes: Nodes) -> None:
    nodes.unreachable = {"a"}
    nodes.fetch("a", "b")
    nodes.answer("missing")
    nodes.unreachable = {"a", "b"}
    nodes.fetch("a", "b")
    assert nodes.asked() == ["b"]
    assert nodes.results == [(Outcome.LATER, None)] * 2


def test_a_part_may_be_on_a_node_that_is_not_queried(nodes: Nodes) -> None:
    nodes.fetch("a", has_everyone=False)
    nodes.answer("missing")
    nodes.fetch(has_everyone=False)
    nodes.fetch(has_everyone=True)
    assert [outcome for outcome, _ in nodes.results] == [
        Outcome.LATER,
        Outcome.LATER,
        Outcome.MISSING,
    ]


def test_answers_that_belong_to_no_request_are_ignored(nodes: Nodes) -> None:
    nodes.fetch("a", "b")
    nodes.answer("", GOOD, node="b")  # from a node that was not queried
    nodes.answer("", GOOD, number=77)
    assert nodes.results == []
    nodes.fetches.lost("b", 1.0)  # no query waits for this node
    nodes.answer("missing")
    late = nodes.requests[0][1].number
    nodes.answer("", GOOD, node="a", number=late)
    assert nodes.results == []
    nodes.answer("", GOOD)
    nodes.answer("", GOOD)  # a second time
    assert nodes.results == [(Outcome.FOUND, GOOD)]


def test_a_node_has_the_whole_time_limit(nodes: Nodes) -> None:
    nodes.fetch("a", "b", now=5.0)
    nodes.fetches.tick(5.0 + TIMEOUT, TIMEOUT)
    assert nodes.asked() == ["a"]
    nodes.fetches.tick(6.0 + TIMEOUT, TIMEOUT)
    assert nodes.asked() == ["a", "b"]
    nodes.fetches.tick(6.0 + 2 * TIMEOUT, TIMEOUT)
    assert nodes.results == []


def test_queries_are_independent(nodes: Nodes) -> None:
    nodes.fetch("a", "b")
    nodes.fetch("b", "a")
    nodes.fetches.lost("a", 1.0)
    assert nodes.asked() == ["a", "b", "b"]
    first, second = nodes.requests[2][1].number, nodes.requests[1][1].number
    nodes.answer("", GOOD, number=second)
    assert nodes.results == [(Outcome.FOUND, GOOD)]
    nodes.answer("missing", number=first)
    assert nodes.results[1:] == [(Outcome.LATER, None)]


def test_all_queries_end_with_the_role(nodes: Nodes) -> None:
    """Each query is answered once, even if its answer begins another query."""
    nodes.fetch("a", "b")
    nodes.fetch("b")
    nodes.fetches.end()
    assert nodes.results == [(Outcome.LATER, None)] * 2
    nodes.answer("", GOOD)
    nodes.fetches.tick(1000.0, TIMEOUT)
    assert len(nodes.results) == 2
