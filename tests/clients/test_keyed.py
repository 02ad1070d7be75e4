"""Unmodified client libraries, on both sides of a channel that orders messages by key."""

import json
from collections.abc import Callable

import pytest

from conftest import three_workers
from support.client_libraries import (
    CONSUMERS,
    PUBLISHERS,
    Consumer,
    Producer,
    absent,
    libraries,
)
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


@three_workers
@pytest.mark.parametrize("library", libraries(CONSUMERS))
def test_two_consumers_of_a_library_share_keys_in_order(
    library: str,
    shared: Nsqd,
    topic: str,
    consume: Callable[..., Consumer],
    publish: Callable[..., Producer],
) -> None:
    producer = library if library in PUBLISHERS and not absent(library) else "pynsq"
    shared.web.create(topic, "c")
    for path, values in {"topic": {"key": "json:/k"}, "channel": {"order": "key"}}.items():
        query = {"topic": topic} | ({"channel": "c"} if path == "channel" else {})
        answer = shared.web.put(f"/{path}/config", json.dumps(values).encode(), **query)
        assert answer.status == 200
    both = [consume(library, shared, topic, "c", rdy=10) for _ in range(2)]
    sent = [json.dumps({"k": f"k{n % 7}", "n": n}).encode() for n in range(210)]
    program = publish(producer, shared, topic)
    program.publish(sent)
    assert program.finish() == ["OK"] * 210
    both[0].await_that(lambda: sum(len(each.raw) for each in both) >= 210)
    received = [[json.loads(body) for body in each.bodies()] for each in both]
    assert sorted(each["n"] for one in received for each in one) == list(range(210))
    for one in received:
        for key in range(7):
            numbers = [each["n"] for each in one if each["k"] == f"k{key}"]
            assert numbers == sorted(numbers)
