"""Registrations, tombstones and liveness, as shown by /lookup, /nodes and the other endpoints."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.testing.http_requests import Answer, Web, eventually
from support.nsqlookupd_process import LookupConn, Lookupd

KEYS = ["remote_address", "hostname", "broadcast_address", "tcp_port", "http_port", "version"]
KEYS += ["topology_zone", "topology_region"]
ENTRY = ["broadcast_address", "hostname", "http_port", "id", "last_update", "tcp_port"]
ENTRY += ["tombstoned", "tombstoned_at", "topology_region", "topology_zone", "version"]
NEVER = -6795364578871345152


@pytest.fixture(scope="module")
def running() -> Iterator[Lookupd]:
    with Lookupd() as daemon:
        yield daemon


@pytest.fixture
def lookupd(running: Lookupd) -> Iterator[Lookupd]:
    """Shared by the tests in this module: use unique names."""
    yield running
    running.hang_up()


@pytest.fixture
def web(lookupd: Lookupd) -> Web:
    return lookupd.web


@pytest.fixture
def nsqds(lookupd: Lookupd) -> tuple[LookupConn, LookupConn]:
    """Return connections that have identified themselves as A and B."""
    return known(lookupd, "A"), known(lookupd, "B")


def known(lookupd: Lookupd, address: str) -> LookupConn:
    conn = lookupd.connect()
    conn.identify(address)
    return conn


def failed(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.json()) == (status, {"message": code})
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def done(answer: Answer) -> None:
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def node(lookupd: Lookupd, conn: LookupConn) -> dict[str, Any] | None:
    name = conn.name
    return next((each for each in lookupd.nodes() if each["remote_address"] == name), None)


def tombstones(lookupd: Lookupd, conn: LookupConn) -> dict[str, bool]:
    found = node(lookupd, conn)
    assert found is not None
    return dict(zip(found["topics"], found["tombstones"], strict=True))


@pytest.mark.case("LKD-21")
def test_lookup(lookupd: Lookupd, web: Web, topic: str) -> None:
    conn = lookupd.connect()
    conn.identify("10.0.0.5", tcp_port=4150, http_port=4151, topology_zone="z&", hostname="n")
    conn.register(topic, "c1")
    answer = web.get("/lookup", topic=topic)
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert b'"topology_zone":"z\\u0026"' in answer.body
    found = answer.json()
    assert list(found) == ["channels", "producers"]
    assert found["channels"] == ["c1"]
    assert [list(each) for each in found["producers"]] == [KEYS]
    values = [conn.name, "n", "10.0.0.5", 4150, 4151, "1.3.0", "z&", ""]
    assert list(found["producers"][0].values()) == values


@pytest.mark.case("LKD-22", "LKD-23")
def test_topics_channels_nodes(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, b = nsqds
    for names in ((topic, "c1"), (topic, "c2"), (topic + "b",)):
        a.register(*names)
    assert {topic, topic + "b"} <= set(web.get("/topics").json()["topics"])
    assert lookupd.channels(topic) == ["c1", "c2"]
    found = node(lookupd, a)
    assert found is not None and list(found) == [*KEYS, "tombstones", "topics"]
    assert tombstones(lookupd, a) == {topic: False, topic + "b": False}
    assert tombstones(lookupd, b) == {}


@pytest.mark.case("LKD-24")
def test_one_address_twice(lookupd: Lookupd, topic: str) -> None:
    for conn in (known(lookupd, "twin"), known(lookupd, "twin")):
        conn.register(topic)
        assert node(lookupd, conn) is not None
    assert lookupd.producers(topic) == ["twin", "twin"]


@pytest.mark.case("LKD-25")
def test_unregister_a_channel(
    lookupd: Lookupd, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, _ = nsqds
    a.register(topic, "c1")
    a.unregister(topic, "c1")
    assert lookupd.producers(topic) == ["A"]
    assert lookupd.channels(topic) == ["c1"]


@pytest.mark.case("LKD-26")
def test_unregister_what_is_ephemeral(
    lookupd: Lookupd, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, b = nsqds
    topic, channel = topic + "#ephemeral", "ec#ephemeral"
    for conn in nsqds:
        conn.register(topic, channel)
    a.unregister(topic, channel)
    assert lookupd.channels(topic) == [channel]
    b.unregister(topic, channel)
    assert lookupd.channels(topic) == []
    a.unregister(topic)
    assert lookupd.producers(topic) == ["B"]
    b.unregister(topic)
    assert lookupd.lookup(topic) is None


@pytest.mark.case("LKD-27")
def test_unregister_a_topic(
    lookupd: Lookupd, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, b = nsqds
    a.register(topic, "c1")
    a.register(topic, "c2")
    b.register(topic, "c2")
    a.unregister(topic)
    assert lookupd.producers(topic) == ["B"]
    assert lookupd.channels(topic) == ["c1", "c2"]
    shown = lookupd.web.get("/debug").json()
    assert f"channel:{topic}:c1" not in shown
    assert [each["id"] for each in shown[f"channel:{topic}:c2"]] == [b.name]


@pytest.mark.case("LKD-28", "LKD-29")
@pytest.mark.parametrize("suffix", ["", "#ephemeral"])
def test_a_connection_ends(lookupd: Lookupd, topic: str, suffix: str) -> None:
    topic, channel = topic + suffix, "c1" + suffix
    conn = known(lookupd, "A")
    conn.register(topic, channel)
    conn.close()
    nothing = {"channels": [channel], "producers": []}
    eventually(lambda: lookupd.lookup(topic) == nothing)
    assert topic in lookupd.web.get("/topics").json()["topics"]
    assert all(topic not in each["topics"] for each in lookupd.nodes())


@pytest.mark.ours
def test_only_what_a_page_needs(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    """Topics that no nsqd has, and nsqds without their topics."""

    def abandoned() -> bool:
        found = web.get("/topics?abandoned=true").json()["topics"]
        return topic in found

    web.post(f"/topic/create?topic={topic}")
    assert abandoned()
    a, b = nsqds
    a.register(topic)
    b.register(topic)
    assert not abandoned()
    web.post(f"/topic/tombstone?topic={topic}&node=A:4151")
    a.close()
    eventually(lambda: len(lookupd.nodes()) == 1)
    assert not abandoned()
    b.close()
    eventually(abandoned)
    assert topic in web.get("/topics?abandoned=%zz").json()["topics"]
    c = known(lookupd, "C")
    c.register(topic)
    (found,) = web.get("/nodes?topics=false").json()["producers"]
    assert (found["broadcast_address"], found["tombstones"], found["topics"]) == ("C", [], [])


@pytest.mark.case("LKD-30")
def test_a_silent_producer() -> None:
    with Lookupd(inactive_producer_timeout="300ms") as lookupd:
        conn = known(lookupd, "A")
        conn.register("t1", "c1")
        assert lookupd.lookup("t1") is not None
        silent = {"channels": ["c1"], "producers": []}
        eventually(lambda: lookupd.lookup("t1") == silent)
        conn.register("t1")
        assert lookupd.nodes() == []
        assert lookupd.web.get("/topics").json() == {"topics": ["t1"]}
        assert set(lookupd.web.get("/debug").json()) == {"client::", "topic:t1:", "channel:t1:c1"}

        def back() -> bool:  # on a slow machine, A may count as inactive again
            conn.ping()
            return lookupd.producers("t1") == ["A"] and len(lookupd.nodes()) == 1

        eventually(back)


@pytest.mark.case("LKD-31", "LKD-32", "LKD-33", "LKD-34")
def test_tombstones(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, b = nsqds
    other = topic + "b"
    for conn, *names in ((a, topic, "c"), (b, topic), (a, other)):
        conn.register(*names)
    done(web.post("/topic/tombstone", topic=topic, node="A:11"))
    assert lookupd.producers(topic) == ["B"]
    assert lookupd.producers(other) == ["A"]
    assert tombstones(lookupd, a) == {topic: True, other: False}
    assert tombstones(lookupd, b) == {topic: False}
    (entry,) = [e for e in web.get("/debug").json()[f"topic:{topic}:"] if e["id"] == a.name]
    assert entry["tombstoned"] and entry["tombstoned_at"] >= entry["last_update"]

    a.register(topic)
    a.register(topic, "new")
    a.ping()
    assert lookupd.producers(topic) == ["B"]

    a.unregister(topic)
    assert lookupd.producers(topic) == ["B"]
    a.register(topic)
    assert lookupd.producers(topic) == ["A", "B"]

    done(web.post("/topic/tombstone", topic=topic, node="A:11"))
    assert lookupd.producers(topic) == ["B"]
    a.close()
    known(lookupd, "A").register(topic)
    assert lookupd.producers(topic) == ["A", "B"]


@pytest.mark.case("LKD-35")
def test_a_tombstone_ends() -> None:
    with Lookupd(tombstone_lifetime="200ms") as lookupd:
        conn = known(lookupd, "A")
        conn.register("t1")
        done(lookupd.web.post("/topic/tombstone", topic="t1", node="A:11"))
        eventually(lambda: lookupd.producers("t1") == ["A"])
        assert tombstones(lookupd, conn) == {"t1": False}
        (entry,) = lookupd.web.get("/debug").json()["topic:t1:"]
        assert entry["tombstoned"] is True
        assert entry["tombstoned_at"] > entry["last_update"]


@pytest.mark.case("LKD-36")
def test_tombstones_for_nobody(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    a, _ = nsqds
    a.register(topic)
    for name in ("A:1", "a:11", "A", "", "*"):
        done(web.post("/topic/tombstone", topic=topic, node=name))
    done(web.post("/topic/tombstone", topic="*", node="A:11"))
    done(web.post("/topic/tombstone", topic="nope", node="A:11"))
    assert lookupd.producers(topic) == ["A"]


@pytest.mark.case("LKD-37", "LKD-38", "LKD-41")
def test_missing_and_invalid_arguments(web: Web) -> None:
    for method, path in (
        ("GET", "/lookup"),
        ("GET", "/channels"),
        ("POST", "/topic/create"),
        ("POST", "/topic/delete"),
        ("POST", "/topic/tombstone"),
        ("POST", "/channel/create"),
        ("POST", "/channel/delete"),
    ):
        failed(web.request(method, path), 400, "MISSING_ARG_TOPIC")
    failed(web.post("/topic/tombstone", topic="x"), 400, "MISSING_ARG_NODE")
    for name in ("bad$", "", "x" * 65, "*"):
        failed(web.post("/topic/create", topic=name), 400, "INVALID_ARG_TOPIC")
        for action in ("create", "delete"):
            path = f"/channel/{action}"
            failed(web.post(path, topic=name, channel="c"), 400, "INVALID_ARG_TOPIC")
            failed(web.post(path, topic="t", channel=name), 400, "INVALID_ARG_CHANNEL")
            failed(web.post(path, topic="t"), 400, "MISSING_ARG_CHANNEL")


@pytest.mark.case("LKD-39", "LKD-40")
def test_names_nobody_has(web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str) -> None:
    nsqds[0].register(topic, "c")
    for name in ("nope", "", "bad$", "*", "\xe9"):
        failed(web.get("/lookup", topic=name), 404, "TOPIC_NOT_FOUND")
        assert web.get("/channels", topic=name).body == b'{"channels":[]}'


@pytest.mark.case("LKD-42", "LKD-43", "LKD-44")
def test_create_and_delete(web: Web, topic: str) -> None:
    done(web.post("/topic/create", topic=topic))
    assert web.get("/lookup", topic=topic).body == b'{"channels":[],"producers":[]}'

    other = topic + "b"
    done(web.post("/channel/create", topic=other, channel="ch"))
    done(web.post("/channel/create", b"ignored", topic=other, channel="ch"))
    assert web.get("/lookup", topic=other).json() == {"channels": ["ch"], "producers": []}
    assert other in web.get("/topics").json()["topics"]

    done(web.post("/channel/delete", topic=other, channel="ch"))
    failed(web.post("/channel/delete", topic=other, channel="ch"), 404, "CHANNEL_NOT_FOUND")
    assert web.get("/lookup", topic=other).json() == {"channels": [], "producers": []}


@pytest.mark.case("LKD-45")
def test_delete_what_never_was(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    nsqds[0].register(topic, "c")
    for name in ("never", "bad$", "", "*"):
        done(web.post("/topic/delete", topic=name))
    assert lookupd.producers(topic) == ["A"]
    assert lookupd.channels(topic) == ["c"]


@pytest.mark.case("LKD-46")
def test_delete_a_topic_that_is_alive(
    lookupd: Lookupd, web: Web, nsqds: tuple[LookupConn, LookupConn], topic: str
) -> None:
    _, b = nsqds
    b.register(topic, "c1")
    done(web.post("/topic/delete", topic=topic))
    failed(web.get("/lookup", topic=topic), 404, "TOPIC_NOT_FOUND")
    assert tombstones(lookupd, b) == {}
    b.register(topic, "c1")
    assert lookupd.producers(topic) == ["B"]
    assert lookupd.channels(topic) == ["c1"]


@pytest.mark.case("LKD-47")
def test_methods(web: Web) -> None:
    answer = web.get("/topic/create", topic="x")
    failed(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "OPTIONS, POST"
    failed(web.post("/lookup"), 405, "METHOD_NOT_ALLOWED")
    answer = web.request("OPTIONS", "/debug/pprof/symbol")
    assert (answer.status, answer.headers["allow"]) == (200, "GET, OPTIONS, POST")


@pytest.mark.case("LKD-48")
def test_nothing() -> None:
    with Lookupd() as lookupd:
        web = lookupd.web
        assert web.get("/topics").body == b'{"topics":[]}'
        assert web.get("/nodes").body == b'{"producers":[]}'
        assert web.get("/debug").body == b"{}"
        lookupd.stop()


@pytest.mark.case("LKD-49")
def test_pprof(lookupd: Lookupd, web: Web) -> None:
    moved = web.get("/debug/pprof/")
    assert (moved.status, moved.headers["location"]) == (301, "/debug/pprof")
    index = web.get("/debug/pprof")
    assert index.status == 200 and b'href="goroutine"' in index.body
    assert "x-nsq-content-type" not in index.headers
    words = web.get("/debug/pprof/cmdline").body.split(b"\0")
    assert f"--broadcast-address={lookupd.options['broadcast_address']}".encode() in words
    assert b"nsqlookupd/daemon.py" in web.get("/debug/pprof/goroutine").body
    for page in ("heap", "threadcreate", "block", "symbol"):
        assert web.get(f"/debug/pprof/{page}").status == 200
    assert web.post("/debug/pprof/symbol").body == b"num_symbols: 1\n"
    assert "GET /debug/pprof" not in lookupd.log_text()


@pytest.mark.case("LKD-50")
@pytest.mark.parametrize(
    "path",
    ["/stats", "/config/log_level", "/create_topic?topic=x", "/debug/freememory", "/", "/pub"],
)
def test_what_there_is_not(web: Web, path: str) -> None:
    failed(web.get(path), 404, "NOT_FOUND")


@pytest.mark.case("LKD-51")
@pytest.mark.parametrize("query", ["topic=%zz", "topic=a;b", "topic=a&x=%"])
def test_a_query_that_cannot_be_read(web: Web, query: str) -> None:
    for path in ("/lookup", "/channels"):
        failed(web.get(f"{path}?{query}"), 400, "INVALID_REQUEST")
    for path in ("/topic/create", "/topic/delete", "/topic/tombstone", "/channel/create"):
        failed(web.post(f"{path}?{query}"), 400, "INVALID_REQUEST")


def test_a_body_that_is_cut_short(lookupd: Lookupd, topic: str) -> None:
    with socket.create_connection(("127.0.0.1", lookupd.http_port), timeout=10) as raw:
        head = f"POST /topic/create?topic={topic} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"
        raw.sendall(head.encode() + b"ab")
        raw.shutdown(socket.SHUT_WR)
        answer = raw.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.endswith(b'{"message":"INVALID_REQUEST"}')
    assert lookupd.lookup(topic) is None


@pytest.mark.parametrize(
    "method, path, status",
    [("GET", "/lookup", 404), ("POST", "/topic/create", 200), ("POST", "/topic/delete", 200)],
)
def test_a_huge_body_that_nobody_needs_is_not_awaited(
    web: Web, topic: str, method: str, path: str, status: int
) -> None:
    answer = web.announce(method, path, 10**12, topic=topic)
    assert (answer.status, answer.headers["connection"]) == (status, "close")


def test_ping_and_info(web: Web) -> None:
    answer = web.get("/ping")
    assert (answer.status, answer.body) == (200, b"OK")
    assert "x-nsq-content-type" not in answer.headers
    assert web.get("/info").body == b'{"version":"1.3.0"}'


def test_debug(lookupd: Lookupd, web: Web, topic: str) -> None:
    conn = known(lookupd, "A")
    conn.register(topic, "c")
    text = web.get("/debug").body.decode()
    shown = json.loads(text)
    assert list(shown) == sorted(shown)
    (entry,) = shown[f"channel:{topic}:c"]
    assert list(entry) == ENTRY
    assert (entry["id"], entry["tombstoned"], entry["tombstoned_at"]) == (conn.name, False, NEVER)
    assert shown[f"topic:{topic}:"] == [entry]
    assert entry in shown["client::"]
    conn.ping()
    (later,) = web.get("/debug").json()[f"topic:{topic}:"]
    assert later["last_update"] > entry["last_update"]


def test_what_is_logged(lookupd: Lookupd, web: Web, topic: str) -> None:
    web.post("/channel/create", topic=topic, channel="c")
    web.post("/topic/tombstone", topic=topic, node="n:1")
    web.post("/topic/delete", topic=topic)
    last = f"INFO: 200 POST /topic/delete?topic={topic} (127"
    eventually(lambda: last in lookupd.log_text())
    lines = [line.split(" ", 3)[3] for line in lookupd.log_text().splitlines() if topic in line]
    assert [line for line in lines if line.startswith("INFO: DB: ")] == [
        f"INFO: DB: adding channel(c) in topic({topic})",
        f"INFO: DB: adding topic({topic})",
        f"INFO: DB: setting tombstone for producer@n:1 of topic({topic})",
        f"INFO: DB: removing channel(c) from topic({topic})",
        f"INFO: DB: removing topic({topic})",
    ]
