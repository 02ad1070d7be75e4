"""The command line when daemons send undocumented responses: it prints one line, and no
traceback."""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from nsqcy.cli.main import main
from support.any_http_answer import AnyAnswer
from support.odd_json import MESSAGE, answers
from support.runs import runs

CHANNEL = {"channel_name": "c", "depth": 0, "clients": [{"client_id": "c"}]}
ANSWERS = answers(
    {"version": "1.3.0", "broadcast_address": "h", "hostname": "h", "http_port": 1, "tcp_port": 1},
    {"messages": [MESSAGE], "next": None},
    {"topics": [{"topic_name": "t", "depth": 1, "message_count": 1, "channels": [CHANNEL]}]},
    {"config": {"max_attempts": {"value": 1, "from": "x"}}},
    {"seq": 1, "redriven": 1},
    {"deferred": [{"id": MESSAGE["id"], "seq": 1, "due": 1, "attempts": 1, "size": 1}]},
    {"channels": ["c"], "topics": ["t"], "producers": [{"broadcast_address": "h"}]},
    {"draining": True, "left": {"depth": 0, "in_flight_count": 0, "deferred_count": 0}},
    {"disk": {"free": 1, "size": 1}, "lookupds": {}, "certificate_expires": 1},
    {"enabled": False, "workers": []},
)
COMMANDS = [
    "topic list",
    "topic show t",
    "topic create t",
    "topic config t",
    "topic delete t --yes",
    "channel list t",
    "channel show t c",
    "channel config t c max_attempts=3",
    "channel seek t c --to=earliest --yes",
    "redrive t c",
    "deferred list t c",
    "deferred cancel t c 0123456789abcdef",
    "deferred cancel t c --key k",
    "peek t c",
    "pub t m",
    "ready",
    "drain --yes",
    "reload",
    "copies status",
]


@pytest.fixture(scope="module")
def server() -> Iterator[AnyAnswer]:
    with AnyAnswer() as server:
        yield server


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("daemon", ["nsqd", "lookupd"])
@settings(
    max_examples=runs(6), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(answer=ANSWERS)
def test_a_command(
    server: AnyAnswer,
    capsys: pytest.CaptureFixture[str],
    daemon: str,
    command: str,
    answer: bytes,
) -> None:
    server.answer = answer
    code = main([*command.split(), f"--{daemon}-http-address={server.address}"])
    said = capsys.readouterr()
    assert code in (0, 1), said.err
    assert "Traceback" not in said.err
    for line in (said.out + said.err).splitlines():
        assert line.isprintable()
