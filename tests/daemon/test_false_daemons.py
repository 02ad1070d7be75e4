"""nsqadmin and false daemons: their answers, their redirects, and how one can be added."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.cli.cluster import Cluster
from nsqcy.client import NsqdAdmin
from nsqcy.cluster.web_client import Terms
from nsqcy.errors import NsqError
from support.fake_auth_server import AuthServer, Reply
from support.fake_http_daemon import NEVER, Upstream
from support.nsqadmin_process import Admin, refused

TOKEN = "token-with-admin-star"
LOOKUPDS = "/config/nsqlookupd_http_addresses"
OUTSIDE = {"X-Forwarded-For": "203.0.113.9"}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def thief() -> Iterator[AuthServer]:
    server = AuthServer()
    server.default = Reply(b'{"topics":[]}')
    yield server
    server.close()


@pytest.fixture
def leading(thief: AuthServer) -> Iterator[AuthServer]:
    """A daemon that answers with a redirect to another port of this host."""
    server = AuthServer()
    server.default = Reply(b"", 302, {"Location": f"http://{thief.address}/elsewhere"})
    yield server
    server.close()


def test_only_admins_name_the_lookupds(thief: AuthServer, token: Path) -> None:
    there = json.dumps([thief.address]).encode()
    with Admin(
        lookupd_http_address="127.0.0.1:1", admin_user="root", auth_token_file=token
    ) as admin:
        for user in (
            {},
            {"X-Forwarded-User": "mallory"},
            {"X-Forwarded-User": "mallory", **OUTSIDE},
        ):
            refused(admin.web.put(LOOKUPDS, there, headers=user), 403, "FORBIDDEN")
        admin.web.get("/api/topics", headers={"X-Forwarded-User": "mallory"})
        assert thief.requests == []
        root = {"X-Forwarded-User": "root", **OUTSIDE}
        assert admin.web.put(LOOKUPDS, there, headers=root).json() == [thief.address]


def test_a_proxy_on_this_machine_does_not_make_all_users_local(
    thief: AuthServer, token: Path
) -> None:
    there = json.dumps([thief.address]).encode()
    with Admin(lookupd_http_address="127.0.0.1:1", auth_token_file=token) as admin:
        refused(admin.web.put(LOOKUPDS, there, headers=OUTSIDE), 403, "FORBIDDEN")
        assert admin.web.put(LOOKUPDS, there).json() == [thief.address]
    with Admin(lookupd_http_address="127.0.0.1:1") as admin:  # like NSQ's, without a token to lose
        assert admin.web.put(LOOKUPDS, there, headers=OUTSIDE).json() == [thief.address]


def test_a_redirect_gets_no_token(leading: AuthServer, thief: AuthServer, token: Path) -> None:
    for options in (
        {"nsqd_http_address": leading.address},
        {"lookupd_http_address": leading.address},
    ):
        with Admin(**options, auth_token_file=token) as admin:
            answer = admin.web.get("/api/topics")
            assert answer.status == 502
            assert "redirects are not followed" in answer.json()["message"]
    assert leading.requests
    assert thief.requests == []


def test_clients_follow_no_redirect(leading: AuthServer, thief: AuthServer) -> None:
    errors: list[str] = []

    def note(kind: str, address: str, error: Any) -> None:
        errors.append(str(error))

    with pytest.raises(NsqError, match="redirects are not followed"):
        NsqdAdmin(leading.address, auth_secret=TOKEN).create_topic("t")
    with pytest.raises(Exception, match="no nsqd found"):
        Cluster((leading.address,), (leading.address,), Terms(token=TOKEN), note).names(None)
    assert len(errors) == 2
    assert all("redirects are not followed" in each for each in errors)
    assert thief.requests == []


def test_a_message_id_writes_no_header() -> None:
    message_id = 'x"\r\nSet-Cookie: nsqadmin_session=attackers\r\nX: "'
    message: dict[str, Any] = {"start": "1.0", "id": message_id, "seq": 1, "timestamp": 1}
    message |= {"attempts": 1, "size": 4, "body": "QUFBQQ==", "cut": False, "headers": {}}
    page = {"state": "queued", "messages": [message], "next": None, "previous": None}
    stats = {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c"}]}]}
    with Upstream(stats=stats) as nsqd:
        nsqd.pages |= {"/channel/peek": page, "/topic/peek": page}
        nsqd.pages["/info"] = nsqd.producer()
        with Admin(nsqd_http_address=nsqd.address) as admin:
            where = {"state": "queued", "node": nsqd.address, "start": "1.0", "id": message_id}
            for path in ("/download/t/c", "/download/t"):
                answer = admin.web.get(path, **where)
                assert (answer.status, "set-cookie" in answer.headers) == (404, False)
            message["id"] = "0123456789abcdef"
            answer = admin.web.get("/download/t/c", **where | {"id": message["id"]})
            assert (answer.status, answer.body) == (200, b"AAAA")


def test_an_answer_that_is_too_large_is_not_read() -> None:
    server = AuthServer()
    server.default = Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 209715200\r\n\r\n")
    try:
        with Admin(nsqd_http_address=server.address) as admin:
            message = admin.web.get("/api/topics").json()["message"]
    finally:
        server.close()
    assert f"{server.address}: /info: the response has 209715200 bytes; the limit is" in message


def test_a_hung_nsqd_is_waited_for_once() -> None:
    with Upstream(info=NEVER) as nsqd:
        options = {"http_client_request_timeout": "500ms"}
        with Admin(nsqd_http_address=nsqd.address, **options) as admin:
            assert "timed out" in admin.web.get("/api/topics").json()["message"]
            message = admin.web.get("/api/nodes").json()["message"]
            page = admin.web.get("/nodes").body.decode()
    assert "did not answer, and is not queried again for 0.5 s" in message
    assert "is not queried again" in page
    assert len(nsqd.asked) == 1
