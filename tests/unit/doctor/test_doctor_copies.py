"""Findings of doctor for topics with copies, and where their facts come from."""

from dataclasses import replace
from pathlib import Path

import pytest

from nsqcy.cluster.discovery import Producer
from nsqcy.cluster.web_client import Answer, Terms, WebClient
from nsqcy.doctor import copies, look_cluster, look_config
from nsqcy.doctor.checks import run
from nsqcy.doctor.facts import Cluster, Copies, CopiesOptions, Host, Nsqd, OwnedGroup, Wanted
from nsqcy.util import gojson

GOOD = CopiesOptions(["10.0.0.1", "10.0.0.2", "10.0.0.3"], "10.0.0.1", True)


def of_host(options: CopiesOptions | None) -> list[tuple[str, str]]:
    found = run(copies.OF_HOST, Host(Wanted("nsqd", copies=options)))
    return [(each.finding.level, each.finding.text) for each in found]


def of_cluster(*states: Copies | None) -> list[tuple[str, str]]:
    nsqds = [
        Nsqd("", Producer(f"n{number}", 4150, 4151), copies=state)
        for number, state in enumerate(states, 1)
    ]
    found = run(copies.OF_CLUSTER, Cluster(0.0, nsqds=nsqds))
    return [(each.finding.level, each.finding.text) for each in found]


def test_without_copies_there_is_nothing_to_report() -> None:
    assert of_host(None) == of_cluster(None, None) == []


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


@pytest.mark.parametrize(
    ("state", "level", "says"),
    [
        (Copies(True, 3, [OwnedGroup(3, 3)]), "ok", "no copies"),
        (Copies(False), "error", "n1:4151 cannot reach etcd"),
        (Copies(True, trouble="etcd lacks 2 of its groups"), "error", "etcd lacks 2"),
        (Copies(True, 2, [OwnedGroup(3, 2)]), "warning", "3 copies, but only 2 nsqds"),
        (Copies(True, 3, [OwnedGroup(3, 1, False, ("t",))]), "error", "refuses publishes"),
        (Copies(True, 3, [OwnedGroup(3, 2, True, ("t", "u"))]), "warning", "of these topics: t, u"),
        (Copies(True, 3, [OwnedGroup(3, 2, None)]), "warning", "a group without topics"),
        (Copies(True, damaged=["g/t.topic/1.seg"]), "error", "intact: g/t.topic/1.seg"),
        (Copies(True, unreadable=["g/*"]), "error", "n1:4151 cannot read copies: g/*"),
        (Copies(True, mended=7), "warning", "n1:4151 has replaced 7 damaged parts"),
    ],
)
def test_states(state: Copies, level: str, says: str) -> None:
    ((found, text),) = of_cluster(state, None)
    assert found == level and says in text


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


GROUP = {"role": "owner", "copies": 3, "responding": 2, "accepts": True, "topics": ["t"]}
DAMAGED = {"group": "g", "role": "holder", "damaged": ["t.topic/1.seg"], "unreadable": ["*"]}
WORKERS = [
    {"etcd": True, "sessions": ["a.0", "b.0"], "groups": [GROUP, GROUP | {"role": "holder"}]},
    {"etcd": True, "sessions": ["a.0", "a.1"], "groups": [GROUP | {"closed": True}]},
]


class _Web(WebClient):
    """Client that gives the same response to each request."""

    def __init__(self, status: int, body: object) -> None:
        super().__init__(Terms())
        self._answer = Answer(status, {}, gojson.encode(body))

    def ask(self, *_: object, **__: object) -> Answer:
        return self._answer


@pytest.mark.parametrize(
    ("status", "workers", "state"),
    [
        (404, WORKERS, None),
        (200, [], None),
        (
            200,
            WORKERS,
            Copies(True, 2, [OwnedGroup(3, 2, True, ("t",)), OwnedGroup(3, 2, None, ("t",))]),
        ),
        (200, [{"etcd": True}, {}], Copies(False, 0, [])),
        (
            200,
            [
                {"etcd": True, "mended": 2},
                {"etcd": True, "mended": 3, "groups": [DAMAGED, DAMAGED | {"group": "h"}]},
            ],
            Copies(True, 0, [], "", ("g/t.topic/1.seg", "h/t.topic/1.seg"), ("g/*", "h/*"), 5),
        ),
        (
            200,
            [{"etcd": True, "registry": "older"}],
            Copies(True, 0, [], "etcd has been restored from a backup"),
        ),
        (
            200,
            [{"etcd": True, "registry": "current", "unregistered": ["g"]}],
            Copies(True, 0, [], "etcd lacks 1 of its groups"),
        ),
    ],
)
def test_states_that_nsqd_reports(status: int, workers: object, state: Copies | None) -> None:
    web = _Web(status, {"workers": workers})
    found = look_cluster._copies(web, look_cluster.daemon_url("a:4151"))
    assert found == state
