"""A conversation with a core without other clients, and a check that no objects remain."""

import random

from golden.script import pieces
from nsqcy.nsqd.worker import live_objects
from nsqcy.server.core import BytesTransport
from support.worker_core import SECOND, Core, frames

TURN = b"~TURN~"
"""Marker in a peer's data. The data after the marker is sent only once everything before the marker
has been processed. Without markers, the peer could not respond to a message that it has already
received."""


def converse(core: Core, data: bytes, cuts: random.Random | None) -> bytes:
    """Return the answer to a peer that sends `data`, and then sends no heartbeats for a minute."""
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
    """Return the frames of a new core's answer, and check that the conversation leaves no
    objects."""
    core = Core(None)
    before = alive(core)
    answer = converse(core, data, cuts)
    core.close()
    core.clients.clear()
    assert alive(core) == before
    return list(frames(answer))
