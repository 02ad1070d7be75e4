"""HTTP queries to lookupds and nsqds: scripted servers with an answer for each URL.

The answer depends on `?secret=` in the URL, which may be part of a lookupd's address.
"""

import gc
import gzip
import json
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import parse_url

from nsqcy.cluster.budget import BUDGET
from nsqcy.cluster.discovery import Found, Producer, lookup, nodes, topics, trust_in
from nsqcy.cluster.stats import node_stats, topic_producers
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import RequestError
from nsqcy.testing import certificates
from nsqcy.testing.http_requests import eventually
from support.fake_auth_server import AuthServer, Reply

PLAIN = {"X-NSQ-Content-Type": "nsq; version=1.0"}


def producer(host: str, **other: Any) -> dict[str, Any]:
    return {"broadcast_address": host, "tcp_port": 1, "http_port": 2} | other


def listing(*hosts: str) -> Reply:
    body = json.dumps({"channels": [], "producers": [producer(host) for host in hosts]})
    return Reply(body.encode(), headers=PLAIN)


@pytest.fixture
def web() -> WebClient:
    return WebClient(Terms())


@pytest.fixture
def server() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


@pytest.fixture
def other() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.close()


@pytest.fixture
def nobody() -> Iterator[str]:
    """Address without a listener."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


# -- lookupds


def test_lookup(server: AuthServer, web: WebClient) -> None:
    server.default = listing("a", "b")
    found = lookup([server.address], "t", web=web)
    assert [each.address for each in found.producers] == [("a", 1), ("b", 1)]
    assert (list(found.unknown), dict(found.errors)) == ([], {})
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("GET", "/lookup?topic=t")
    assert asked.headers["accept"] == "application/vnd.nsq; version=1.0"
    assert asked.headers["user-agent"].startswith("nsqcy/")
    assert "authorization" not in asked.headers


def test_a_secret_is_sent(server: AuthServer, web: WebClient) -> None:
    server.default = listing()
    lookup([server.address], "t", web=web, auth_secret="sesame")
    nodes([server.address], web=web, auth_secret=b"sesame")
    assert [each.headers["authorization"] for each in server.requests] == ["Bearer sesame"] * 2


def test_an_invalid_secret_is_not_shown(server: AuthServer, web: WebClient) -> None:
    found = lookup([server.address], "t", web=web, auth_secret="ses\name")
    (error,) = found.errors.values()
    assert "ses" not in str(error)
    assert server.requests == []


def test_all_are_queried_and_their_answers_merged(
    server: AuthServer, other: AuthServer, nobody: str, web: WebClient
) -> None:
    server.default = listing("a", "b")
    other.replies["gone"] = Reply(b'{"message":"TOPIC_NOT_FOUND"}', status=404)
    other.replies["ill"] = Reply(b"oh \x00", status=500)
    other.replies["odd"] = Reply(b"[1")
    other.replies["some"] = listing("b", "c")
    odd = {name: f"{other.address}/?secret={name}" for name in ("gone", "ill", "odd", "some")}
    addresses = [nobody, server.address, *odd.values(), server.address]
    found = lookup(addresses, "t", web=web)
    assert [each.broadcast_address for each in found.producers] == ["a", "b", "c"]
    assert list(found.unknown) == [odd["gone"]]
    assert {address: str(error) for address, error in found.errors.items()} == {
        nobody: "Connection refused",
        odd["ill"]: 'got response 500 Internal Server Error "oh \\x00"',
        odd["odd"]: "the response cannot be read: not JSON",
    }
    assert [found.errors[each].status for each in (nobody, odd["ill"])] == [0, 500]
    assert len(server.requests) == 1


def test_an_impossible_address_is_rejected_before_any_query(
    server: AuthServer, web: WebClient
) -> None:
    with pytest.raises(ValueError, match="has no port"):
        lookup([server.address, "h"], "t", web=web)
    with pytest.raises(ValueError, match="has no port"):
        nodes([server.address, "h"], web=web)
    with pytest.raises(ValueError, match="has no port"):
        topic_producers("t", web=web, nsqds=[server.address, "h"])
    assert server.requests == []


def test_no_lookupds(web: WebClient) -> None:
    assert lookup([], "t", web=web).producers == []


def test_nodes(server: AuthServer, other: AuthServer, web: WebClient) -> None:
    marked = producer("a", topics=["t", "u"], tombstones=[True, False])
    idle = producer("idle", topics=[], tombstones=[])
    server.default = Reply(json.dumps({"producers": [marked, idle]}).encode(), headers=PLAIN)
    other.default = listing("b")
    addresses = [server.address, f"http://{other.address}/lookup"]

    def names(topic: str | None = None) -> list[str]:
        return [each.broadcast_address for each in nodes(addresses, topic, web=web).producers]

    assert names() == ["a", "idle", "b"]
    assert names("u") == ["a", "idle", "b"]
    assert names("never") == ["a", "idle", "b"]
    assert names("t") == ["idle", "b"]
    assert {each.path for each in (*server.requests, *other.requests)} == {"/nodes"}


def test_topics(server: AuthServer, nobody: str, web: WebClient) -> None:
    server.default = Reply(b'{"topics":["b","a"]}', headers=PLAIN)
    outcome = topics([nobody, server.address], web=web)
    assert outcome.values == {server.address: ["b", "a"]}
    assert outcome.errors.keys() == {nobody}
    assert [each.path for each in server.requests] == ["/topics"]


def test_one_that_is_silent_hides_nothing(server: AuthServer, other: AuthServer) -> None:
    web = WebClient(Terms(request_timeout=0.3))
    server.default = listing("a")
    with other.silent("s"):
        silent = f"{other.address}/?secret=s"
        found = lookup([silent, server.address], "t", web=web)
    assert [each.broadcast_address for each in found.producers] == ["a"]
    assert str(found.errors[silent]) == "timed out"


# -- requests


def ask(web: WebClient, url: str, maximum: int = 1000, **other: Any) -> Any:
    return web.ask(parse_url(url), maximum=maximum, **other)


def test_time_is_limited_however_the_bytes_come(server: AuthServer) -> None:
    server.default = Reply(b"x" * 1000, trickle=0.02)
    with pytest.raises(RequestError, match="timed out"):
        ask(WebClient(Terms(request_timeout=0.2)), f"http://{server.address}/")


def test_too_long_an_answer(server: AuthServer, web: WebClient) -> None:
    server.default = Reply(b"x" * 1001)
    url = f"http://{server.address}/a?secret=s"
    with pytest.raises(RequestError, match=r"^/a: the response has more than 1000 bytes; the"):
        ask(web, url)
    assert len(ask(web, url, maximum=1001).body) == 1001


@pytest.mark.parametrize(
    "head", ["Content-Length: 200000000", "Content-Length: 9" + 5000 * "0", "Connection: close"]
)
def test_an_answer_without_end(head: str, server: AuthServer, web: WebClient) -> None:
    server.default = Reply(raw=f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode() + b"x" * 100_000)
    with pytest.raises(RequestError, match="the limit is 1000"):
        ask(web, f"http://{server.address}/")


def test_a_compressed_answer(server: AuthServer, web: WebClient) -> None:
    bomb = gzip.compress(b"x" * 1_000_000)
    server.default = Reply(bomb, headers={"Content-Encoding": "gzip"})
    with pytest.raises(RequestError, match="compressed"):
        ask(web, f"http://{server.address}/", maximum=100_000)
    assert server.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [404, 500])
def test_only_the_beginning_of_an_error_is_read(
    status: int, server: AuthServer, web: WebClient
) -> None:
    server.default = Reply(b"x" * 1_000_000, status)
    answer = ask(web, f"http://{server.address}/", maximum=10_000_000)
    assert answer.status == status
    assert 300 <= len(answer.body) <= 200_000


@pytest.mark.parametrize(
    "head",
    [
        b"X: " + b"y" * 100_000,
        b"\r\n".join(b"X%d: y" % number for number in range(101)),
        b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 100_000,
    ],
)
def test_a_flood_of_headers(head: bytes, server: AuthServer, web: WebClient) -> None:
    server.default = Reply(raw=b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n")
    with pytest.raises(RequestError):
        ask(web, f"http://{server.address}/")


def test_a_response_that_never_begins_ends_at_the_deadline(server: AuthServer) -> None:
    server.default = Reply(raw=b"HTTP/1.1 100 Continue\r\n\r\n", again=True)
    with pytest.raises(RequestError):
        ask(WebClient(Terms(request_timeout=0.2)), f"http://{server.address}/")


def test_objects_of_a_large_answer_are_limited(server: AuthServer, web: WebClient) -> None:
    server.default = Reply(b"[" + b"[]," * 500_000 + b"0]")
    with pytest.raises(RequestError, match="has 500001 objects: the limit is 500000"):
        ask(web, f"http://{server.address}/", maximum=10_000_000)
    server.default = Reply(b"[" + b"1," * 4_000_001 + b"0]")
    with pytest.raises(RequestError, match="has 4000001 values: the limit is 4000000"):
        ask(web, f"http://{server.address}/", maximum=20_000_000)


def test_statistics_count_as_long_as_they_are_in_use(server: AuthServer, web: WebClient) -> None:
    topics = [{"topic_name": f"t{number}"} for number in range(100_000)]
    server.default = Reply(json.dumps({"topics": topics}).encode(), headers=PLAIN)
    node = Producer("127.0.0.1", 1, server.port)
    before = BUDGET.used
    found = node_stats([node], web=web)
    assert BUDGET.used > before + 40_000_000
    del found

    def is_free() -> bool:
        gc.collect()
        return BUDGET.used <= before

    eventually(is_free)  # a thread that has ended may briefly hold a part of the budget


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(
    status: int, server: AuthServer, other: AuthServer, nobody: str
) -> None:
    web = WebClient(Terms(token="sesame"))
    place = f"http://me:word@{other.address}/there?secret=s"
    server.default = Reply(b"", status, {"Location": place})
    with pytest.raises(RequestError) as caught:
        ask(web, f"http://{server.address}/")
    assert str(caught.value) == (
        f"got a redirect to http://{other.address}/there; redirects are not followed: set the"
        " address of the daemon itself"
    )
    assert caught.value.status == status
    assert (len(server.requests), other.requests) == (1, [])


@pytest.mark.parametrize("place", ["/there", "ftp://127.0.0.1/", "http://", "http://[/", "//", ""])
def test_a_redirect_to_anywhere_is_an_error(place: str, server: AuthServer, web: WebClient) -> None:
    server.default = Reply(b"", 302, {"Location": place})
    with pytest.raises(RequestError, match="redirects are not followed"):
        ask(web, f"http://{server.address}/", method="POST", body=b"{}")
    assert len(server.requests) == 1


# -- tokens


def trusting(*addresses: str, **more: Any) -> WebClient:
    trust = trust_in(lambda: addresses, all_listed=more.pop("all_listed", False))
    return WebClient(Terms(token="sesame", trust=trust, **more))


def nsqd_of(server: AuthServer, **more: Any) -> dict[str, Any]:
    return producer("127.0.0.1", http_port=server.port, hostname="h", **more)


def tokens(server: AuthServer) -> list[str]:
    found = [each.headers.get("authorization", "") for each in server.requests]
    server.requests.clear()
    return found


@pytest.mark.parametrize("path", ["lookup", "nodes"])
def test_only_proved_nsqds_get_the_token(path: str, server: AuthServer, other: AuthServer) -> None:
    web = trusting(server.address)

    def look(**proof: Any) -> list[Producer]:
        listed = {"producers": [nsqd_of(other, **proof)]}
        server.default = Reply(json.dumps(listed).encode(), headers=PLAIN)
        if path == "nodes":
            return nodes([server.address], web=web).producers
        return lookup([server.address], "t", web=web).producers

    (found,) = look()
    assert tokens(server) == ["Bearer sesame"]  # the user named this server
    other.default = Reply(json.dumps(STATS).encode(), headers=PLAIN)
    assert node_stats([found], web=web).errors == {}
    assert tokens(other) == [""]
    other.default = Reply(b'{"message":"UNAUTHORIZED"}', 401)
    (error,) = node_stats([found], web=web).errors.values()
    assert str(error).startswith("token withheld: the nsqd has not authenticated to nsqlookupd")
    assert tokens(other) == [""]
    look(authenticated=True)
    node_stats([found], web=web)
    assert tokens(other) == ["Bearer sesame"]
    look()
    node_stats([found], web=web)
    assert tokens(other) == ["" if path == "nodes" else "Bearer sesame"]


def test_an_nsqd_does_not_prove_itself(server: AuthServer, other: AuthServer) -> None:
    """The client ignores what nsqd itself or an unconfigured nsqlookupd states."""
    claims = STATS | nsqd_of(other, authenticated=True)
    server.default = other.default = Reply(json.dumps(claims).encode(), headers=PLAIN)
    web = trusting(server.address)
    (found,) = topic_producers("t", web=web, nsqds=[server.address]).producers
    assert not found.authenticated
    node_stats([found], web=web)
    assert tokens(other) == [""]


def test_every_listed_nsqd_may_be_trusted(server: AuthServer, other: AuthServer) -> None:
    server.default = Reply(json.dumps({"producers": [nsqd_of(other)]}).encode(), headers=PLAIN)
    web = trusting(server.address, all_listed=True)
    node_stats(nodes([server.address], web=web).producers, web=web)
    assert tokens(other) == ["Bearer sesame"]


def test_a_producer_is_proved_if_one_lookupd_says_so() -> None:
    one, proved = Producer("a", 1, 2), Producer("a", 1, 2, authenticated=True)
    for lists in ([[one], [proved]], [[proved], [one]]):
        (found,) = Found(dict(enumerate(lists))).producers  # type: ignore[arg-type]
        assert found.authenticated


# -- TLS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority = certificates.make("ca", authority=True)
    authority.save(folder)
    certificates.make("server", by=authority).save(folder)
    certificates.make("client", by=authority).save(folder)
    return folder


@pytest.fixture
def secure(folder: Path) -> Iterator[AuthServer]:
    """Server that requires a client certificate from its authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = AuthServer(tls=context)
    yield server
    server.close()


def test_certificates_of_ours(secure: AuthServer, server: AuthServer, folder: Path) -> None:
    mine = {"cert_file": str(folder / "client.pem"), "key_file": str(folder / "client.key")}
    ca = str(folder / "ca.pem")
    secure.default = Reply(b"OK")
    url = f"https://{secure.address}/"
    assert ask(WebClient(Terms(root_ca_file=ca, **mine)), url).body == b"OK"
    assert ask(WebClient(Terms(verify=False, **mine)), url).body == b"OK"
    with pytest.raises(RequestError, match="certificate"):
        ask(WebClient(Terms(**mine)), url)
    with pytest.raises(RequestError):
        ask(WebClient(Terms(root_ca_file=ca)), url)
    with pytest.raises(RequestError, match="none: No such file"):
        ask(WebClient(Terms(root_ca_file=ca, cert_file="none")), url)
    # A server that requires TLS announces its HTTPS port.
    server.default = Reply(b'{"https_port":%d}' % secure.port, 403)
    answer = ask(WebClient(Terms(root_ca_file=ca, **mine)), f"http://{server.address}/a?b=c")
    assert (answer.body, secure.requests[-1].path) == (b"OK", "/a?b=c")


def test_a_certificate_of_our_ca_proves_an_nsqd(
    secure: AuthServer, server: AuthServer, folder: Path
) -> None:
    mine = {"cert_file": str(folder / "client.pem"), "key_file": str(folder / "client.key")}
    secure.default = Reply(b"OK")
    server.default = Reply(b'{"https_port":%d}' % secure.port, 403)
    ask(trusting(root_ca_file=str(folder / "ca.pem"), **mine), f"http://{server.address}/")
    assert (tokens(server), tokens(secure)) == ([""], ["Bearer sesame"])
    ask(trusting(verify=False, **mine), f"http://{server.address}/")
    assert (tokens(server), tokens(secure)) == ([""], [""])


def test_403_without_a_port_is_an_answer(server: AuthServer, web: WebClient) -> None:
    server.default = Reply(b"no", 403)
    assert ask(web, f"http://{server.address}/").status == 403
    server.default = Reply(b'{"https_port":0}', 403)
    with pytest.raises(RequestError, match="403"):
        ask(web, f"http://{server.address}/")


# -- statistics

STATS = {"topics": [{"topic_name": "t", "channels": [{"channel_name": "c", "depth": 2}]}]}


def test_node_stats(server: AuthServer, nobody: str, web: WebClient) -> None:
    server.default = Reply(json.dumps(STATS).encode(), headers=PLAIN)
    here = Producer("127.0.0.1", 1, server.port, hostname="h")
    gone = Producer("127.0.0.1", 2, int(nobody.rpartition(":")[2]))
    mute = Producer("mute", 1, 0)
    strange = [Producer(host, 1, 2) for host in ("a b", "a\nb", "h/x?y=", "é" * 300, "a@b")]
    again = replace(here, tcp_port=9, hostname="again")
    found = node_stats([here, again, gone, mute, *strange], "t", "c", web=web)
    assert [each.path for each in server.requests] == [
        "/stats?format=json&topic=t&channel=c&include_clients=false"
    ]
    assert found.topics["t"].channels["c"].figures.depth == 2
    assert found.topics["t"].nodes[0].hostname == "h"
    assert str(found.errors[nobody]) == "Connection refused"
    assert str(found.errors["mute:0"]) == "the nsqd has no HTTP port"
    assert found.errors.keys() == {nobody, "mute:0", *(each.http_address for each in strange)}


def test_statistics_of_everything(server: AuthServer, web: WebClient) -> None:
    server.default = Reply(json.dumps(STATS).encode(), headers=PLAIN)
    node_stats([Producer("127.0.0.1", 1, server.port)], web=web)
    assert server.requests[0].path == "/stats?format=json&include_clients=false&sparse=true"


@pytest.mark.parametrize("told", ["b", ""])
def test_producers_among_nsqds(told: str, server: AuthServer, web: WebClient) -> None:
    # Every request gets the same answer, because the readers of /stats and /info use different
    # keys.
    info = {"broadcast_address": told, "tcp_port": 5, "http_port": 6, "hostname": "h"}
    server.default = Reply(json.dumps(STATS | info).encode(), headers=PLAIN)
    (found,) = topic_producers("t", web=web, nsqds=[server.address]).producers
    at = ("b", 6) if told else ("127.0.0.1", server.port)
    assert (found.broadcast_address, found.http_port, found.hostname) == (*at, "h")
    assert [each.path for each in server.requests] == [
        "/stats?format=json&topic=t&include_clients=false",
        "/info",
    ]
    assert topic_producers("other", web=web, nsqds=[server.address]).producers == []


def test_producers_by_lookupds(server: AuthServer, web: WebClient) -> None:
    server.default = listing("a")
    found = topic_producers("t", web=web, lookupds=[server.address])
    assert [each.address for each in found.producers] == [("a", 1)]
