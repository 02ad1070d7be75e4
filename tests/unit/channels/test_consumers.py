"""A channel's list of consumers: complete, whatever the order in which consumers come and leave."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.worker_core import Client, Core


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path)
    yield made
    made.close()


def arrive(core: Core) -> Client:
    return core.client().subscribe("t", "c")


def leave(client: Client) -> None:
    client.transport.end()
    client.core.settle()


def listed(core: Core) -> list[object]:
    return list(core.topic("t").channels["c"].consumers)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(st.integers(-8, 8), max_size=40))
def test_those_that_have_left_are_not_listed(core: Core, steps: list[int]) -> None:
    """A negative step: one of the consumers leaves."""
    clients = [arrive(core)]
    for step in steps:
        if step < 0 and clients:
            leave(clients.pop(step % len(clients)))
        else:
            clients.append(arrive(core))
        assert set(listed(core)) == {each.session for each in clients}
        assert len(listed(core)) == len(clients)
    for each in clients:
        leave(each)
    assert listed(core) == []


def test_the_last_one_takes_the_place_of_one_that_leaves(core: Core) -> None:
    """The list is not searched: thousands of consumers may leave in one turn."""
    first, second, third = (arrive(core) for _ in range(3))
    leave(first)
    assert listed(core) == [third.session, second.session]
    leave(third)
    assert listed(core) == [second.session]
