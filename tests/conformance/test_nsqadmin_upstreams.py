"""How nsqadmin treats answers of scripted daemons that no real cluster would give."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from support.fake_http_daemon import NEVER, Upstream
from support.nsqadmin_process import Admin, refused, warned

NOTHING: dict[str, Any] = {"count": 0, "percentiles": None}
ACCEPT = "application/vnd.nsq; version=1.0"


@pytest.fixture(scope="module")
def running(nobody_ever: str) -> Iterator[Admin]:
    with Admin(lookupd_http_address=nobody_ever) as admin:
        yield admin


@pytest.fixture(scope="module")
def nobody_ever() -> str:
    """Address without a listener: the port is never assigned."""
    return "127.0.0.1:1"


class Cluster:
    """Scripted daemons: an nsqlookupd, and nsqds that it lists."""

    def __init__(self, admin: Admin) -> None:
        self.admin = admin
        self.lookupd = Upstream(lookup={"producers": []}, nodes={"producers": []})
        self.nsqds: list[Upstream] = []
        admin.point_at(self.lookupd.address)

    def add(
        self, hostname: str, *topics: dict[str, Any], tombstones: Any = None, **fields: Any
    ) -> Upstream:
        """Add an nsqd with these topics."""
        nsqd = Upstream(stats={"version": "1.3.0", "topics": topics})
        self.nsqds.append(nsqd)
        producer = nsqd.producer(hostname, **fields)
        names = [each["topic_name"] for each in topics]
        self.lookupd.pages["/lookup"]["producers"].append(producer)
        marks = [False] * len(names) if tombstones is None else tombstones
        node = producer | {"topics": names, "tombstones": marks}
        self.lookupd.pages["/nodes"]["producers"].append(node)
        return nsqd

    def close(self) -> None:
        for each in (self.lookupd, *self.nsqds):
            each.close()


@pytest.fixture
def cluster(running: Admin) -> Iterator[Cluster]:
    cluster = Cluster(running)
    yield cluster
    cluster.close()


def topic(name: str = "t", *channels: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "topic_name": name,
        "channels": channels,
        "depth": 0,
        "backend_depth": 0,
        "message_count": 0,
        "paused": False,
        "e2e_processing_latency": NOTHING,
    } | fields


def channel(name: str = "c", **fields: Any) -> dict[str, Any]:
    counts = ("depth", "backend_depth", "in_flight_count", "deferred_count", "message_count")
    counts += ("requeue_count", "timeout_count", "client_count")
    others = {"paused": False, "clients": None, "e2e_processing_latency": NOTHING}
    return {"channel_name": name, **dict.fromkeys(counts, 0), **others} | fields


def times(count: int, value: float, quantile: float = 1.0) -> dict[str, Any]:
    return {"count": count, "percentiles": [{"quantile": quantile, "value": value}]}


@pytest.mark.case("ADM-019", "ADM-027")
def test_sums(cluster: Cluster) -> None:
    """Rows are sorted by hostname, and keep their own figures."""
    mine = channel(depth=3, client_count=2, in_flight_count=1, global_msg_count=4)
    cluster.add("b", topic("t", mine, depth=10, backend_depth=4, message_count=7))
    cluster.add("a", topic("t", channel(depth=1), channel("late"), depth=1, message_count=2))
    found = cluster.admin.get("/api/topics/t")
    assert (found["node"], found["hostname"], found["message"]) == ("*", "", "")
    assert (found["depth"], found["memory_depth"], found["backend_depth"]) == (11, 7, 4)
    assert (found["message_count"], found["delivery_msg_count"]) == (9, 0)
    rows = found["nodes"]
    assert [(row["hostname"], row["depth"], row["memory_depth"]) for row in rows] == [
        ("a", 1, 1),
        ("b", 10, 6),
    ]
    assert [row["node"] for row in rows] == [each.address for each in reversed(cluster.nsqds)]
    assert [row["nodes"] for row in rows] == [None, None]
    assert [each["channel_name"] for each in found["channels"]] == ["c", "late"]
    both, late = found["channels"]
    assert (both["node"], both["depth"], both["client_count"]) == ("*", 4, 2)
    assert (both["delivery_msg_count"], both["global_msg_count"]) == (4, 4)
    assert "zone_local_msg_count" not in both and "delivery_msg_count" not in late
    assert [each["depth"] for each in both["nodes"]] == [1, 3]
    assert rows[0]["channels"][0]["depth"] == 1
    assert late["clients"] is None


def test_each_is_queried_once(cluster: Cluster) -> None:
    for name in "ab":
        cluster.add(name, topic())
    cluster.admin.get("/api/topics/t")
    assert cluster.lookupd.asked == ["GET /lookup?topic=t"]
    stats = "GET /stats?format=json&topic=t&include_clients=false"
    assert [each.asked for each in cluster.nsqds] == [[stats], [stats]]
    assert cluster.lookupd.headers["accept"] == cluster.nsqds[0].headers["accept"] == ACCEPT


@pytest.mark.case("ADM-023")
def test_nobody_has_the_topic(cluster: Cluster) -> None:
    """The answer is the same whether no nsqd is registered for the topic or the registered ones do
    not list it."""
    for _ in range(2):
        refused(cluster.admin.web.get("/api/topics/newt"), 404, "TOPIC_NOT_FOUND")
        refused(cluster.admin.web.get("/api/topics/newt/c"), 404, "TOPIC_NOT_FOUND")
        cluster.add("a", topic())


@pytest.mark.case("ADM-024")
def test_latencies_of_several(cluster: Cluster) -> None:
    slow, fast = times(10, 400.0), times(30, 200.0)
    cluster.add("a", topic("e", channel(e2e_processing_latency=fast), e2e_processing_latency=fast))
    cluster.add("b", topic("e", channel(e2e_processing_latency=slow), e2e_processing_latency=slow))
    found = cluster.admin.get("/api/topics/e")
    sums = {"quantile": 1, "min": 200, "max": 400, "average": 250, "count": 40}
    latency = found["e2e_processing_latency"]
    assert latency == {
        "count": 40,
        "percentiles": [sums],
        "topic": "e",
        "channel": "",
        "host": "*",
    }
    assert found["channels"][0]["e2e_processing_latency"] == latency | {"channel": "c"}
    (first,) = found["nodes"][0]["e2e_processing_latency"]["percentiles"]
    assert first == {
        "quantile": 1,
        "value": 200,
        "min": 200,
        "max": 200,
        "average": 200,
        "count": 30,
    }


def test_latencies_that_are_not_there(cluster: Cluster) -> None:
    """An nsqd without latencies sends null."""
    none = {"e2e_processing_latency": None}
    cluster.add("a", topic("t", channel(**none), **none))
    found = cluster.admin.get("/api/topics/t")
    assert found["nodes"][0]["e2e_processing_latency"] is None
    assert found["e2e_processing_latency"]["percentiles"] is None


@pytest.mark.case("ADM-025", "ADM-026")
def test_clients(cluster: Cluster) -> None:
    began = int(time.time()) - 90
    client = {"hostname": "far", "connect_ts": began, "connected": 5, "client_id": "i"}
    clients = [
        client,
        client | {"hostname": "near", "topology_zone": "z", "topology_region": "r"},
        client | {"hostname": "region", "topology_zone": "y", "topology_region": "r"},
    ]
    mine = topic("t", channel(clients=clients, client_count=3))
    cluster.add("a", mine, topology_zone="z", topology_region="r")
    found = cluster.admin.get("/api/topics/t/c")
    near, region, far = found["clients"]
    assert [near["hostname"], region["hostname"], far["hostname"]] == ["near", "region", "far"]
    assert (near["node_topology_zone"], near["node_topology_region"]) == ("z", "r")
    assert near["topology_zone"] == "z" and "topology_zone" not in far
    assert near["node"] == cluster.nsqds[0].address
    assert 90 <= near["connected"] / 1e9 <= 100
    assert (far["tls"], far["auth_identity"], far["version"]) == (False, "", "")
    assert cluster.nsqds[0].asked == ["GET /stats?format=json&topic=t&channel=c"]


@pytest.mark.ours
def test_a_channel_that_there_is_not(cluster: Cluster) -> None:
    cluster.add("a", topic())
    refused(cluster.admin.web.get("/api/topics/t/none"), 404, "CHANNEL_NOT_FOUND")
    cluster.nsqds[0].close()
    answer = cluster.admin.web.get("/api/topics/t/none")
    text = (
        f"UPSTREAM_ERROR: failed to query any nsqd: {cluster.nsqds[0].address}: Connection refused"
    )
    refused(answer, 502, text)
    cluster.nsqds.clear()


def silent(*addresses: str) -> str:
    """Return the error for a request that would return a 404 if these nodes had answered."""
    texts = "\n".join(f"{each}: Connection refused" for each in addresses)
    return f"UPSTREAM_ERROR: not found, but some daemons did not answer: {texts}"


@pytest.mark.ours
def test_what_a_silent_node_may_have(cluster: Cluster) -> None:
    """A silent node might have the item, so the answer is not a 404."""
    nsqd = cluster.add("a", topic("t", channel()))
    nsqd.pages |= {"/channel/peek": 404, "/channel/redrive": 404}
    dead = cluster.add("b", topic("t"))
    dead.close()
    cluster.nsqds.remove(dead)
    admin, text = cluster.admin, silent(dead.address)
    for path in (
        "/api/topics/u",
        "/api/topics/u/c",
        "/api/topics/t/none",
        "/topics/u",
        "/seek/t/d",
    ):
        answer = admin.web.get(path)
        assert answer.status == 502
        assert text.replace("\n", " ") in answer.body.decode(), path
    with Admin(nsqd_http_address=[nsqd.address, dead.address]) as direct:
        nsqd.pages["/info"] = nsqd.producer("a")
        nsqd.pages["/topic/pause"] = nsqd.pages["/topic/delete"] = {}
        for path in ("/api/topics/u", f"/api/nodes/{dead.address}"):
            refused(direct.web.get(path), 502, text)
        refused(direct.post("/api/topics/u", action="pause"), 502, text)
        refused(direct.delete("/api/topics/u"), 502, text)
        assert not [each for each in nsqd.asked if each.startswith("POST")]


@pytest.mark.ours
def test_what_a_silent_nsqlookupd_may_know(cluster: Cluster, nobody_ever: str) -> None:
    admin, refusal = cluster.admin, f"{nobody_ever}: Connection refused"
    admin.point_at(cluster.lookupd.address, nobody_ever)
    for path in ("/api/topics/u", "/api/topics/u/c", "/api/nodes/x:1"):
        refused(admin.web.get(path), 502, silent(nobody_ever))
    refused(admin.post("/api/topics/u", action="pause"), 502, silent(nobody_ever))
    cluster.lookupd.pages["/lookup"] = 404
    answer = admin.web.get("/api/topics/u")
    assert answer.status == 502
    text = answer.json()["message"]
    known = f"{cluster.lookupd.address}: got response 404"
    assert text.startswith(f"UPSTREAM_ERROR: failed to query any nsqlookupd: {known}")
    assert text.endswith(f"\n{refusal}")
    admin.point_at(cluster.lookupd.address)
    refused(admin.web.get("/api/topics/u"), 404, "TOPIC_NOT_FOUND")


@pytest.mark.ours
def test_nobody_who_has_it_answers(cluster: Cluster) -> None:
    """If no nsqd answers, nsqcy's own requests return an error, not an empty answer."""
    dead = cluster.add("a", topic("t", channel()))
    dead.close()
    cluster.nsqds.clear()
    text = f"UPSTREAM_ERROR: failed to query any nsqd: {dead.address}: Connection refused"
    for path in ("/api/peek/t/c", "/api/policy/t", "/api/seek/t/c?to=latest"):
        refused(cluster.admin.web.get(path), 502, text)
    for action in ("redrive", "seek", "cancel"):
        refused(cluster.admin.post("/api/topics/t/c", action=action), 502, text)
    for path in ("/topics/t", "/topics/t/c", "/peek/t/c", "/policy/t", "/seek/t/c"):
        answer = cluster.admin.web.get(path)
        assert (answer.status, text in answer.body.decode()) == (502, True)


@pytest.mark.case("ADM-028", "ADM-030")
def test_nodes(cluster: Cluster) -> None:
    cluster.add("B", topic("u"), topic("t"), tombstones=[True, False], topology_zone="z")
    (node,) = cluster.lookupd.pages["/nodes"]["producers"]
    first = Upstream(nodes={"producers": [node | {"remote_address": ""}]})
    with first:
        cluster.add("A")
        cluster.admin.point_at(first.address, cluster.lookupd.address)
        found = cluster.admin.get("/api/nodes")
    assert found["message"] == ""
    a, b = found["nodes"]
    assert (a["hostname"], a["topics"], b["hostname"]) == ("A", None, "B")
    lookupd, nsqd = cluster.lookupd.address, cluster.nsqds[0]
    assert b["remote_addresses"] == [
        f"{first.address}/N/A",
        f"{lookupd}/127.0.0.1:{nsqd.port + 1}",
    ]
    assert a["remote_addresses"] == [f"{lookupd}/127.0.0.1:{cluster.nsqds[1].port + 1}"]
    assert (b["remote_address"], b["topology_zone"]) == ("", "z")
    assert "topology_zone" not in a and "topology_region" not in b
    assert b["topics"] == [
        {"topic": "t", "tombstoned": False},
        {"topic": "u", "tombstoned": True},
    ]


@pytest.mark.case("ADM-029")
def test_versions(cluster: Cluster) -> None:
    for version in ("1.3.0", "1.2.0", "1.3.0-alpha", "what"):
        cluster.add(version, version=version)
    nodes = cluster.admin.get("/api/nodes")["nodes"]
    old = {node["version"] for node in nodes if node["out_of_date"]}
    assert old == {"1.2.0", "1.3.0-alpha", "what"}


@pytest.mark.case("ADM-031")
def test_short_tombstones(cluster: Cluster) -> None:
    cluster.add("a", topic("t"), topic("u"), tombstones=[])
    (node,) = cluster.admin.get("/api/nodes")["nodes"]
    assert [each["tombstoned"] for each in node["topics"]] == [False, False]


def test_no_nodes(cluster: Cluster) -> None:
    assert cluster.admin.get("/api/nodes") == {"nodes": None, "message": ""}
    answer = cluster.admin.web.get("/api/counter")
    refused(answer, 502, "UPSTREAM_ERROR: failed to query any nsqd: no nsqd is known")


@pytest.mark.case("ADM-015")
def test_an_empty_cluster(cluster: Cluster) -> None:
    cluster.lookupd.pages["/topics"] = {"topics": []}
    assert cluster.admin.web.get("/api/topics").body == b'{"topics":null,"message":""}'


@pytest.mark.case("ADM-018")
def test_nobody_answers(running: Admin, nobody_ever: str) -> None:
    running.point_at(nobody_ever)
    text = f"UPSTREAM_ERROR: failed to query any nsqlookupd: {nobody_ever}: Connection refused"
    for path in ("/api/topics", "/api/topics/t", "/api/nodes", "/api/topics?inactive=true"):
        refused(running.web.get(path), 502, text)
    for action in ("pause", "unpause", "empty"):
        refused(running.post("/api/topics/t", action=action), 502, text)
    refused(running.delete("/api/topics/t"), 502, text)
    eventually(lambda: "ERROR: failed to query any nsqlookupd: " in running.log_text())


def test_a_node_that_is_down(cluster: Cluster) -> None:
    """The page shows the other nodes, and the error of the failed one."""
    cluster.add("a", topic(message_count=3))
    cluster.add("b").pages["/stats"] = 500
    found = cluster.admin.get("/api/topics/t")
    assert (found["message_count"], len(found["nodes"])) == (3, 1)
    address = cluster.nsqds[1].address
    text = 'got response 500 Internal Server Error "{\\"message\\": \\"SCRIPTED\\"}"'
    assert found["message"] == f"WARNING: nsqd {address}: {text}"
    refused(
        cluster.admin.web.get(f"/api/nodes/{address}"),
        502,
        f"UPSTREAM_ERROR: failed to query any nsqd: {address}: {text}",
    )


@pytest.mark.ours
def test_each_nsqd_is_queried_directly_without_lookupds() -> None:
    """nsqadmin also queries nsqds that announce a different address, or the same one twice."""
    told = {"broadcast_address": "nowhere.invalid", "tcp_port": 1, "http_port": 2, "hostname": "h"}
    with (
        Upstream(info=told, stats={"topics": [topic(depth=2)]}) as one,
        Upstream(info=told, stats={"topics": [topic(depth=3)]}) as two,
        Admin(nsqd_http_address=[one.address, two.address]) as admin,
    ):
        found = admin.get("/api/topics/t")
        assert (found["depth"], len(found["nodes"])) == (5, 2)
        assert {row["node"] for row in found["nodes"]} == {"nowhere.invalid:2"}
        stats = "GET /stats?format=json&topic=t&include_clients=false"
        assert one.asked == two.asked == ["GET /info", stats]
        one.pages["/topic/pause"] = two.pages["/topic/pause"] = {}
        assert admin.post("/api/topics/t", action="pause").json() == {"message": ""}
        assert one.asked[-1] == two.asked[-1] == "POST /topic/pause?topic=t"


def test_a_node_that_hangs(cluster: Cluster) -> None:
    """Requests for that node wait until the request timeout; other requests and the exit do not."""
    cluster.add("a", topic(message_count=3))
    cluster.add("b").pages["/stats"] = NEVER
    options = {"lookupd_http_address": cluster.lookupd.address}
    with Admin(**options, http_client_request_timeout="300ms") as admin:
        found = admin.get("/api/topics/t")
        assert found["message_count"] == 3
        assert found["message"] == f"WARNING: nsqd {cluster.nsqds[1].address}: timed out"
    cluster.nsqds[1].asked.clear()
    with Admin(**options, http_client_request_timeout="1h") as admin:
        waiting = socket.create_connection(("127.0.0.1", admin.http_port))
        with waiting:
            waiting.sendall(b"GET /api/topics/t HTTP/1.1\r\nHost: h\r\n\r\n")
            eventually(lambda: cluster.nsqds[1].asked)
            assert admin.get("/api/nodes")["message"] == ""
            admin.stop()


@pytest.mark.case("ADM-042")
def test_an_action_that_one_refuses(cluster: Cluster) -> None:
    cluster.add("a").pages["/topic/pause"] = 500
    cluster.add("b").pages["/topic/pause"] = {}
    message = warned(cluster.admin.post("/api/topics/t", action="pause"))
    assert f"{cluster.nsqds[0].address}: got response 500 Internal Server Error" in message
    asked = ["POST /topic/pause?topic=t"]
    assert [each.asked for each in cluster.nsqds] == [asked, asked]


@pytest.mark.case("ADM-041")
def test_an_action_on_a_channel_that_nobody_has(cluster: Cluster) -> None:
    cluster.add("a")
    cluster.add("b")
    message = warned(cluster.admin.post("/api/topics/t/zz", action="pause"))
    assert message.count("got response 404 Not Found") == 2
    assert "\n" in message


def test_the_order_of_an_action(cluster: Cluster) -> None:
    nsqd = cluster.add("a")
    for each in (nsqd, cluster.lookupd):
        each.pages["/channel/delete"] = {}
    answer = cluster.admin.delete("/api/topics/t/a%23ephemeral")
    assert answer.json() == {"message": ""}
    query = "topic=t&channel=a%23ephemeral"
    assert cluster.lookupd.asked == ["GET /lookup?topic=t", f"POST /channel/delete?{query}"]
    assert nsqd.asked == [f"POST /channel/delete?{query}"]


@pytest.mark.ours
def test_tombstones_of_dead_and_unknown_nodes(cluster: Cluster) -> None:
    cluster.lookupd.pages["/topic/tombstone"] = {}
    dead = cluster.add("a")
    dead.close()
    message = warned(cluster.admin.delete(f"/api/nodes/{dead.address}", topic="t"))
    assert message == f"WARNING: {dead.address}: Connection refused"
    stranger = Upstream()
    with stranger:
        answer = cluster.admin.delete(f"/api/nodes/{stranger.address}", topic="t")
        refused(answer, 404, "NODE_NOT_FOUND")
    assert stranger.asked == []
    told = [each for each in cluster.lookupd.asked if each.startswith("POST")]
    assert told == [
        f"POST /topic/tombstone?topic=t&node=127.0.0.1%3A{each.port}" for each in (dead, stranger)
    ]
    cluster.nsqds.clear()


@pytest.mark.parametrize("page", [[], "x", {"producers": 1}, {"producers": [{"tcp_port": "x"}]}])
def test_answers_that_cannot_be_read(page: Any, cluster: Cluster) -> None:
    cluster.lookupd.pages["/nodes"] = page
    answer = cluster.admin.web.get("/api/nodes")
    assert answer.status == 502
    text = f"failed to query any nsqlookupd: {cluster.lookupd.address}: the response cannot be read"
    assert answer.json()["message"].startswith(f"UPSTREAM_ERROR: {text}")


def test_inactive_topics_ask_only_for_their_channels(cluster: Cluster) -> None:
    cluster.add("a", topic("active"), topic("gone"), tombstones=[False, True])
    cluster.lookupd.pages |= {
        "/topics": {"topics": ["gone", "active"]},
        "/channels": {"channels": ["y", "x"]},
    }
    found = cluster.admin.get("/api/topics", inactive="true")
    assert found == {"topics": {"gone": ["x", "y"]}, "message": ""}
    assert cluster.lookupd.asked == [
        "GET /topics?abandoned=true",
        "GET /nodes",
        "GET /channels?topic=gone",
    ]


@pytest.mark.case("ADM-060")
def test_other_lookupds(running: Admin) -> None:
    with Upstream(topics={"topics": ["one"]}) as one, Upstream(topics={"topics": ["two"]}) as two:
        addresses = [one.address, two.address]
        path = "/config/nsqlookupd_http_addresses"
        answer = running.web.put(path, json.dumps(addresses).encode())
        assert (answer.status, answer.json()) == (200, addresses)
        assert running.get("/api/topics")["topics"] == ["one", "two"]
