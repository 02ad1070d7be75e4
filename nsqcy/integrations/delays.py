"""Delays that are longer than nsqd's limit for deferred messages.

A message is deferred for as long as nsqd allows. When it arrives, the consumer requeues it with the
rest of its delay. Its timestamp, nsqd's time of the publish, survives a requeue.
"""

import math
import time

from nsqcy.client import Message

DEFAULT_MAX_DEFER = 3600.0  # seconds: the default of nsqd's --max-req-timeout
EARLY = 0.001  # seconds by which a message may arrive before it is due


def milliseconds(delay: float, max_defer: float) -> int | None:
    """Convert a delay in seconds to a defer time in milliseconds; None if the message is due."""
    return math.ceil(min(delay, max_defer) * 1000) or None if delay > 0 else None


def remaining(message: Message, delay: float, max_defer: float) -> float:
    """Return the seconds until a message may be processed; 0 if it is due.

    Delays within nsqd's limit have already passed, so the clocks of the two machines may differ.
    """
    if delay <= max_defer:
        return 0.0
    left = message.timestamp / 1e9 + delay - time.time()
    return min(left, max_defer) if left > EARLY else 0.0
