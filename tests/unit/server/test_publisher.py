"""Publishes to a topic on another worker from within this process: outcomes when that worker
dies."""

from collections.abc import Iterator

import pytest

from nsqcy.server.core import UNKNOWN, Publisher
from support.two_workers import OWNER, Near
from support.worker_core import SECOND

MEBIBYTE = 1 << 20
PATIENCE = 5 * SECOND  # maximum time for which a worker may be down
SMALL = [b"x"]
BIG = [b"x" * 100_000] * 21  # needs three commands


@pytest.fixture
def near() -> Iterator[Near]:
    made = Near()
    yield made
    made.close()


class Outcomes:
    """The outcomes of the publishes, in order."""

    def __init__(self, near: Near) -> None:
        self.near = near
        self.publisher = Publisher(near.manager)
        self.of: dict[int, list[str | None]] = {}

    def publish(self, bodies: list[bytes]) -> None:
        said = self.of.setdefault(len(self.of), [])
        self.publisher.publish(b"t", bodies, 0, "memory", said.append)

    def all(self) -> list[list[str | None]]:
        self.near.settle()
        return list(self.of.values())


def test_the_owner_dies_before_it_answers(near: Near) -> None:
    outcomes = Outcomes(near)
    outcomes.publish(SMALL)
    assert outcomes.all() == [[None]]
    outcomes.publish(SMALL)
    outcomes.publish(SMALL)
    near.manager.peer_down(OWNER)
    assert outcomes.all() == [[None], [UNKNOWN], [UNKNOWN]]


def test_what_was_not_sent_is_certainly_not_there(near: Near) -> None:
    outcomes = Outcomes(near)
    outcomes.publish([b"x" * MEBIBYTE])
    outcomes.publish(SMALL)  # waits until the first mebibyte is answered
    near.manager.peer_down(OWNER)
    assert outcomes.all() == [[UNKNOWN], ["exiting"]]


def test_only_a_part_of_a_batch_is_there(near: Near) -> None:
    outcomes = Outcomes(near)
    outcomes.publish(BIG)
    while not near.owner.shard.topic(b"t", create=True).message_count:
        assert outcomes.all() == [[]]
    assert near.owner.shard.topic(b"t").message_count < len(BIG)
    near.manager.peer_down(OWNER)
    assert outcomes.all() == [[UNKNOWN]]


def test_it_waits_for_an_owner_that_is_down(near: Near) -> None:
    outcomes = Outcomes(near)
    near.manager.peer_down(OWNER)
    outcomes.publish(SMALL)
    assert outcomes.all() == [[]]
    near.advance(PATIENCE)
    assert outcomes.all() == [["exiting"]]
