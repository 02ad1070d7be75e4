"""An nsqd's users file that changes, is invalid, or is combined with an auth server or
certificates."""

import contextlib
import signal
import socket
from pathlib import Path

import pytest

from conftest import Starter
from nsqcy.testing.encoded_connection import connect
from nsqcy.testing.http_requests import Web, eventually
from support import users_file
from support.fake_auth_server import AuthServer, grant
from support.nsqd_process import Nsqd
from support.users_file import IMPOSTOR, Certificates, bearer, section, token

pytestmark = pytest.mark.ours

BILLS = section("bills", with_token=False, certificate="billing", publish="a.*")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return users_file.write(
        tmp_path / "users.ini",
        section("writer", publish="a.*"),
        section("root", publish="*", subscribe="*", admin="*"),
    )


def web(daemon: Nsqd, name: str) -> Web:
    return Web(daemon.http_port, headers=bearer(name))


def test_who_is_not_in_the_file_may_be_known_to_the_server(
    starter: Starter, file: Path, auth_server: AuthServer
) -> None:
    daemon = starter(workers=1, auth_file=file, auth_http_address=auth_server.address)
    auth_server.says("elsewhere", grant(topic="^z$"))
    conn = daemon.connect()
    conn.auth("elsewhere")
    conn.command("PUB", "z", body=b"m")
    conn.expect_ok()
    conn = daemon.connect()
    conn.auth(token("writer"))
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_ok()
    assert not auth_server.asked(token("writer"))


def test_a_certificate_needs_no_auth(starter: Starter, tmp_path: Path) -> None:
    shown = Certificates(tmp_path, "billing", "stranger")
    file = users_file.write(tmp_path / "users.ini", BILLS, section("writer", publish="b"))
    daemon = starter(workers=2, auth_file=file, **shown.options("require-verify"))
    billing = shown.of("billing")
    conn = connect(daemon, tls=billing)
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_ok()
    conn.command("PUB", "b", body=b"m")
    conn.expect_error('E_UNAUTHORIZED AUTH failed for PUB on "b" ""')
    conn = connect(daemon, tls=billing)
    conn.auth("what a client says that insists on AUTH")
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_ok()
    conn = connect(daemon, tls=billing)
    conn.auth(token("writer"))  # a token takes precedence over a certificate
    conn.command("PUB", "b", body=b"m")
    conn.expect_ok()
    for name in ("stranger", IMPOSTOR):
        conn = connect(daemon, tls=shown.of(name))
        conn.command("PUB", "a.x", body=b"m")
        conn.expect_error("E_AUTH_FIRST AUTH required before PUB")
    for name, status in (("billing", 200), ("stranger", 401), (IMPOSTOR, 401)):
        secure = daemon.secure_web(shown.of(name))
        assert secure.post("/pub", b"m", topic="a.x").status == status


def test_an_unverified_certificate_does_not_authenticate(starter: Starter, tmp_path: Path) -> None:
    """Any client can write any name into its own certificate."""
    shown = Certificates(tmp_path, "billing")
    file = users_file.write(tmp_path / "users.ini", BILLS)
    daemon = starter(workers=1, auth_file=file, **shown.options("require"))
    assert "user certificates require --tls-client-auth-policy" in daemon.log_text()
    conn = connect(daemon, tls=shown.of("billing"))
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_error("E_AUTH_FIRST AUTH required before PUB")
    secure = daemon.secure_web(shown.of("billing"))
    assert secure.post("/pub", b"m", topic="a.x").status == 401


def test_the_file_is_read_again(starter: Starter, file: Path) -> None:
    """A new file applies to all connections, even to one that has already published."""
    daemon = starter(workers=2, auth_file=file)
    # The topic exists, so publishes take the fast path.
    web(daemon, "root").create("a.x")
    link = web(daemon, "writer").link()

    def status(method: str, target: str, name: str) -> int:
        """Return the status of a request. All requests go to the same worker."""
        link.request(method, target, b"m" if method == "POST" else None, bearer(name))
        answer = link.getresponse()
        answer.read()
        return answer.status

    def publish() -> int:
        return status("POST", "/pub?topic=a.x", "writer")

    assert [publish() for _ in range(3)] == [200] * 3
    users_file.write(file, section("writer", publish="b"), section("new", role="view"))
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: status("GET", "/info", "new") == 200)
    assert [publish() for _ in range(3)] == [403] * 3
    eventually(lambda: web(daemon, "new").get("/stats").status == 200)
    eventually(lambda: web(daemon, "root").get("/stats").status == 401)
    link.close()
    file.write_text("[user writer]\npublish = *\ntoken = s3cret\n")
    daemon.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the configuration stays unchanged" in daemon.log_text())
    assert web(daemon, "new").get("/stats").status == 200
    assert "s3cret" not in daemon.log_text()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("", "no users in this file"),
        (
            "[user a]\npublish = *\ntoken = s3cret\n",
            "line 3: the token of user a is not a valid hash",
        ),
    ],
)
def test_it_does_not_start(starter: Starter, tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "users.ini"
    if text is not None:
        path.write_text(text)
    daemon = starter.prepare(auth_file=path, workers=1)
    daemon.launch()
    assert daemon.wait() == 1
    assert says in daemon.log_text() and "s3cret" not in daemon.log_text()


def test_half_sent_requests_without_credentials(starter: Starter, file: Path) -> None:
    """Unauthenticated clients do not use up the memory for the input of others."""
    daemon = starter(workers=1, auth_file=file, max_input_bytes=8 << 20)
    writer = daemon.connect()
    writer.auth(token("writer"))
    head = b"GET /ping HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 200_000
    half_command = b"  V2IDENTIFY\n\0\1\0\0" + b"a" * 60_000
    half = []
    for number in range(200):
        port, data = ((daemon.http_port, head), (daemon.tcp_port, half_command))[number % 2]
        half.append(socket.create_connection(("127.0.0.1", port)))
        with contextlib.suppress(OSError):  # nsqd has ended the connection
            half[-1].sendall(data)
    for _ in range(5):
        assert web(daemon, "writer").post("/pub", b"x" * 900_000, topic="a.x").status == 200
        writer.pub("a.x", b"x" * 900_000)
    for sock in half:
        sock.close()
