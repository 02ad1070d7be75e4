"""The heap ordered by due time, compared with a sorted list."""

import ctypes
import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from nsqcy.base import core as base_core
from support.c_functions import function
from support.runs import runs

NOWHERE = 0xFFFFFFFF


class Node(ctypes.Structure):
    _fields_ = [
        ("index", ctypes.c_uint32),
        ("tag", ctypes.c_uint32),
    ]


class Slot(ctypes.Structure):
    _fields_ = [("due", ctypes.c_int64), ("node", ctypes.POINTER(Node))]


class Heap(ctypes.Structure):
    _fields_ = [
        ("slots", ctypes.POINTER(Slot)),
        ("size", ctypes.c_uint32),
        ("capacity", ctypes.c_uint32),
    ]


heap_p, node_p = ctypes.POINTER(Heap), ctypes.POINTER(Node)
heap_init = function(base_core, "heap_init", None, heap_p)
heap_free = function(base_core, "heap_free", None, heap_p)
heap_push = function(base_core, "heap_push", ctypes.c_int, heap_p, node_p, ctypes.c_int64)
heap_remove = function(base_core, "heap_remove", None, heap_p, node_p)
heap_update = function(base_core, "heap_update", None, heap_p, node_p, ctypes.c_int64)
heap_peek = function(base_core, "heap_peek", node_p, heap_p)


def heap_pop(heap):
    """Remove the first node, as the daemon does."""
    node = heap_peek(heap)
    if node:
        heap_remove(heap, node)
    return node


# The small number of different times leads to ties; the extremes would reveal overflowing
# subtractions.
DUES = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)


class Machine(RuleBasedStateMachine):
    """The heap, along with a dictionary of its content."""

    def __init__(self):
        super().__init__()
        self.heap = Heap()
        heap_init(self.heap)
        self.nodes = [Node(NOWHERE, tag) for tag in range(60)]
        self.inside: dict[int, int] = {}

    def teardown(self):
        heap_free(self.heap)

    @rule(tag=st.integers(0, 59), due=DUES)
    def push_or_update(self, tag, due):
        if tag in self.inside:
            heap_update(self.heap, self.nodes[tag], due)
        else:
            assert heap_push(self.heap, self.nodes[tag], due) == 0
        self.inside[tag] = due

    @rule(tag=st.integers(0, 59))
    def remove(self, tag):
        heap_remove(self.heap, self.nodes[tag])
        self.inside.pop(tag, None)

    @precondition(lambda self: self.inside)
    @rule()
    def pop(self):
        due = self.heap.slots[0].due
        node = heap_pop(self.heap).contents
        assert due == min(self.inside.values()) == self.inside.pop(node.tag)

    @invariant()
    def same_as_the_dictionary(self):
        assert self.heap.size == len(self.inside)
        for tag, node in enumerate(self.nodes):
            if tag not in self.inside:
                assert node.index == NOWHERE
                continue
            slot = self.heap.slots[node.index]
            assert slot.due == self.inside[tag]
            assert ctypes.addressof(slot.node.contents) == ctypes.addressof(node)

    @invariant()
    def the_first_is_the_least(self):
        first = heap_peek(self.heap)
        assert bool(first) == bool(self.inside)
        if first:
            assert self.heap.slots[0].due == min(self.inside.values())
            assert self.inside[first.contents.tag] == min(self.inside.values())


TestHeap = pytest.mark.slow(Machine.TestCase)
TestHeap.settings = settings(max_examples=runs(40), stateful_step_count=80, deadline=None)


def test_pops_in_order_and_gives_memory_back():
    heap = Heap()
    heap_init(heap)
    chance = random.Random(1)
    nodes = (Node * 5000)()
    for node in nodes:
        node.index = NOWHERE
        assert heap_push(heap, node, chance.randrange(1000)) == 0
    grown = heap.capacity
    popped = []
    while heap.size:
        popped.append(heap.slots[0].due)
        heap_pop(heap)
    assert len(popped) == 5000 and popped == sorted(popped)
    assert not heap_pop(heap)
    assert grown >= 5000
    assert heap.capacity <= 16
    heap_free(heap)


def test_ties_come_out_the_same_way_every_time():
    def run() -> list[int]:
        heap = Heap()
        heap_init(heap)
        nodes = [Node(NOWHERE, tag) for tag in range(100)]
        for node in nodes:
            heap_push(heap, node, node.tag % 3)
        for node in nodes[::7]:
            heap_remove(heap, node)
        order = [heap_pop(heap).contents.tag for _ in range(heap.size)]
        heap_free(heap)
        return order

    assert run() == run()
