"""NsqdAdmin, cancel() and queries to nsqlookupds that send undocumented responses."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from nsqcy.client import Error
from nsqcy.client.lookups import Lookups
from nsqcy.client.options import ConnectionOptions, LookupOptions
from support.any_http_answer import AnyAnswer
from support.client_interfaces import FACES, Face
from support.odd_json import MESSAGE, answers
from support.runs import runs

TOPIC = {"topic_name": "t", "depth": 1, "message_count": 1}
CHANNEL = {"channel_name": "c", "depth": 0}
ANSWERS = answers(
    {"messages": [MESSAGE], "next": None},
    {"topics": [TOPIC | {"channels": [CHANNEL]}]},
    {"config": {"max_attempts": {"value": 1, "from": "x"}}},
    {"seq": 1, "redriven": 1},
)
NSQD = {"broadcast_address": "h", "tcp_port": 1, "http_port": 1, "hostname": "h"}
CALLS: dict[str, tuple[Any, ...]] = {
    "create_topic": ("t",),
    "create_channel": ("t", "c"),
    "delete_topic": ("t",),
    "delete_channel": ("t", "c"),
    "empty_topic": ("t",),
    "empty_channel": ("t", "c"),
    "pause_topic": ("t",),
    "unpause_topic": ("t",),
    "pause_channel": ("t", "c"),
    "unpause_channel": ("t", "c"),
    "seek": ("t", "c", 1),
    "stats": (),
    "topic_policy": ("t",),
    "channel_policy": ("t", "c"),
    "peek": ("t", "c"),
    "redrive": ("t", "c"),
}


@pytest.fixture(scope="module", params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = request.param()
    yield face
    face.end()


@pytest.fixture(scope="module")
def server() -> Iterator[AnyAnswer]:
    with AnyAnswer() as server:
        yield server


def check(error: Error, server: AnyAnswer) -> None:
    """The error names the daemon and the path, in one short line."""
    text = str(error)
    assert text.isprintable() and len(text) < 2000
    assert text.startswith(f"http://{server.address}/")


def test_every_method_is_tried(face: Face) -> None:
    names = {name for name in vars(face.module.NsqdAdmin) if not name.startswith("_")}
    assert names == CALLS.keys()


@pytest.mark.parametrize("name", CALLS)
@settings(
    max_examples=runs(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(answer=ANSWERS)
def test_what_an_administrator_gets(
    face: Face, server: AnyAnswer, name: str, answer: bytes
) -> None:
    admin = face.module.NsqdAdmin(server.address)
    server.answer = answer
    try:
        found = face.call(getattr(admin, name), *CALLS[name])
    except Error as error:
        check(error, server)
    else:
        if name == "stats":
            assert all(each["topic_name"] for each in found["topics"])


@settings(
    max_examples=runs(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(answer=ANSWERS)
def test_what_cancel_gets(face: Face, server: AnyAnswer, answer: bytes) -> None:
    server.answer = answer
    try:
        found = face.call(face.module.cancel, "t", "c", "k", server.address)
    except Error as error:
        check(error, server)
    else:
        assert found in (0, 1)


@pytest.mark.parametrize("topic", ["t", None])
@settings(
    max_examples=runs(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    answer=answers({"channels": ["c"], "producers": [NSQD | {"topics": ["t"], "tombstones": []}]})
)
def test_what_a_query_gets(server: AnyAnswer, topic: str | None, answer: bytes) -> None:
    server.answer = answer
    found, errors = queries(server, topic).ask()
    assert all(str(each).isprintable() for each in found)
    for text in errors:
        assert text.startswith(f"{server.address}: ")
        assert text.isprintable() and len(text) < 2000


def queries(server: AnyAnswer, topic: str | None = "t", **options: Any) -> Lookups:
    given = LookupOptions(**options)
    return Lookups((server.address,), topic, given, ConnectionOptions())
