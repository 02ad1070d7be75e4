"""`nsqcy copies status`: how it merges the nsqds' responses, and its output."""

import json
from collections.abc import Iterator
from typing import Any

import click
import pytest

from nsqcy.cli import tables
from nsqcy.cli.copies import status
from nsqcy.cli.copies.answers import Answer
from nsqcy.cli.copies.status import Merged, merged
from nsqcy.cli.main import main
from nsqcy.cluster import answers, copies
from nsqcy.util import gojson
from support.copies_reports import NSQDS, group, with_holders, worker
from support.fake_http_daemon import Upstream


def seen(*workers: dict[str, Any]) -> Merged:
    """Return a cluster with one nsqd per worker; responses are encoded and parsed."""
    pages = [gojson.encode({"workers": [each]}) for each in workers]
    read = [answers.read(page, {}, copies.FIELDS)["workers"] for page in pages]
    return merged([Answer(NSQDS[its[0]["node"]], its) for its in read])


def with_owner(**fields: Any) -> Merged:
    return seen(*with_holders(group("owner", **fields)))


def test_a_healthy_cluster() -> None:
    found = with_owner()
    assert found.risks == []
    assert status.exit_code(found) == 0
    assert click.unstyle(status.text(found)) == (
        "group  owner      copies  state  size     topics\n"
        "g      a:1 (a.0)  3/3     ok     2.0 KiB  orders\n"
        "\n"
        "node  nsqd  etcd\n"
        "a.0   a:1   responds\n"
        "b.0   b:1   responds\n"
        "c.0   c:1   responds\n"
        "\n"
        "ok: all groups have all of their copies\n"
    )


@pytest.mark.parametrize(
    ("fields", "state", "is_at_risk"),
    [
        ({"responding": 1, "accepts": False}, "refuses publishes", True),
        ({"responding": 2}, "lacks copies", True),
        ({"responding": 2, "joining": "c.0"}, "joining c.0", True),
        (
            {"responding": 1, "accepts": False, "joining": "d.0"},
            "refuses publishes, joining d.0",
            True,
        ),
        ({"closed": True, "accepts": False}, "moving messages", False),
        ({"damaged": ["t/1"]}, "ok", True),
    ],
)
def test_states(fields: dict[str, Any], state: str, is_at_risk: bool) -> None:
    found = with_owner(**fields)
    assert [status.states(each) for each in found.groups] == [state]
    assert len(found.risks) == status.exit_code(found) == is_at_risk


def test_parts_that_were_mended_are_no_risk() -> None:
    assert seen(worker("a.0", mended=3)).risks == []


def test_json_has_the_size_at_the_owner_and_all_topics() -> None:
    found = seen(
        worker("a.0", group("owner", bytes=5, topics=["b"])),
        worker("b.0", group("member", bytes=9, topics=["a", "b"])),
    )
    (one,) = status.merged_json(found)["groups"]
    assert (one["bytes"], one["topics"]) == (5, ["a", "b"])


def test_json() -> None:
    left = ["b.0", "c.0"]
    found = seen(*(worker(node, group("member"), sessions=left) for node in left))
    assert status.merged_json(found) == {
        "nodes": [
            {"node": "b.0", "address": "b:1", "etcd": True, "ready": True},
            {"node": "c.0", "address": "c:1", "etcd": True, "ready": True},
        ],
        "groups": [
            {
                "group": "g",
                "owner": "a.0",
                "owner_address": "",
                "members": ["a.0", "b.0", "c.0"],
                "members_with_session": ["b.0", "c.0"],
                "epoch": 1,
                "copies": 3,
                "min_copies": 2,
                "durability": "os",
                "closed": False,
                "responding": None,
                "accepts": False,
                "joining": "",
                "state": "no owner",
                "topics": ["orders"],
                "bytes": 2048,
            }
        ],
        "risks": [
            "topic orders: group g has no owner, so its messages are not delivered; absent: a.0;"
            " back: b:1 (b.0), c:1 (c.0). If this persists for 30 s (longer than --copies-lease),"
            " and the absent nodes never return: nsqcy copies force g --config=FILE"
        ],
    }
    assert "-/3" in status.text(found)


@pytest.mark.parametrize(
    ("role", "node", "state"),
    [("new", "a.0", "being created"), ("holder", "b.0", "owner not queried")],
)
def test_states_without_an_owners_report(role: str, node: str, state: str) -> None:
    (found,) = seen(worker(node, group(role))).groups
    assert status.states(found) == state


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
    assert f"g      {one} (a.0)" in out and out.endswith(
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
        assert "/copies not found" in capfd.readouterr().out


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
