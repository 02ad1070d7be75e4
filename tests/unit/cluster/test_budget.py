"""The budget for large responses."""

import sys
import threading
import time

import pytest

from nsqcy.cluster import budget
from nsqcy.cluster.budget import FREE, MAX_OBJECTS, MAX_VALUES, Bounds, Budget, Lease
from nsqcy.cluster.stats import MAX_ANSWER
from nsqcy.errors import RequestError


def lease(of: Budget, wait: float = 0.0) -> Lease:
    return Lease(of, time.monotonic() + wait)


def test_small_responses_are_free() -> None:
    small = Budget(0)
    leases = [lease(small) for _ in range(100)]
    for each in leases:
        each.grow(FREE)
    assert small.used == 0


def test_large_responses_share() -> None:
    shared = Budget(100)
    one, other = lease(shared), lease(shared)
    one.grow(FREE + 60)
    with pytest.raises(RequestError, match="large responses already use 60 of 100 bytes"):
        other.grow(FREE + 41)
    other = lease(shared)
    other.grow(FREE + 40)
    assert shared.used == 100
    del one
    assert shared.used == 40
    del other
    assert shared.used == 0


def test_a_response_waits_for_others() -> None:
    shared = Budget(100)
    first = [lease(shared)]
    first[0].grow(FREE + 100)
    grown = threading.Event()

    def read() -> None:
        second = lease(shared, 60.0)
        second.grow(FREE + 50)
        grown.set()

    thread = threading.Thread(target=read)
    thread.start()
    first.clear()
    assert grown.wait(60)
    thread.join()
    assert shared.used == 0


def test_of_responses_that_wait_for_each_other_the_largest_gives_up() -> None:
    shared = Budget(100)
    large, small = lease(shared, 60.0), lease(shared, 60.0)
    large.grow(FREE + 60)
    small.grow(FREE + 40)
    errors: list[RequestError] = []

    def read() -> None:
        try:
            large.grow(1)
        except RequestError as error:
            errors.append(error)
            large.end()

    thread = threading.Thread(target=read)
    thread.start()
    small.grow(20)
    thread.join()
    assert (len(errors), shared.used) == (1, 60)


def test_decoded_values_count() -> None:
    shared = Budget()
    one = lease(shared)
    body = b"[" + b"{},  " * 300_000 + b"0]"
    one.grow(len(body))
    one.grow_for(body, Bounds(sys.maxsize))
    assert shared.used >= 300_000 * budget.OBJECT


def test_a_large_nsqd_is_within_all_limits() -> None:
    """10,000 topics, each with three channels of two consumers."""
    latency = b'"e2e_processing_latency":{"count":0,"percentiles":null}'
    client = b"{" + b'"a_key_of_a_client":"a text of it",' * 28 + b"}"
    channel = b'{"clients":[' + client + b"," + client + b"]," + b'"a_figure_of_it":12345,' * 24
    channel += latency + b',"policy":{"dead_letter_topic":""}},'
    topic = b'{"channels":[' + channel * 3 + b"]," + b'"a_figure_of_it":12345,' * 10 + latency
    body = (topic + b',"cursors":[]},') * 10_000
    assert MAX_ANSWER / 2 < len(body) < MAX_ANSWER
    one = lease(Budget())
    one.grow(len(body))
    one.grow_for(body, Bounds(sys.maxsize))


def test_the_largest_response_fits() -> None:
    largest = MAX_OBJECTS * budget.OBJECT + MAX_VALUES * budget.VALUE + MAX_ANSWER
    assert largest < budget.MAX_MEMORY
