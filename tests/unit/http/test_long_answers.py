"""Answers that are built in slices: the tests count the work between two slices."""

import json

import pytest

from nsqcy.http.long_answers import RUN, SLICE, Pieces, built, in_order, separated
from nsqcy.http.parser import Reply
from nsqcy.http.router import Later

PANIC = Reply(500)


class Maker:
    """Counts the pieces between two slices."""

    def __init__(self) -> None:
        self.made = 0
        self.slices: list[int] = []

    def give_way(self) -> None:
        self.slices.append(self.made)
        self.made = 0

    def panic(self) -> Reply:
        return PANIC

    def counted(self, pieces: Pieces) -> Pieces:
        for piece in pieces:
            self.made += 1
            yield piece


def answer(maker: Maker, pieces: Pieces) -> Reply:
    found = built(maker.counted(pieces), maker)
    if isinstance(found, Reply):
        return found
    answers: list[Reply | None] = []
    assert isinstance(found, Later)
    # The greenlet would only call this function.
    found._finish(answers.append)  # type: ignore[attr-defined]
    assert len(answers) == 1 and answers[0] is not None
    return answers[0]


def numbers(count: int) -> Pieces:
    yield b"["
    yield from separated(b"%d" % number for number in range(count))
    yield b"]"


@pytest.mark.parametrize("count", [0, 1, SLICE - 3, SLICE - 2, SLICE - 1, SLICE, 5 * SLICE])
def test_a_long_answer_is_made_in_slices(count: int) -> None:
    maker = Maker()
    reply = answer(maker, numbers(count))
    assert json.loads(reply.body) == list(range(count))
    assert all(each <= SLICE + 2 for each in [*maker.slices, maker.made])
    assert len(maker.slices) >= count // SLICE - 1
    assert isinstance(built(numbers(SLICE // 2), maker), Reply)


def test_a_failure_in_the_middle_is_a_panic() -> None:
    def broken() -> Pieces:
        yield from numbers(2 * SLICE)
        raise KeyError

    assert answer(Maker(), broken()) is PANIC


@pytest.mark.parametrize("count", [0, 1, RUN - 1, RUN, RUN + 1, 3 * RUN + 7])
def test_names_are_sorted_in_slices(count: int) -> None:
    names = [f"{number * 7919 % count}" for number in range(count)]

    def pieces() -> Pieces:
        ordered = yield from in_order(names)
        yield from (name.encode() + b" " for name in ordered)

    maker = Maker()
    assert answer(maker, pieces()).body.split() == [name.encode() for name in sorted(names)]
    # Sorting a run counts as a whole slice.
    assert len(maker.slices) >= count // RUN
