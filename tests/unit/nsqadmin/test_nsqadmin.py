"""The parts of nsqadmin that need no daemons: permissions, notifications, and the format of
figures."""

import base64
import gzip

import pytest

from nsqcy.config.loader import Settings
from nsqcy.errors import StartError
from nsqcy.http.parser import Body, Head, Reply
from nsqcy.http.router import Request
from nsqcy.nsqadmin.assets import Assets
from nsqcy.nsqadmin.auth import access
from nsqcy.nsqadmin.auth.access import basic_user
from nsqcy.nsqadmin.cluster.nodes import latest, version_key
from nsqcy.nsqadmin.compression import compressed
from nsqcy.nsqadmin.graphite import passed_on
from nsqcy.nsqadmin.html import formatting
from nsqcy.nsqadmin.notifications import notification
from nsqcy.nsqadmin.options import NSQADMIN, AdminOptions, network, resolve


def head(target: str = "/", **headers: str) -> Head:
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Head("POST", target, headers=named)


def options(**values: object) -> AdminOptions:
    settings = Settings(NSQADMIN, values)  # type: ignore[arg-type]
    return resolve(settings)


# -- options


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("", ""),
        ("/", ""),
        ("nsq/", "/nsq"),
        ("/a/../b/", "/b"),
        ("//a//b", "/a/b"),
        ("/..", ""),
    ],
)
def test_base_paths(given: str, base: str) -> None:
    assert options(base_path=given).base == base
    assert options(base_path=given).base_path == (base or "/")


@pytest.mark.parametrize(
    ("headers", "inside"),
    [
        ([], True),
        ([("X-Forwarded-For", "127.0.0.1, 127.0.0.2")], True),
        ([("x-forwarded-for", "203.0.113.9")], False),
        ([("X-Forwarded-For", "127.0.0.1, 203.0.113.9")], False),
        ([("X-Forwarded-For", "127.0.0.1"), ("X-Forwarded-For", "203.0.113.9")], False),
        ([("X-Forwarded-For", "")], False),
        ([("X-Real-IP", "203.0.113.9")], False),
        ([("Forwarded", "for=127.0.0.1")], False),
    ],
)
def test_a_proxy_tells_who_is_outside(headers: list[tuple[str, str]], inside: bool) -> None:
    sent = Head("PUT", "/", headers=tuple(headers))
    assert access.is_forwarded_inside(sent, network("127.0.0.1/8")) == inside
    assert access.is_forwarded_inside(sent, None)


def test_networks() -> None:
    assert options().config_network == network("127.0.0.0/8")
    assert options(allow_config_from_cidr="").config_network is None
    with pytest.raises(StartError, match="invalid CIDR address: x"):
        options(allow_config_from_cidr="x")


# -- permissions


@pytest.mark.parametrize(
    ("peer", "block", "allowed"),
    [
        ("127.0.0.1:5", "127.0.0.1/8", True),
        ("10.1.2.3:5", "127.0.0.1/8", False),
        ("[::1]:5", "127.0.0.1/8", False),
        ("[::1]:5", "::1/128", True),
        ("@", "127.0.0.1/8", False),
    ],
)
def test_peers(peer: str, block: str, allowed: bool) -> None:
    assert access.is_inside(peer, network(block)) == allowed
    assert access.is_inside(peer, None)


@pytest.mark.parametrize(
    ("headers", "foreign"),
    [
        ({}, False),
        ({"Host": "h", "Origin": "http://h"}, False),
        ({"Host": "h:80", "Origin": "http://h:81"}, True),
        ({"Host": "h", "Origin": "null"}, True),
        ({"Host": "h", "Origin": "http://x", "Sec_Fetch_Site": "same-origin"}, False),
        ({"Host": "h", "Origin": "http://h", "Sec_Fetch_Site": "cross-site"}, True),
        ({"Sec_Fetch_Site": "same-site"}, True),
        ({"Sec_Fetch_Site": "none"}, False),
        ({"Origin": "http://x", "Content_Type": "Application/JSON; charset=utf-8"}, False),
        ({"Origin": "http://x", "Content_Type": "text/plain; application/json"}, True),
        ({"Host": "h", "Origin": "http://["}, True),
    ],
)
def test_sites(headers: dict[str, str], foreign: bool) -> None:
    assert access.is_of_another_site(head(**headers)) == foreign


def test_users() -> None:
    asked = head(x_forwarded_user="matt", X_Forwarded_User="root")
    assert access.may_act(asked, "X-Forwarded-User", [])
    assert access.may_act(asked, "X-Forwarded-User", ["matt"])
    assert not access.may_act(asked, "X-Forwarded-User", ["root", "Matt"])
    assert not access.may_act(head(), "X-Forwarded-User", ["matt"])


# -- notifications


def test_a_notification() -> None:
    secret = base64.b64encode(b"bob:a:b").decode()
    asked = head("/api/topics/t?x=1", Host="h:1", Authorization=f"basic {secret}", User_Agent="ua")
    request = Request(asked, Body(b""), "1.2.3.4:5")
    told = notification(request, 7, "pause_topic", "t", "", "", basic_user(asked))
    assert told.pop("via")
    assert told == {
        "action": "pause_topic",
        "topic": "t",
        "timestamp": 7,
        "user": "bob",
        "remote_ip": "1.2.3.4:5",
        "user_agent": "ua",
        "url": "http://h:1/api/topics/t?x=1",
    }


@pytest.mark.parametrize("text", ["", "Bearer x", "Basic", "Basic !", "Basic Ym9i", "Basic /w=="])
def test_users_that_are_none(text: str) -> None:
    assert basic_user(head(Authorization=text)) == ""


# -- answers


def test_compression() -> None:
    reply = Reply(200, b"body", "text/css", headers=[("A", "b")], logged=False)
    answer = compressed(head(Accept_Encoding="br, gzip"), reply)
    assert gzip.decompress(answer.body) == b"body"
    assert answer.headers == (
        ("A", "b"),
        ("Content-Encoding", "gzip"),
        ("Vary", "Accept-Encoding"),
    )
    assert (answer.content_type, answer.logged) == ("text/css", False)
    for asked in (head(), head(Accept_Encoding="gzip;q=1")):
        assert compressed(asked, reply) is reply
    encoded = Reply(200, b"body", headers=[("content-encoding", "br")])
    for other in (encoded, Reply(303)):
        assert compressed(head(Accept_Encoding="gzip"), other) is other


def test_headers_of_one_connection_are_not_passed_on() -> None:
    given = {"Connection": "close", "Content-Length": "1", "TE": "x", "Accept": "*", "Host": "h"}
    assert passed_on(given) == {"Accept": "*", "Host": "h"}


def test_assets() -> None:
    body, kind = Assets().find("nsqadmin.css") or (b"", "")
    assert b"light-dark(" in body
    assert kind == "text/css; charset=utf-8"
    for name in ("..", "", "none", "/etc/passwd"):
        assert Assets().find(name) is None
        assert Assets("/etc").find(name) is None
    assert Assets("/nowhere").find("x") is None


# -- figures


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0s"),
        (-5, "0s"),
        (0.5, "0.5ns"),
        (12, "12ns"),
        (1_500, "1.5µs"),
        (2_000_000, "2ms"),
        (1_000_000_000, "1s"),
        (1_999_999_999, "2s"),
        (59_999_000_000, "1m0s"),
        (60_000_000_000, "1m0s"),
        (3_723_500_000_000, "1h2m3.5s"),
        (3_600_000_000_000, "1h0m0s"),
    ],
)
def test_durations(nanoseconds: float, text: str) -> None:
    assert formatting.duration(nanoseconds) == text


@pytest.mark.parametrize(
    ("quantile", "text"),
    [
        (1.0, "100th"),
        (0.99, "99th"),
        (0.57, "57th"),
        (0.11, "11th"),
        (0.21, "21st"),
        (0.02, "2nd"),
        (0.03, "3rd"),
        (0.999, "99.9th"),
        (0.99999, "99.999th"),
        (0.0, "0th"),
    ],
)
def test_percentiles(quantile: float, text: str) -> None:
    assert formatting.percent(quantile) == text


def test_counts() -> None:
    assert formatting.number(1234567) == "1,234,567"
    assert [formatting.plural(count, "node") for count in (0, 1, 2)] == [
        "0 nodes",
        "1 node",
        "2 nodes",
    ]


def test_versions() -> None:
    ordered = ["what", "0.2.0", "1.2.0", "1.3.0-2", "1.3.0-10", "1.3.0-alpha", "1.3.0", "1.10.0"]
    assert sorted(set(ordered), key=version_key) == ordered
    assert version_key("1.3.0+build") == version_key("1.3.0")
    assert version_key("1.3") == version_key("0.0.0") == latest([])
