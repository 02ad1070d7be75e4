"""Rates of counters that pages read, and the finish rates of consumers."""

from typing import Any

import pytest

from nsqcy.cluster.stats import ChannelFigures, ChannelStats, ClientStats
from nsqcy.nsqadmin.cluster import rate_meter
from nsqcy.nsqadmin.cluster.rate_meter import RateMeter, with_rates
from nsqcy.nsqadmin.views.topics import slowest_first

START = 1_000


def test_rates() -> None:
    meter, counter = RateMeter(), ("n:1", "0")
    assert meter.rate(counter, 100.0, 50.0, 5.0) == pytest.approx(0.1)  # since the start
    assert meter.rate(counter, 110.0, 60.0, 10.0) == pytest.approx(0.5)
    assert meter.rate(counter, 110.5, 60.5, 10.4) == pytest.approx(0.5)  # too soon for a new rate
    assert meter.rate(counter, 112.0, 62.0, 12.0) == pytest.approx(1.0)
    assert meter.rate(counter, 113.0, 1.0, 0.2) == pytest.approx(0.2)  # restarted
    assert meter.rate(counter, 1113.0, 1001.0, 100.1) == pytest.approx(0.1)  # too long ago


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_meter, "_MAX_COUNTERS", 2)
    meter = RateMeter()
    for number, now in enumerate((0.0, 100.0, 200.0)):
        meter.rate(number, now, 10.0, 10.0)
    assert meter.rate(1, 201.0, 111.0, 111.0) == pytest.approx(1.0)  # still known
    assert meter.rate(0, 202.0, 212.0, 424.0) == pytest.approx(2.0)  # forgotten


def client(**values: Any) -> ClientStats:
    known = {"node": "a", "remote_address": "h:1", "connect_ts": START}
    return ClientStats(**(known | values))


def channel(*clients: ClientStats, depth: int = 0) -> ChannelStats:
    row = ChannelStats("t", "c", "a", "h", ChannelFigures(depth=depth))
    return row._replace(nodes=(row,), clients=clients)


def test_rates_of_consumers_whose_nsqd_reports_none() -> None:
    meter = RateMeter()
    (found,) = with_rates(channel(client(finish_count=50)), meter, START + 10.0).clients or ()
    assert (found.finish_rate, found.saturated) == (5.0, False)
    (found,) = with_rates(channel(client(finish_count=52)), meter, START + 14.0).clients or ()
    assert found.finish_rate == 0.5


@pytest.mark.parametrize(
    ("in_flight", "ready", "depth", "is_saturated"),
    [(5, 5, 1, True), (4, 5, 1, False), (0, 0, 1, False), (5, 5, 0, False)],
)
def test_saturated(in_flight: int, ready: int, depth: int, is_saturated: bool) -> None:
    one = client(in_flight_count=in_flight, ready_count=ready)
    (found,) = with_rates(channel(one, depth=depth), RateMeter(), START + 1.0).clients or ()
    assert found.saturated is is_saturated


def test_what_an_nsqd_reports_is_kept() -> None:
    known = client(finish_rate=7.0, saturated=True)
    assert with_rates(channel(known), RateMeter(), START + 1.0).clients == (known,)
    assert with_rates(channel()._replace(clients=None), RateMeter(), 0.0).clients is None


def test_the_slowest_come_first() -> None:
    fast, slow = client(finish_rate=9.0, saturated=True), client(finish_rate=1.0, saturated=True)
    idle = client(finish_rate=0.0)
    assert slowest_first([idle, fast, slow]) == [slow, fast, idle]
