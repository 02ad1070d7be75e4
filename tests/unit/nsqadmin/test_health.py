"""The health of nodes: the content of their responses, and the alerts."""

from typing import Any

import pytest

from nsqcy.nsqadmin.cluster.answers import NODE, NodeAnswer
from nsqcy.nsqadmin.cluster.health import NodeHealth, of_nodes
from nsqcy.nsqadmin.cluster.rate_meter import RateMeter
from nsqcy.nsqadmin.html import node_signs
from nsqcy.nsqadmin.html.formatting import size, span

START = 1_000


def worker(number: int = 0, **figures: Any) -> dict[str, Any]:
    return {"worker": number, "up": True, "restarts": 0, "memory": 10, "cpu": 0.0} | figures


def value(*workers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "nsqcy": "0.1.0",
        "start_time": START,
        "refusing_publishes": [],
        "disk": {"size": 100, "free": 60},
        "master": {"resident": 5, "cpu": 1.0},
        "workers": [*workers],
        "lookupds": {},
    } | changes


def health(*workers: dict[str, Any], **changes: Any) -> NodeHealth:
    found = value(*workers, **changes)
    assert NODE(found)
    return of_nodes([NodeAnswer("n:1", 200, found)], RateMeter(), START + 10)["n:1"]


def signs(*workers: dict[str, Any], **changes: Any) -> list[str]:
    return [each.text for each in node_signs.of_health(health(*workers, **changes))]


def test_figures_of_all_processes() -> None:
    found = health(worker(resident=7, cpu=2.0), worker(1, resident=8, restarts=3, memory_limit=40))
    assert (found.uptime, found.disk_used) == (10, pytest.approx(0.4))
    assert (found.resident, found.memory, found.memory_limit) == (20, 20, 40)
    assert (found.workers_up, found.restarts) == (2, 3)
    assert found.cpu == pytest.approx(0.3)  # 3 s of CPU time since the start


def test_a_node_that_does_not_report_it() -> None:
    assert of_nodes([NodeAnswer("n:1", 404, message="NOT_FOUND")], RateMeter(), 0.0) == {}
    assert not NODE(value({"worker": 0}))
    assert not NODE(value(master={"resident": 5, "cpu": float("inf")}))


def test_a_worker_that_still_runs_the_previous_version() -> None:
    found = health(worker(nsqcy="0.0.9"), worker(1, nsqcy="0.1.0"), worker(2))
    assert [each.other_version for each in found.workers] == ["0.0.9", "", ""]


def test_signs() -> None:
    assert signs(worker()) == []
    assert signs(worker(failing=1)) == ["writes fail"]
    assert signs(worker(), worker(1, up=False)) == ["1 of 2 workers down"]
    assert signs(worker(), disk={"size": 100, "free": 5}) == ["disk 95% full"]
    assert signs(worker(), disk={"size": 0, "free": 0}) == []
    assert signs(worker(), lookupds={"l:1": True, "l:2": False}) == ["not registered with l:2"]
    assert signs(worker(), refusing_publishes=["disk", "draining", "new"]) == [
        "draining",
        "refuses publishes",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (61, "1m 1s"), (3600, "1h"), (3605, "1h"), (90_000, "1d 1h")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_sizes() -> None:
    assert [size(each) for each in (0, 1023, 1536, 5 << 30)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5 GiB",
    ]
