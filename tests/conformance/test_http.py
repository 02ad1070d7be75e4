"""The HTTP API as a black box, except /stats, /config and /debug."""

import json
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer, eventually
from support.nsqd_process import Nsqd

INFO_KEYS = [
    "version",
    "broadcast_address",
    "hostname",
    "http_port",
    "tcp_port",
    "start_time",
    "max_heartbeat_interval",
    "max_output_buffer_size",
    "max_output_buffer_timeout",
    "max_deflate_level",
    "topology_zone",
    "topology_region",
]


def refusal(answer: Answer) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer.status, answer.json()["message"]


def metadata(daemon: Nsqd, name: str) -> dict[str, Any]:
    """Return a topic's entry in nsqd.dat."""
    topics = json.loads((daemon.data / "nsqd.dat").read_text())["topics"]
    found: dict[str, Any] = next(topic for topic in topics if topic["name"] == name)
    return found


@one_worker
@pytest.mark.case("HTTP-001", "HTTP-002", "HTTP-003", "H09")
def test_ping_and_info(shared: Nsqd) -> None:
    web = shared.web
    answer = web.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers
    answer = web.request("HEAD", "/ping")
    assert (answer.status, answer.body, answer.headers["allow"]) == (405, b"", "GET, OPTIONS")
    info = web.get("/info").json()
    assert list(info) == INFO_KEYS
    assert info["tcp_port"] == shared.tcp_port and info["http_port"] == shared.http_port
    assert info["version"] == "1.3.0" and info["hostname"] == socket.gethostname()
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_timeout"] == 30_000_000_000
    assert info["start_time"] <= time.time()


@one_worker
@pytest.mark.case("HTTP-004")
def test_info_over_a_unix_socket(nsqd: Starter, short_path: Path) -> None:
    path = short_path / "http"
    daemon = nsqd.prepare(http_address=path)
    daemon.launch()
    eventually(lambda: f"HTTP: listening on {path}" in daemon.log_text())
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(str(path))
        sock.sendall(b"GET /info HTTP/1.0\r\n\r\n")
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["http_port"] == -1
    eventually(lambda: "200 GET /info (@) " in daemon.log_text())
    daemon.stop()
    assert not path.exists()


@one_worker
@pytest.mark.case("HTTP-023")
def test_a_longer_delay_where_it_is_allowed(nsqd: Starter, topic: str) -> None:
    web = nsqd(max_req_timeout="2h").web
    web.pub(topic, b"x", defer=7_200_000)
    refused = web.post("/pub", b"x", topic=topic, defer=7_200_001)
    assert refusal(refused) == (400, "INVALID_DEFER")


@pytest.mark.ours
@pytest.mark.parametrize("route", ["/pub", "/mpub"])
def test_durability(shared: Nsqd, topic: str, route: str) -> None:
    web = shared.web
    for text in ("", "disk", "FSYNC", "os,fsync"):
        refused = web.post(route, b"x", topic=topic, durability=text)
        assert refusal(refused) == (400, "INVALID_DURABILITY (allowed: memory, os, fsync)")
    assert web.topic(topic) is None
    for number, text in enumerate(("memory", "os", "fsync")):
        answer = web.post(route, b"x", topic=topic, durability=text)
        assert (answer.status, answer.body) == (200, b"OK")
        web.await_counts(topic, message_count=number + 1)


@pytest.mark.case("HTTP-024")
def test_a_deferred_message_waits_in_the_channel(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    sent = time.monotonic()
    web.pub(topic, b"x", defer=1500)
    web.await_counts(topic, "c", deferred_count=1, depth=0)
    web.await_counts(topic, "c", deferred_count=0, depth=1)
    assert time.monotonic() - sent >= 1.5


@pytest.mark.case("HTTP-025")
def test_a_delay_starts_with_the_channel(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.pub(topic, b"x", defer=1500)
    web.await_counts(topic, depth=1)
    time.sleep(0.5)  # if the delay had begun, less of it would remain
    created = time.monotonic()
    web.create(topic, "c")
    web.await_counts(topic, "c", deferred_count=1, depth=0)
    web.await_counts(topic, "c", deferred_count=0, depth=1)
    assert time.monotonic() - created >= 1.5


@pytest.mark.case("HTTP-053")
@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_an_unknown_channel(shared: Nsqd, topic: str, action: str) -> None:
    shared.web.create(topic)
    answer = shared.web.post(f"/channel/{action}", topic=topic, channel="c")
    assert refusal(answer) == (404, "CHANNEL_NOT_FOUND")


@pytest.mark.case("HTTP-046", "HTTP-047")
def test_a_deleted_topic(nsqd: Starter, topic: str) -> None:
    daemon = nsqd(mem_queue_size=0)
    producer = daemon.connect()
    producer.pub(topic, b"1", b"2")
    consumer = daemon.connect().sub(topic, "c", rdy=1)
    consumer.message()
    eventually(lambda: list(daemon.data.glob(f"{topic}.*")))
    daemon.web.do("delete", topic)
    consumer.eof()
    assert daemon.web.topic(topic) is None
    eventually(lambda: not list(daemon.data.glob(f"{topic}.*")))
    producer.pub(topic, b"3")
    daemon.web.await_counts(topic, message_count=1, depth=1)


@pytest.mark.case("HTTP-048", "HTTP-049")
def test_a_paused_topic(shared: Nsqd, topic: str) -> None:
    web = shared.web
    web.create(topic, "c")
    web.pub(topic, b"1")
    web.await_counts(topic, "c", depth=1)
    web.do("pause", topic)
    assert metadata(shared, topic)["paused"] is True
    web.pub(topic, b"2")
    web.await_counts(topic, depth=1, paused=True, message_count=2)
    web.await_counts(topic, "c", depth=1)
    web.do("empty", topic)
    web.await_counts(topic, depth=0, message_count=2)
    web.await_counts(topic, "c", depth=1)
    web.do("unpause", topic)
    assert metadata(shared, topic)["paused"] is False


@pytest.mark.case("HTTP-054")
def test_the_first_channel_gets_what_the_topic_holds(nsqd: Starter, topic: str) -> None:
    web = nsqd(mem_queue_size=3).web
    web.mpub(topic, [b"x"] * 5)
    web.create(topic, "c1")
    web.await_counts(topic, depth=0)
    web.await_counts(topic, "c1", depth=5, backend_depth=2)
    web.create(topic, "c2")
    web.await_counts(topic, "c2", depth=0)


@pytest.mark.case("HTTP-056")
def test_a_paused_channel_takes_answers(shared: Nsqd, topic: str) -> None:
    web = shared.web
    consumer = shared.connect().sub(topic, "c", rdy=2)
    shared.connect().pub(topic, b"1", b"2", b"3")
    held = consumer.messages(2)
    web.do("pause", topic, "c")
    assert metadata(shared, topic)["channels"] == [{"name": "c", "paused": True}]
    consumer.fin(held[0])
    web.await_counts(topic, "c", in_flight_count=1, depth=1)
    consumer.nothing()
    web.do("unpause", topic, "c")
    assert consumer.message().body == b"3"


@pytest.mark.case("HTTP-085", "HTTP-086")
def test_a_data_path_that_goes_away(nsqd: Starter, topic: str) -> None:
    daemon = nsqd(mem_queue_size=0, cwd=nsqd.path)
    web = daemon.web
    shutil.rmtree(daemon.data)
    assert refusal(web.post("/pub", b"x", topic=topic)) == (503, "EXITING")
    answer = web.get("/ping")
    assert answer.status == 500 and answer.body.startswith(b"NOK - "), answer
    assert "x-nsq-content-type" not in answer.headers
    assert web.stats()["health"] == answer.body.decode()
    assert b"\nHealth: " + answer.body + b"\n" in web.get("/stats").body
    assert web.counts(topic)["message_count"] == 0
    daemon.data.mkdir()
    web.pub(topic + "_later", b"x")
    eventually(lambda: web.get("/ping").body == b"OK")


@one_worker
@pytest.mark.case("HTTP-087")
def test_http_knows_no_authorization(nsqd: Starter, topic: str) -> None:
    daemon = nsqd(auth_http_address="127.0.0.1:1")
    assert daemon.web.post("/pub", b"x", topic=topic).body == b"OK"


@pytest.mark.case("LOG-01", "LOG-02", "LOG-03")
def test_the_log(nsqd: Starter, topic: str) -> None:
    daemon = nsqd()
    daemon.web.pub(topic, b"x")
    daemon.web.mpub(topic, [b"x"])
    daemon.web.get("/PING")
    daemon.web.request("OPTIONS", "/ping")
    daemon.web.get("/ping?last=1")
    line = r"^\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: 200 GET /ping"
    tail = r"\?last=1 \(127\.0\.0\.1:\d+\) [\d.]+(ns|µs|ms|s)$"
    eventually(lambda: re.search(line + tail, daemon.log_text(), re.MULTILINE))
    assert re.search(line + r" \(", daemon.log_text(), re.MULTILINE)
    daemon.stop()
    for absent in ("/pub", "/mpub", "/PING", "OPTIONS"):
        assert absent not in daemon.log_text()
    assert daemon.log_text().endswith(" INFO: NSQ: bye\n")
