"""nsqadmin shows the copies of real nsqds: in normal operation, without etcd, and after a loss."""

from pathlib import Path

from nsqcy.testing.http_requests import eventually
from support.copies_with_admin import CopiesWithAdmin, copies_with_admin
from support.copying_nsqds import BUDGET
from support.etcd_process import needs_etcd
from support.strict_html import Element, read

pytestmark = needs_etcd


def page(cluster: CopiesWithAdmin, path: str) -> Element:
    answer = cluster.admin.web.get(path)
    assert answer.status == 200, answer
    return read(answer.body)


def test_a_cluster_from_healthy_to_degraded(tmp_path: Path) -> None:
    with copies_with_admin(tmp_path) as cluster:
        _is_healthy(cluster)
        _lacks_etcd(cluster)
        _loses_nodes(cluster)


def _is_healthy(cluster: CopiesWithAdmin) -> None:
    found = cluster.copies()
    assert (found["risks"], found["message"]) == ([], "")
    shown = page(cluster, "/copies")
    rows = {(row[0], row[1]): row for row in shown.table("Groups")[1:]}
    first, second, third = cluster.nodes
    assert rows["orders", first][3:6] == ["3 of 3", "2", "os"]
    assert rows["mails", first][3:6] == ["2 of 2", "2", "fsync"]
    assert ("orders", second) in rows and first in rows["orders", second][2]
    assert "No risks" in shown.one("main").text
    table = page(cluster, "/topics/orders").table("Topic Message Queue")
    assert [row[1] for row in table] == ["Copies", "3 of 3", "3 of 3", ""]
    assert " held" in page(cluster, f"/nodes/{third}").one("main").text


def _lacks_etcd(cluster: CopiesWithAdmin) -> None:
    (member,) = cluster.etcd.members
    member.kill()
    text = "etcd does not respond to any node"
    eventually(lambda: any(text in each for each in texts(cluster)), BUDGET)
    cluster.etcd.restart(member)
    eventually(lambda: not texts(cluster), BUDGET)


def _loses_nodes(cluster: CopiesWithAdmin) -> None:
    second = cluster.nodes[1]
    cluster.nsqds[0].destroy()
    short = f"topic orders: 2 of 3 copies respond (owner: {second}). If one more fails, "
    eventually(lambda: any(each.startswith(short) for each in texts(cluster)), BUDGET)
    cluster.nsqds[2].destroy()
    text = f"topic orders: 1 of 3 copies responds, publishes are refused (owner: {second}). "
    eventually(lambda: any(each.startswith(text) for each in texts(cluster)), BUDGET)
    found = cluster.copies()
    assert found["risks"][0]["severity"] == "critical"
    # nsqlookupd no longer lists the other two nsqds; nsqadmin still has their earlier addresses.
    members = [member for each in found["groups"] for member in each["members"]]
    assert {each["node"] for each in members} == {*cluster.nodes}
    assert {each["node"] for each in members if each["answers"]} == {second}


def texts(cluster: CopiesWithAdmin) -> list[str]:
    return [each["text"] for each in cluster.copies()["risks"]]
