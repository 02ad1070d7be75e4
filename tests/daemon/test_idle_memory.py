"""Memory that a connection without credentials can make a daemon retain."""

import pytest

from loadtest.bench.scenarios.strangers import LIMIT, Way, measure, started, ways
from support.sanitizer import SANITIZED

pytestmark = pytest.mark.real_start

TESTED = {
    ("nsqd", "HTTP: a request line"),
    ("nsqd", "HTTP: one header"),
    ("nsqd", "HTTP: many X-Nsq headers"),
    ("nsqd", "HTTPS: half a record"),
    ("nsqd", "HTTPS: require, 15 certificates"),
    ("nsqlookupd", "TCP: a half-sent line"),
    ("nsqlookupd", "HTTP: one header"),
    ("nsqadmin", "HTTP: one header"),
}
"""Cases that once exceeded the limit; the scenario `strangers` contains all cases."""


@pytest.mark.ours
@pytest.mark.skipif(SANITIZED, reason="the sanitizer keeps freed memory")
@pytest.mark.parametrize(
    "way", [way for way in ways() if way[:2] in TESTED], ids=lambda way: f"{way[0]} {way[1]}"
)
def test_a_connection_costs_at_most_64_kib(way: Way) -> None:
    with started(way.daemon, way.setup) as daemon:
        assert measure(daemon, way, patience=20) <= LIMIT
