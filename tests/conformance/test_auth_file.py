"""Users from a file: their permissions over TCP and HTTP, and the errors for other clients."""

import base64
import json
from collections.abc import Callable, Iterator

import pytest

from conftest import keep, one_worker
from nsqcy.http.router import Need
from nsqcy.nsqd.http.api import ROUTES
from nsqcy.testing.http_requests import Answer, Web, eventually
from nsqcy.testing.wire_client import RESPONSE, sized
from support import users_file
from support.nsqd_process import Nsqd
from support.users_file import bearer, section, token

pytestmark = pytest.mark.ours

USERS = (
    section("writer", publish="a.*"),
    section("reader", subscribe="a.*/c*"),
    section("follower", subscribe="a.*"),
    section("boss", admin="a.*"),
    section("mine", publish="mine*", subscribe="mine*", admin="mine*, own-*"),
    section("root", publish="*", subscribe="*", admin="*"),
    section("watcher", role="view"),
    section("operator", role="operate"),
)


@pytest.fixture(scope="module")
def running(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Nsqd]]:
    folder = tmp_path_factory.mktemp("users")
    yield from keep(workers, folder, auth_file=users_file.write(folder / "users.ini", *USERS))


@pytest.fixture
def daemon(running: Callable[[], Nsqd]) -> Nsqd:
    """Daemon for all tests that do not change its users."""
    return running()


def web(daemon: Nsqd, name: str) -> Web:
    return Web(daemon.http_port, headers=bearer(name))


def message(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["message"]


# -- TCP


def test_a_token_is_the_secret_of_auth(daemon: Nsqd) -> None:
    conn = daemon.connect()
    assert conn.negotiate()["auth_required"] is True
    conn.command("AUTH", body=token("writer").encode())
    granted = b'{"identity":"writer","identity_url":"","permission_count":1}'
    assert conn.frame() == (RESPONSE, granted)
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_ok()
    conn.command("PUB", "b", body=b"m")
    conn.expect_error('E_UNAUTHORIZED AUTH failed for PUB on "b" ""')
    reader = daemon.connect()
    reader.auth(token("reader"))
    reader.sub("a.x", "c1")
    assert web(daemon, "watcher").client("a.x", "c1")["auth_identity"] == "reader"


@one_worker
@pytest.mark.parametrize(
    ("name", "line", "names"),
    [
        ("reader", b"PUB a.x\n" + sized(b"m"), 'PUB on "a.x" ""'),
        ("reader", b"SUB a.x d\n", 'SUB on "a.x" "d"'),
        ("reader", b"SUB b c\n", 'SUB on "b" "c"'),
        ("writer", b"SUB a.x c\n", 'SUB on "a.x" "c"'),
        ("writer", b"MPUB aa\n" + sized(b"\0\0\0\1" + sized(b"x")), 'MPUB on "aa" ""'),
        ("writer", b"DPUB aa 1\n" + sized(b"x"), 'DPUB on "aa" ""'),
    ],
)
def test_a_topic_outside_of_the_pattern(daemon: Nsqd, name: str, line: bytes, names: str) -> None:
    conn = daemon.connect()
    conn.auth(token(name))
    conn.send(line)
    conn.expect_error(f"E_UNAUTHORIZED AUTH failed for {names}")


@one_worker
def test_no_token_and_a_wrong_one(daemon: Nsqd) -> None:
    conn = daemon.connect()
    conn.command("PUB", "a.x", body=b"m")
    conn.expect_error("E_AUTH_FIRST AUTH required before PUB")
    conn = daemon.connect()
    conn.command("AUTH", body=b"s3cret-guess")
    conn.expect_error("E_AUTH_FAILED AUTH failed")
    conn = daemon.connect()
    conn.command("AUTH", body=token("boss").encode())
    conn.expect_error("E_UNAUTHORIZED AUTH no authorizations found")
    assert "s3cret" not in daemon.log_text() and token("boss") not in daemon.log_text()


# -- HTTP


ROUTES_WITH_TOPIC = {
    Need.PUBLISH: "writer",
    Need.SUBSCRIBE: "reader",
    Need.SUBSCRIBE_ALL: "follower",
    Need.ADMIN: "boss",
}


@one_worker
def test_every_route_requires_its_declared_permission(daemon: Nsqd) -> None:
    names = ("writer", "reader", "follower", "boss", "watcher")
    for route in ROUTES:
        path = route.path.replace(":opt", "log_level").replace(":profile", "heap")
        query = "?topic=a.x&channel=c" if "debug" not in path else ""
        stranger = daemon.web.request(route.method, path + query, b"x")
        if route.need is Need.NOTHING:
            assert stranger.status == 200, path
            continue
        assert stranger.status == 401, path
        assert stranger.headers["www-authenticate"] == 'Bearer realm="nsqd"'
        if route.need in ROUTES_WITH_TOPIC:
            allowed = {ROUTES_WITH_TOPIC[route.need]}
            allowed |= {"follower"} if route.need is Need.SUBSCRIBE else set()
        else:
            allowed = set(names) if route.need is Need.KNOWN else set()
        for name in names:
            if name in allowed:
                if route.method == "GET":
                    found = web(daemon, name).request(route.method, path + query, b"x")
                    assert found.status not in (401, 403), (path, name)
            else:
                found = web(daemon, name).request(route.method, path + query, b"x")
                assert found.status == 403, (path, name)


@one_worker
def test_each_user_can_use_only_its_permissions(daemon: Nsqd) -> None:
    web(daemon, "writer").pub("a.x", b"m")
    assert web(daemon, "writer").post("/mpub", b"m\nn", topic="a.y").status == 200
    assert message(web(daemon, "writer").post("/pub", b"m", topic="b")) == (403, "FORBIDDEN")
    assert message(daemon.web.post("/pub", b"m", topic="a.x")) == (401, "UNAUTHORIZED")
    web(daemon, "boss").create("a.x", "c")
    assert message(web(daemon, "boss").post("/topic/create", topic="b")) == (403, "FORBIDDEN")
    looked = web(daemon, "reader").get("/channel/peek", topic="a.x", channel="c")
    assert looked.status == 200
    assert web(daemon, "boss").get("/channel/peek", topic="a.x", channel="c").status == 403
    assert web(daemon, "operator").get("/channel/peek", topic="a.x", channel="c").status == 200
    assert web(daemon, "operator").post("/channel/empty", topic="a.x", channel="c").status == 403
    assert web(daemon, "root").put("/config/log_level", b"debug").status == 200
    assert web(daemon, "boss").put("/config/log_level", b"info").status == 403
    assert web(daemon, "writer").post("/pub", b"m").json()["message"] == "MISSING_ARG_TOPIC"


def test_the_name_that_counts_is_the_one_that_is_used(daemon: Nsqd) -> None:
    """If two parameters have the same name after percent-decoding, the first one counts."""
    root, writer = web(daemon, "root"), web(daemon, "writer")
    assert writer.post("/pub?topic=a.x&topic=b", b"m").status == 200
    assert writer.post("/pub?topic=b&topic=a.x", b"m").status == 403
    assert writer.post("/pub?%74opic=b&topic=a.x", b"m").status == 403
    assert writer.post("/PUB?topic=b", b"m").status in (301, 307)
    assert "b" not in root.topics()


@one_worker
def test_basic_has_the_token_as_its_password(daemon: Nsqd) -> None:
    for text, status in ((f"any:{token('watcher')}", 200), ("watcher:", 401), ("x:y", 401)):
        header = {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}
        assert daemon.web.request("GET", "/stats", headers=header).status == status


# -- actions that affect another topic


ORIGIN = {"X-Nsq-Origin-Topic": "payments", "X-Nsq-Origin-Channel": "c"}


@pytest.fixture
def forged(daemon: Nsqd) -> Iterator[str]:
    """Topic of a user, with a message that names another existing topic as its origin."""
    root, mine = web(daemon, "root"), web(daemon, "mine")
    root.create("payments", "c")
    mine.create("mine-dead", "c")
    headers = bearer("mine") | ORIGIN
    daemon.web.request("POST", "/pub?topic=mine-dead", b"forged", headers=headers)
    yield "mine-dead"
    for topic in ("payments", "mine-dead"):
        root.post("/topic/delete", topic=topic)


def depth(daemon: Nsqd, topic: str) -> int:
    return int(web(daemon, "root").channel(topic, "c")["depth"])


def test_a_redrive_needs_permission_for_the_target(daemon: Nsqd, forged: str) -> None:
    mine, root = web(daemon, "mine"), web(daemon, "root")
    (message_,) = root.get("/channel/peek", topic=forged, channel="c").json()["messages"]
    single = mine.post("/channel/redrive", topic=forged, channel="c", id=message_["id"])
    assert message(single) == (403, "FORBIDDEN")
    # This request is queued behind the first one, whose result is then final.
    assert mine.post("/channel/redrive", topic=forged, channel="c").json() == {"redriven": 1}
    other = mine.post("/channel/redrive", topic=forged, channel="c", id="0" * 15 + "1")
    assert message(other) == (404, "MESSAGE_NOT_FOUND")
    assert depth(daemon, forged) == 1 and depth(daemon, "payments") == 0
    assert root.post("/channel/redrive", topic=forged, channel="c").json() == {"redriven": 1}
    eventually(lambda: depth(daemon, "payments") == 1)
    assert depth(daemon, forged) == 0


def test_a_dead_letter_topic_needs_permission_for_it(daemon: Nsqd, forged: str) -> None:
    def choose(topic: str) -> Answer:
        body = json.dumps({"dead_letter_topic": topic}).encode()
        return web(daemon, "mine").put("/channel/config", body, topic=forged, channel="c")

    assert message(choose("payments")) == (403, "FORBIDDEN")
    assert [choose(topic).status for topic in ("mine-other", "own-other", "")] == [200] * 3


def test_a_right_on_one_channel_does_not_open_the_log(daemon: Nsqd) -> None:
    root, reader, follower = (web(daemon, name) for name in ("root", "reader", "follower"))
    root.create("a.x", "c")
    for path in ("/topic/log", "/topic/peek"):
        for query in ({}, {"channel": "c"}, {"state": "log", "channel": "c1"}):
            assert message(reader.get(path, topic="a.x", **query)) == (403, "FORBIDDEN")
            assert follower.get(path, topic="a.x", **query).status == 200
