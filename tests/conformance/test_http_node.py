"""nsqd's /node: the health of its processes."""

import time

import pytest

from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


def test_every_worker_reports(shared: Nsqd, topic: str, workers: int) -> None:
    shared.web.create(topic)
    with shared.connect() as conn:
        conn.pub(topic, b"x" * 1000)
        found = shared.web.get("/node").json()
    assert [each["worker"] for each in found["workers"]] == [*range(workers)]
    assert all(each["up"] and each["resident"] > 0 for each in found["workers"])
    assert sum(each["topics"] for each in found["workers"]) >= 1
    assert sum(each["tcp"] for each in found["workers"]) >= 1
    assert 0 < found["disk"]["free"] <= found["disk"]["size"]
    assert 0 < found["start_time"] <= time.time()
    assert found["refusing_publishes"] == []
