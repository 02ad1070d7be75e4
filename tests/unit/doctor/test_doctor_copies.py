"""Findings of doctor for topics with copies, and where their facts come from."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.web_client import Answer, Terms, WebClient
from nsqcy.doctor import copies, look_cluster, look_config
from nsqcy.doctor.checks import run
from nsqcy.doctor.facts import Cluster, CopiesOptions, Host, Nsqd, Wanted
from nsqcy.util import gojson
from support.copies_reports import group, worker

GOOD = CopiesOptions(["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.1", True)


def of_host(options: CopiesOptions | None) -> list[tuple[str, str]]:
    found = run(copies.OF_HOST, Host(Wanted("nsqd", copies=options)))
    return [(each.finding.level, each.finding.text) for each in found]


def of_cluster(*workers: dict[str, Any]) -> list[tuple[str, str]]:
    nsqds = [Nsqd("", Producer("n1", 4150, 4151), copies=workers), Nsqd("", Producer("n2", 1, 2))]
    found = run(copies.OF_CLUSTER, Cluster(0.0, nsqds=nsqds))
    return [(each.finding.level, each.finding.text) for each in found]


def test_without_copies_there_is_nothing_to_report() -> None:
    assert of_host(None) == of_cluster() == []


@pytest.mark.parametrize(
    ("options", "level", "says"),
    [
        (GOOD, "ok", "complete"),
        (replace(GOOD, etcd_hosts=["a"]), "warning", "fewer than 3"),
        (replace(GOOD, etcd_hosts=["a", "a", "a"]), "warning", "on one host: a"),
        (replace(GOOD, advertised="127.0.0.1"), "error", "at 127.0.0.1"),
        (replace(GOOD, protected=False), "warning", "any client"),
    ],
)
def test_options(options: CopiesOptions, level: str, says: str) -> None:
    ((found, text),) = of_host(options)
    assert found == level and says in text


def test_a_cluster_on_one_machine_may_use_its_loopback_address() -> None:
    local = CopiesOptions(["127.0.0.1", "localhost", "127.0.0.2"], "127.0.0.1", True)
    assert [level for level, _ in of_host(local)] == ["ok"]


def test_findings_are_the_problems_that_nsqadmin_shows() -> None:
    assert of_cluster(worker("n1.0", group("owner"))) == [("ok", "no copies are missing")]
    short = group("owner", owner="n1.0", responding=2)
    text = "topic orders: 2 of 3 copies respond (owner: n1:4151)"
    unread = "nsqd n1:4151 cannot read copies: g/*"
    assert of_cluster(worker("n1.0", short)) == [("warning", text)]
    assert of_cluster(worker("n1.0", short | {"unreadable": ["*"]})) == [
        ("error", unread),
        ("warning", text),
    ]


def test_a_member_without_a_session_is_lost() -> None:
    lost = group("owner", owner="n1.0", members=["n1.0", "n9.0"])
    other = lost | {"group": "h"}
    (level, text), *_ = of_cluster(worker("n1.0", lost, other, sessions=["n1.0"]))
    assert level == "error"
    assert text == "node n9.0 is lost: it has copies of 2 groups, and no session in etcd"
    # Within the lease, or if doctor was not given the nsqd, the member has a session.
    assert of_cluster(worker("n1.0", lost, sessions=["n1.0", "n9.0"])) == [
        ("ok", "no copies are missing")
    ]


def test_the_owner_may_be_on_an_nsqd_that_doctor_was_not_given() -> None:
    assert [level for level, _ in of_cluster(worker("n1.0", group("holder")))] == ["ok"]


def test_options_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "nsqd.ini"
    lines = ["[nsqd]", "etcd_endpoints = http://a:2379, https://b, :", "broadcast_address = c"]
    path.write_text("\n".join(lines))
    settings, _ = look_config.read(str(path), "")
    assert look_config.wanted(settings).copies == CopiesOptions(["a", "b", ":"], "c", False)
    settings.values["copies_broadcast_address"] = "d"
    settings.values["copies_secret_file"] = "secret"
    found = look_config.wanted(settings).copies
    assert found is not None and (found.advertised, found.protected) == ("d", True)
    assert look_config.wanted(look_config.read("", "nsqd")[0]).copies is None


class _Web(WebClient):
    """Client that gives the same response to each request."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(Terms())
        self._answer = Answer(status, {}, gojson.encode(body))

    def ask(self, *_: object, **__: object) -> Answer:
        return self._answer


@pytest.mark.parametrize(
    ("status", "workers", "nodes"),
    [(404, [{"node": "a.0"}], []), (200, [], []), (200, [{"node": "a.0"}], ["a.0"])],
)
def test_reports_of_workers(status: int, workers: object, nodes: list[str]) -> None:
    web = _Web(status, {"workers": workers})
    found = look_cluster._copies(web, look_cluster.daemon_url("a:4151"))
    assert [each["node"] for each in found] == nodes
