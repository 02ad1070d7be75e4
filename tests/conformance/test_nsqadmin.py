"""nsqadmin with a cluster of two nsqds and an nsqlookupd: queries and actions."""

import base64
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nsqcy.testing.certificates import make
from nsqcy.testing.http_requests import eventually
from support.fake_http_daemon import Upstream
from support.fake_http_destination import Destination
from support.nsqadmin_process import Admin, done, refused, warned
from support.nsqd_process import Nsqd
from support.nsqlookupd_process import Lookupd
from support.strict_html import read

PAGES = ["/", "/topics", "/nodes", "/counter", "/lookup"]
PAGES_OF_NOTHING = ["/topics/x", "/topics/x/y", "/nodes/z"]


@dataclass
class Cluster:
    lookupd: Lookupd
    nsqds: list[Nsqd]

    @property
    def names(self) -> list[str]:
        """The addresses of the nsqds, as nsqadmin shows them."""
        return [f"127.0.0.1:{each.http_port}" for each in self.nsqds]

    def publish(self, topic: str, channel: str, *, on: int = 2) -> None:
        """Create a topic with a channel and a message on the first `on` nsqds. Wait until the
        nsqlookupd lists the topic."""
        for nsqd in self.nsqds[:on]:
            nsqd.web.create(topic, channel)
            nsqd.web.pub(topic, b"x")
        # A later registration would recreate a topic or channel that a test has deleted.
        key = f"channel:{topic}:{channel}"
        eventually(lambda: len(self.lookupd.web.get("/debug").json().get(key, [])) == on)
        # Until its first message is in the channel, nsqd may still create channels that the
        # nsqlookupd lists, including one that a test has created on another nsqd.
        eventually(lambda: all(_depth(each, topic, channel) for each in self.nsqds[:on]))


def _depth(nsqd: Nsqd, topic: str, channel: str) -> int:
    found = nsqd.web.channel(topic, channel)
    return 0 if found is None else int(found["depth"])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Lookupd() as lookupd:
        nsqds = [
            Nsqd(
                tmp_path_factory.mktemp("nsqd"),
                workers=1,
                lookupd_tcp_address=lookupd.tcp_address,
                broadcast_address="127.0.0.1",
            )
            for _ in range(2)
        ]
        for each in nsqds:
            each.launch()
        for each in nsqds:
            each.await_ready()
        eventually(lambda: len(lookupd.nodes()) == 2)
        yield Cluster(lookupd, nsqds)
        for each in nsqds:
            each.destroy()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Destination]:
    """Destination of notifications."""
    endpoint = Destination()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="module")
def graphite() -> Iterator[Upstream]:
    with Upstream() as graphite:
        yield graphite


@pytest.fixture(scope="module")
def running(cluster: Cluster, graphite: Upstream) -> Iterator[Admin]:
    """nsqadmin whose notifications cannot be sent; the failures must appear only in its log."""
    with Admin(
        lookupd_http_address=cluster.lookupd.http_address,
        graphite_url=f"http://{graphite.address}/",
        notification_http_endpoint="http://127.0.0.1:1/",
    ) as admin:
        yield admin


@pytest.fixture
def admin(running: Admin, cluster: Cluster) -> Admin:
    running.point_at(cluster.lookupd.http_address)
    return running


@pytest.fixture(scope="module")
def direct(cluster: Cluster) -> Iterator[Admin]:
    """nsqadmin without an nsqlookupd."""
    with Admin(nsqd_http_address=cluster.names) as admin:
        yield admin


@pytest.fixture(scope="module")
def strict(cluster: Cluster, endpoint: Destination) -> Iterator[Admin]:
    """nsqadmin that permits a single user, and sends notifications of that user's actions."""
    with Admin(
        lookupd_http_address=cluster.lookupd.http_address,
        admin_user="matt",
        notification_http_endpoint=endpoint.url(),
    ) as admin:
        yield admin


@pytest.fixture(scope="module")
def below(cluster: Cluster, graphite: Upstream, tmp_path_factory: Any) -> Iterator[Admin]:
    """nsqadmin configured to run behind a proxy."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "mine.css").write_text("p {}")
    with Admin(
        lookupd_http_address=cluster.lookupd.http_address,
        base_path="nsq/",
        proxy_graphite=True,
        graphite_url=f"http://me:secret@{graphite.address}/ignored",
        allow_config_from_cidr="10.0.0.0/8",
        dev_static_dir=folder,
    ) as admin:
        yield admin


# -- the server


@pytest.mark.case("ADM-008")
def test_ping(admin: Admin) -> None:
    answer = admin.web.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert "x-nsq-content-type" not in answer.headers


@pytest.mark.parametrize(
    "method, path, status",
    [
        ("POST", "/api/topics", 413),
        ("PUT", "/config/log_level", 413),
        ("DELETE", "/api/topics/nobody-has-this", 404),
        ("GET", "/api/topics", 200),
    ],
)
def test_a_huge_body_is_not_awaited(method: str, path: str, status: int, admin: Admin) -> None:
    answer = admin.web.announce(method, path, 10**12)
    assert (answer.status, answer.headers["connection"]) == (status, "close")


@pytest.mark.case("ADM-009")
@pytest.mark.parametrize(
    ("path", "status"),
    [*((path, 200) for path in PAGES), *((path, 404) for path in PAGES_OF_NOTHING)],
)
def test_pages(path: str, status: int, admin: Admin) -> None:
    answer = admin.web.get(path)
    assert answer.status == status
    assert answer.headers["content-type"].startswith("text/html")
    assert b"nsqadmin</title>" in answer.body


@pytest.mark.case("ADM-010")
def test_what_there_is_not(admin: Admin) -> None:
    refused(admin.web.get("/nope"), 404, "NOT_FOUND")
    answer = admin.web.post("/ping")
    refused(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, OPTIONS"
    answer = admin.web.request("HEAD", "/")
    assert (answer.status, answer.headers["allow"]) == (405, "GET, OPTIONS")
    answer = admin.web.get("/static/none")
    assert (answer.status, answer.body) == (404, b"NOT_FOUND")


@pytest.mark.case("ADM-011", "ADM-012")
@pytest.mark.parametrize(
    ("method", "path", "status", "place"),
    [
        ("GET", "/topics/", 301, "/topics"),
        ("POST", "/api/topics/", 307, "/api/topics"),
        ("GET", "/API/Topics/T/C", 301, "/api/topics/T/C"),
        ("GET", "//api/../nodes?x=1", 301, "/nodes?x=1"),
    ],
)
def test_redirects(method: str, path: str, status: int, place: str, admin: Admin) -> None:
    answer = admin.web.request(method, path)
    assert (answer.status, answer.headers["location"]) == (status, place)


@pytest.mark.case("ADM-013")
def test_options(admin: Admin) -> None:
    answer = admin.web.request("OPTIONS", "/api/topics")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["allow"] == "GET, OPTIONS, POST"
    answer = admin.web.request("OPTIONS", "/api/topics/t/c")
    assert answer.headers["allow"] == "DELETE, GET, OPTIONS, POST"


@pytest.mark.case("ADM-014")
def test_compression(admin: Admin) -> None:
    plain = admin.web.get("/api/nodes")
    assert "content-encoding" not in plain.headers
    answer = admin.web.get("/api/nodes", headers={"Accept-Encoding": "br, gzip, deflate"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["vary"] == "Accept-Encoding"
    assert gzip.decompress(answer.body) == plain.body
    answer = admin.web.get("/api/nodes", headers={"Accept-Encoding": "deflate, gzip"})
    assert answer.headers["content-encoding"] == "deflate"
    assert zlib.decompress(answer.body, -zlib.MAX_WBITS) == plain.body
    answer = admin.web.get("/api/nodes", headers={"Accept-Encoding": "gzip;q=1"})
    assert "content-encoding" not in answer.headers


@pytest.mark.case("ADM-054")
def test_base_path(below: Admin) -> None:
    assert below.web.get("/nsq").status == 200
    answer = below.web.get("/nsq/")
    assert (answer.status, answer.headers["location"]) == (301, "/nsq")
    refused(below.web.get("/"), 404, "NOT_FOUND")
    assert below.get("/nsq/api/topics")["message"] == ""
    answer = below.web.get("/nsq/static/mine.css")
    assert (answer.status, answer.body) == (200, b"p {}")
    assert answer.headers["content-type"] == "text/css; charset=utf-8"
    assert below.web.get("/nsq/fonts/mine.css").status == 200
    assert below.web.get("/nsq/static/..").status == 404


def test_static_files(admin: Admin) -> None:
    answer = admin.web.get("/static/nsqadmin.css")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")


@pytest.mark.ours
def test_browsers_keep_static_files(admin: Admin, below: Admin) -> None:
    """The paths of scripts let them import each other, and change when the files change."""
    page = read(admin.web.get("/").body)
    sheet, _ = [each.attributes["href"] for each in page.all("link", rel="stylesheet")]
    folder, _, name = sheet.rpartition("/")
    kept = admin.web.get(sheet)
    assert (kept.status, kept.body) == (200, admin.web.get(f"/static/{name}").body)
    assert kept.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert "cache-control" in admin.web.get(f"{folder}/live.js").headers
    old = admin.web.get(f"/static/0/{name}")
    assert (old.status, old.body) == (200, kept.body) and "cache-control" not in old.headers
    assert admin.web.get(f"{folder}/none").status == 404
    # Files supplied by the user may change at any time.
    assert b'href="/nsq/static/nsqadmin.css"' in below.web.get("/nsq").body


# -- reading


@pytest.mark.case("ADM-016")
def test_topics(admin: Admin, cluster: Cluster, topic: str) -> None:
    for name in (f"{topic}b", f"{topic}a"):
        cluster.publish(name, "c", on=1)
    found = admin.get("/api/topics")
    assert found["topics"] == sorted(found["topics"])
    assert {f"{topic}a", f"{topic}b"} <= {*found["topics"]}


@pytest.mark.case("ADM-017")
def test_a_lookupd_that_is_down(admin: Admin, cluster: Cluster, nobody: str) -> None:
    admin.point_at(nobody, cluster.lookupd.http_address)
    for path in ("/api/topics", "/api/nodes"):
        assert admin.get(path)["message"] == f"WARNING: nsqlookupd {nobody}: Connection refused"
    eventually(lambda: "WARNING: " in admin.log_text())


@pytest.mark.case("ADM-019", "ADM-020", "ADM-034")
def test_a_topic_on_two_nodes(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c1")
    found = admin.get(f"/api/topics/{topic}")
    assert (found["node"], found["topic_name"]) == ("*", topic)
    assert (found["message_count"], len(found["nodes"]), found["message"]) == (2, 2, "")
    (channel,) = found["channels"]
    assert (channel["channel_name"], channel["depth"]) == ("c1", 2)
    found = admin.get(f"/api/topics/{topic}/c1")
    assert (found["node"], found["depth"], found["message"]) == ("*", 2, "")
    assert {row["node"] for row in found["nodes"]} == {*cluster.names}
    stats = admin.get("/api/counter")["stats"]
    for name in cluster.names:
        assert stats[f"{topic}:c1:{name}"] == {
            "node": name,
            "topic_name": topic,
            "channel_name": "c1",
            "message_count": 1,
        }


@pytest.mark.case("ADM-021")
def test_paused_on_one_node(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    cluster.nsqds[0].web.do("pause", topic)
    found = admin.get(f"/api/topics/{topic}")
    assert found["paused"] is True
    assert sorted(row["paused"] for row in found["nodes"]) == [False, True]


@pytest.mark.case("ADM-022")
def test_an_unknown_topic(admin: Admin, direct: Admin) -> None:
    for each in (admin, direct):
        for path in (
            "/api/topics/nope",
            "/api/topics/nope/c",
            "/api/policy/nope",
            "/api/peek/nope",
        ):
            refused(each.web.get(path), 404, "TOPIC_NOT_FOUND")
        refused(each.delete("/api/topics/nope/c"), 404, "TOPIC_NOT_FOUND")
        for action in ("pause", "unpause", "empty"):
            refused(each.post("/api/topics/nope", action=action), 404, "TOPIC_NOT_FOUND")
            refused(each.post("/api/topics/nope/c", action=action), 404, "TOPIC_NOT_FOUND")
        assert "failed to query any" not in each.log_text()


@pytest.mark.case("ADM-041")
def test_an_unknown_channel(admin: Admin, direct: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    for each in (admin, direct):
        for path in ("/api/topics/{}/nope", "/api/peek/{}/nope", "/api/seek/{}/nope?to=latest"):
            refused(each.web.get(path.format(topic)), 404, "CHANNEL_NOT_FOUND")
        refused(each.delete(f"/api/topics/{topic}/nope"), 404, "CHANNEL_NOT_FOUND")
        for action in ("pause", "unpause", "empty", "redrive"):
            refused(each.post(f"/api/topics/{topic}/nope", action=action), 404, "CHANNEL_NOT_FOUND")


@pytest.mark.case("ADM-032", "ADM-033")
def test_a_node(admin: Admin, direct: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c", on=1)
    conn = cluster.nsqds[0].connect()
    conn.identify(client_id="me", hostname="h")
    conn.sub(topic, "c")
    name = cluster.names[0]
    for each in (admin, direct):
        found = each.get(f"/api/nodes/{name}")
        assert found["node"] == name
        rows = {row["topic_name"]: row for row in found["topics"]}
        assert found["total_messages"] == sum(row["message_count"] for row in rows.values())
        assert found["total_clients"] == 1
        (channel,) = rows[topic]["channels"]
        (client,) = channel["clients"]
        assert (channel["node"], client["client_id"], client["node"]) == (name, "me", name)
        refused(each.web.get("/api/nodes/x:1"), 404, "NODE_NOT_FOUND")
    cluster.nsqds[0].hang_up()


@pytest.mark.case("ADM-063")
def test_nodes_without_lookupds(direct: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c", on=1)
    nodes = direct.get("/api/nodes")["nodes"]
    assert {f"{node['broadcast_address']}:{node['http_port']}" for node in nodes} == {
        *cluster.names
    }
    assert all(node["remote_addresses"] is None and not node["out_of_date"] for node in nodes)
    having = [node for node in nodes if {"topic": topic, "tombstoned": False} in node["topics"]]
    assert len(having) == 1
    assert topic in direct.get("/api/topics")["topics"]
    assert direct.get("/api/topics", inactive="true") == {"topics": {}, "message": ""}
    assert f"{topic}:c:{cluster.names[0]}" in direct.get("/api/counter")["stats"]


@pytest.mark.case("ADM-067")
def test_an_ephemeral_topic(admin: Admin, cluster: Cluster, topic: str) -> None:
    name = f"{topic}#ephemeral"
    cluster.publish(name, "c", on=1)
    assert admin.get(f"/api/topics/{topic}%23ephemeral")["topic_name"] == name


@pytest.mark.case("ADM-066")
def test_nsqds_that_demand_tls(tmp_path: Path) -> None:
    authority = make("authority", authority=True)
    server, client = (make(name, by=authority).save(tmp_path) for name in ("server", "client"))
    trusted = authority.save(tmp_path).certificate
    nsqd = Nsqd(
        tmp_path,
        workers=1,
        broadcast_address="127.0.0.1",
        tls_required="true",
        tls_client_auth_policy="require-verify",
        tls_root_ca_file=trusted,
        **server.options,
    )
    try:
        nsqd.start()
        name = f"127.0.0.1:{nsqd.http_port}"
        with Admin(
            nsqd_http_address=name,
            http_client_tls_cert=client.certificate,
            http_client_tls_key=client.key,
            http_client_tls_root_ca_file=trusted,
        ) as admin:
            assert admin.get(f"/api/nodes/{name}")["message"] == ""
    finally:
        nsqd.destroy()


# -- actions


@pytest.mark.case("ADM-035", "ADM-038")
def test_creating(admin: Admin, cluster: Cluster, topic: str) -> None:
    done(admin.post("/api/topics", topic=topic))
    assert cluster.lookupd.lookup(topic) == {"channels": [], "producers": []}
    assert all(each.web.topic(topic) is None for each in cluster.nsqds)
    done(admin.post("/api/topics", topic=f"{topic}x", channel="ch", other=1))
    inactive = admin.get("/api/topics", inactive="true")["topics"]
    assert inactive[topic] is None
    assert inactive[f"{topic}x"] == ["ch"]


@pytest.mark.case("ADM-036")
def test_creating_a_channel(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    done(admin.post("/api/topics", topic=topic, channel="new"))
    assert "new" in cluster.lookupd.channels(topic)
    assert all(each.web.channel(topic, "new") for each in cluster.nsqds)


@pytest.mark.case("ADM-037")
@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"topic":"a b"}', "INVALID_TOPIC"),
        (b'{"channel":"c"}', "INVALID_TOPIC"),
        (b'{"topic":"t","channel":"a b"}', "INVALID_CHANNEL"),
        (b"x", "the body cannot be read: not JSON"),
        (b'{"topic":1}', "the body cannot be read: not a string"),
        (b"", "EOF"),
    ],
)
def test_invalid_topic_creations_are_rejected(body: bytes, text: str, admin: Admin) -> None:
    refused(admin.web.post("/api/topics", body), 400, text)


@pytest.mark.case("ADM-039")
@pytest.mark.parametrize("place", ["lookupd", "nsqds"])
def test_actions(place: str, admin: Admin, direct: Admin, cluster: Cluster, topic: str) -> None:
    asked = admin if place == "lookupd" else direct
    cluster.publish(topic, "c")

    def paused(channel: str | None) -> list[bool]:
        return [bool(each.web.counts(topic, channel)["paused"]) for each in cluster.nsqds]

    for path, channel in ((f"/api/topics/{topic}", None), (f"/api/topics/{topic}/c", "c")):
        done(asked.post(path, action="pause"))
        assert paused(channel) == [True, True]
        done(asked.post(path, action="unpause"))
        assert paused(channel) == [False, False]
    done(asked.post(f"/api/topics/{topic}/c", action="empty"))
    done(asked.post(f"/api/topics/{topic}", action="empty"))
    assert [each.web.counts(topic, "c")["depth"] for each in cluster.nsqds] == [0, 0]


@pytest.mark.case("ADM-040")
def test_an_unknown_action(admin: Admin) -> None:
    refused(admin.post("/api/topics/t1", action="zzz"), 400, "INVALID_ACTION")
    refused(admin.web.post("/api/topics/t1/c", b""), 400, "EOF")


@pytest.mark.case("ADM-043")
def test_deleting(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    done(admin.delete(f"/api/topics/{topic}"))
    assert cluster.lookupd.lookup(topic) is None
    assert all(each.web.topic(topic) is None for each in cluster.nsqds)


@pytest.mark.case("ADM-044")
def test_deleting_a_channel_of_one_node(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    cluster.nsqds[0].web.create(topic, "c2")
    eventually(lambda: "c2" in cluster.lookupd.channels(topic))
    message = warned(admin.delete(f"/api/topics/{topic}/c2"))
    assert message.startswith(f"WARNING: {cluster.names[1]}: got response 404 Not Found")
    assert cluster.nsqds[0].web.channel(topic, "c2") is None


@pytest.mark.case("ADM-045")
def test_tombstones(admin: Admin, cluster: Cluster, topic: str) -> None:
    cluster.publish(topic, "c")
    done(admin.delete(f"/api/nodes/{cluster.names[1]}", topic=topic))
    assert [each.web.topic(topic) is None for each in cluster.nsqds] == [False, True]
    found = cluster.lookupd.lookup(topic)
    assert found is not None
    assert [each["http_port"] for each in found["producers"]] == [cluster.nsqds[0].http_port]


@pytest.mark.case("ADM-046")
@pytest.mark.parametrize(
    ("body", "text"),
    [(b"x", "INVALID_BODY"), (b"", "INVALID_BODY"), (b'{"topic":""}', "INVALID_TOPIC")],
)
def test_tombstones_of_nothing(body: bytes, text: str, admin: Admin, cluster: Cluster) -> None:
    refused(admin.web.delete(f"/api/nodes/{cluster.names[1]}", body), 400, text)


@pytest.mark.case("ADM-064")
def test_creating_without_lookupds(direct: Admin, cluster: Cluster, topic: str) -> None:
    message = warned(direct.post("/api/topics", topic=topic))
    assert message == "WARNING: cannot create topics without an nsqlookupd"
    assert all(each.web.topic(topic) is None for each in cluster.nsqds)
    answer = direct.post("/api/topics", topic=topic, channel="c")
    text = "UPSTREAM_ERROR: failed to query any nsqlookupd: no nsqlookupd is configured"
    refused(answer, 502, text)


@pytest.mark.case("ADM-065")
def test_deleting_nothing_without_lookupds(direct: Admin) -> None:
    refused(direct.delete("/api/topics/nope"), 404, "TOPIC_NOT_FOUND")
    refused(direct.post("/api/topics/nope", action="pause"), 404, "TOPIC_NOT_FOUND")


# -- permissions


@pytest.mark.case("ADM-047", "ADM-049")
def test_users(strict: Admin, topic: str) -> None:
    body = json.dumps({"topic": topic}).encode()

    def create(body: bytes, **headers: str) -> Any:
        return strict.web.post("/api/topics", body, headers=headers)

    refused(create(body), 403, "FORBIDDEN")
    refused(create(body, **{"X-Forwarded-User": "Matt"}), 403, "FORBIDDEN")
    refused(create(b"garbage"), 403, "FORBIDDEN")
    done(create(body, **{"x-forwarded-user": "matt"}))
    assert strict.get("/api/topics")["message"] == ""


@pytest.mark.case("ADM-048")
@pytest.mark.parametrize("path", ["/", "/lookup"])
def test_pages_of_users(path: str, strict: Admin) -> None:
    assert b'data-admin="false"' in strict.web.get(path).body
    page = strict.web.get(path, headers={"X-Forwarded-User": "matt"}).body
    assert b'data-admin="true"' in page


@pytest.mark.ours
@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Content-Type": "text/plain"},
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
    ],
)
def test_pages_of_other_sites_may_not(
    headers: dict[str, str], admin: Admin, cluster: Cluster, topic: str
) -> None:
    body = json.dumps({"topic": topic}).encode()
    refused(admin.web.post("/api/topics", body, headers=headers), 403, "FORBIDDEN")
    assert cluster.lookupd.lookup(topic) is None


@pytest.mark.ours
def test_our_own_pages_may(admin: Admin, topic: str) -> None:
    body = json.dumps({"topic": topic}).encode()
    for headers in (
        {"Sec-Fetch-Site": "same-origin", "Origin": "https://proxy.example"},
        {"Origin": f"http://127.0.0.1:{admin.http_port}"},
        {"Origin": "http://elsewhere.example", "Content-Type": "application/json; charset=utf-8"},
    ):
        done(admin.web.post("/api/topics", body, headers=headers))


@pytest.mark.case("ADM-050", "ADM-051")
def test_notifications(strict: Admin, endpoint: Destination, topic: str) -> None:
    secret = base64.b64encode(b"bob:secret").decode()
    headers = {
        "X-Forwarded-User": "matt",
        "Authorization": f"Basic {secret}",
        "X-Scheme": "https",
        "User-Agent": "me",
    }
    body = json.dumps({"topic": topic, "channel": "c"}).encode()
    done(strict.web.post("/api/topics", body, headers=headers, q="1"))

    def told() -> list[dict[str, Any]]:
        every = [json.loads(got.body) for got in list(endpoint.requests)]
        return [each for each in every if each["topic"] == topic]

    eventually(lambda: len(told()) == 2)
    first, second = told()
    assert (first.pop("timestamp"), second.pop("timestamp")) > (1, 1)
    assert first.pop("via") == second.pop("via") != ""
    assert first.pop("remote_ip").startswith("127.0.0.1:")
    common = {
        "topic": topic,
        "user": "bob",
        "user_agent": "me",
        "url": f"https://127.0.0.1:{strict.http_port}/api/topics?q=1",
    }
    assert first == {"action": "create_topic", **common}
    del second["remote_ip"]
    assert second == {"action": "create_channel", "channel": "c", **common}
    assert endpoint.requests[-1].headers["content-type"] == "application/json"


@pytest.mark.case("ADM-052")
def test_notifications_that_cannot_be_sent(admin: Admin, topic: str) -> None:
    done(admin.post("/api/topics", topic=topic))
    eventually(lambda: "failed to send notification - Connection refused" in admin.log_text())
    assert admin.get("/api/topics")["message"] == ""


@pytest.mark.case("ADM-053")
def test_a_notification_of_nothing(strict: Admin, endpoint: Destination, topic: str) -> None:
    body = b'{"action":"pause"}'
    headers = {"X-Forwarded-User": "matt"}
    answer = strict.web.post(f"/api/topics/{topic}", body, headers=headers)
    refused(answer, 404, "TOPIC_NOT_FOUND")

    def told() -> list[str]:
        every = [json.loads(got.body) for got in list(endpoint.requests)]
        return [each["action"] for each in every if each["topic"] == topic]

    assert eventually(told) == ["pause_topic"]


# -- Graphite


@pytest.mark.case("ADM-055")
def test_the_proxy(below: Admin, graphite: Upstream) -> None:
    graphite.pages["/nsq/render"] = ["a picture"]
    answer = below.web.get("/nsq/render", target="x", width=1)
    assert (answer.status, answer.json()) == (200, ["a picture"])
    assert graphite.asked[-1] == "GET /nsq/render?target=x&width=1"
    assert graphite.headers["host"] == f"127.0.0.1:{below.http_port}"
    assert graphite.headers["x-forwarded-for"] == "127.0.0.1"
    assert base64.b64decode(graphite.headers["authorization"].split()[1]) == b"me:secret"
    given = {"X-Forwarded-For": "1.2.3.4", "Authorization": "mine", "accept": "image/png"}
    below.web.get("/nsq/render", headers=given)
    assert graphite.headers["x-forwarded-for"] == "1.2.3.4, 127.0.0.1"
    assert (graphite.headers["authorization"], graphite.headers["accept"]) == ("mine", "image/png")
    graphite.pages["/nsq/render"] = 418
    assert below.web.get("/nsq/render").status == 418


@pytest.mark.case("ADM-056")
def test_no_proxy(admin: Admin) -> None:
    refused(admin.web.get("/render"), 404, "NOT_FOUND")


@pytest.mark.case("ADM-057")
def test_rates(admin: Admin, graphite: Upstream) -> None:
    def rate(value: float | None) -> Any:
        graphite.pages["/render"] = [{"target": "t", "datapoints": [[value, 0]]}]
        return admin.web.get("/api/graphite", metric="rate", target="t")

    assert rate(120).body == b'{"rate":"2.00"}'
    asked = "GET /render?format=json&from=-120sec&target=t&until=-60sec"
    assert graphite.asked[-1] == asked
    assert rate(-1).json() == {"rate": "N/A"}
    refused(rate(None), 500, "INTERNAL_ERROR")
    graphite.pages["/render"] = []
    refused(admin.web.get("/api/graphite", metric="rate", target="t"), 500, "INTERNAL_ERROR")


@pytest.mark.case("ADM-058")
def test_rates_of_nothing(admin: Admin) -> None:
    refused(admin.web.get("/api/graphite"), 400, "INVALID_ARG_METRIC")
    refused(admin.web.get("/api/graphite", metric="rate"), 400, "INVALID_ARG_TARGET")


# -- options


@pytest.mark.case("ADM-059")
def test_the_log_level(admin: Admin) -> None:
    assert admin.web.get("/config/log_level").body == b"2"
    answer = admin.web.put("/config/log_level", b"debug")
    assert (answer.status, answer.body) == (200, b"1")
    refused(admin.web.put("/config/log_level", b"warning"), 400, "INVALID_VALUE")
    refused(admin.web.put("/config/log_level", b""), 413, "INVALID_VALUE")
    refused(admin.web.put("/config/log_level", b"x" * (1 << 20 | 1)), 413, "INVALID_VALUE")
    assert admin.web.put("/config/log_level", b"info").body == b"2"


@pytest.mark.case("ADM-060")
def test_lookupds_that_are_none(admin: Admin) -> None:
    for body in (b'"h:1"', b"[1]", b"x", b"{}", b'["h:1","h"]', b'["a b:1"]'):
        path = "/config/nsqlookupd_http_addresses"
        refused(admin.web.put(path, body), 400, "INVALID_VALUE")


@pytest.mark.case("ADM-061")
def test_options_as_they_are(admin: Admin, cluster: Cluster) -> None:
    answer = admin.web.get("/config/http_address")
    assert answer.body.decode() == admin.options["http_address"]
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert admin.web.get("/config/statsd_interval").body == b"60000000000"
    assert admin.web.get("/config/proxy_graphite").body == b"false"
    assert admin.web.get("/config/admin_users").json() == []
    for key in ("nope", "config", "admin_user"):
        refused(admin.web.get(f"/config/{key}"), 400, "INVALID_OPTION")
    refused(admin.web.put("/config/http_address", b"x"), 400, "INVALID_OPTION")


@pytest.mark.case("ADM-062")
def test_options_are_not_for_everybody(below: Admin) -> None:
    refused(below.web.get("/nsq/config/log_level"), 403, "FORBIDDEN")
    refused(below.web.put("/nsq/config/log_level", b"debug"), 403, "FORBIDDEN")
