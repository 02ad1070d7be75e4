"""How `nsqcy copies status` merges the nsqds' responses, and what it prints."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from nsqcy.cli import tables
from nsqcy.cli.copies import status
from nsqcy.cli.copies.answers import Answer
from nsqcy.cli.copies.merged import Cluster, merged
from nsqcy.cli.main import main
from support.fake_http_daemon import Upstream

NODES = ("a.0", "b.0", "c.0")


def group(role: str, **fields: Any) -> dict[str, Any]:
    """Return the description of a group by a node of this role."""
    found = {
        "group": "g1",
        "role": role,
        "owner": "a.0",
        "members": list(NODES),
        "epoch": 1,
        "copies": 3,
        "min_copies": 2,
        "durability": "os",
        "closed": False,
        "bytes": 2048,
        "whole": True,
        "topics": ["orders"],
    }
    if role == "owner":
        found |= {"responding": 3, "accepts": True, "joining": "", "waiting": 0}
    return found | fields


def worker(node: str, *groups: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "worker": 0,
        "node": node,
        "etcd": True,
        "ready": True,
        "sessions": list(NODES),
        "groups": list(groups),
    } | fields


def complete(worker: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that an nsqd leaves out, as the parser does."""
    empty = {"responding": 0, "accepts": False, "joining": "", "waiting": 0}
    return worker | {"groups": [empty | each for each in worker["groups"]]}


def seen(*workers: dict[str, Any]) -> Cluster:
    """Return a cluster with one nsqd per worker, at a:1, b:1, ..."""
    return merged([Answer(f"{each['node'][0]}:1", [complete(each)]) for each in workers])


def with_owner(**fields: Any) -> Cluster:
    holder = group("holder", bytes=1024)
    owner = worker("a.0", group("owner", **fields))
    return seen(owner, worker("b.0", holder), worker("c.0", holder))


def test_a_healthy_cluster() -> None:
    found = with_owner()
    assert found.risks == []
    assert status.exit_code(found) == 0
    assert click.unstyle(status.text(found)) == (
        "group  owner      copies  state  size     topics\n"
        "g1     a:1 (a.0)  3/3     ok     2.0 KiB  orders\n"
        "\n"
        "node  nsqd  etcd\n"
        "a.0   a:1   responds\n"
        "b.0   b:1   responds\n"
        "c.0   c:1   responds\n"
        "\n"
        "ok: all groups have all of their copies\n"
    )


@pytest.mark.parametrize(
    ("fields", "state", "risk"),
    [
        (
            {"responding": 1, "accepts": False},
            "refuses publishes",
            "topic orders: 1 of 3 copies responds, publishes are refused",
        ),
        ({"responding": 2}, "lacks copies", "topic orders: 2 of 3 copies respond"),
        (
            {"responding": 2, "joining": "c.0"},
            "joining c.0",
            "topic orders: 2 of 3 copies respond; joining c:1 (c.0)",
        ),
        (
            {"responding": 1, "accepts": False, "joining": "d.0", "topics": ["a", "b"]},
            "refuses publishes, joining d.0",
            "topics a, b, orders: 1 of 3 copies responds, publishes are refused; joining d.0",
        ),
        (
            {"responding": 2, "closed": True, "accepts": False},
            "moving messages",
            "topic orders: 2 of 3 copies respond, its messages are being moved to another log",
        ),
        ({"closed": True, "accepts": False}, "moving messages", ""),
        (
            {"accepts": False},
            "refuses publishes",
            "topic orders: publishes are refused while the group changes owners",
        ),
    ],
)
def test_states(fields: dict[str, Any], state: str, risk: str) -> None:
    found = with_owner(**fields)
    (only,) = found.groups
    assert ", ".join(only.states) == state
    assert found.risks == ([risk] if risk else [])
    assert status.exit_code(found) == bool(risk)


def test_a_group_without_an_owner() -> None:
    left = ["b.0", "c.0"]
    holders = [worker(node, group("member"), sessions=left) for node in left]
    found = seen(*holders)
    assert found.groups[0].states == ["no owner"]
    assert found.groups[0].present == ["b.0", "c.0"]
    assert found.risks == [
        "topic orders: group g1 has no owner, so its messages are not delivered; absent: a.0;"
        " back: b:1 (b.0), c:1 (c.0). If the absent nodes never return: nsqcy copies force g1"
        " --config=FILE"
    ]
    assert "-/3" in status.text(found)
    found = seen(worker("a.0"), *(worker(node, group("member")) for node in left))
    assert "all members are back" in found.risks[0]


def test_the_nsqd_of_the_owner_may_not_answer() -> None:
    found = seen(worker("b.0", group("holder")))
    assert found.groups[0].states == ["owner not queried"]
    assert found.risks == [
        "topic orders: unknown, because the owner's nsqd (a.0) was not queried or did not answer"
    ]


def test_the_latest_value_of_a_group_counts() -> None:
    old = worker("a.0", group("owner"), etcd=False, sessions=list(NODES))
    now = {"owner": "b.0", "epoch": 2, "closed": True}
    new = worker("b.0", group("owner", **now, accepts=False), sessions=["b.0", "c.0"])
    found = seen(old, new)
    assert found.groups[0].owner_address == "b:1"
    assert found.groups[0].present == ["b.0", "c.0"]
    assert found.risks == ["etcd does not respond to a:1 (a.0): it cannot take over groups"]


def test_groups_that_begin_and_nodes_that_are_not_ready() -> None:
    found = seen(worker("a.0", group("new", topics=[]), ready=False, etcd=False))
    assert found.groups[0].states == ["being created"]
    assert found.risks == [
        "etcd does not respond to any node: publishes and deliveries continue, but no group can"
        " get a new owner or a new member",
        "node a:1 (a.0) has not opened its groups yet",
        "group g1: publishes are refused until the group has been created",
    ]


def test_a_closed_group_without_topics_ends() -> None:
    view = group("owner", closed=True, accepts=False, responding=2, topics=[])
    assert seen(worker("a.0", view)).risks == [
        "group g1: 2 of 3 copies respond, the group is ending: no messages are left"
    ]


def test_many_topics_are_counted() -> None:
    found = with_owner(topics=list("abcdefg"), responding=2)
    assert found.risks == ["topics a, b, c and 5 more: 2 of 3 copies respond"]


def test_sizes() -> None:
    assert [tables.size(each) for each in (0, 1023, 1024, 1 << 20, 5 << 40, 5 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.0 MiB",
        "5.0 TiB",
        "5120.0 TiB",
    ]


# -- with daemons


@pytest.fixture
def pair() -> Iterator[list[Upstream]]:
    """Two nsqds, and an nsqlookupd that announces the first of them."""
    pages = [
        {
            "workers": [
                worker("a.0", group("owner", members=["a.0", "b.0"], copies=2, responding=2))
            ]
        },
        {"workers": [worker("b.0", group("holder", members=["a.0", "b.0"], copies=2))]},
    ]
    with Upstream(copies=pages[0]) as one, Upstream(copies=pages[1]) as other:
        one.pages["/nodes"] = {"producers": [one.producer()]}
        yield [one, other]


def test_nsqds_are_found_through_nsqlookupds(
    pair: list[Upstream], capfd: pytest.CaptureFixture[str]
) -> None:
    one, other = (each.address for each in pair)
    words = [f"--lookupd-http-address={one}", f"--nsqd-http-address={other}"]
    assert main(["copies", "status", *words]) == 0
    out, err = capfd.readouterr()
    assert f"g1     {one} (a.0)" in out and out.endswith(
        "ok: all groups have all of their copies\n"
    )
    assert not err
    # The same nsqd at a second address counts once.
    words.append(f"--nsqd-http-address=localhost:{pair[0].port}")
    assert main(["copies", "status", *words, "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert sorted(each["node"] for each in told["nodes"]) == ["a.0", "b.0"]
    assert told["groups"][0]["state"] == "ok" and told["exit_code"] == 0


def test_the_token_is_sent(pair: list[Upstream], tmp_path: Any) -> None:
    (tmp_path / "token").write_text("abc\n")
    words = [f"--nsqd-http-address={each.address}" for each in pair]
    assert main(["copies", "status", *words, f"--auth-token-file={tmp_path / 'token'}"]) == 0
    assert pair[0].headers["authorization"] == "Bearer abc"


def test_daemons_that_fail(capfd: pytest.CaptureFixture[str]) -> None:
    with Upstream(copies={"workers": []}) as off, Upstream(copies=503) as failing:
        assert main(["copies", "status", f"--nsqd-http-address={off.address}"]) == 0
        assert capfd.readouterr().out == "no nsqd has --etcd-endpoints: all topics have one copy\n"
        words = [f"--nsqd-http-address={each.address}" for each in (off, failing)]
        assert main(["copies", "status", *words]) == 1
        assert capfd.readouterr().out.startswith(f"risk: nsqd {failing.address}: got response 503")
        assert main(["copies", "status", f"--lookupd-http-address={off.address}"]) == 1
        assert f"risk: nsqlookupd {off.address}: " in capfd.readouterr().out
        del off.pages["/copies"]
        assert main(["copies", "status", f"--nsqd-http-address={off.address}"]) == 1
        assert "it has no /copies" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "Usage: nsqcy copies [OPTIONS] COMMAND"),
        (["bogus"], "nsqcy copies: unknown command bogus"),
        (
            ["status"],
            "nsqcy copies status: --lookupd-http-address or --nsqd-http",
        ),
        (
            ["status", "--nsqd-http-address=foo"],
            "nsqcy copies status: invalid value for '-n' / '--nsqd-http-address': address 'foo' has"
            " no port: write HOST:PORT",
        ),
        (["status", "--bogus"], "nsqcy copies status: unknown option --bogus"),
        (["force"], "nsqcy copies force: missing argument 'GROUP'"),
        (["force", "--yes"], "nsqcy copies force: missing argument 'GROUP'"),
        (["force", "g1"], "nsqcy copies force: --config is required"),
    ],
)
def test_a_command_line_that_cannot_be_read(
    words: list[str], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["copies", *words]) == 2
    out, err = capfd.readouterr()
    assert not out and err.startswith(text)


@pytest.mark.parametrize("words", [["-h"], ["status", "--help"], ["force", "--help"]])
def test_help(words: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["copies", *words]) == 0
    out, err = capfd.readouterr()
    assert out.lower().startswith("usage: nsqcy copies") and not err
