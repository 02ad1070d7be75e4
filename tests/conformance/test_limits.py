"""Full queues and expired messages, as clients of both protocols see them, including after
kills."""

import http.client
import json
import time
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import batch
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours


def put(daemon: Nsqd, topic: str, **values: Any) -> None:
    answer = daemon.web.put("/topic/config", json.dumps(values).encode(), topic=topic)
    assert answer.status == 200, answer


def ledger(daemon: Nsqd, topic: str, channel: str = "") -> dict[str, Any]:
    """Return the number of dropped messages for each reason, and the number of expired ones. Zeros
    are left out."""
    (shown,) = daemon.web.stats(topic=topic, ledger="true")["topics"]
    if channel:
        (shown,) = [each for each in shown["channels"] if each["channel_name"] == channel]
    flat = {**shown["ledger"]["dropped"], "expired": shown["ledger"]["expired"]}
    return {reason: count for reason, count in flat.items() if count}


def test_a_full_topic_refuses_over_both_protocols(shared: Nsqd, topic: str) -> None:
    put(shared, topic, max_depth=3)
    shared.web.create(topic, "c")
    shared.connect().pub(topic, b"0", b"1", b"2")
    reason = f"topic {topic} is full (max-depth 3)"
    connection = shared.connect()
    connection.command("PUB", topic, body=b"x")
    connection.expect_error(f"E_PUB_FAILED PUB failed {reason}")
    connection = shared.connect()
    connection.command("MPUB", topic)
    connection.send(batch([b"x", b"y"]))
    connection.expect_error(f"E_MPUB_FAILED MPUB failed {reason}")
    for path in ("/pub", "/mpub"):
        answer = shared.web.post(path, b"x", topic=topic)
        assert (answer.status, answer.json()) == (503, {"message": f"FULL {reason}"})
    consumer = shared.connect().sub(topic, "c", rdy=1)
    consumer.fin(consumer.message())
    eventually(lambda: shared.web.post("/pub", b"x", topic=topic).status == 200)


def test_a_message_with_a_time_to_live(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    connection = http.client.HTTPConnection("127.0.0.1", shared.web.port)
    for n in range(200):
        ttl = {"X-Nsq-Ttl": "1"} if n % 2 else {}
        connection.request("POST", f"/pub?topic={topic}", b"%d" % n, ttl)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b"OK")
    published = time.time()
    eventually(lambda: time.time() > published + 0.002)  # the last message has expired
    consumer = shared.connect().sub(topic, "c", rdy=200)
    assert [each.body for each in consumer.messages(100)] == [b"%d" % n for n in range(0, 200, 2)]
    eventually(lambda: ledger(shared, topic, "c") == {"expired": 100})
    connection.request("POST", f"/pub?topic={topic}", b"x", {"X-Nsq-Ttl": "1s"})
    answer = connection.getresponse()
    assert (answer.status, b"milliseconds" in answer.read()) == (400, True)
    connection.close()
