"""A rate limit that applies to all consumers of a channel together. NSQ has no such feature."""

import time
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer
from nsqcy.testing.wire_client import Conn
from support.nsqd_process import Nsqd

pytestmark = pytest.mark.ours

BURST = 0.01  # seconds; the burst is the rate times this


def receive(conns: list[Conn], count: int) -> None:
    """Receive this number of messages, evenly distributed among the consumers."""
    for number in range(count):
        conn = conns[number % len(conns)]
        conn.fin(conn.message())


def set_rate(daemon: Nsqd, topic: str, rate: str) -> Answer:
    return daemon.web.post("/channel/rate", topic=topic, channel="c", rate=rate)


def rate_of(daemon: Nsqd, topic: str) -> Any:
    config = daemon.web.get("/channel/config", topic=topic, channel="c").json()["config"]
    return config["rate"]["value"]


def test_it_changes_while_consumers_wait(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, "c")
    answer = set_rate(shared, topic, "0.001")
    assert (answer.status, answer.body) == (200, b"")
    assert shared.web.channel(topic, "c")["policy"] == {"rate": 0.001}  # type: ignore[index]
    shared.web.mpub(topic, [b"x"] * 400)
    conn = shared.connect().sub(topic, "c", rdy=500)
    conn.fin(conn.message())
    conn.nothing()
    began = time.monotonic()
    assert set_rate(shared, topic, "100").status == 200
    conn.take(50)
    assert time.monotonic() - began >= 49 / 100 - BURST
    assert set_rate(shared, topic, "0").status == 200
    conn.take(349)
    assert rate_of(shared, topic) == 0


@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "killed"])
def test_it_is_kept(nsqd: Starter, killed: bool) -> None:
    daemon = nsqd(durability="os")
    for number in range(6):
        daemon.web.create(f"t{number}", "c")
        daemon.web.mpub(f"t{number}", [b"x"] * 20)
        assert set_rate(daemon, f"t{number}", f"{number + 20}.5").status == 200
    daemon.restart(killed=killed)
    assert [rate_of(daemon, f"t{number}") for number in range(6)] == [
        number + 20.5 for number in range(6)
    ]
    began = time.monotonic()
    receive([daemon.connect().sub("t0", "c", rdy=20)], 15)
    assert time.monotonic() - began >= 14 / 20.5 - BURST


def test_a_file_says_otherwise(nsqd: Starter) -> None:
    file = nsqd.path / "nsqd.ini"
    file.write_text("[nsqd]\n[channel */c]\nrate = 0.001\n")
    daemon = nsqd(args=(f"--config={file}",))
    daemon.web.create("t", "c")
    assert rate_of(daemon, "t") == 0.001
    assert set_rate(daemon, "t", "0").status == 200
    daemon.web.mpub("t", [b"x"] * 100)
    assert len(daemon.connect().sub("t", "c", rdy=100).take(100)) == 100


@one_worker
@pytest.mark.parametrize(
    "rate", ["", "x", "-1", "1e10", "0.0001", "nan", "inf", "1,5", "1_000", "0x10"]
)
def test_no_rate(shared: Nsqd, topic: str, rate: str) -> None:
    shared.web.create(topic, "c")
    answer = set_rate(shared, topic, rate)
    assert (answer.status, answer.json()["message"]) == (
        400,
        f'INVALID_RATE "{rate}" (allowed: a number such as 0.5: 0 or [0.001,1000000000])',
    )
    assert rate_of(shared, topic) == 0


def test_of_what_is_not_there(shared: Nsqd, topic: str) -> None:
    def message(**query: str) -> tuple[int, str]:
        answer = shared.web.post("/channel/rate", **query)
        return answer.status, answer.json()["message"]

    assert message(topic=topic, channel="c", rate="1") == (404, "TOPIC_NOT_FOUND")
    shared.web.create(topic)
    assert message(topic=topic, channel="c", rate="1") == (404, "CHANNEL_NOT_FOUND")
    assert message(topic=topic, channel="c") == (400, "MISSING_ARG_RATE")
    assert message(topic=topic, rate="1") == (400, "MISSING_ARG_CHANNEL")
    assert message(channel="c", rate="1") == (400, "MISSING_ARG_TOPIC")
    assert message(topic="$", channel="c", rate="1") == (400, "INVALID_ARG_TOPIC")
    assert message(topic=topic, channel="$", rate="1") == (400, "INVALID_ARG_CHANNEL")
