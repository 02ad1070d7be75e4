"""The /node object, from the reports of the processes."""

from typing import Any

from nsqcy.nsqd.stats import node_page
from nsqcy.nsqd.stats.node_page import Disk, Whole

STARTED = 1_767_225_600


def page(**changes: Any) -> dict[str, Any]:
    children = [{"worker": 0, "restarts": 0, "pid": 7}, {"worker": 1, "restarts": 3, "pid": 8}]
    whole = Whole(children, {"l:4160": True}, False, False, STARTED * 1_000_000_000)
    figures = {0: {"memory": 5, "cpu": 1.5}}
    return node_page.page(whole._replace(**changes), figures, {"cpu": 0.5}, Disk(100, 40))


def test_a_worker_that_does_not_answer_is_down() -> None:
    assert page()["workers"] == [
        {"worker": 0, "up": True, "restarts": 0, "memory": 5, "cpu": 1.5},
        {"worker": 1, "up": False, "restarts": 3},
    ]


def test_the_node_as_a_whole() -> None:
    found = page()
    assert (found["start_time"], found["disk"]) == (STARTED, {"size": 100, "free": 40})
    assert (found["lookupds"], found["refusing_publishes"]) == ({"l:4160": True}, [])
    assert found["certificate_expires"] is None
    assert page(draining=True, disk_refuses=True)["refusing_publishes"] == ["draining", "disk"]
