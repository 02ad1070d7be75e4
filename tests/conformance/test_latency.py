"""Latency from publish to finish."""

import re
from typing import Any

import pytest

from conftest import Starter, one_worker
from support.nsqd_process import Nsqd

OFF = {"count": 0, "percentiles": None}
WANTED = (
    "--e2e-processing-latency-percentile=0.99,1.0",
    "--e2e-processing-latency-percentile=0.5",
)


def latency(daemon: Nsqd, topic: str, channel: str | None = None) -> dict[str, Any]:
    found = daemon.web.channel(topic, channel) if channel else daemon.web.topic(topic)
    assert found is not None
    latency: dict[str, Any] = found["e2e_processing_latency"]
    return latency


@one_worker
@pytest.mark.case("E2E-01")
def test_percentiles_of_the_command_line_are_sorted(nsqd: Starter) -> None:
    answer = nsqd(args=WANTED).web.get("/config/e2e_processing_latency_percentiles")
    assert (answer.status, answer.body) == (200, b"[1,0.99,0.5]")


@pytest.mark.case("E2E-02", "E2E-04")
def test_percentiles(nsqd: Starter) -> None:
    daemon = nsqd(args=WANTED)
    daemon.web.create("alone")
    assert latency(daemon, "alone") == OFF

    conn = daemon.connect().sub("t", "c", rdy=1)
    found = latency(daemon, "t", "c")
    assert found["percentiles"] == [{"quantile": q, "value": 0} for q in (1, 0.99, 0.5)]
    assert found["count"] == 0 and latency(daemon, "t") == found
    daemon.connect().pub("t", b"x")
    message = conn.message()
    conn.nothing(0.2)
    conn.fin(message)
    conn.barrier()
    found = latency(daemon, "t", "c")
    assert found["count"] == 1
    assert [each["quantile"] for each in found["percentiles"]] == [1, 0.99, 0.5]
    (value,) = {each["value"] for each in found["percentiles"]}
    assert 190_000_000 <= value < 60_000_000_000
    assert latency(daemon, "t") == found

    page = daemon.web.get("/stats", topic="t").body.decode()
    assert len(re.findall(r" e2e%: ([\d.]+m?s), \1, \1$", page, re.MULTILINE)) == 2, page
    text = daemon.web.get("/stats", topic="t", format="json").body.decode()
    assert text.count(f'{{"count":1,"percentiles":[{{"quantile":1,"value":{value}}},') == 2, text


@one_worker
@pytest.mark.case("E2E-03")
def test_no_percentiles(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c", rdy=1)
    shared.connect().pub(topic, b"x")
    conn.take(1)
    conn.barrier()
    assert latency(shared, topic) == latency(shared, topic, "c") == OFF
