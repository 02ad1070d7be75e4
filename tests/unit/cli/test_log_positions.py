"""Positions in a log as people write them."""

from datetime import datetime, timedelta, timezone

import pytest

from nsqcy.cli import log_positions

NOW = datetime(2026, 3, 2, 10, 30, tzinfo=timezone(timedelta(hours=2)))


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("17", "17"),
        ("today", "2026-03-01T22:00:00.000Z"),
        ("yesterday", "2026-02-28T22:00:00.000Z"),
        ("-24h", "2026-03-01T08:30:00.000Z"),
        ("-1.5h", "2026-03-02T07:00:00.000Z"),
        ("-7d", "2026-02-23T08:30:00.000Z"),
        ("2h ago", "2026-03-02T06:30:00.000Z"),
        ("2026-03-02T08:00", "2026-03-02T06:00:00.000Z"),
        ("2026-03-02 08:00:01.25", "2026-03-02T06:00:01.250Z"),
        ("2026-03-02", "2026-03-01T22:00:00.000Z"),
        ("2026-03-02T08:00Z", "2026-03-02T08:00:00.000Z"),
    ],
)
def test_positions(text: str, place: str) -> None:
    assert log_positions.place(text, NOW) == place


@pytest.mark.parametrize("text", ["", "soon", "-24", "-x", "24h", "2026-13-01", "5 ago"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a (position|relative time)"):
        log_positions.place(text, NOW)


def test_only_a_number_is_a_sequence_number() -> None:
    assert log_positions.is_sequence("17")
    assert not log_positions.is_sequence("latest")
