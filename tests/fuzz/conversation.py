"""A conversation with a core that hears nothing else, and what is left of it."""

import random

from golden.script import pieces
from nsqcy.nsqd.worker import live_objects
from nsqcy.server.transport import BytesTransport
from support.worker_core import SECOND, Core, frames

TURN = b"~TURN~"
"""Where it stands in what a peer sends, nothing more comes until all that was is dealt with: else
no message could be delivered before it is answered."""


def converse(core: Core, data: bytes, cuts: random.Random | None) -> bytes:
    """What a peer that sends `data` and then waits a minute is told, heartbeats aside."""
    transport = BytesTransport(core.manager)
    for part in data.split(TURN):
        for piece in pieces(part, "random" if cuts and len(part) > 1 else "whole", cuts or random):
            transport.feed(piece)
        core.settle()
    for _ in range(2):
        core.advance(31 * SECOND)
    transport.end()
    core.settle()
    answer: bytes = transport.sent()
    assert transport.closed or transport.unsent() == b""
    return answer


def alive(core: Core) -> dict[str, int]:
    core.settle()
    return live_objects.count(core.manager, core.pool)


def told(data: bytes, cuts: random.Random | None) -> list[tuple[int, bytes]]:
    """A core that hears nothing but this, and has nothing left of it afterwards."""
    core = Core(None)
    before = alive(core)
    answer = converse(core, data, cuts)
    core.close()
    core.clients.clear()
    assert alive(core) == before
    return list(frames(answer))
