"""Answers of any length, generated in slices between which other requests are handled.

An answer is a generator of pieces. A short answer is generated immediately, without a greenlet.
Independent of routes and of the meaning of the pieces.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import merge
from itertools import islice
from typing import Protocol, TypeVar

import gevent

from nsqcy.http.parser import JSON, Reply
from nsqcy.http.router import Later
from nsqcy.util.slices import Slices

SLICE = 64  # maximum pieces generated at once; one takes up to 10 µs
RUN = 1024  # maximum names sorted at once

Pieces = Generator[bytes | None, None, None]
"""Pieces of a body. None means that the work so far took as long as a whole slice."""

Built = Reply | Later

Name = TypeVar("Name", str, bytes)


class Maker(Protocol):
    """The part of Api that long answers use."""

    @property
    def give_way(self) -> Callable[[], object]:
        """Function that lets other work run; called in a greenlet."""

    def panic(self) -> Reply: ...


def built(pieces: Pieces, api: Maker, reply: Reply | None = None) -> Built:
    """Return the answer with these pieces, or `reply` once there are no more pieces."""
    body = bytearray()
    for piece in islice(pieces, SLICE):
        if piece is None:
            break
        body += piece
    else:
        # The generator has either ended or has more pieces.
        piece = next(pieces, _END)
        if piece is _END:
            return _reply(body, reply)
        body += piece or b""
    return _LongAnswer(body, pieces, api, reply)


_END = bytes(bytearray(b"end"))  # object that is never a piece


def _reply(body: bytearray, reply: Reply | None) -> Reply:
    return reply or Reply(200, body, JSON)


class _LongAnswer(Later):
    __slots__ = ("_api", "_body", "_pieces", "_reply")

    def __init__(self, body: bytearray, pieces: Pieces, api: Maker, reply: Reply | None) -> None:
        self._body = body
        self._pieces = pieces
        self._api = api
        self._reply = reply

    def begin(self, answer: Callable[[Reply | None], None]) -> None:
        gevent.spawn(self._finish, answer)

    def _finish(self, answer: Callable[[Reply | None], None]) -> None:
        slices = Slices(self._api.give_way, SLICE)
        slices.end()
        try:
            for piece in self._pieces:
                slices.step()
                if piece is None:
                    slices.end()
                else:
                    self._body += piece
        except Exception:
            answer(self._api.panic())
        else:
            answer(_reply(self._body, self._reply))


def in_order(names: Iterable[Name]) -> Generator[None, None, Iterator[Name]]:
    """Return the names in order; yield while sorting."""
    names = iter(names)
    runs = [sorted(islice(names, RUN))]
    while len(runs[-1]) == RUN:
        yield None
        runs.append(sorted(islice(names, RUN)))
    return iter(runs[0]) if len(runs) == 1 else merge(*runs)


def separated(items: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the items of a JSON list."""
    comma = b""
    for item in items:
        yield comma + item
        comma = b","
