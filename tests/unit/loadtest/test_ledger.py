"""The ledger of a load test: published messages, their outcomes, and merged ledgers."""

import sys

import pytest

from loadtest.soak.ledger import Account, Ledger, Marks, Order
from support.load_parts import over_the_wire

PLACE = ("t", "c")


def marks(publisher: int, *numbers: int) -> Marks:
    found = Marks()
    found.add_all(publisher, numbers)
    return found


def account(ledger: Ledger) -> dict[str, int]:
    """Return the values that are not zero."""
    found = vars(ledger.account(PLACE))
    return {name: value for name, value in found.items() if value and value not in PLACE}


def finish(ledger: Ledger, publisher: int, *numbers: int) -> None:
    for number in numbers:
        ledger.finish(PLACE, publisher, number)


def test_marks_are_a_set() -> None:
    some = marks(1, 0, 511, 512, 5000)
    assert [some.add(1, 511), some.add(2, 511), some.add(1, 513)] == [False, True, True]
    assert len(some) == 6
    assert len(some - marks(1, 512, 513)) == 4
    assert sorted(some & marks(1, 512, 513)) == [(1, 512), (1, 513)]
    assert sorted(some.of(2)) == [(2, 511)]


def test_marks_can_be_told_one_by_one() -> None:
    found = Marks()
    there = [(1, 0), (1, 511), (1, 512), (1 << 15, 3_000_000)]
    for each in there:
        found.add(*each)
    assert sorted(found) == there
    assert sorted(found - marks(1, 511)) == [each for each in there if each != (1, 511)]


def test_what_was_published_and_not_finished_is_lost() -> None:
    ledger = Ledger()
    ledger.publish("t", 1, range(1000))
    finish(ledger, 1, *(n for n in range(1000) if n not in (513, 514)))
    finish(ledger, 1, 3)
    finish(ledger, 2, 0)  # the publish was not answered
    assert account(ledger) == {
        "published": 1000,
        "finished": 999,
        "lost": 2,
        "unconfirmed": 1,
        "duplicates": 1,
        "named": {"lost": ["1:513", "1:514"]},
    }
    assert ledger.owed([PLACE]) == 2
    finish(ledger, 1, 513, 514)
    assert (ledger.account(PLACE).lost, ledger.owed([PLACE])) == (0, 0)


def test_what_was_refused_must_not_come() -> None:
    ledger = Ledger()
    ledger.refuse("t", 1, range(3))
    finish(ledger, 1, 1, 4, 5)
    assert account(ledger) == {
        "finished": 3,
        "unasked": 1,
        "unconfirmed": 2,
        "named": {"unasked": ["1:1"]},
    }


def test_what_was_never_sent_is_unexpected() -> None:
    ledger = Ledger()
    ledger.attempt("t", 1, range(3))
    finish(ledger, 1, 1, 3)
    finish(ledger, 2, 0)
    found = account(ledger)
    assert (found["unexpected"], found["named"]) == (2, {"unexpected": ["1:3", "2:0"]})
    assert sorted(ledger.attempted("t", 1)) == [(1, 0), (1, 1), (1, 2)]


def test_what_is_excused_is_forgotten_unless_it_was_finished() -> None:
    ledger = Ledger()
    ledger.publish("t", 1, range(10))
    finish(ledger, 1, *range(4))
    ledger.excuse(PLACE, marks(1, 3, 4, 5, 6))
    finish(ledger, 1, 5)
    found = ledger.account(PLACE)
    assert (found.lost, found.forgotten, ledger.owed([PLACE])) == (3, 2, 3)


def test_ledgers_of_processes_add_up() -> None:
    """Two processes consume one channel, and both finish the same message. Numbers that were
    already reported are not sent again."""
    first, second, whole = Ledger(), Ledger(), Ledger()
    first.publish("t", 1, range(4))
    first.refuse("t", 1, [4])
    finish(first, 1, 0, 1)
    finish(second, 1, 1, 2)
    second.excuse(PLACE, marks(1, 3))
    second.count(PLACE, "again")
    for _ in range(2):
        whole.merge(over_the_wire(first.take()))
        whole.merge(over_the_wire(second.take()))
    finish(whole, 1, 4)
    assert whole.account(PLACE) == Account(
        *PLACE,
        published=4,
        finished=4,
        forgotten=1,
        unasked=1,
        duplicates=1,
        again=1,
        named={"unasked": ["1:4"]},
    )


def test_order_is_of_a_publisher_and_an_nsqd() -> None:
    order = Order()
    seen = [
        (1, 0, "a"),
        (1, 3, "a"),
        (1, 1, "b"),
        (2, 0, "a"),
        (1, 1, "a"),
        (1, 2, "a"),
        (1, 4, "a"),
    ]
    assert [order.breaks(*each) for each in seen] == [*[False] * 4, True, True, False]


@pytest.mark.slow
def test_a_million_messages_take_half_a_megabyte() -> None:
    found = Marks()
    found.add_all(1, range(1_000_000))
    assert sum(map(sys.getsizeof, found._bits.values())) < 500_000
