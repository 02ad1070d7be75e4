"""The facts about an nsqd in its response to /node."""

from typing import Any

import pytest

from nsqcy.cluster.node_answer import DAY, state_of
from nsqcy.cluster.problems import NodeState

ANSWER = {
    "nsqcy": "0.1.0",
    "disk": {"size": 100, "free": 25},
    "lookupds": {"l:4160": True, "m:4160": False},
    "certificate_expires": 10 * 86_400,
}


def test_state() -> None:
    assert state_of("a:4151", ANSWER, 9 * DAY) == NodeState(
        "a:4151", disk_free=0.25, unregistered=["m:4160"], certificate_days=1.0
    )


@pytest.mark.parametrize(
    "answer",
    [{}, {"disk": {"size": 0, "free": 0}}, {"certificate_expires": None, "lookupds": {}}],
)
def test_what_is_not_reported_is_unknown(answer: dict[str, Any]) -> None:
    assert state_of("a:4151", answer, 0.0) == NodeState("a:4151", unregistered=[])


@pytest.mark.parametrize("answer", [{"disk": 7}, {"lookupds": ["l"]}, {"lookupds": {"l": 1}}])
def test_garbage(answer: dict[str, Any]) -> None:
    assert state_of("a:4151", answer, 0.0) == NodeState("a:4151")
