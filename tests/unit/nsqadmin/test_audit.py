"""The record of actions."""

import inspect
from types import SimpleNamespace
from typing import Any

import pytest

from nsqcy.errors import HttpError
from nsqcy.nsqadmin import actions
from nsqcy.nsqadmin.audit import MAX_ENTRIES, Audit, audited


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, **fields: Any) -> None:
        assert fields["event"] == "action"
        self.lines.append(text)


REQUEST: Any = SimpleNamespace(peer="[::1]:5000")


def recorded() -> tuple[Any, Log]:
    log = Log()
    audit = Audit(log, lambda request: "anna", lambda: 5)  # type: ignore[arg-type]
    return SimpleNamespace(audit=audit), log


@audited
def empty(app: Any, request: Any, topic: str, node: str = "") -> Any:
    if topic == "gone":
        raise HttpError(404, "TOPIC_NOT_FOUND")
    return SimpleNamespace(cluster=SimpleNamespace(warning=lambda between: node))


def test_results() -> None:
    app, log = recorded()
    empty(app, REQUEST, "t")
    empty(app, REQUEST, "t", node="n:1")
    with pytest.raises(HttpError):
        empty(app, REQUEST, "gone")
    assert [each[1:] for each in app.audit.latest()] == [
        ("anna", "::1", "empty", "gone", "", "", "TOPIC_NOT_FOUND", ""),
        ("anna", "::1", "empty", "t", "", "n:1", "n:1", ""),
        ("anna", "::1", "empty", "t", "", "", "done", ""),
    ]
    assert log.lines[-1] == "action: empty gone by anna from ::1: TOPIC_NOT_FOUND"


def test_the_oldest_actions_are_discarded() -> None:
    app, _ = recorded()
    for number in range(MAX_ENTRIES + 1):
        empty(app, REQUEST, str(number))
    found = app.audit.latest()
    assert (len(found), found[0].topic, found[-1].topic) == (MAX_ENTRIES, str(MAX_ENTRIES), "1")


def test_every_action_is_recorded() -> None:
    for name, each in inspect.getmembers(actions, inspect.isfunction):
        parameters = [*inspect.signature(each).parameters]
        if parameters[:2] == ["app", "request"] and not name.startswith("_"):
            assert hasattr(each, "__wrapped__"), name
