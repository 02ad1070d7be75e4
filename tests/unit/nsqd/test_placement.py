"""Which worker a topic is placed on, and whether the topic stays there."""

from hypothesis import given
from hypothesis import strategies as st

from nsqcy.nsqd.master.placement import Placement

NAMES = st.sampled_from([f"topic-{number}" for number in range(40)])


def test_fewest_topics_first():
    placement = Placement(3)
    for number in range(30):
        placement.place(f"t{number}")
    assert placement.counts() == [10, 10, 10]


def test_the_same_names_are_placed_the_same_way_every_time():
    first, second = Placement(4), Placement(4)
    names = [f"t{number}" for number in range(100)]
    assert [first.place(name) for name in names] == [second.place(name) for name in names]


def test_ties_are_spread_by_hash():
    assert {Placement(4).place(f"t{number}") for number in range(50)} == {0, 1, 2, 3}


def test_sticky_also_after_deletion():
    placement = Placement(2)
    worker = placement.place("t")
    placement.retire("t")
    assert placement.counts() == [0, 0]
    placement.place("other")
    placement.place("more")
    assert placement.place("t") == worker == placement.worker_of("t")
    assert sum(placement.counts()) == 3


def test_a_pinned_topic_has_its_worker():
    placement = Placement(2)
    for number in range(20):
        placement.pin(f"t{number}", 1)
    placement.pin("t0", 0)
    placement.pin("other", 5)  # an earlier start had more workers
    assert placement.counts() == [0, 0]
    assert {placement.place(f"t{number}") for number in range(20)} == {1}
    assert placement.place("other") == 0


def test_a_name_never_placed():
    placement = Placement(2)
    placement.retire("t")
    assert placement.worker_of("t") is None
    assert placement.counts() == [0, 0]
    assert placement.table() == {}


@given(st.integers(1, 5), st.lists(st.tuples(st.booleans(), NAMES)))
def test_any_history(workers, history):
    placement = Placement(workers)
    live, known = set(), {}
    for created, name in history:
        if created:
            worker = placement.place(name)
            assert known.setdefault(name, worker) == worker
            live.add(name)
        else:
            placement.retire(name)
            live.discard(name)
        counts = [0] * workers
        for each in live:
            counts[known[each]] += 1
        assert placement.counts() == counts
    assert placement.table() == known
