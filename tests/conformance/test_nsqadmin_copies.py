"""Copies in nsqadmin, as reported by scripted nsqds: some with copies, an older one, and NSQ's."""

from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from support import copies_reports
from support.fake_http_daemon import Upstream
from support.nsqadmin_process import Admin, refused
from support.strict_html import Element, read

TOPIC = {"topic_name": "orders", "channels": [], "depth": 7, "message_count": 7, "paused": False}
FIRST = "GET /stats?format=json&include_clients=false&sparse=true&busiest=1000"


def group(role: str, **fields: Any) -> dict[str, Any]:
    pair = {"members": ["a.0", "b.0"], "copies": 2, "min_copies": 1, "bytes": 4096, "topics": []}
    return copies_reports.group(role, **(pair | {"group": "5b0e"} | fields))


def worker(node: str, *groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"workers": [copies_reports.worker(node, *groups, **fields)]}


def owned(**fields: Any) -> dict[str, Any]:
    return worker("a.0", group("owner", **({"topics": ["orders"], "responding": 2} | fields)))


class Cluster:
    """An owner, a holder, and an nsqd that does not support copies, all with the topic `orders`."""

    def __init__(self) -> None:
        stats = {"version": "1.3.0", "topics": [TOPIC]}
        self.owner = Upstream(stats=stats, info={}, copies=owned())
        self.holder = Upstream(stats=stats, info={}, copies=worker("b.0", group("holder")))
        self.older = Upstream(stats=stats, info={})
        producers = [
            each.producer(name) | {"topics": ["orders"], "tombstones": [False]}
            for name, each in zip("abc", self.nsqds, strict=True)
        ]
        self.lookupd = Upstream(
            nodes={"producers": producers},
            lookup={"producers": producers},
            topics={"topics": ["orders"]},
        )

    @property
    def nsqds(self) -> list[Upstream]:
        return [self.owner, self.holder, self.older]

    def close(self) -> None:
        for each in (self.lookupd, *self.nsqds):
            each.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def admin(cluster: Cluster) -> Iterator[Admin]:
    with Admin(lookupd_http_address=cluster.lookupd.address) as admin:
        yield admin


def get(admin: Admin, path: str, *, status: int = 200) -> Element:
    answer = admin.web.get(path)
    assert answer.status == status, answer
    return read(answer.body)


def links(page: Element) -> list[str]:
    return [each.text for each in page.one("header").all("a")]


def text(page: Element) -> str:
    return page.one("main").text


def test_the_page(admin: Admin, cluster: Cluster) -> None:
    page = get(admin, "/copies")
    assert page.table("Groups")[1] == [
        "orders",
        cluster.owner.address,
        cluster.owner.address + cluster.holder.address,
        "2 of 2",
        "1",
        "os",
        "4,096",
        "complete",
        "5b0e",
    ]
    assert [row[0] for row in page.table("Nodes")[1:]] == [
        cluster.owner.address,
        cluster.holder.address,
    ]
    assert "No risks" in text(page) and cluster.older.address not in text(page)
    assert [each.asked for each in cluster.nsqds] == [["GET /copies"]] * 3
    assert cluster.lookupd.asked == ["GET /nodes?topics=false"]


def test_a_node_that_is_gone(admin: Admin, cluster: Cluster) -> None:
    """The holder's response shows that the group has lost its owner."""
    get(admin, "/copies")
    cluster.owner.close()
    cluster.holder.pages["/copies"] = worker("b.0", group("holder"), sessions=["b.0"])
    page = get(admin, "/copies")
    assert page.one("div", role="status").text.startswith(
        f"WARNING: nsqd {cluster.owner.address}: "
    )
    assert "critical group 5b0e: group 5b0e has no owner" in text(page)
    assert page.table("Groups")[1][1] == cluster.owner.address  # from an earlier response
    linked = {each.text for each in page.one("main").all("a")}
    assert cluster.holder.address in linked and cluster.owner.address not in linked


def test_no_nsqd_answers(admin: Admin, cluster: Cluster) -> None:
    for each in cluster.nsqds:
        each.close()
    assert "failed to query any nsqd" in text(get(admin, "/copies", status=502))
    answer = admin.web.get("/api/copies")
    assert answer.status == 502
    assert answer.json()["message"].startswith("UPSTREAM_ERROR: failed to query any nsqd")


def test_answers_of_another_form(admin: Admin, cluster: Cluster) -> None:
    cluster.owner.pages["/copies"] = {"workers": [{"node": "a.0"}]}
    page = text(get(admin, "/copies"))
    assert f"{cluster.owner.address} unknown: unreadable response with status 200" in page
    assert get(admin, "/topics/orders").table("Topic Message Queue")[0][1] == "Depth"


def test_a_topic_and_a_node(admin: Admin, cluster: Cluster) -> None:
    rows = get(admin, "/topics/orders").table("Topic Message Queue")
    assert [row[1] for row in rows] == ["Copies", "2 of 2", "", "", ""]
    cluster.owner.pages["/copies"] = owned(responding=1)
    page = get(admin, "/topics/orders")
    assert page.table("Topic Message Queue")[1][1] == "1 of 2 ⚠ copies missing"
    assert page.one("main").one("a", href="/copies").text == "1 of 2"
    page = get(admin, f"/nodes/{cluster.owner.address}")
    assert "Copies: 1 group owned · 0 groups held" in text(page)
    cluster.holder.pages["/copies"] = worker("b.0", group("holder"), etcd=False)
    page = get(admin, f"/nodes/{cluster.holder.address}")
    assert "Copies: 0 groups owned · 1 group held ⚠ etcd does not respond" in text(page)
    assert "Copies" not in text(get(admin, f"/nodes/{cluster.older.address}"))


def test_the_link_appears_with_the_first_groups(admin: Admin, cluster: Cluster) -> None:
    assert "Copies" not in links(get(admin, "/"))
    assert "Copies" in links(get(admin, "/topics/orders"))
    assert "Copies" in links(get(admin, "/"))
    cluster.owner.pages["/copies"] = cluster.holder.pages["/copies"] = {"workers": []}
    get(admin, "/topics/orders")
    assert "Copies" in links(get(admin, "/"))  # other nsqds may have groups
    get(admin, "/copies")
    assert "Copies" not in links(get(admin, "/"))


def test_samples_of_the_history_look_for_groups(cluster: Cluster) -> None:
    # Even on a busy machine, the first sample contains an answer from each nsqd.
    options = {"history_interval": "100ms", "http_client_request_timeout": "60s"}
    with Admin(lookupd_http_address=cluster.lookupd.address, **options) as admin:
        eventually(lambda: "Copies" in links(get(admin, "/counter")))
        eventually(lambda: cluster.older.asked.count(FIRST) > 3)
        assert [each.asked.count("GET /copies") for each in cluster.nsqds] == [1, 1, 1]


def test_without_nsqlookupds(cluster: Cluster) -> None:
    for name, each in zip("abc", cluster.nsqds, strict=True):
        each.pages["/info"] = each.producer(name)
    addresses = [each.address for each in cluster.nsqds]
    with Admin(nsqd_http_address=addresses) as admin:
        assert get(admin, "/copies").table("Groups")[1][1] == cluster.owner.address


def test_the_api(admin: Admin, cluster: Cluster) -> None:
    found = admin.get("/api/copies")
    addresses = [each.address for each in cluster.nsqds]
    assert [each["node"] for each in found["nodes"]] == addresses
    assert found["nodes"][0]["workers"][0]["groups"][0]["responding"] == 2
    assert found["nodes"][2] == {
        "node": cluster.older.address,
        "error": "not supported by this nsqd version",
    }
    assert (found["risks"], found["message"]) == ([], "")
    (shown,) = found["groups"]
    assert (shown["group"], shown["state"], shown["topics"]) == ("5b0e", "complete", ["orders"])
    owner = {"id": "a.0", "node": cluster.owner.address, "answers": True, "whole": True}
    assert shown["owner"] == shown["members"][0] == owner
    cluster.owner.pages["/copies"] = owned(responding=1)
    (risk,) = admin.get("/api/copies")["risks"]
    assert (risk["severity"], risk["group"]) == ("warning", "5b0e")
    refused(admin.web.post("/api/copies", b"{}"), 405, "METHOD_NOT_ALLOWED")
