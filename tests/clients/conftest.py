"""Fixtures that start client programs and leave none of them running."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.client_libraries import Consumer, Producer, Program


def starter(kind: type[Program]) -> Iterator[Callable[..., Any]]:
    programs: list[Program] = []

    def start(*args: Any, **options: Any) -> Program:
        programs.append(kind(*args, **options))
        return programs[-1]

    yield start
    for program in programs:
        program.destroy()


@pytest.fixture
def consume() -> Iterator[Callable[..., Consumer]]:
    """`consume(library, daemon, topic, channel, rdy=10)`"""
    yield from starter(Consumer)


@pytest.fixture
def publish() -> Iterator[Callable[..., Producer]]:
    """`publish(library, daemon, topic, batch=10)`"""
    yield from starter(Producer)
