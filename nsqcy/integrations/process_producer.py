"""One producer per process, for servers and workers that fork."""

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator

from nsqcy.client import Producer

ITS = "producer"


class ProcessProducer:
    """The producer of this process. It is created on first use, and again after a fork.

    Needs no lock, because a dict changes atomically. With a lock, an interrupted caller or a signal
    handler could block other callers.
    """

    def __init__(self, make: Callable[[], Producer]) -> None:
        self._make = make
        self._producers: dict[str, Producer] = {}  # at most one
        _all.add(self)

    def get(self) -> Producer:
        """Return the producer. Threads share it."""
        producer = self._producers.get(ITS)
        if producer is None:  # another thread may be first; a producer starts on its first use
            producer = self._producers.setdefault(ITS, self._make())
        return producer

    def close(self) -> None:
        """Close the producer, if there is one. The next get() creates another one."""
        producer = self._producers.pop(ITS, None)
        if producer is not None:
            producer.close()

    @contextlib.contextmanager
    def replaced(self, producer: Producer) -> Iterator[None]:
        """Use this producer within the block."""
        before = self._producers.copy()
        try:
            self._producers[ITS] = producer
            yield
        finally:
            self._producers = before

    def forget(self) -> None:
        """Drop the producer that a child process has inherited: its thread runs in the parent."""
        self._producers.clear()


_all: "weakref.WeakSet[ProcessProducer]" = weakref.WeakSet()


def _forget_all() -> None:
    for each in list(_all):
        each.forget()


os.register_at_fork(after_in_child=_forget_all)
