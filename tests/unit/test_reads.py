"""Reading a topic's log: LOG_META, LOG_SEEK, LOG_FETCH."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from core import ERROR, MILLISECOND, RESPONSE, Core

PLACED_HEARD = 100 * MILLISECOND


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path)
    yield made
    made.close()


def test_commands_that_were_not_asked_for_are_unknown(core: Core) -> None:
    answer = core.client().ask(b"LOG_META t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_META")


def test_commands_that_do_not_exist_are_unknown(core: Core) -> None:
    answer = core.client(topic_log=True).ask(b"LOG_FORGET t\n")
    assert answer == (ERROR, b"E_INVALID invalid command LOG_FORGET")


def test_a_topic_that_does_not_exist_is_not_made(core: Core) -> None:
    client = core.client(topic_log=True)
    assert client.ask(b"LOG_META t\n") == (ERROR, b"E_LOG_NO_TOPIC")
    assert core.topic("t") is None
    assert client.publish("t", b"one") == (RESPONSE, b"OK")


def test_meta(core: Core) -> None:
    client = core.client(topic_log=True)
    client.publish("t", b"one")
    kind, data = client.ask(b"LOG_META t\n") or (None, b"")
    assert kind == RESPONSE
    assert json.loads(data)["topic"] == "t"
