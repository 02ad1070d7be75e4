"""Pytest plugin, loaded automatically if nsqcy is installed. `-p no:nsqcy` disables it.

    def test_publish(nsqd):
        producer = gnsq.Producer(nsqd.tcp_address)

nsqd, nsqlookupd                    a daemon for one test (nsqcy.testing.Nsqd, Nsqlookupd); with
                                    both fixtures, the nsqd registers with the nsqlookupd
nsqd_factory, nsqlookupd_factory    start daemons that run until the session ends, for your own
                                    fixtures: `nsqd_factory(mem_queue_size=0)`

When a test fails, the last lines of its daemons' logs are shown.
"""

import contextlib
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

import pytest

from nsqcy import testing

__all__ = ["nsqd", "nsqd_factory", "nsqlookupd", "nsqlookupd_factory"]

D = TypeVar("D", bound=testing.Daemon)


@pytest.fixture
def nsqd(request: pytest.FixtureRequest) -> Iterator[testing.Nsqd]:
    """An nsqd for one test."""
    lookupds = []
    if "nsqlookupd" in request.fixturenames:
        lookupds.append(request.getfixturevalue("nsqlookupd").tcp_address)
    with testing.nsqd(lookupd_tcp_address=lookupds) as daemon:
        yield daemon


@pytest.fixture
def nsqlookupd() -> Iterator[testing.Nsqlookupd]:
    """An nsqlookupd for one test."""
    with testing.nsqlookupd() as daemon:
        yield daemon


@pytest.fixture(scope="session")
def nsqd_factory() -> Iterator[Callable[..., testing.Nsqd]]:
    """Factory: `nsqd_factory(**options)` starts an nsqd that runs until the session ends."""
    yield from _factory(testing.nsqd)


@pytest.fixture(scope="session")
def nsqlookupd_factory() -> Iterator[Callable[..., testing.Nsqlookupd]]:
    """Factory: `nsqlookupd_factory(**options)` starts an nsqlookupd that runs until the session
    ends."""
    yield from _factory(testing.nsqlookupd)


def _factory(make: Callable[..., D]) -> Iterator[Callable[..., D]]:
    with contextlib.ExitStack() as running:

        def start(**options: Any) -> D:
            daemon = make(**options)
            running.enter_context(daemon)
            return daemon

        yield start


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, testing.Daemon):
                report.sections.append((f"{value.table.daemon} log", value.tail()))
    return report
