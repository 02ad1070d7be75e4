"""The connection to nsqd: TLS and AUTH; no output contains the secret."""

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.spark.cluster import shard_of
from nsqcy.spark.errors import NsqError, Refused, Unreachable
from nsqcy.spark.log_client import Access, Connection, split_address
from nsqcy.testing.certificates import make
from nsqcy.testing.wire_client import ERROR, RESPONSE
from support.fake_nsqd import MockNsqd, Peer, frame

SECRET = "hunter2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """Factory of scripted nsqds."""
    servers = []

    def start(**options: Any) -> MockNsqd:
        options.setdefault("settings", {"topic_log": 1})
        servers.append(MockNsqd(**options))
        return servers[-1]

    yield start
    for each in servers:
        each.close()


def refusal(server: MockNsqd, access: Access, kind: type[NsqError] = Refused) -> str:
    with pytest.raises(kind) as caught:
        Connection(server.address, access)
    assert SECRET not in str(caught.value)
    assert SECRET not in repr(caught.value)
    return str(caught.value)


def test_what_it_says_of_itself(server: Any) -> None:
    nsqd = server()
    connection = Connection(nsqd.address, Access(auth_secret=SECRET))
    identity = nsqd.link().identity
    assert identity["topic_log"] is True
    assert identity["heartbeat_interval"] == -1
    assert nsqd.link().said("AUTH") == [], "AUTH is only sent if required"
    assert SECRET not in repr(connection) + repr(Access(auth_secret=SECRET))
    connection.close()


def test_auth(server: Any) -> None:
    settings = {"topic_log": 1, "auth_required": True}
    nsqd = server(settings=settings)
    assert refusal(nsqd, Access()) == f"nsq: {nsqd.address} requires authSecret"
    Connection(nsqd.address, Access(auth_secret=SECRET)).close()
    assert nsqd.link(1).bodies[-1] == SECRET.encode()

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line == "AUTH":
            peer.error(f"E_AUTH_FAILED AUTH failed for {body.decode()}")
        return line == "AUTH"

    nsqd = server(settings=settings, script=script)
    text = refusal(nsqd, Access(auth_secret=SECRET))
    assert text == f"nsq: {nsqd.address} refused: E_AUTH_FAILED AUTH failed for ***"


def context(tmp_path: Path) -> ssl.SSLContext:
    files = make("server").save(tmp_path)
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.load_cert_chain(files.certificate, files.key)
    return found


def test_tls(server: Any, tmp_path: Path) -> None:
    nsqd = server(tls=context(tmp_path))
    Connection(nsqd.address, Access(tls=True, tls_verify=False)).close()
    assert refusal(nsqd, Access(tls=True)).startswith(
        f"nsq: TLS with {nsqd.address} failed: certificate: "
    )
    assert refusal(nsqd, Access(tls=True, tls_ca_file=str(tmp_path / "none"))) == (
        "nsq: TLS files cannot be used: No such file or directory"
    )
    plain = server()
    assert refusal(plain, Access(tls=True)) == f"nsq: {plain.address} does not support TLS"


def test_an_nsqd_that_knows_no_features(server: Any) -> None:
    nsqd = server(settings=b"OK")
    assert refusal(nsqd, Access()) == (
        f"nsq: {nsqd.address} does not support topic_log (version nsqd/unknown); use nsq_to_nsq "
        "to copy its messages to an nsqcy nsqd"
    )


def test_heartbeats_are_answered(server: Any) -> None:
    def script(peer: Peer, line: str, _body: bytes) -> bool:
        if line.startswith("LOG_META"):
            peer.beat()
            peer.answer(b'{"topic": "t"}')
        return line.startswith("LOG_META")

    nsqd = server(script=script)
    connection = Connection(nsqd.address, Access())
    assert connection.meta("t") == {"topic": "t"}
    nsqd.link().expect("IDENTIFY", "LOG_META t", "NOP")
    connection.close()


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "unexpected HTTP response from {}"),
        (b"\0\0\0\x0eE_BAD_PROTOCOL", "{}: nsqlookupd answered"),
        (b"\x15\x03\x03\0\x02\x02\x46", "{}: a TLS server answered"),
    ],
)
def test_another_kind_of_server(server: Any, data: bytes, text: str) -> None:
    def answer(peer: Peer, *_: object) -> bool:
        peer.send(data)
        peer.hung_up = True
        return True

    nsqd = server(script=answer)
    said = refusal(nsqd, Access())
    assert said.startswith(f"nsq: {text.format(nsqd.address)}")
    assert "use nsqd's TCP port (4150 by default)" in said


@pytest.mark.parametrize("data", [b"\0\0\0\1\0\0\0\0", b"\0\0\0\x05\0\0\0\x07x"])
def test_what_is_no_answer(data: bytes, server: Any) -> None:
    def script(peer: Peer, _line: str, _body: bytes) -> bool:
        peer.send(data)
        return True

    nsqd = server(script=script)
    with pytest.raises(NsqError, match=r"^nsq: 127.0.0.1:\d+ sent an invalid frame$"):
        Connection(nsqd.address, Access())


def test_an_end_in_the_midst_of_it(server: Any) -> None:
    def script(peer: Peer, _line: str, _body: bytes) -> bool:
        peer.send(b"\0\0\0")
        peer.hung_up = True
        return True

    nsqd = server(script=script)
    text = refusal(nsqd, Access(), Unreachable)
    assert text == f"nsq: nsqd {nsqd.address} closed the connection"


def test_nobody_listens(server: Any) -> None:
    nsqd = server()
    nsqd.close()
    text = refusal(nsqd, Access(), Unreachable)
    assert text == f"nsq: nsqd {nsqd.address} cannot be reached: Connection refused"


def test_addresses() -> None:
    assert split_address("[::1]:4150") == ("::1", 4150)
    assert split_address("h:1") == ("h", 1)


@pytest.mark.parametrize(
    ("command", "answer", "text"),
    [
        ("LOG_META", (ERROR, b"E_LOG_GONE soon"), "refused: E_LOG_GONE soon"),
        ("LOG_META", (ERROR, b"E_LOG_RANGE " + b"9" * 5000), "refused: E_LOG_RANGE 999"),
        ("LOG_META", (RESPONSE, b"{"), "answered with invalid JSON"),
        ("LOG_META", (RESPONSE, b"[" * 100_000), "answered with invalid JSON"),
        ("LOG_SEEK", (RESPONSE, b'{"seq": "1"}'), "answered LOG_SEEK without a seq"),
        ("LOG_META", (RESPONSE, b'{"incarnations": [{}]}'), "sent an invalid answer to LOG_META"),
        ("LOG_META", (RESPONSE, b"{}"), "sent an invalid answer to LOG_META"),
    ],
)
def test_answers_that_make_no_sense(
    server: Any, command: str, answer: tuple[int, bytes], text: str
) -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("LOG_"):
            peer.send(frame(*answer))
            return True
        return False

    nsqd = server(script=script)
    connection = Connection(nsqd.address, Access())
    with pytest.raises(NsqError, match=text):
        if command == "LOG_SEEK":
            connection.seek("t", "l", 5)
        else:
            shard_of("t", connection, connection.meta("t"))
    connection.close()
