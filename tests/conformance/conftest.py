"""Fixtures for the client tests: the client's two interfaces, and scripted nsqds."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.client_interfaces import FACES, Face
from support.fake_nsqd import MockNsqd


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the one-second wait before the next attempt."""
    monkeypatch.setattr("nsqcy.client.consumer.FIRST_RETRY", 0.02)


@pytest.fixture(params=FACES, ids=lambda face: face.name)
def face(request: pytest.FixtureRequest) -> Iterator[Face]:
    face = request.param()
    yield face
    face.end()


@pytest.fixture
def mock() -> Iterator[Callable[..., MockNsqd]]:
    made: list[MockNsqd] = []

    def make(**options: Any) -> MockNsqd:
        made.append(MockNsqd(**options))
        return made[-1]

    yield make
    for each in made:
        each.close()
