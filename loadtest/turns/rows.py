"""The rows of the table, and the sizes of their inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple


class Sizes(NamedTuple):
    """Sizes of the state that the commands and routes work on."""

    topics: int
    registrations: int
    messages: int  # deferred, queued or in a log


FULL = Sizes(topics=10_000, registrations=100_000, messages=1_000_000)
SMALL = Sizes(topics=1_000, registrations=10_000, messages=100_000)
"""For the tests. Work on any of these sizes would take several times the limit if it were not
divided into slices."""


@dataclass(frozen=True)
class Row:
    """A command or route with the input that takes longest.

    subject: "PUB" or "GET /stats", as in the daemon's tables
    """

    subject: str
    input: str
    act: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    """Called before each `act`, outside the measurement."""
