"""A daemon whose auth server is slow, dead or hostile: no other client waits, and no secret
leaks."""

import socket
import time
from collections.abc import Iterator
from functools import partial
from urllib.parse import quote_plus

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import HEARTBEAT, MESSAGE, RESPONSE, WORTH_A_MOVE, Conn, sized
from support.fake_auth_server import AuthServer, Reply, answer, grant
from support.nsqd_process import Nsqd

CROWD = 40  # more than a worker's concurrent requests to its auth server
SECRET = "open sesame&<1>"


@pytest.fixture
def one(starter: Starter, auth_server: AuthServer) -> Nsqd:
    """Daemon with one worker, so all clients share a hub, and with a long timeout for the auth
    server."""
    return starter(
        workers=1,
        auth_http_address=auth_server.address,
        http_client_request_timeout="60s",
        move_sessions=None,
    )


def asking(daemon: Nsqd, secret: str) -> Conn:
    conn = daemon.connect(pong=False)
    conn.command("AUTH", body=secret.encode())
    return conn


def test_nobody_waits_for_others(one: Nsqd, auth_server: AuthServer, topic: str) -> None:
    consumer = one.connect(pong=False)
    consumer.identify(heartbeat_interval=1000)
    consumer.auth(topic).sub(topic, "c", rdy=10)
    producer = one.connect().auth(topic)
    slow = f"{topic}-slow"
    with auth_server.silent(slow):
        crowd = [asking(one, slow) for _ in range(CROWD)]
        eventually(lambda: len(auth_server.asked(slow)) == 32)
        producer.pub(topic, b"x")
        assert one.web.get("/ping").body == b"OK"
        seen = set()
        while seen != {RESPONSE, MESSAGE}:
            frame = consumer.frame()
            seen.add(frame.kind)
            if frame == (RESPONSE, HEARTBEAT):
                consumer.nop()
    for conn in crowd:
        assert conn.expect_json()["permission_count"] == 1


def test_who_waits_gets_heartbeats_and_stays(
    one: Nsqd, auth_server: AuthServer, topic: str
) -> None:
    """nsqd waits longer than it would for a silent client, because the auth server is silent
    here."""
    with auth_server.silent(topic):
        conn = one.connect(pong=False)
        conn.identify(heartbeat_interval=1000)
        conn.command("AUTH", body=topic.encode())
        for _ in range(4):
            conn.expect_response(HEARTBEAT)
    while (frame := conn.frame()) == (RESPONSE, HEARTBEAT):
        pass
    assert frame.data.startswith(b'{"identity"')


def test_who_waits_may_go(one: Nsqd, auth_server: AuthServer, topic: str) -> None:
    with auth_server.silent(topic):
        for _ in range(CROWD):
            asking(one, topic).close()
        halves = [asking(one, topic) for _ in range(3)]
        for half in halves:
            half.half_close()
        eventually(lambda: len(auth_server.asked(topic)) == 32)
    for half in halves:
        assert half.expect_json()["permission_count"] == 1
        half.eof()
    one.connect().auth(f"{topic}-other").pub(topic, b"x")


def test_a_publish_waits_for_the_next_answer(
    one: Nsqd, auth_server: AuthServer, topic: str
) -> None:
    """A publish with an expired authorization waits, and the commands pipelined after it keep their
    order."""
    auth_server.says(topic, ttl=1)
    conn = one.connect().auth(topic)
    end = time.monotonic() + 1.0
    eventually(lambda: time.monotonic() > end)
    publish = b"PUB %s\n" % topic.encode() + sized(b"x")
    with auth_server.silent(topic):
        conn.send(publish, b"NOP\n", publish, b"FOO\n", publish)
        eventually(lambda: len(auth_server.asked(topic)) == 2)
        assert one.web.topic(topic) is None
    conn.expect_ok()
    conn.expect_ok()
    conn.expect_error("E_INVALID invalid command FOO")
    assert one.web.counts(topic)["message_count"] == 2
    assert len(auth_server.asked(topic)) == 2


def test_it_stops_although_a_server_hangs(
    starter: Starter, auth_server: AuthServer, topic: str
) -> None:
    daemon = starter(auth_http_address=auth_server.address, http_client_request_timeout="60s")
    with auth_server.silent(topic):
        for _ in range(CROWD):
            asking(daemon, topic)
        eventually(lambda: len(auth_server.asked(topic)) == CROWD)
        daemon.stop()


def test_a_server_that_comes_back(starter: Starter, topic: str) -> None:
    first = AuthServer()
    daemon = starter(auth_http_address=first.address)
    daemon.connect().auth(topic)
    first.close()
    conn = asking(daemon, topic)
    conn.expect_error("E_AUTH_FAILED AUTH failed")
    second = AuthServer(port=first.port)
    daemon.connect().auth(topic)
    second.close()


# -- secrets


@pytest.fixture
def deaf() -> Iterator[str]:
    """Address that accepts no connections, so a client waits until its timeout."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        host, port = listener.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex((host, port))
        yield f"{host}:{port}"
        for each in waiting:
            each.close()


@pytest.mark.parametrize("method", ["get", "post"])
def test_no_secret_is_logged(
    method: str, starter: Starter, auth_server: AuthServer, deaf: str
) -> None:
    """No log line of any process contains the secret, at any level and after any failure."""
    addresses = [
        f"http://{SECRET.split()[0]}:sesame@{deaf}/auth",
        f"{auth_server.address}",
        "127.0.0.1:1",
        "nowhere.invalid",
        "://sesame",
        f"http://{auth_server.address}/?token=sesame",
    ]
    daemon = starter(
        auth_http_address=addresses,
        auth_http_request_method=method,
        http_client_connect_timeout="200ms",
        http_client_request_timeout="400ms",
        log_level="debug",
    )
    echo = SECRET.encode()
    replies = [
        Reply(status=500),
        Reply(b"sesame", status=403),
        Reply(status=302, headers={"Location": f"/?secret={quote_plus(SECRET)}"}),
        Reply(raw=b"sesame sesame\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\n" + echo + b"\r\n\r\n"),
        Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: sesame\r\n\r\n"),
        Reply(answer(grant(topic="sesame("))),
        Reply(answer(grant(permissions=["sesame"]))),
        Reply(b"sesame" * 1000, trickle=0.05),
    ]
    secrets = [SECRET, f"{SECRET}\r\n", f"{SECRET}\xff\x00"]
    for reply in replies:
        for secret in secrets:
            auth_server.replies[secret] = reply
        for secret in secrets:
            conn = asking(daemon, secret)
            conn.expect_error("E_AUTH_FAILED AUTH failed")
    for secret in secrets:
        auth_server.says(secret, grant(topic="^t$", channels=["^$"]), ttl=1)
    for secret in secrets:
        conn = daemon.connect().auth(secret)
        conn.pub("t", b"x")
        conn.command("AUTH", body=secret.encode())
        conn.expect_error("E_INVALID AUTH already set")
    conn = daemon.connect().auth(SECRET)
    conn.command("SUB", "t", "c")
    conn.expect_error('E_UNAUTHORIZED AUTH failed for SUB on "t" "c"')
    conn = daemon.connect()
    conn.send(b"AUTH " + echo + b"\n")
    conn.expect_error("E_INVALID AUTH invalid number of parameters")
    conn = daemon.connect()
    conn.send(b"AUTH\n\0\0\0\x99" + echo)
    conn.half_close()
    conn.expect_error("E_BAD_BODY AUTH failed to read body")
    daemon.stop()
    log = daemon.log_text()
    assert log.count("AUTH failed ") >= len(replies) * len(secrets)
    assert [line for line in log.splitlines() if "sesame" in line] == []


def test_a_moving_session_takes_its_authorization_along(
    starter: Starter, auth_server: AuthServer, topic: str
) -> None:
    """The new worker does not query the auth server until the authorization expires; then it uses
    the same secret."""
    daemon = starter(auth_http_address=auth_server.address, log_level="debug", move_sessions=None)
    secrets = []

    def attempt(life: int) -> Conn | None:
        """Return a producer whose connection has migrated to the owner of its topic, or None."""
        secret = f"{topic} secret {len(secrets)}"
        secrets.append(secret)
        auth_server.says(secret, grant(f"^{topic}$"), ttl=life)
        conn = daemon.connect().auth(secret)
        homes = [partial(daemon.home_of, conn)] * 2
        began = eventually(homes[0])
        for body in WORTH_A_MOVE:
            conn.pub(topic, body)
        if eventually(homes[1]) != began:
            return conn
        conn.close()
        return None

    conn: Conn = eventually(partial(attempt, 3600), 60)
    assert len(auth_server.asked(secrets[-1])) == 1
    (client,) = daemon.web.stats()["producers"]
    assert (client["authed"], client["auth_identity"]) == (True, "me")
    conn.command("PUB", "another", body=b"x")
    conn.expect_error('E_UNAUTHORIZED AUTH failed for PUB on "another" ""')

    conn = eventually(partial(attempt, 3), 60)
    secret = secrets[-1]

    def again() -> bool:
        conn.pub(topic, b"x")
        return len(auth_server.asked(secret)) == 2

    eventually(again)
    auth_server.replies[secret] = Reply(status=500)
    conn.command("AUTH", body=b"x")
    conn.expect_error("E_INVALID AUTH already set")
    daemon.stop()
    assert " secret " not in daemon.log_text()


def test_an_authorization_too_large_to_move_stays(
    starter: Starter, auth_server: AuthServer, topic: str
) -> None:
    daemon = starter(auth_http_address=auth_server.address, workers=2, move_sessions=None)
    auth_server.says(topic, identity="\u00fc" * 100_000)
    daemon.web.create(topic)
    for _ in range(4):
        conn = daemon.connect().auth(topic)
        home = eventually(partial(daemon.home_of, conn))
        for body in WORTH_A_MOVE:
            conn.pub(topic, body)
        assert daemon.home_of(conn) == home
        conn.sub(topic, "c")
        eventually(lambda: daemon.web.counts(topic, "c")["client_count"])
        assert daemon.web.client(topic, "c")["auth_identity"][:500] == "\u00fc" * 500
        conn.close()
        eventually(lambda: not daemon.web.counts(topic, "c")["client_count"])
    assert daemon.web.counts(topic)["message_count"] == 4 * len(WORTH_A_MOVE)
