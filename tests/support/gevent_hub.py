"""Helpers for tests with parts that run on this process's hub: waiting, and a log that keeps its
lines."""

from collections.abc import Callable

import gevent


def wait_until(condition: Callable[[], object]) -> None:
    """Run the hub until the condition holds."""
    with gevent.Timeout(30):
        while not condition():
            gevent.sleep(0.001)


class Lines:
    """Log that keeps its lines."""

    def __init__(self) -> None:
        self.all: list[str] = []

    def info(self, text: str, /, **fields: object) -> None:
        self.all.append(text)

    warn = error = info
