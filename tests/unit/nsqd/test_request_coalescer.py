"""Requests that share an answer, and event-loop turns for long work."""

import gevent
import pytest
from gevent.event import Event

from nsqcy.nsqd.stats.request_coalescer import RequestCoalescer
from nsqcy.util.slices import Turns


class Work:
    """Returns the number of the call, once a test opens its gate."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gates: list[Event] = []

    def __call__(self, question: str) -> int:
        number = len(self.begun)
        self.begun.append(question)
        gate = Event()
        self.gates.append(gate)
        gate.wait()
        return number


def settle() -> None:
    for _ in range(5):
        gevent.sleep(0)


def test_who_asks_meanwhile_shares_the_next_round() -> None:
    work = Work()
    rounds = RequestCoalescer(work)
    early = [gevent.spawn(rounds.ask, "a") for _ in range(3)]
    settle()
    assert work.begun == ["a"]
    late = [gevent.spawn(rounds.ask, "a") for _ in range(3)]
    other = gevent.spawn(rounds.ask, "b")
    settle()
    assert work.begun == ["a", "b"]  # a different request does not wait
    work.gates[0].set()
    settle()
    assert [each.value for each in early] == [0, 0, 0]
    assert work.begun == ["a", "b", "a"] and not any(each.ready() for each in late)
    work.gates[1].set()
    work.gates[2].set()
    settle()
    assert [each.value for each in late] == [2, 2, 2] and other.value == 1
    # Nothing is cached: the next request starts its own round.
    last = gevent.spawn(rounds.ask, "a")
    settle()
    work.gates[3].set()
    assert last.get(timeout=5) == 3


def test_all_of_a_round_hear_of_its_failure() -> None:
    def work(question: str) -> int:
        raise RuntimeError(question)

    rounds = RequestCoalescer(work)
    asking = [gevent.spawn(_error, rounds) for _ in range(2)]
    gevent.joinall(asking, timeout=5)
    assert [each.value for each in asking] == ["a", "a"]
    with pytest.raises(RuntimeError):
        rounds.ask("again")


def _error(rounds: RequestCoalescer[str, int]) -> str:
    with pytest.raises(RuntimeError) as caught:
        rounds.ask("a")
    return str(caught.value)


def test_one_goes_on_in_each_turn() -> None:
    """In each iteration of the loop, one of the waiting tasks continues, in order of arrival."""
    turns = Turns()
    polls = 0
    done: list[tuple[int, str]] = []

    def count() -> None:
        nonlocal polls
        polls += 1

    watcher = gevent.get_hub().loop.prepare()
    watcher.start(count)

    def work(name: str) -> None:
        for _ in range(20):
            turns.wait()
            done.append((polls, name))

    try:
        gevent.joinall([gevent.spawn(work, name) for name in "abc"], timeout=10)
    finally:
        watcher.stop()
        watcher.close()
    assert [name for _, name in done] == list("abc") * 20
    assert len({poll for poll, _ in done}) == 60
