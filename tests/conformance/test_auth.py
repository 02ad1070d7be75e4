"""AUTH: the checks that every nsqd makes, and the decisions of an auth server."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from nsqcy.testing import certificates, encoded_connection
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import RESPONSE, Conn, sized
from support.fake_auth_server import AuthServer, Reply, answer, grant
from support.nsqd_process import Nsqd


@one_worker
@pytest.mark.case("C120")
def test_disabled(shared: Nsqd) -> None:
    conn = shared.connect()
    conn.command("AUTH", body=b"secret")
    conn.expect_error("E_AUTH_DISABLED AUTH disabled")


@one_worker
@pytest.mark.case("C121")
@pytest.mark.parametrize("line", [b"AUTH \n", b"AUTH x\n"])
def test_no_parameters_allowed(shared: Nsqd, line: bytes) -> None:
    conn = shared.connect()
    conn.send(line)
    conn.expect_error("E_INVALID AUTH invalid number of parameters")


@one_worker
@pytest.mark.case("C122")
@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "invalid body size 0"),
        (-1, "invalid body size -1"),
        (16385, "body too big 16385 > 16384"),
        (5242881, "body too big 5242881 > 5242880"),
    ],
)
def test_length_out_of_bounds(shared: Nsqd, length: int, text: str) -> None:
    conn = shared.connect()
    conn.send(b"AUTH\n", length.to_bytes(4, "big", signed=True))
    conn.expect_error(f"E_BAD_BODY AUTH {text}")


@one_worker
@pytest.mark.case("C122")
@pytest.mark.parametrize(
    ("sent", "text"),
    [(b"\0\0", "failed to read body size"), (b"\0\0\0\x09s", "failed to read body")],
)
def test_cut_short(shared: Nsqd, sent: bytes, text: str) -> None:
    conn = shared.connect()
    conn.send(b"AUTH\n", sent)
    conn.half_close()
    conn.expect_error(f"E_BAD_BODY AUTH {text}")


@one_worker
@pytest.mark.case("C127")
def test_not_after_sub(shared: Nsqd, topic: str) -> None:
    conn = shared.connect().sub(topic, "c")
    conn.command("AUTH")
    conn.expect_error("E_INVALID cannot AUTH in current state")


# -- with an auth server


@pytest.fixture
def conn(guarded: Nsqd) -> Conn:
    return guarded.connect()


COMMANDS = {
    "SUB": b"SUB %s c\n",
    "PUB": b"PUB %s\n" + sized(b"x"),
    "MPUB": b"MPUB %s\n" + sized(b"\0\0\0\1" + sized(b"x")),
    "DPUB": b"DPUB %s 10\n" + sized(b"x"),
}


@one_worker
@pytest.mark.case("C123")
@pytest.mark.parametrize("command", COMMANDS)
def test_first(command: str, guarded: Nsqd, conn: Conn, topic: str) -> None:
    conn.send(COMMANDS[command] % topic.encode())
    conn.expect_error(f"E_AUTH_FIRST AUTH required before {command}")
    assert guarded.web.topic(topic) is None


@one_worker
@pytest.mark.case("C123")
def test_mpub_is_refused_before_its_body(conn: Conn, topic: str) -> None:
    conn.send(b"MPUB %s\n" % topic.encode())
    conn.expect_error("E_AUTH_FIRST AUTH required before MPUB")


@one_worker
@pytest.mark.case("C123")
@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (b"SUB a$ c\n", 'E_BAD_TOPIC SUB topic name "a$" is not valid'),
        (b"SUB a c$\n", 'E_BAD_CHANNEL SUB channel name "c$" is not valid'),
        (b"PUB a$\n", 'E_BAD_TOPIC PUB topic name "a$" is not valid'),
        (b"PUB a\n\0\0\0\0", "E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"DPUB a x\n", "E_INVALID DPUB could not parse timeout x"),
    ],
)
def test_what_is_checked_before_authorization(conn: Conn, sent: bytes, text: str) -> None:
    conn.send(sent)
    conn.expect_error(text)


@one_worker
@pytest.mark.case("C124")
def test_identify_says_so(conn: Conn) -> None:
    assert conn.negotiate()["auth_required"] is True


@pytest.mark.case("C125")
def test_granted(auth_server: AuthServer, conn: Conn, topic: str) -> None:
    auth_server.says(topic, grant(topic="^t"))
    conn.command("AUTH", body=topic.encode())
    granted = b'{"identity":"me","identity_url":"http://u","permission_count":1}'
    assert conn.frame() == (RESPONSE, granted)
    conn.negotiate()


@one_worker
@pytest.mark.case("C126")
def test_only_once(conn: Conn, topic: str) -> None:
    conn.auth(topic)
    conn.command("AUTH", body=topic.encode())
    conn.expect_error("E_INVALID AUTH already set")


@one_worker
@pytest.mark.case("C126")
def test_pipelined(guarded: Nsqd, conn: Conn, topic: str) -> None:
    """Commands pipelined after AUTH wait for it; no command after an error is executed."""
    word = topic.encode()
    conn.send(b"AUTH\n", sized(word), b"NOP\n", COMMANDS["PUB"] % word, COMMANDS["DPUB"] % word)
    conn.send(b"SUB %s c\nAUTH\n" % word, sized(word), COMMANDS["PUB"] % word)
    conn.expect_json()
    for _ in range(3):
        conn.expect_ok()
    conn.expect_error("E_INVALID cannot AUTH in current state")
    assert guarded.web.counts(topic)["message_count"] == 2


@one_worker
@pytest.mark.case("C127")
def test_not_after_sub_either(conn: Conn, topic: str) -> None:
    conn.auth(topic).sub(topic, "c")
    conn.command("AUTH", body=topic.encode())
    conn.expect_error("E_INVALID cannot AUTH in current state")


@one_worker
@pytest.mark.case("C128")
@pytest.mark.parametrize("authorizations", [[], None])
def test_nothing_granted(
    authorizations: Any, auth_server: AuthServer, conn: Conn, topic: str
) -> None:
    auth_server.says(topic, authorizations=authorizations)
    conn.command("AUTH", body=topic.encode())
    conn.expect_error("E_UNAUTHORIZED AUTH no authorizations found")


UNUSABLE = {
    "500": Reply(status=500),
    "redirect": Reply(status=302, headers={"Location": "/elsewhere"}),
    "ttl 0": Reply(answer(ttl=0)),
    "permission": Reply(answer(grant(permissions=["subscribe", "sub"]))),
    "not JSON": Reply(b"yes"),
    "nothing": Reply(raw=b""),
    "cut short": Reply(headers={"Content-Length": "10000"}),
    "huge": Reply(answer() + b" " * (2 << 20)),
}


@one_worker
@pytest.mark.case("C129")
@pytest.mark.parametrize("reply", UNUSABLE)
def test_no_usable_answer(
    reply: str, auth_server: AuthServer, guarded: Nsqd, conn: Conn, topic: str
) -> None:
    auth_server.replies[topic] = UNUSABLE[reply]
    conn.command("AUTH", body=topic.encode())
    conn.expect_error("E_AUTH_FAILED AUTH failed")
    assert len(auth_server.asked(topic)) == 1
    host, port = conn.socket.getsockname()
    cause = f"PROTOCOL(V2): [{host}:{port}] AUTH failed http://{auth_server.address}/auth: "
    eventually(lambda: cause in guarded.log_text())


@one_worker
@pytest.mark.case("C130", "C131", "C132")
def test_permitted_is_one_channel(
    auth_server: AuthServer, guarded: Nsqd, conn: Conn, topic: str
) -> None:
    auth_server.says(topic, grant(topic="^t.*$", channels=["^c$"]))
    conn.auth(topic).sub(topic, "c")
    other = guarded.connect().auth(topic)
    other.command("SUB", topic, "cc")
    other.expect_error(f'E_UNAUTHORIZED AUTH failed for SUB on "{topic}" "cc"')
    for command in ("PUB", "MPUB", "DPUB"):
        producer = guarded.connect().auth(topic)
        producer.send(COMMANDS[command] % topic.encode())
        producer.expect_error(f'E_UNAUTHORIZED AUTH failed for {command} on "{topic}" ""')
    assert guarded.web.counts(topic)["message_count"] == 0


@one_worker
@pytest.mark.case("C133")
def test_publishing_is_the_empty_channel(
    auth_server: AuthServer, guarded: Nsqd, conn: Conn, topic: str
) -> None:
    auth_server.says(topic, grant(topic="x"), grant(permissions=["publish"]))
    conn.auth(topic)
    conn.pub(topic, b"1")
    conn.mpub(topic, [b"2", b"3"])
    conn.dpub(topic, 1, b"4")
    assert guarded.web.counts(topic)["message_count"] == 4
    conn.command("SUB", topic, "c")
    conn.expect_error(f'E_UNAUTHORIZED AUTH failed for SUB on "{topic}" "c"')


def authorize_briefly(conn: Conn, topic: str, server: AuthServer) -> Callable[[], None]:
    """Authorize for one second; return a function that waits until the authorization expires."""
    server.says(topic, ttl=1)
    conn.auth(topic)
    # The daemon uses the same clock, and started counting before the test received the answer.
    end = time.monotonic() + 1.0
    return lambda: eventually(lambda: time.monotonic() > end) and None


@one_worker
@pytest.mark.case("C135")
def test_expiry(auth_server: AuthServer, conn: Conn, topic: str) -> None:
    auth_server.says(topic, ttl=1)
    conn.auth(topic)
    conn.pub(topic, b"x")
    assert len(auth_server.asked(topic)) == 1

    def again() -> bool:
        conn.pub(topic, b"x")
        return len(auth_server.asked(topic)) == 2

    eventually(again)
    first, second = auth_server.asked(topic)
    assert first == second


@one_worker
@pytest.mark.case("C135")
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_allowed_may_change(
    command: str, auth_server: AuthServer, conn: Conn, topic: str
) -> None:
    await_expiry = authorize_briefly(conn, topic, auth_server)
    auth_server.says(topic, grant(topic="^$"))
    await_expiry()
    conn.send(COMMANDS[command] % topic.encode())
    channel = "c" if command == "SUB" else ""
    conn.expect_error(f'E_UNAUTHORIZED AUTH failed for {command} on "{topic}" "{channel}"')


@one_worker
@pytest.mark.case("C135")
def test_no_answer_at_expiry(auth_server: AuthServer, conn: Conn, topic: str) -> None:
    await_expiry = authorize_briefly(conn, topic, auth_server)
    auth_server.replies[topic] = Reply(status=500)
    await_expiry()
    conn.send(COMMANDS["PUB"] % topic.encode(), COMMANDS["PUB"] % topic.encode())
    conn.expect_error("E_AUTH_FAILED AUTH failed")


@pytest.mark.case("C135")
def test_a_subscription_outlives_its_authorization(
    auth_server: AuthServer, guarded: Nsqd, conn: Conn, topic: str
) -> None:
    await_expiry = authorize_briefly(conn, topic, auth_server)
    conn.sub(topic, "c", rdy=10)
    auth_server.replies[topic] = Reply(status=500)
    await_expiry()
    guarded.connect().auth("another").pub(topic, b"x")
    (message,) = conn.take(1)
    assert message.body == b"x"
    conn.barrier()
    assert len(auth_server.asked(topic)) == 1


@one_worker
@pytest.mark.case("C137")
def test_an_address_may_be_a_url(nsqd: Starter, auth_server: AuthServer, topic: str) -> None:
    url = f"http://user:pass@{auth_server.address}/path/to?x=1"
    nsqd(auth_http_address=url).connect().auth(topic)
    (asked,) = [each for each in auth_server.requests if f"={topic}&" in each.path]
    query = f"common_name=&remote_ip=127.0.0.1&secret={topic}&tls=false"
    assert asked.path == f"/path/to?x=1?{query}"
    assert asked.headers["authorization"] == "Basic dXNlcjpwYXNz"


@one_worker
@pytest.mark.case("C137", "H22")
def test_a_server_is_told_of_tls(
    nsqd: Starter, auth_server: AuthServer, topic: str, tmp_path: Path
) -> None:
    files = certificates.make("server").save(tmp_path)
    client = certificates.make("some one").save(tmp_path)
    daemon = nsqd(
        auth_http_address=auth_server.address,
        tls_client_auth_policy="require",
        http_address="",
        **files.options,
    )
    conn = encoded_connection.connect(
        daemon, tls=encoded_connection.client_context(client), codec="snappy"
    ).auth(topic)
    for name in ("a", "b", "c"):
        conn.pub(name, b"x")
    conn.sub("a", "c", rdy=1)
    assert conn.message().body == b"x"
    (asked,) = auth_server.asked(topic)
    assert asked.path.endswith(f"?common_name=some+one&remote_ip=127.0.0.1&secret={topic}&tls=true")


@one_worker
@pytest.mark.case("C138")
def test_post(nsqd: Starter, auth_server: AuthServer, topic: str) -> None:
    daemon = nsqd(auth_http_address=auth_server.address, auth_http_request_method="post")
    secret = f'{topic}<&>"\u00fc'
    daemon.connect().auth(secret).pub(topic, b"x")
    (asked,) = auth_server.asked(secret)
    assert (asked.method, asked.path) == ("POST", "/auth")
    assert asked.headers["content-type"] == "application/json"
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"
    escaped = f'{topic}\\u003c\\u0026\\u003e\\"\u00fc'
    assert asked.body.decode() == (
        f'{{"common_name":[""],"remote_ip":["127.0.0.1"],"secret":["{escaped}"],"tls":["false"]}}'
    )


@one_worker
@pytest.mark.case("HTTP-087")
def test_http_needs_no_authorization(guarded: Nsqd, topic: str) -> None:
    answered = guarded.web.post("/pub", b"x", topic=topic)
    assert (answered.status, answered.body) == (200, b"OK")
    assert guarded.web.counts(topic)["message_count"] == 1


def test_stats_tell_who_it_is(
    auth_server: AuthServer, guarded: Nsqd, conn: Conn, topic: str
) -> None:
    auth_server.says(topic, identity="who", identity_url="http://who")
    conn.auth(topic).sub(topic, "c")
    producer = guarded.connect().auth(topic)
    producer.identify(client_id=topic)
    producer.pub(topic, b"x")
    producers = guarded.web.stats()["producers"]
    (shown,) = [each for each in producers if each["client_id"] == topic]
    for client in (guarded.web.client(topic, "c"), shown):
        assert client["authed"] is True
        assert client["auth_identity"] == "who"
        assert client["auth_identity_url"] == "http://who"
