"""/stats as a black box: formats, filters, and the effects of all answered commands."""

import http.client
import json
import ssl
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from conftest import Starter, one_worker
from loadtest.many_clients import Loop
from nsqcy.testing.certificates import make
from nsqcy.testing.encoded_connection import client_context, connect
from nsqcy.testing.http_requests import Web, eventually
from support.many_clients import homes
from support.nsqd_process import Nsqd

MEMORY_KEYS = [
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes"),
    "gc_total_runs",
]


def pages(daemon: Nsqd, **query: Any) -> str:
    """Return /stats in the text format."""
    answer = daemon.web.get("/stats", **query)
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"
    return answer.body.decode()


@pytest.mark.case("HTTP-060")
def test_no_topics(nsqd: Starter) -> None:
    daemon = nsqd()
    answer = daemon.web.get("/stats", format="json")
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    stats = answer.json()
    start = f'{{"version":"1.3.0","health":"OK","start_time":{stats["start_time"]},"topics":[],'
    assert answer.body.startswith(start.encode() + b'"memory":{"heap_objects":')
    assert answer.body.endswith(b'},"producers":null}')
    assert list(stats["memory"]) == MEMORY_KEYS
    lines = pages(daemon).split("\n")
    assert lines[0].startswith("nsqd v1.3.0 (built w/")
    assert lines[1].startswith("start_time 20") and lines[2].startswith("uptime ")
    assert lines[3:7] == ["", "Health: OK", "", "Memory:"]
    assert [line[:28].strip() for line in lines[7:16]] == MEMORY_KEYS
    assert lines[16:] == ["", "Topics: None", "", "Producers: None", ""]


@pytest.mark.case("HTTP-061", "HTTP-062")
def test_filters(shared: Nsqd, topic: str) -> None:
    web = shared.web
    shared.connect().pub(topic, b"x")
    web.create(topic, "ch", "other")
    web.create(topic + "2", "other")
    stats = web.stats(topic=topic + "-unknown")
    assert stats["topics"] is None and stats["producers"] is None
    assert web.stats(topic=topic, channel="nope")["topics"] == []
    assert "\nTopics: None\n" in pages(shared, topic=topic, channel="nope")
    (found,) = web.stats(topic=topic)["topics"]
    assert [channel["channel_name"] for channel in found["channels"]] == ["ch", "other"]
    found = [each for each in web.stats(channel="ch")["topics"] if topic in each["topic_name"]]
    assert [each["topic_name"] for each in found] == [topic]
    assert [channel["channel_name"] for channel in found[0]["channels"]] == ["ch"]


def test_topics_of_all_workers_are_sorted(shared: Nsqd, topic: str) -> None:
    names = [f"{topic}{ending}" for ending in ("", "-", ".", "0", "A", "_", "a", "a#ephemeral")]
    for name in reversed(names):
        shared.web.create(name)
    found = [name for name in shared.web.topics() if name.startswith(topic)]
    assert found == sorted(names)
    lines = pages(shared, include_mem="false").split("\n")
    shown = [line.split()[0].strip("[]") for line in lines if line.startswith(f"   [{topic}")]
    assert shown == sorted(names)
    before = lines.index(next(line for line in lines if line.startswith(f"   [{names[1]:<15}")))
    assert lines[before - 1] == ""


@pytest.mark.case("HTTP-063", "HTTP-064", "HTTP-065")
def test_what_is_included(shared: Nsqd, topic: str) -> None:
    web = shared.web
    shared.connect().sub(topic, "c")
    for value, kind in (("0", type(None)), ("1", list), ("FALSE", list)):
        stats = web.stats(topic=topic, include_clients=value)
        (channel,) = stats["topics"][0]["channels"]
        assert type(channel["clients"]) is kind and channel["client_count"] == 1
    assert "memory" not in web.stats(include_mem="false")
    assert list(web.stats(include_mem="no")["memory"]) == MEMORY_KEYS
    assert pages(shared, format="JSON").startswith("nsqd v1.3.0 ")
    assert "Memory:" not in pages(shared, include_mem="0")


@pytest.mark.ours
@pytest.mark.case("HTTP-066")
def test_everything_a_producer_has_published_to(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    for number in range(5):
        conn.pub(f"{topic}-{4 - number}", *[b"x"] * (number + 1))
    address = "{}:{}".format(*conn.socket.getsockname())
    for _ in range(40):
        found = [p for p in shared.web.stats()["producers"] if p["remote_address"] == address]
        (producer,) = found
        assert producer["pub_counts"] == [
            {"topic": f"{topic}-{number}", "count": 5 - number} for number in range(5)
        ]


@pytest.mark.case("HTTP-067")
def test_a_producer_of_other_topics(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.negotiate(client_id="one", hostname="producer", user_agent="agent")
    conn.pub(topic, b"x", b"y")
    shared.web.create(topic + "2")
    port = conn.socket.getsockname()[1]

    def producer(name: str) -> dict[str, Any]:
        producers = shared.web.stats(topic=name)["producers"]
        return next(p for p in producers if p["remote_address"].endswith(f":{port}"))

    assert producer(topic)["pub_counts"] == [{"topic": topic, "count": 2}]
    assert "pub_counts" not in producer(topic + "2")

    def line(name: str) -> str:
        lines = pages(shared, topic=name).split("\n")
        return next(line for line in lines if f":{port} " in line)

    start = f"   [V2 {f'producer:{port} agent':<21}]"
    assert line(topic + "2").startswith(f"{start} state: 0 inflt: 0    rdy: 0    fin: 0 ")
    assert line(topic).startswith(f"{start} msgs: 2        topics: {topic}=2 connected: ")


@one_worker
@pytest.mark.case("HTTP-068")
def test_escapes(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.negotiate(hostname="hst<&>", user_agent='"\\\u2028é\n')
    conn.sub(topic, "c")
    body = shared.web.get("/stats", format="json", topic=topic).body
    assert b'"hostname":"hst\\u003c\\u0026\\u003e"' in body
    assert '"user_agent":"\\"\\\\\\u2028é\\n"'.encode() in body
    assert shared.web.client(topic, "c")["user_agent"] == '"\\\u2028é\n'


@pytest.mark.case("HTTP-069")
def test_a_long_page_is_chunked(shared: Nsqd, topic: str) -> None:
    shared.web.create(topic, *(f"channel{number}" for number in range(10)))
    answer = shared.web.get("/stats", format="json", topic=topic)
    assert len(answer.body) > 2048
    assert answer.headers["transfer-encoding"] == "chunked"
    assert "content-length" not in answer.headers


@one_worker
@pytest.mark.case("HTTP-070")
def test_a_client_with_tls(nsqd: Starter, tmp_path: Path) -> None:
    daemon = nsqd(**make("server").save(tmp_path).options)
    conn = connect(daemon, tls=client_context(version=ssl.TLSVersion.TLSv1_3)).sub("t", "c")
    client = daemon.web.client("t", "c")
    assert isinstance(conn.socket, ssl.SSLSocket)
    cipher = conn.socket.cipher()
    assert cipher is not None
    assert client["tls_cipher_suite"] == cipher[0]
    assert client["tls"] is True and client["tls_version"] == "TLS1.3"
    assert client["tls_negotiated_protocol"] == ""
    assert client["tls_negotiated_protocol_is_mutual"] is True
    conn.close()


@pytest.mark.case("HTTP-071")
def test_the_line_of_a_consumer(shared: Nsqd, topic: str) -> None:
    conn = shared.connect()
    conn.negotiate(hostname="host", user_agent="agent/1")
    conn.sub(topic, "c", 2)
    conn.barrier()
    shared.web.mpub(topic, [b"1", b"2"])
    conn.fin(conn.message())
    conn.message()
    shared.web.await_counts(topic, "c", in_flight_count=1, depth=0)
    lines = pages(shared, topic=topic, include_mem="false").split("\n")
    start = lines.index("Topics:")
    topic_line, channel_line, client_line = lines[start + 1 : start + 4]
    assert topic_line == f"   [{topic:<15}] depth: 0     be-depth: 0     msgs: 2        e2e%: "
    assert channel_line == (
        "      [c                        ] depth: 0     be-depth: 0     inflt: 1    def: 0    "
        "re-q: 0     timeout: 0     msgs: 2        e2e%: "
    )
    port = conn.socket.getsockname()[1]
    name = f"host:{port} agent/1"
    shown, connected = client_line.rsplit(" ", 1)
    assert shown == (
        f"        [V2 {name:<21}] state: 3 inflt: 1    rdy: 2    fin: 1        re-q: 0        "
        "msgs: 2        connected:"
    )
    assert connected.rstrip("s").isdigit()


class Link:
    """A persistent HTTP connection, which is always served by the same worker."""

    def __init__(self, port: int) -> None:
        self._link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        self._link.connect()
        self.socket = self._link.sock

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        self._link.request(method, path, body)
        answer = self._link.getresponse()
        data = answer.read()
        assert answer.status == 200, (path, answer.status, data)
        return data

    def __enter__(self) -> "Link":
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()


def test_what_was_answered_is_shown_at_once(nsqd: Starter) -> None:
    """Messages published through one worker are visible through another, even under concurrent
    queries."""
    daemon = nsqd()
    topics = [f"topic{number}" for number in range(7)]  # every worker owns some of these topics
    for name in topics:
        daemon.web.create(name, "c")
    with ExitStack() as stack:
        links = [stack.enter_context(Link(daemon.http_port)) for _ in range(8)]
        found: dict[int, Link] = {}
        for link, home in zip(links, homes(daemon, links), strict=True):  # type: ignore[arg-type]
            found.setdefault(home, link)
        at = list(found.values())
        assert len(at) == nsqd.workers
        asker = stack.enter_context(Link(daemon.http_port))
        pollers = [Loop(lambda: asker.request("GET", "/stats?format=json"))]
        for number in range(400 if nsqd.workers > 1 else 100):
            name = topics[number % len(topics)]
            publishing, asking = at[number % len(at)], at[(number // 3 + 1) % len(at)]
            assert publishing.request("POST", f"/pub?topic={name}", b"x") == b"OK"
            path = "/stats?format=json" if number % 2 else f"/stats?format=json&topic={name}"
            stats = json.loads(asking.request("GET", path))
            (seen,) = [each for each in stats["topics"] if each["topic_name"] == name]
            count = number // len(topics) + 1
            assert (seen["message_count"], seen["depth"]) == (count, 0), number
            (channel,) = seen["channels"]
            assert (channel["message_count"], channel["depth"]) == (count, count), number
        for poller in pollers:
            poller.stop()


def test_a_worker_that_is_down(nsqd: Starter) -> None:
    daemon = nsqd()
    daemon.web.create("a", "c")
    daemon.web.create("b", "c")
    if nsqd.workers == 1:
        return
    daemon.kill_worker(0)
    eventually(lambda: "being restarted" in daemon.web.stats()["health"])
    health = "NOK - workers being restarted: 1 of 3"
    seen = [daemon.web.stats() for _ in range(3)]
    assert {stats["health"] for stats in seen} <= {health, "OK"}
    eventually(lambda: daemon.web.stats()["health"] == "OK", timeout=20)
    assert list(daemon.web.topics()) == ["a", "b"]


@pytest.mark.ours
def test_the_durability_of_a_topic_that_has_one(nsqd: Starter, tmp_path: Path) -> None:
    file = tmp_path / "nsqd.ini"
    file.write_text("[nsqd]\n[topic safe.*]\ndurability = fsync\n[topic *.b]\ndurability = os\n")
    daemon = nsqd(args=(f"--config={file}",))
    names = ["plain", "safe.a", "safe.b", "safe.c#ephemeral"]
    for name in names:
        daemon.web.create(name, "c")
    expected = [None, "fsync", "os", None]
    assert [daemon.web.topics()[name].get("durability") for name in names] == expected
    daemon.stop()
    daemon.start()
    assert [daemon.web.topics()[name].get("durability") for name in names[:3]] == expected[:3]


def balanced(web: Web, topic: str) -> dict[str, dict[str, int]]:
    """Return the ledger of each channel without zeros. Each ledger must balance."""
    (found,) = web.stats(topic=topic, ledger="true")["topics"]
    ledgers = {}
    for channel in found["channels"]:
        ledger = channel["ledger"]
        flat = {**ledger, **ledger["dropped"]}
        del flat["dropped"]
        assert flat["received"] == sum(flat.values()) - flat["received"]
        assert (flat["queued"], flat["in_flight"]) == (channel["depth"], channel["in_flight_count"])
        ledgers[channel["channel_name"]] = {key: count for key, count in flat.items() if count}
    return ledgers


@pytest.mark.ours
def test_the_ledger_of_a_channel(nsqd: Starter) -> None:
    daemon = nsqd(mem_queue_size=5)
    for topic in ("a", "b", "c"):  # every worker owns some of these topics
        daemon.web.create(topic, "kept", "emptied", "x#ephemeral")
        daemon.connect().pub(topic, *[b"x"] * 9)
        consumer = daemon.connect().sub(topic, "kept", rdy=4)
        one, two, _, _ = consumer.messages(4)
        consumer.rdy(0)
        consumer.fin(one)
        consumer.req(two, 60_000)
        eventually(lambda: balanced(daemon.web, topic)["kept"].get("deferred"))  # noqa: B023
        daemon.web.do("empty", topic, "emptied")
        assert balanced(daemon.web, topic) == {
            "kept": {"received": 9, "finished": 1, "queued": 5, "in_flight": 2, "deferred": 1},
            "emptied": {"received": 9, "emptied": 9},
            "x#ephemeral": {"received": 9, "queued": 5, "overflow": 4},
        }
    assert "ledger" not in daemon.web.stats(topic="a")["topics"][0]["channels"][0]
    daemon.stop()
    daemon.start()
    for topic in ("a", "b", "c"):
        assert balanced(daemon.web, topic) == {
            "kept": {"received": 8, "queued": 7, "deferred": 1},
            "emptied": {},
        }


@pytest.mark.ours
def test_what_is_slow(nsqd: Starter) -> None:
    """A consumer that takes one message at a time does not keep up with a producer."""
    daemon = nsqd()
    consumer, producer = daemon.connect(), daemon.connect()
    consumer.sub("orders", "billing", rdy=1)

    def stats() -> dict[str, Any]:
        (topic,) = daemon.web.stats(topic="orders")["topics"]
        (channel,) = topic["channels"]
        return {"publish_rate": topic["publish_rate"], **channel}

    def growing() -> dict[str, Any] | None:
        producer.pub("orders", b"x", b"y")
        consumer.take(1)
        found = stats()
        return found if (found["falling_behind"] or 0) > 0 else None

    channel = eventually(growing, 20.0)
    assert channel["receive_rate"] > channel["finish_rate"] > 0 and channel["publish_rate"] > 0
    assert channel["drain_seconds"] is None and channel["timeout_rate"] == 0
    assert channel["clients"][0]["finish_rate"] > 0
    eventually(lambda: stats()["in_flight_count"] == 1)
    channel = stats()
    assert channel["saturated_client_count"] == 1 and channel["clients"][0]["saturated"]
