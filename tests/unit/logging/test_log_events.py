"""The table of events, and every call in the code that logs one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from nsqcy.logging.events import EVENTS
from nsqcy.logging.logger import LEVELS

ROOT = Path(__file__).parents[3]
SOURCES = [*sorted((ROOT / "nsqcy").rglob("*.py")), *sorted((ROOT / "cext").rglob("*.pyx"))]
CALL = re.compile(rf"[\w.]+\.({'|'.join(LEVELS)})\(")
BY_NAME = {event.name: event for event in EVENTS}


class Said(NamedTuple):
    """A call that logs an event."""

    where: str
    level: str
    text: str | None
    event: str
    fields: set[str]


def call_at(source: str, start: int) -> ast.Call | None:
    """Return the call that begins there, in Python or Cython, whose call syntax is the same."""
    for found in re.finditer(r"\)", source[start : start + 2000]):
        try:
            parsed = ast.parse(source[start : start + found.end()], mode="eval").body
        except SyntaxError:
            continue
        return parsed if isinstance(parsed, ast.Call) else None
    return None


def text_of(node: ast.expr) -> str | None:
    """Return the text, with … for variable parts; None if it is built elsewhere."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [str(each.value) if isinstance(each, ast.Constant) else "…" for each in node.values]
        return "".join(parts)
    return None


def said() -> Iterator[Said]:
    for path in SOURCES:
        source = path.read_text()
        for found in CALL.finditer(source):
            call = call_at(source, found.start())
            words = {each.arg: each.value for each in call.keywords} if call else {}
            event = words.pop("event", None)
            if call and isinstance(event, ast.Constant):
                where = f"{path.name}:{source.count(chr(10), 0, found.start()) + 1}"
                fields = {str(name) for name in words}
                yield Said(where, found[1], text_of(call.args[0]), str(event.value), fields)


SAID = list(said())

each_call = pytest.mark.parametrize("call", SAID, ids=lambda call: f"{call.where}-{call.event}")


@each_call
def test_what_is_said_is_in_the_table(call: Said) -> None:
    event = BY_NAME[call.event]
    assert call.level == event.level
    assert call.fields == set(event.fields)
    assert call.text is None or call.text == event.text


def test_every_mention_of_an_event_was_seen() -> None:
    mentions = sum(len(re.findall(r"\bevent=\"", path.read_text())) for path in SOURCES)
    assert len(SAID) == mentions


def test_every_row_is_said_somewhere() -> None:
    assert BY_NAME.keys() - {call.event for call in SAID} == set()


def test_rows_are_told_apart_and_well_formed() -> None:
    assert len(BY_NAME) == len(EVENTS)
    taken = {"time", "level", "msg", "event", "daemon"}
    for event in EVENTS:
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.name)
        assert event.level in LEVELS
        assert not taken & set(event.fields)
        assert "|" not in event.text + event.meaning


def test_runbooks_name_events_that_there_are() -> None:
    """For example `worker_died`, in the sentence about the log in a runbook's symptoms."""
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        for sentence in re.findall(r"the log\s+has ([^;.]+)", page.read_text()):
            assert set(re.findall(r"`(\w+)`", sentence)) <= BY_NAME.keys(), page
