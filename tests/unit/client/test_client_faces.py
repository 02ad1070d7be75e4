"""How both interfaces of the client treat their options before they start."""

import logging
from typing import Any

import pytest

import nsqcy.client
import nsqcy.client.aio

every_face = pytest.mark.parametrize("face", [nsqcy.client, nsqcy.client.aio])


@every_face
@pytest.mark.parametrize(
    ("options", "in_flight", "warns"),
    [
        ({}, 1, False),
        ({"concurrency": 1}, 1, False),
        ({"concurrency": 20}, 20, False),
        ({"concurrency": 20, "max_in_flight": 50}, 50, False),
        ({"concurrency": 20, "max_in_flight": 3}, 3, True),
        ({"concurrency": 20, "max_in_flight": 0}, 0, False),
        ({"max_in_flight": 7}, 7, False),
    ],
)
def test_max_in_flight_follows_concurrency(
    face: Any,
    options: dict[str, Any],
    in_flight: int,
    warns: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = face.Consumer("t", "c", "a", **options)
    assert consumer.max_in_flight == in_flight
    expected = ["[t:c] max_in_flight=3 allows only 3 handlers at a time, although concurrency=20"]
    records = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert [each.getMessage() for each in records] == (expected if warns else [])


@every_face
@pytest.mark.parametrize("concurrency", [0, -1])
def test_no_handlers_at_all(face: Any, concurrency: int) -> None:
    with pytest.raises(ValueError, match="concurrency cannot be"):
        face.Consumer("t", "c", "a", concurrency=concurrency)


@every_face
def test_max_in_flight_is_what_was_set(face: Any) -> None:
    """The value is returned before the client applies it: before the start, and in callbacks."""
    consumer = face.Consumer("t", "c", "a", max_in_flight=7)
    for _ in range(2):
        consumer.pause()
        consumer.pause()
        assert consumer.max_in_flight == 0
        consumer.resume()
        assert consumer.max_in_flight == 7
    consumer.set_max_in_flight(2)
    assert consumer.max_in_flight == 2
