"""GET and PUT /config/:opt, and how flags affect them."""

import http.client
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing.http_requests import Answer, eventually
from support.nsqd_process import Nsqd

ADDRESSES = "/config/nsqlookupd_tcp_addresses"
LEVEL = "/config/log_level"


class Crowd:
    """Enough simultaneous connections for every worker to have at least one."""

    def __init__(self, daemon: Nsqd) -> None:
        self.links = [http.client.HTTPConnection("127.0.0.1", daemon.http_port) for _ in range(12)]
        for link in self.links:
            link.connect()
            self._ask(link, "GET", "/ping")

    def get(self, path: str) -> set[bytes]:
        """Return the distinct answers on all connections."""
        return {self._ask(link, "GET", path) for link in self.links}

    def ping(self, word: str) -> None:
        """Send a different request on each connection, because nsqd does not log repeated ones."""
        for number, link in enumerate(self.links):
            self._ask(link, "GET", f"/ping?{word}={number}")

    def _ask(self, link: http.client.HTTPConnection, method: str, path: str) -> bytes:
        link.request(method, path)
        answer = link.getresponse()
        assert answer.status == 200, path
        return answer.read()

    def close(self) -> None:
        for link in self.links:
            link.close()


def shown(daemon: Nsqd, key: str) -> Any:
    answer = daemon.web.get(f"/config/{key}")
    assert answer.status == 200, (key, answer)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer.json()


def refusal(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["message"]


@pytest.mark.case("HTTP-072", "HTTP-078")
def test_values(nsqd: Starter) -> None:
    daemon = nsqd(topology_region="")
    web = daemon.web
    assert web.get(ADDRESSES).body == b"[]"
    assert web.get("/config/msg_timeout").body == b"60000000000"
    assert isinstance(shown(daemon, "id"), int)
    text = web.get("/config/tcp_address")
    assert text.body == b"127.0.0.1:0"
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    empty = web.get("/config/topology_region")
    assert (empty.status, empty.body) == (200, b"")
    assert "content-type" not in empty.headers
    assert empty.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert web.get("/config/snappy").body == b"true"
    assert web.get("/config/tls_required").body == b"0"
    assert web.get("/config/tls_min_version").body == b"769"
    assert web.get("/config/max_rdy_count").body == b"2500"


@one_worker
@pytest.mark.case("HTTP-079", "HTTP-076")
@pytest.mark.parametrize(
    "key", ["node_id", "lookupd_tcp_address", "logger", "version", "config", "verbose", "bogus"]
)
def test_what_is_no_key(shared: Nsqd, key: str) -> None:
    assert refusal(shared.web.get(f"/config/{key}")) == (400, "INVALID_OPTION")
    assert refusal(shared.web.put(f"/config/{key}", b"x")) == (400, "INVALID_OPTION")


@one_worker
@pytest.mark.case("HTTP-005", "HTTP-006", "HTTP-007", "HTTP-008")
def test_routes(shared: Nsqd) -> None:
    web = shared.web
    for path in ("/config", "/config/", "/config/a/b", "/config/a%2Fb"):
        assert refusal(web.get(path)) == (404, "NOT_FOUND"), path
    posted = web.post("/config/log_level", b"debug")
    assert refusal(posted) == (405, "METHOD_NOT_ALLOWED")
    assert posted.headers["allow"] == "GET, OPTIONS, PUT"
    assert web.request("OPTIONS", "/config/x").headers["allow"] == "GET, OPTIONS, PUT"
    moved = web.put("/CONFIG/log_level?x=1", b"debug")
    assert (moved.status, moved.headers["location"]) == (307, "/config/log_level?x=1")
    moved = web.get("/config//Log_Level/")
    assert (moved.status, moved.headers["location"]) == (301, "/config/Log_Level")
    moved = web.get("/CONFIG/a%0d%0aX:%20b")
    assert (moved.status, moved.headers["location"]) == (301, "/config/a%0D%0AX:%20b")


@pytest.mark.case("HTTP-073")
def test_the_log_level_changes_everywhere(nsqd: Starter) -> None:
    daemon = nsqd(log_level="info")
    crowd = Crowd(daemon)
    assert crowd.get(LEVEL) == {b"2"}
    for text, number in ((b"debug", b"1"), (b"DEBUG", b"1"), (b"Error", b"4")):
        answer = daemon.web.put(LEVEL, text)
        assert (answer.status, answer.body) == (200, number)
        assert crowd.get(LEVEL) == {number}
    crowd.ping("unheard")
    assert daemon.web.put(LEVEL, b"info").body == b"2"
    crowd.ping("heard")
    eventually(lambda: daemon.log_text().count("/ping?heard=") == len(crowd.links))
    assert "/ping?unheard" not in daemon.log_text()
    crowd.close()


@one_worker
@pytest.mark.case("HTTP-074", "HTTP-075")
def test_levels_that_are_refused(shared: Nsqd) -> None:
    web = shared.web
    for body in (b"warning", b'"info"', b"info\n", b" info", b"\xff", b"5"):
        assert refusal(web.put(LEVEL, body)) == (400, "INVALID_VALUE"), body
    for key in ("log_level", "bogus", "max_rdy_count"):
        assert refusal(web.put(f"/config/{key}", b"")) == (413, "INVALID_VALUE")
    assert web.get(LEVEL).body == b"2"


@one_worker
@pytest.mark.case("HTTP-075")
def test_a_value_is_no_longer_than_a_message(tuned: Nsqd) -> None:
    web = tuned.web
    for key in ("log_level", "bogus"):
        assert refusal(web.put(f"/config/{key}", b"x" * 2001)) == (413, "INVALID_VALUE")
    assert refusal(web.put(LEVEL, b"x" * 2000)) == (400, "INVALID_VALUE")


@one_worker
@pytest.mark.case("HTTP-076")
def test_what_may_not_change(shared: Nsqd) -> None:
    for key in ("max_rdy_count", "tcp_address", "snappy"):
        assert refusal(shared.web.put(f"/config/{key}", b"5")) == (400, "INVALID_OPTION")
    assert shared.web.get("/config/max_rdy_count").body == b"2500"


@pytest.mark.case("HTTP-077")
def test_addresses_of_lookupds(nsqd: Starter) -> None:
    daemon = nsqd()
    crowd = Crowd(daemon)
    web = daemon.web
    for body in (b"[]", b'["127.0.0.1:1","127.0.0.1:1"]', b'["127.0.0.1:1"]'):
        answer = web.put(ADDRESSES, body)
        assert (answer.status, answer.body) == (200, body)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert crowd.get(ADDRESSES) == {body}
    refused = [
        b'"a"',
        b"not json",
        b'["x", 5]',
        b'{"a": 1}',
        b"\xff",
        b'["\\ud800"]',
        b"[" * 100_000,
    ]
    for body in refused:
        assert refusal(web.put(ADDRESSES, body)) == (400, "INVALID_VALUE"), body
    assert crowd.get(ADDRESSES) == {b'["127.0.0.1:1"]'}
    assert json.loads(web.put(ADDRESSES, b"null").body or b"null") in ([], None)
    crowd.close()


@pytest.mark.case("HTTP-073", "HTTP-077")
@pytest.mark.ours
def test_a_restarted_worker_knows_what_was_changed(nsqd: Starter) -> None:
    daemon = nsqd()
    web = daemon.web
    web.put(LEVEL, b"warn")
    web.put(ADDRESSES, b'["127.0.0.1:1"]')
    first = daemon.workers()
    for _ in first:
        daemon.kill_worker(0)  # the oldest
        eventually(lambda: len(daemon.workers()) == len(first) and daemon._pings())
    assert not set(first) & set(daemon.workers())
    crowd = Crowd(daemon)
    assert crowd.get(LEVEL) == {b"3"}
    assert crowd.get(ADDRESSES) == {b'["127.0.0.1:1"]'}
    crowd.close()
    assert "GET /config" not in daemon.log_text()


@one_worker
@pytest.mark.case("CFG-05", "CFG-06", "CFG-08", "CFG-20", "CFG-23")
def test_flags_show(nsqd: Starter) -> None:
    daemon = nsqd(
        msg_timeout="1.5h30m",
        mem_queue_size="1_000",
        deflate=["false", "true", "0"],
        e2e_processing_latency_percentile=["0.99,1.0", "0.5"],
        lookupd_tcp_address=["127.0.0.1:1,127.0.0.1:2", "127.0.0.1:3"],
        tls_min_version="TLS1.3",
        statsd_prefix="%s.a.%s",
        broadcast_address="h.x.y",
        broadcast_http_port=4151,
    )
    assert shown(daemon, "msg_timeout") == 7_200_000_000_000
    assert shown(daemon, "mem_queue_size") == 1000
    assert shown(daemon, "deflate") is False
    body = daemon.web.get("/config/e2e_processing_latency_percentiles").body
    assert body == b"[1,0.99,0.5]"
    expected = ["127.0.0.1:1,127.0.0.1:2", "127.0.0.1:3"]
    assert shown(daemon, "nsqlookupd_tcp_addresses") == expected
    assert shown(daemon, "tls_min_version") == 772
    assert daemon.web.get("/config/statsd_prefix").body == b"h_x_y_4151.a.h_x_y_4151."


@one_worker
@pytest.mark.case("CFG-21", "CFG-22", "CFG-24", "CFG-25", "CFG-27", "CFG-29", "CFG-30")
def test_a_file_shows(nsqd: Starter, tmp_path: Path) -> None:
    path = tmp_path / "nsqd.cfg"
    path.write_text(
        "e2e_processing_latency_percentiles = [0.5, 0.99]\n"
        'nsqlookupd_tcp_addresses = "127.0.0.1:1,127.0.0.1:2"\n'
        "max_rdy_count = 7\n"
        "msg_timeout = 1500\n"
        'mem_queue_size = "77"\n'
        "id = 5\n"
        'tls_min_version = ""\n'
    )
    daemon = nsqd(config=path, max_rdy_count=9)
    assert shown(daemon, "e2e_processing_latency_percentiles") == [0.5, 0.99]
    assert shown(daemon, "nsqlookupd_tcp_addresses") == ["127.0.0.1:1", "127.0.0.1:2"]
    assert shown(daemon, "max_rdy_count") == 9
    assert shown(daemon, "msg_timeout") == 1_500_000_000
    assert shown(daemon, "mem_queue_size") == 77
    assert shown(daemon, "id") == 5
    assert shown(daemon, "tls_min_version") == 769


@one_worker
@pytest.mark.case("HTTP-078")
def test_values_found_at_the_start(shared: Nsqd) -> None:
    assert shown(shared, "broadcast_tcp_port") == shared.tcp_port
    assert shown(shared, "broadcast_http_port") == shared.http_port


@one_worker
@pytest.mark.case("HTTP-004")
def test_a_unix_socket_has_port_minus_one(nsqd: Starter, short_path: Path) -> None:
    daemon = nsqd(tcp_address=short_path / "t")
    assert daemon.web.get("/info").json()["tcp_port"] == -1
    assert shown(daemon, "broadcast_tcp_port") == 0


@one_worker
@pytest.mark.ours
def test_an_upload_that_is_cut_changes_nothing(shared: Nsqd) -> None:
    with socket.create_connection(("127.0.0.1", shared.http_port), 10) as sock:
        sock.sendall(b"PUT /config/log_level HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nde")
        sock.shutdown(socket.SHUT_WR)
        reply = b"".join(iter(lambda: sock.recv(65536), b""))
    assert reply.startswith(b"HTTP/1.1 500 ") and reply.endswith(b'{"message":"INTERNAL_ERROR"}')
    assert shared.web.get(LEVEL).body == b"2"
