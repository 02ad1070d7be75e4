"""Full garbage collections visit only objects created since the last one."""

import gc

from nsqcy.util import garbage


class Node:
    def __init__(self) -> None:
        self.other: Node | None = None


def test_survivors_are_visited_once() -> None:
    with garbage.bounded():
        kept = [Node() for _ in range(1000)]
        gc.collect()
        assert len(gc.get_objects()) < 1000
    assert len(kept) == 1000


def test_garbage_is_collected() -> None:
    with garbage.bounded():
        node = Node()
        node.other = node
        del node
        assert gc.collect() >= 1


def test_the_settings_are_restored() -> None:
    before = gc.get_threshold(), len(gc.callbacks)
    with garbage.bounded():
        assert gc.get_threshold()[2] == garbage.FULL_EVERY
    assert (gc.get_threshold(), len(gc.callbacks)) == before
