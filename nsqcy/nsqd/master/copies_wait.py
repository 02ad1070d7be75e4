"""The wait, between the replacements of two workers, until this nsqd's copies of topics on other
machines have caught up.

Owns how long the wait may take. Each worker decides whether its copies have caught up.
"""

import time

import gevent

from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.process_messages.to_worker import GetCopies

LIMIT = 30.0  # maximum seconds
INTERVAL = 0.1  # seconds between checks


def await_copies(workers: Workers, log: Lines) -> None:
    """Return once every worker is up and its copies have caught up, or after LIMIT."""
    deadline = time.monotonic() + LIMIT
    while lagging := _lagging(workers):
        if time.monotonic() >= deadline:
            events.copies_not_caught_up(log, LIMIT, ", ".join(map(str, lagging)))
            return
        gevent.sleep(INTERVAL)


def _lagging(workers: Workers) -> list[int]:
    """Return the workers whose copies have not caught up."""
    found = workers.gather(GetCopies())
    return [
        index
        for index, copies in found.items()
        if isinstance(copies, Exception) or not (copies or {}).get("caught_up", True)
    ]
