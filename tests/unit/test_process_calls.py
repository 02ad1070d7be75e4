"""Calls between processes: data arrives unchanged, and a refusal keeps its code."""

import json
import os
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from nsqcy.nsqd.process_calls import Call, Refused, Result, serve
from nsqcy.nsqd.process_messages import master_verbs, reports
from nsqcy.nsqd.process_messages import to_worker as messages
from nsqcy.nsqd.process_messages import topic_verbs as verbs
from nsqcy.nsqd.process_messages.peek import Look
from nsqcy.nsqd.process_messages.positions import Place
from nsqcy.nsqd.process_messages.stats_query import Query
from nsqcy.process.control import Answer, RemoteError, Request

TIME = 1_700_000_000_000_000_000
CALLS: list[Call[Any, Any]] = [
    verbs.CreateTopic("t"),
    verbs.PauseTopic("t", True),
    verbs.DescribeLog("t", None),
    verbs.DescribeLog("t", Place(time=TIME)),
    verbs.SeekChannel("t", "c", Place(7), True),
    verbs.ListDeferred("t", "c", 10, None),
    verbs.ListDeferred("t", "c", 10, (-1, 1 << 62)),
    verbs.Peek("t", "", Look("queued", 1, None, 100)),
    verbs.Peek("t", "c", Look("queued", 1, (5, 6), 100)),
    verbs.Peek("t", "", Look("log", 1, None, 100, Place(time=5))),
    master_verbs.SetPolicy("t", {"rate": 1}),
    master_verbs.GetStats(Query(json=True, topic="t\udc80")),
    reports.TopicCreated(1, "t", True),
    messages.Load([{"name": "t", "paused": False, "channels": []}], {"t": 1}, {0: 3, 2: 1}),
    messages.OptionChanged("lookupd_tcp_address", ["127.0.0.1:4160"]),
    messages.AdoptSession({"a": 1}, 1, b"in\xff", (7,)),
    messages.WriteMetrics(True, (8,)),
    messages.GetShare(Query(), (8,)),
]


class Table(Call[list[int], Result]):
    timeout: ClassVar[float] = 1.0


class Append(Table[int]):
    value: int

    def run(self, target: list[int]) -> int:
        if self.value < 0:
            raise Refused("NOT_READ")
        target.append(self.value)
        return len(target)


class Join(Table[bytes]):
    returns = "blob"

    def run(self, target: list[int]) -> bytes:
        return bytes(target)


class Measure(Table[int]):
    fds: tuple[int, ...]

    def run(self, target: list[int]) -> int:
        return os.fstat(self.fds[0]).st_ino


def request_of(
    method: str, *, blob: bytes = b"", fds: tuple[int, ...] = (), **args: Any
) -> Request:
    return Request(method, json.loads(json.dumps(args)), blob, fds)


class Far:
    """A channel to a process that serves a table."""

    def __init__(self) -> None:
        self.table: list[int] = []

    def call(self, method: str, timeout: float, /, to: int | None, **args: Any) -> Answer:
        try:
            return serve(
                request_of(method, **args), (messages.EngineMessage, None), (Table, self.table)
            )
        except Exception as error:
            raise RemoteError(str(error)) from None


@pytest.mark.parametrize("call", CALLS, ids=repr)
def test_a_call_arrives_as_it_was_sent(call: Call[Any, Any]) -> None:
    sent: list[Request] = []
    channel: Any = SimpleNamespace(
        notify=lambda method, **args: sent.append(request_of(method, **args))
    )
    call.notify(channel)
    assert type(call).decode(sent[0]) == call


@pytest.mark.parametrize(
    ("args", "named"),
    [((), {}), ((1, 2), {}), ((1,), {"value": 2}), ((), {"values": 1}), ((1,), {"values": 1})],
)
def test_a_call_has_exactly_its_arguments(args: tuple[int, ...], named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="Append takes value"):
        Append(*args, **named)
    with pytest.raises(TypeError, match="Join takes no arguments"):
        Join(1)


def test_calls_are_equal_if_their_arguments_are() -> None:
    assert master_verbs.ForgetPolicies("t") == master_verbs.ForgetPolicies("t", "")
    assert Append(1) != Append(2)
    assert reports.TopicDeleted("t") != reports.Place("t")
    assert repr(master_verbs.ForgetPolicies("t")) == "ForgetPolicies(topic='t', channel='')"


def test_results_come_back() -> None:
    far: Any = Far()
    assert Append(3).send(far) == 1
    assert Append(4).send(far) == 2
    assert Join().send(far) == b"\3\4"


def test_a_duplicate_has_descriptors_of_its_own() -> None:
    ours, theirs = os.pipe()
    os.close(theirs)
    call = Measure((ours,)).duplicate()
    inode = os.fstat(ours).st_ino
    os.close(ours)
    far: Any = Far()
    assert call.send(far) == inode
    os.close(call.fds[0])
    assert Append(1).duplicate() == Append(1)


def test_descriptors_of_an_unknown_call_are_closed() -> None:
    ours, theirs = os.pipe()
    with pytest.raises(ValueError, match="unknown method Unknown"):
        serve(Request("Unknown", {}, fds=(theirs,)), (Table, []))
    assert os.read(ours, 1) == b""  # the only writer is closed
    os.close(ours)


def test_a_refusal_keeps_its_code() -> None:
    far: Any = Far()
    with pytest.raises(Refused, match="NOT_READ"):
        Append(-1).send(far)


def test_another_error_stays_that_of_the_far_end() -> None:
    far: Any = Far()
    Append(256).send(far)
    with pytest.raises(RemoteError, match="must be in range"):
        Join().send(far)


def test_kinds_of_calls_have_names_of_their_own() -> None:
    with pytest.raises(ValueError, match="unknown method Append"):
        verbs.TopicVerb.decode(Request("Append", {}))
    with pytest.raises(ValueError, match="unknown method CreateTopic"):
        Table.decode(Request("CreateTopic", {}))
