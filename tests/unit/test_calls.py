"""Calls between processes: what arrives is what was sent, and a refusal keeps its code."""

import json
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from nsqcy.nsqd.calls import Call, Refused, Result
from nsqcy.nsqd.worker import topic_verbs as verbs
from nsqcy.nsqd.worker.peek import Look
from nsqcy.nsqd.worker.positions import Place
from nsqcy.process.control import Answer, RemoteError, Request

TIME = 1_700_000_000_000_000_000
VERBS: list[verbs.TopicVerb[Any]] = [
    verbs.CreateTopic("t"),
    verbs.PauseTopic("t", True),
    verbs.DescribeLog("t", None),
    verbs.DescribeLog("t", Place(time=TIME)),
    verbs.SeekChannel("t", "c", Place(7), True),
    verbs.ListDeferred("t", "c", 10, None),
    verbs.ListDeferred("t", "c", 10, (-1, 1 << 62)),
    verbs.Peek("t", "", Look("queued", 1, None, 100)),
    verbs.Peek("t", "c", Look("queued", 1, (5, 6), 100)),
]


class Table(Call[list[int], Result]):
    timeout: ClassVar[float] = 1.0


@dataclass(frozen=True)
class Append(Table[int]):
    value: int

    def run(self, target: list[int]) -> int:
        if self.value < 0:
            raise Refused("NOT_READ")
        target.append(self.value)
        return len(target)


@dataclass(frozen=True)
class Join(Table[bytes]):
    returns_bytes: ClassVar[bool] = True

    def run(self, target: list[int]) -> bytes:
        return bytes(target)


class Far:
    """A process that answers as the control channel would have it."""

    def __init__(self) -> None:
        self.table: list[int] = []

    def ask(self, worker: int | None, method: str, timeout: float, /, **args: Any) -> Answer:
        request = Request(method, json.loads(json.dumps(args)))
        try:
            return Table.decode(request).serve(self.table)
        except Exception as error:
            raise RemoteError(str(error)) from None


@pytest.mark.parametrize("verb", VERBS, ids=repr)
def test_a_verb_arrives_as_it_was_sent(verb: verbs.TopicVerb[Any]) -> None:
    sent: list[Request] = []

    def ask(worker: int, method: str, timeout: float, /, **args: Any) -> Answer:
        sent.append(Request(method, json.loads(json.dumps(args))))
        return Answer()

    verb.send(ask, 1)
    assert verbs.TopicVerb.decode(sent[0]) == verb


def test_results_come_back() -> None:
    far = Far()
    assert Append(3).send(far.ask, 0) == 1
    assert Append(4).send(far.ask, 0) == 2
    assert Join().send(far.ask, 0) == b"\3\4"


def test_a_refusal_keeps_its_code() -> None:
    with pytest.raises(Refused, match="NOT_READ"):
        Append(-1).send(Far().ask, 0)


def test_another_error_stays_that_of_the_far_end() -> None:
    with pytest.raises(RemoteError, match="must be in range"):
        Append(256).send(far := Far().ask, 0)
        Join().send(far, 0)


def test_kinds_of_calls_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="there is no method Append"):
        verbs.TopicVerb.decode(Request("Append", {}))
    with pytest.raises(ValueError, match="there is no method CreateTopic"):
        Table.decode(Request("CreateTopic", {}))
