"""Keys of publishes: their headers, and the nsqd that a key or a deduplication id chooses."""

import math
from typing import Any

import pytest

from nsqcy.client.errors import ConnectionFailed, NoConnection
from nsqcy.client.keys import keyed, ranked, route_of
from tests.unit.client.test_client_producer import WAITING, Pool, Told, make, silent

NSQDS = ["a:1", "b:1", "c:1"]


def test_headers() -> None:
    assert keyed(None, None, None, None) is None
    assert keyed({"x": "y"}, "k", "d", 0) == {
        "x": "y",
        "key": "k",
        "dedup-id": "d",
        "priority": "0",
    }
    assert keyed(None, None, "d", None) == {"dedup-id": "d"}


@pytest.mark.parametrize(
    "key, dedup_id, priority, error",
    [
        ("", None, None, ValueError),
        ("ä" * 128, None, None, ValueError),
        (None, "", None, ValueError),
        (None, None, 10, ValueError),
        (None, None, -1, ValueError),
        (None, None, True, TypeError),
        (b"k", None, None, TypeError),
        (None, 7, None, TypeError),
    ],
)
def test_bad_values(key: Any, dedup_id: Any, priority: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        keyed(None, key, dedup_id, priority)


def test_the_key_chooses_and_else_the_id() -> None:
    assert route_of("k", "d") == b"k"
    assert route_of(None, "d") == b"d"
    assert route_of(None, None) is None


def test_the_order_is_what_it_always_was() -> None:
    # Other clients may rely on it.
    assert [ranked(b"%d" % i, NSQDS)[0] for i in range(8)] == FIRST


FIRST = ["b:1", "a:1", "c:1", "c:1", "b:1", "c:1", "b:1", "b:1"]


def test_a_missing_nsqd_moves_only_its_own_keys() -> None:
    for i in range(200):
        order = ranked(b"%d" % i, NSQDS)
        for gone in NSQDS:
            left = [each for each in NSQDS if each != gone]
            assert ranked(b"%d" % i, left) == [each for each in order if each != gone]
    firsts = [ranked(b"%d" % i, NSQDS)[0] for i in range(3000)]
    assert all(800 < firsts.count(each) < 1200 for each in NSQDS)


def routed(pool: Pool, route: bytes, within: float = math.inf) -> Told:
    publish = make(route, pool.net.time + within)
    publish.route = route
    pool.core.publish(publish)
    return publish


def first(pool: Pool, route: bytes) -> str:
    return str(ranked(route, pool.core.nsqds)[0])


def destination(pool: Pool, route: bytes) -> str:
    """Return the address of the nsqd that got a publish."""
    for wire in pool.net.wires:
        if route in wire.peer.bodies:
            return str(wire.connection.address)
    return ""


def test_the_same_key_goes_to_the_same_nsqd() -> None:
    pool = Pool(NSQDS).accept()
    pool.run()
    for i in range(30):
        route = b"k%d" % i
        assert routed(pool, route).end == WAITING
        pool.run()
        assert destination(pool, route) == first(pool, route)


def test_a_key_waits_for_its_nsqd_until_that_fails() -> None:
    pool = Pool(NSQDS)
    route = b"k"
    order = [str(each) for each in ranked(route, pool.core.nsqds)]
    publish = routed(pool, route)
    for wire in pool.net.pending():
        if str(wire.connection.address) != order[0]:
            wire.accept()
    pool.run()
    assert publish.end == WAITING
    assert destination(pool, route) == ""
    for wire in pool.net.pending():
        wire.lose()
    pool.run()
    assert destination(pool, route) == order[1]
    assert publish.end is None


def test_a_strict_key_fails_instead() -> None:
    pool = Pool(NSQDS, strict_key=True, retries=1)
    route = b"k"
    publish, other = routed(pool, route), make(b"other")
    pool.core.publish(other)
    for wire in pool.net.pending():
        if str(wire.connection.address) != first(pool, route):
            wire.accept()
    pool.run()
    assert other.end is None
    pool.fail_all(30)
    assert isinstance(publish.end, (NoConnection, ConnectionFailed))
    assert destination(pool, route) == ""


def test_a_strict_key_is_not_resent_elsewhere() -> None:
    pool = Pool(NSQDS, strict_key=True, script=silent).accept()
    pool.run()
    route = b"k"
    publish = routed(pool, route)
    pool.run()
    for wire in pool.net.live():
        if str(wire.connection.address) == first(pool, route):
            wire.lose()
    pool.run()
    assert isinstance(publish.end, ConnectionFailed)


def test_a_key_moves_back_when_its_nsqd_returns() -> None:
    pool = Pool(NSQDS).accept()
    pool.run()
    route = b"k"
    (wire,) = [
        each for each in pool.net.live() if str(each.connection.address) == first(pool, route)
    ]
    wire.lose()
    pool.fail_all(1)
    publish = routed(pool, route)
    pool.run()
    assert publish.end is None
    assert destination(pool, route) != first(pool, route)
    for _ in range(200):
        pool.net.tick(0.5)
        pool.accept()
        pool.run()
    again = routed(pool, b"k")
    pool.run()
    assert again.end is None
    last = [each for each in pool.net.wires if b"k" in each.peer.bodies][-1]
    assert str(last.connection.address) == first(pool, route)
