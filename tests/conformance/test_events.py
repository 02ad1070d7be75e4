"""The event topic, across all workers."""

import json

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from support.nsqd_process import Nsqd

EVENTS = "_nsqcy.events"


def test_events_of_all_workers(nsqd: Starter) -> None:
    daemon = nsqd(events=True)
    reader = daemon.connect().sub(EVENTS, "r", rdy=100)
    topics = [f"t{number}" for number in range(4)]  # every worker owns some of these topics
    for topic in topics:
        conn = daemon.connect()
        conn.identify(client_id="me")
        conn.pub(topic, b"x")
        conn.sub(topic, "c", rdy=1)
        message = conn.message()
        conn.req(message)
        assert conn.message().attempts == 2
        conn.fin(message)
    found = [json.loads(message.body) for message in reader.take(8)]
    for topic in topics:
        mine = [each for each in found if each["topic"] == topic]
        assert [(each["kind"], each["attempts"]) for each in mine] == [
            ("requeue", 1),
            ("finish", 2),
        ]
        assert {each["channel"] for each in mine} == {"c"}
        assert {each["client"] for each in mine} == {"me"}
    eventually(lambda: daemon.web.stats()["events"] == {"published": 8, "dropped": 0})
    text = daemon.web.get("/stats").body.decode()
    assert "\nEvents: 8 published, 0 dropped\n" in text


def test_off_and_nobody_notices(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.pub(topic, b"x")
    conn.sub(topic, "c", rdy=1)
    conn.fin(conn.message())
    shared.web.await_counts(topic, "c", depth=0, in_flight_count=0)
    stats = shared.web.stats()
    assert "events" not in stats
    assert EVENTS not in {each["topic_name"] for each in stats["topics"]}
