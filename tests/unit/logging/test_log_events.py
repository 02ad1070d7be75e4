"""The declarations of log events, and that all log calls go through them."""

import re
from pathlib import Path

import pytest

from nsqcy.logging import events
from nsqcy.logging.declaration import warn
from nsqcy.logging.events import EVENTS
from nsqcy.logging.logger import LEVELS

ROOT = Path(__file__).parents[3]
SOURCES = [*sorted((ROOT / "nsqcy").rglob("*.py")), *sorted((ROOT / "cext").rglob("*.pyx"))]
BY_NAME = {event.name: event for event in EVENTS}


@warn("nsqd")
def cup_fell(where: str, /, *, cup: int, height: float) -> str:
    """A cup fell; `height` is
    in metres."""
    return f"cup {cup} fell {where}, {height:g} m"


class Kept:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, object]]] = []

    def info(self, text: str, /, **fields: object) -> None:
        self.lines.append(("info", text, fields))

    def warn(self, text: str, /, **fields: object) -> None:
        self.lines.append(("warn", text, fields))

    def error(self, text: str, /, **fields: object) -> None:
        self.lines.append(("error", text, fields))


def test_a_call_writes_the_line_and_the_fields() -> None:
    log = Kept()
    cup_fell(log, "off a table", cup=3, height=0.7)
    fields = {"event": "cup_fell", "cup": 3, "height": 0.7}
    assert log.lines == [("warn", "cup 3 fell off a table, 0.7 m", fields)]


def test_fields_keep_the_order_of_the_call() -> None:
    log = Kept()
    cup_fell(log, "", height=1, cup=3)
    assert list(log.lines[0][2]) == ["event", "height", "cup"]


def test_a_wrong_field_is_an_error() -> None:
    log = Kept()
    with pytest.raises(TypeError, match="saucer"):
        cup_fell(log, "", cup=3, height=1, saucer=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="height"):
        cup_fell(log, "", cup=3)  # type: ignore[call-arg]
    assert log.lines == []


def test_a_declaration_describes_itself() -> None:
    assert (cup_fell.name, cup_fell.level, cup_fell.of) == ("cup_fell", "warn", "nsqd")
    assert cup_fell.fields == ("cup", "height")
    assert cup_fell.text == "cup … fell …, … m"
    assert cup_fell.meaning == "A cup fell; `height` is in metres."


def test_all_events_are_logged_and_none_past_its_declaration() -> None:
    text = "\n".join(path.read_text() for path in SOURCES)
    assert set(re.findall(r"\bevents\.([a-z_]+)\(\s*[\w.]*(?:log|lines)\b", text)) == BY_NAME.keys()
    assert re.findall(r"\bevent=\"\w+\"", text) == []


def test_rows_are_told_apart_and_well_formed() -> None:
    assert len(BY_NAME) == len(EVENTS)
    taken = {"time", "level", "msg", "event", "daemon"}
    for event in EVENTS:
        assert getattr(events, event.name) is event
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", event.name)
        assert event.level in LEVELS
        assert not taken & set(event.fields)
        assert "|" not in event.text + event.meaning


def test_runbooks_name_events_that_there_are() -> None:
    """Runbooks name events such as `worker_died` in the symptoms' sentence about the log."""
    for page in (ROOT / "docs" / "runbooks").glob("*.md"):
        for sentence in re.findall(r"the log\s+has ([^;.]+)", page.read_text()):
            assert set(re.findall(r"`(\w+)`", sentence)) <= BY_NAME.keys(), page
