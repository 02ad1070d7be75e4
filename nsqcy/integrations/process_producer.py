"""One producer per process, for servers and workers that fork."""

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator

from nsqcy.client import Producer


class ProcessProducer:
    """The producer of this process. It is created on first use, and again after a fork."""

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._producer: Producer | None = None
        self._lock = threading.Lock()
        _all.add(self)

    def get(self) -> Producer:
        """Return the producer. Threads share it."""
        if (producer := self._producer) is not None:
            return producer
        with self._lock:
            if self._producer is None:
                self._producer = self._make()
            return self._producer

    def close(self) -> None:
        """Close the producer, if there is one. The next get() creates another one."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    @contextlib.contextmanager
    def replaced(self, producer: Producer) -> Iterator[None]:
        """Use this producer within the block."""
        with self._lock:
            before, self._producer = self._producer, producer
        try:
            yield
        finally:
            with self._lock:
                self._producer = before

    def forget(self) -> None:
        """Drop the producer that a child process has inherited: its thread runs in the parent."""
        self._producer = None
        self._lock = threading.Lock()  # another thread of the parent may have held it


_all: "weakref.WeakSet[ProcessProducer]" = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_all):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)
