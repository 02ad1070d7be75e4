"""Parallel requests in threads, with a time limit for requests that hang."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from nsqcy.errors import RequestError

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_THREADS = 32
GRACE = 0.5  # seconds after the limit, for requests to end at their own deadlines


class Outcome(Generic[Key, Value]):
    """Results and errors by key, in the order of the keys."""

    def __init__(self) -> None:
        self.values: dict[Key, Value] = {}
        self.errors: dict[Key, RequestError] = {}


def ask_all(keys: Sequence[Key], ask: Callable[[Key], Value], limit: float) -> Outcome[Key, Value]:
    """Call `ask` with each key in parallel. A call that has not returned after `limit` seconds
    counts as failed. The limit also bounds name resolution, which has no deadline."""
    keys = list(dict.fromkeys(keys))
    left = deque(keys)
    values: dict[Key, Value] = {}
    errors: dict[Key, Exception] = {}

    def work() -> None:
        while left:
            try:
                key = left.popleft()
            except IndexError:
                return
            try:
                values[key] = ask(key)
            except Exception as error:
                errors[key] = error
            except BaseException as error:  # such as sys.exit() in a logging handler
                errors[key] = RequestError(repr(error))

    # Daemon threads, so that the process can exit without waiting for them.
    count = min(len(keys), MAX_THREADS)
    threads: list[threading.Thread] = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        if not threads:  # otherwise, the threads that could be started do all the work
            errors.update(dict.fromkeys(keys, RequestError(f"cannot start a thread: {error}")))
    rounds = -(-len(keys) // MAX_THREADS)
    deadline = time.monotonic() + rounds * limit + GRACE
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    left.clear()
    return _outcome(keys, values, errors)


def _outcome(
    keys: Sequence[Key], values: dict[Key, Value], errors: dict[Key, Exception]
) -> Outcome[Key, Value]:
    outcome: Outcome[Key, Value] = Outcome()
    for key in keys:
        if key in values:
            outcome.values[key] = values[key]
            continue
        error = errors.get(key, RequestError("timed out"))
        if not isinstance(error, RequestError):
            raise error
        outcome.errors[key] = error
    return outcome
