"""nsqd's HTTPS port."""

import http.client
import re
import ssl
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import Answer, eventually
from support.memory_http_client import trusting
from support.nsqd_process import Nsqd


@pytest.fixture
def server(tmp_path: Path) -> dict[str, Path]:
    """Return the options for a daemon with a certificate."""
    return certificates.make("server").save(tmp_path).options


def refused(answer: Answer, port: int) -> bool:
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    body = b'{"message": "TLS_REQUIRED", "https_port": %d}' % port
    return (answer.status, answer.body) == (403, body)


@one_worker
@pytest.mark.case("HTTP-081")
def test_plain_http_is_refused(nsqd: Starter, server: dict[str, Path]) -> None:
    daemon = nsqd(tls_required="true", **server)
    for method, path in [
        ("GET", "/ping"),
        ("GET", "/nope"),
        ("OPTIONS", "/ping"),
        ("POST", "/pub?topic=t"),
        ("DELETE", "/PING/"),
    ]:
        assert refused(daemon.web.request(method, path, b"x"), daemon.https_port), path
    web = daemon.secure_web(trusting())
    assert web.post("/pub", b"x", topic="t").body == b"OK"
    assert web.get("/config/tls_required").body == b"2"
    info = web.get("/info").json()
    assert info["http_port"] == daemon.http_port
    eventually(lambda: "200 GET /info" in daemon.log_text())
    assert " 403 " not in daemon.log_text()
    daemon.stop()
    assert f"HTTPS: closing 127.0.0.1:{daemon.https_port}" in daemon.log_text()


@one_worker
@pytest.mark.case("HTTP-082")
def test_there_may_be_no_https(nsqd: Starter, server: dict[str, Path]) -> None:
    daemon = nsqd(tls_required="true", https_address="", **server)
    assert refused(daemon.web.get("/ping"), 0)
    assert "HTTPS" not in daemon.log_text().replace("TLS_REQUIRED", "")


@one_worker
@pytest.mark.case("HTTP-083", "CFG-11")
def test_plain_http_may_be_allowed(nsqd: Starter, server: dict[str, Path]) -> None:
    daemon = nsqd(tls_required="tcp-https", **server)
    for web in (daemon.web, daemon.secure_web(trusting())):
        assert web.get("/ping").body == b"OK"
        assert web.get("/config/tls_required").body == b"1"
    assert f"HTTPS: listening on 127.0.0.1:{daemon.https_port}" in daemon.log_text()


@pytest.mark.case("HTTP-084")
def test_a_policy_requires_tls_and_a_certificate(
    nsqd: Starter, server: dict[str, Path], tmp_path: Path
) -> None:
    daemon = nsqd(tls_client_auth_policy="require", **server)
    assert refused(daemon.web.get("/ping"), daemon.https_port)
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
        daemon.secure_web(trusting()).get("/ping")
    eventually(lambda: "WARNING: http: TLS handshake error from 127.0.0.1:" in daemon.log_text())
    files = certificates.make("anyone").save(tmp_path)
    context = trusting()
    context.load_cert_chain(files.certificate, files.key)
    assert daemon.secure_web(context).get("/config/tls_required").body == b"2"


@one_worker
@pytest.mark.case("H05", "H07", "H08")
def test_a_certificate_opens_https(nsqd: Starter, server: dict[str, Path]) -> None:
    daemon = nsqd(**server)
    lines = [line for line in daemon.log_text().splitlines() if "listening on" in line]
    assert len(lines) == 3
    for line in lines:
        assert re.search(r"INFO: (TCP|HTTP|HTTPS): listening on 127\.0\.0\.1:[1-9]\d*$", line)
    assert daemon.secure_web(trusting()).get("/ping").body == b"OK"
    plain = nsqd(https_address=None)
    assert plain.web.get("/config/https_address").body == b"0.0.0.0:4152"


@one_worker
def test_a_policy_may_verify(nsqd: Starter, server: dict[str, Path], tmp_path: Path) -> None:
    authority = certificates.make("authority", authority=True)
    daemon = nsqd(
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=authority.save(tmp_path).certificate,
        **server,
    )
    for name, by, welcome in [("known", authority, True), ("stranger", None, False)]:
        files = certificates.make(name, by=by).save(tmp_path)
        context = trusting()
        context.load_cert_chain(files.certificate, files.key)
        web = daemon.secure_web(context)
        if welcome:
            assert web.get("/ping").body == b"OK"
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.BadStatusLine)):
                web.get("/ping")


def test_the_whole_api_over_tls(nsqd: Starter, server: dict[str, Path], topic: str) -> None:
    daemon = nsqd(**server)
    context = ssl.create_default_context(cafile=str(server["tls_cert"]))
    web = daemon.secure_web(context)
    web.create(topic, "c")
    web.mpub(topic, [b"x" * 1000] * 100)
    web.await_counts(topic, "c", depth=100)
    web.do("pause", topic, "c")
    web.do("delete", topic)
    assert web.topic(topic) is None
    assert web.put("/config/log_level", b"warn").body == b"3"


@one_worker
def test_a_large_answer_does_not_stop_at_a_buffer(nsqd: Starter, server: dict[str, Path]) -> None:
    daemon = nsqd(**server)
    secure: Any = daemon.secure_web(trusting())
    for number in range(300):
        daemon.web.create(f"t{number:0>60}", "c" * 60)
    answer = secure.get("/stats", format="json", include_mem=0)
    assert len(answer.json()["topics"]) == 300 and len(answer.body) > 100_000


@one_worker
def test_a_port_that_is_taken(nsqd: Starter, server: dict[str, Path]) -> None:
    first = nsqd(**server)
    other = nsqd.prepare(https_address=f"127.0.0.1:{first.https_port}", **server)
    other.launch()
    assert other.wait() == 1
    assert f"listen (127.0.0.1:{first.https_port}) failed - listen tcp" in other.log_text()
    third = nsqd.prepare(https_address="/tmp/a-path", **server)
    third.launch()
    assert third.wait() == 1
    assert "listen tcp: address /tmp/a-path: missing port in address" in third.log_text()


@one_worker
def test_without_a_certificate_there_is_no_https(shared: Nsqd) -> None:
    assert shared.https_port == 0 and "HTTPS" not in shared.log_text()
