"""Both client interfaces against a daemon: TLS, compression, AUTH, sampling, a killed
daemon."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.client.errors import ConnectionFailed, Error, NsqdError
from nsqcy.testing.certificates import Files, make
from nsqcy.testing.encoded_connection import client_context
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face, Kept
from support.fake_auth_server import AuthServer, Reply, answer
from support.nsqd_process import Nsqd, free_port

SERVER = make("server")
LARGE = bytes(range(256)) * 400
LAYERS: list[dict[str, Any]] = [
    {"tls_v1": True},
    {"deflate": True},
    {"snappy": True},
    {"tls_v1": True, "deflate": True, "deflate_level": 1},
    {"tls_v1": True, "snappy": True},
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return SERVER.save(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    daemon = Nsqd(tmp_path_factory.mktemp("secured"), workers=1, **files.options).start()
    yield daemon
    daemon.destroy()


def tcp(daemon: Nsqd) -> str:
    return f"127.0.0.1:{daemon.tcp_port}"


def channel(daemon: Nsqd, topic: str) -> dict[str, Any]:
    page = daemon.web.get(f"/stats?format=json&topic={topic}").json()
    found: dict[str, Any] = page["topics"][0]["channels"][0]
    return found


@pytest.mark.case("CL-047")
@pytest.mark.parametrize("layers", LAYERS, ids=lambda each: "+".join(sorted(each)))
def test_through_all_layers(
    face: Face, secured: Nsqd, files: Files, topic: str, layers: dict[str, Any]
) -> None:
    if "tls_v1" in layers:
        layers = layers | {"tls_options": {"ca_certs": files.certificate}}
    producer = face.producer(tcp(secured), **layers)
    face.call(producer.multipublish, topic, [LARGE, b"small"])
    kept = Kept()
    face.consumer(topic, "c", tcp(secured), message_handler=kept, max_in_flight=2, **layers)
    eventually(lambda: kept.bodies == [LARGE, b"small"])
    (client,) = channel(secured, topic)["clients"]
    for name in ("tls", "deflate", "snappy"):
        assert client[name] is bool(layers.get(name) or layers.get(f"{name}_v1"))
    for message in kept.messages:
        face.call(message.finish)
    eventually(lambda: channel(secured, topic)["in_flight_count"] == 0)


@pytest.mark.case("CL-049")
def test_a_certificate_nobody_vouches_for(face: Face, secured: Nsqd, topic: str) -> None:
    strict = face.producer(tcp(secured), tls_v1=True, retries=0)
    with pytest.raises(Error, match="certificate not accepted: self-signed certificate"):
        face.call(strict.publish, topic, b"x")
    for lax in (client_context(), {"cert_reqs": ssl.CERT_NONE}):
        producer = face.producer(tcp(secured), tls_v1=True, tls_options=lax)
        assert face.call(producer.publish, topic, b"x") == b"OK"


@one_worker
def test_tls_that_is_not_offered(face: Face, shared: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(shared), tls_v1=True, retries=0)
    with pytest.raises(ConnectionFailed, match="does not support TLS"):
        face.call(producer.publish, topic, b"x")


@one_worker
@pytest.mark.case("CL-044")
def test_the_right_secret(face: Face, guarded: Nsqd, auth_server: AuthServer, topic: str) -> None:
    auth_server.replies[topic] = Reply(answer())
    kept = Kept()
    producer = face.producer(tcp(guarded), auth_secret=topic)
    face.call(producer.publish, topic, b"x")
    face.consumer(topic, "c", tcp(guarded), message_handler=kept, auth_secret=topic)
    eventually(lambda: kept.bodies == [b"x"])


@one_worker
@pytest.mark.case("CL-045")
def test_no_secret(face: Face, guarded: Nsqd, topic: str) -> None:
    producer = face.producer(tcp(guarded), retries=0)
    with pytest.raises(ConnectionFailed, match="requires AUTH: set auth_secret"):
        face.call(producer.publish, topic, b"x")


@one_worker
def test_a_secret_that_is_refused(
    face: Face, guarded: Nsqd, auth_server: AuthServer, topic: str
) -> None:
    auth_server.replies[topic] = Reply(status=403)
    producer = face.producer(tcp(guarded), auth_secret=topic, retries=3)
    with pytest.raises(NsqdError) as caught:
        face.call(producer.publish, topic, b"x")
    assert caught.value.code == "E_AUTH_FAILED"


@pytest.mark.case("CL-050", "CL-058")
def test_nsqd_is_killed_and_starts_again(face: Face, tmp_path: Path, topic: str) -> None:
    daemon = Nsqd(tmp_path, workers=1, tcp_address=f"127.0.0.1:{free_port()}").start()
    try:
        kept = Kept()
        lost: list[Any] = []
        missed: list[Any] = []
        producer = face.producer(tcp(daemon), retries=10**6, on_error=lost.append)
        face.consumer(topic, "c", tcp(daemon), message_handler=kept, on_error=missed.append)
        face.call(producer.publish, topic, b"before")
        eventually(lambda: kept.bodies == [b"before"])
        daemon.destroy()
        eventually(lambda: lost and missed)
        publishing = face.begin(producer.publish, topic, b"after", timeout=30)
        daemon.start()
        assert publishing.result(30) == b"OK"
        eventually(lambda: b"after" in kept.bodies, 30)
    finally:
        daemon.destroy()


@pytest.mark.case("CL-065")
def test_a_sample(face: Face, shared: Nsqd, topic: str) -> None:
    bodies: list[bytes] = []
    shared.web.post(f"/topic/create?topic={topic}")
    shared.web.post(f"/channel/create?topic={topic}&channel=c")
    face.consumer(
        topic,
        "c",
        tcp(shared),
        message_handler=lambda message: bodies.append(message.body),
        max_in_flight=2500,
        sample_rate=42,
    )
    eventually(lambda: channel(shared, topic)["client_count"])
    producer = face.producer(tcp(shared))
    face.call(producer.publish_all, topic, (b"%d" % number for number in range(10000)))

    def is_done() -> bool:
        found = channel(shared, topic)
        return found["message_count"] == 10000 and not found["depth"] + found["in_flight_count"]

    eventually(is_done)
    assert 3900 < len(bodies) < 4500
    assert len(set(bodies)) == len(bodies)
