"""Positions in a log as entered in forms."""

import pytest

from nsqcy.nsqadmin.html.log_positions import picked, shortcuts, with_picked_time

NOON = 1769860800.9  # 2026-01-31T12:00:00.9Z


@pytest.mark.parametrize(
    ("params", "to"),
    [
        ({"at": "2026-01-31T12:00"}, "2026-01-31T12:00:00Z"),
        ({"at": "2026-01-31T12:00:05"}, "2026-01-31T12:00:05Z"),
        ({"at": "noon"}, "noon"),
        ({"at": "2026-01-31T12:00", "to": "7"}, "2026-01-31T12:00:00Z"),
        ({"at": "", "to": "7"}, "7"),
        ({"to": "latest"}, "latest"),
    ],
)
def test_picked_times_are_utc(params: dict[str, str], to: str) -> None:
    assert with_picked_time(params, "to")["to"] == to


def test_shortcuts() -> None:
    assert dict(shortcuts(NOON)) == {
        "1 h ago": "2026-01-31T11:00:00Z",
        "24 h ago": "2026-01-30T12:00:00Z",
        "Today 00:00 UTC": "2026-01-31T00:00:00Z",
        "Yesterday 00:00 UTC": "2026-01-30T00:00:00Z",
    }


def test_the_picker_shows_times_only() -> None:
    assert picked("2026-01-31T12:00:05Z") == "2026-01-31T12:00:05"
    assert [picked(each) for each in ("earliest", "17", "-10", "")] == [""] * 4
