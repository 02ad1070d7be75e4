"""With thousands of topics, nsqadmin, `nsqcy top` and doctor read only small responses of nsqd."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.request import urlopen

import pytest

from conftest import Starter
from nsqcy.testing.http_requests import Web, eventually
from support.fake_http_daemon import HttpServer
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd, environment
from support.nsqlookupd_process import Lookupd
from support.strict_html import read

WORKERS = 3
COUNT = 3000
NAMES = [f"orders.{number:05d}" for number in range(COUNT)]
AHEAD = 100
SMALL = 320_000  # bytes; the complete response is larger, and grows with the number of topics
# A later page also reads the statistics of its topics, with their rates.
READ = 350_000
TINY = 3000
WHOLE = "/stats?format=json&sparse=true&include_clients=false"


class CountingProxy(HttpServer):
    """An HTTP proxy in front of an nsqd, which records the size of each response."""

    def __init__(self, nsqd: Nsqd) -> None:
        proxy, upstream = self, f"{nsqd.host}:{nsqd.http_port}"
        self.responses: list[tuple[str, int]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with urlopen(f"http://{upstream}{self.path}") as answer:
                    body = answer.read()
                proxy.responses.append((self.path, len(body)))
                self.send_response(200)
                self.send_header("X-NSQ-Content-Type", "nsq; version=1.0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        super().__init__(Handler)

    def read_since(self) -> int:
        """Return the bytes of all responses since the last call."""
        total = sum(size for _, size in self.responses)
        self.responses.clear()
        return total


def create(nsqd: Nsqd) -> None:
    """Create the topics with a channel each, pipelined."""
    address = nsqd.host, nsqd.http_port
    with socket.create_connection(address) as conn, conn.makefile("rb") as answers:
        for begin in range(0, COUNT, AHEAD):
            some = NAMES[begin : begin + AHEAD]
            paths = [f"/topic/create?topic={name}" for name in some]
            paths += [f"/channel/create?topic={name}&channel=work" for name in some]
            for path in paths:
                head = f"POST {path} HTTP/1.1\r\nHost: nsqd\r\nContent-Length: 0\r\n\r\n"
                conn.sendall(head.encode())
            for _ in paths:
                assert b" 200 " in answers.readline()
                while answers.readline().strip():
                    pass  # the body is empty


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An nsqlookupd and an nsqd with many topics, of which two have messages."""
    starter = Starter(WORKERS, tmp_path_factory.mktemp("many"))
    with Lookupd() as lookupd:
        nsqd = starter(broadcast_address="127.0.0.1")
        try:
            create(nsqd)
            # Only now: nsqd queries its nsqlookupds whenever it creates a topic.
            addresses = json.dumps([lookupd.addresses["TCP"]]).encode()
            assert nsqd.web.put("/config/nsqlookupd_tcp_addresses", addresses).status == 200
            for topic, messages in ((NAMES[-1], 2), (NAMES[1500], 1)):
                for _ in range(messages):
                    nsqd.web.pub(topic, b"x")
            registered = Web.at(lookupd.http_address)
            eventually(lambda: len(registered.get("/topics").json()["topics"]) == COUNT)
            # The rates of a topic are part of its statistics once it has two samples.
            eventually(lambda: nsqd.web.get(WHOLE).body.count(b'"publish_rate"') == COUNT)
            yield nsqd, lookupd
        finally:
            for daemon in starter.daemons:
                daemon.destroy()


def test_a_summary_of_all_workers(many: Any) -> None:
    nsqd, _ = many
    whole = nsqd.web.get(WHOLE)
    found = nsqd.web.get(WHOLE + "&busiest=2")
    assert len(found.body) < TINY < SMALL < len(whole.body)
    shown = found.json()
    by_name = {topic["topic_name"]: topic for topic in whole.json()["topics"]}
    assert [each["topic_name"] for each in shown["topics"]] == [NAMES[-1], NAMES[1500]]
    assert [each["channels"][0]["depth"] for each in shown["topics"]] == [2, 1]
    assert shown["totals"]["topic_count"] == shown["totals"]["channel_count"] == len(by_name)
    assert shown["totals"]["channels"]["depth"] == 3
    some = nsqd.web.get("/stats", format="json", topics=f"{NAMES[7]},none,{NAMES[5]}").json()
    assert [each["topic_name"] for each in some["topics"]] == [NAMES[5], NAMES[7]]
    names = nsqd.web.get("/stats", format="json", busiest="0", names="true").json()
    assert sorted(names["topic_names"]) == NAMES
    refused = nsqd.web.get("/stats", format="json", busiest="many")
    assert refused.status == 400 and b"INVALID_BUSIEST (allowed: " in refused.body


def test_pages_of_nsqadmin(many: Any) -> None:
    nsqd, _ = many
    with (
        CountingProxy(nsqd) as proxy,
        Admin(nsqd_http_address=proxy.address) as admin,
    ):
        pages = {}
        for path, maximum in (
            ("/", SMALL),
            ("/topics", SMALL),
            ("/topics?page=6", READ),
            ("/topics?sort=-topic&q=orders.015", SMALL),
            ("/topics?sort=backlog", SMALL),
            ("/channels", SMALL),
            ("/nodes", SMALL),
            ("/counter", TINY),
            ("/api/topics", SMALL),
            ("/api/nodes", SMALL),
        ):
            answer = admin.web.get(path)
            assert answer.status == 200
            pages[path] = answer.body
            assert proxy.read_since() < maximum, path
        assert json.loads(pages["/api/topics"])["topics"] == NAMES
        tables = {path: rows(body) for path, body in pages.items() if path.startswith("/topics")}
        figures = {path: {name: row[1:7] for name, row in each} for path, each in tables.items()}
        quiet, waiting = ["0", "0", "0", "0", "1", "0"], ["2", "0", "0", "2", "1", "0"]
        assert [*figures["/topics"]] == NAMES[:500]
        assert figures["/topics"][NAMES[0]] == quiet
        last = figures["/topics?page=6"]
        assert [*last] == NAMES[2500:]
        assert last[NAMES[2500]] == quiet and last[NAMES[-1]] == waiting
        searched = [*figures["/topics?sort=-topic&q=orders.015"]]
        assert searched == [*reversed(NAMES[1500:1600])]
        assert [*figures["/topics?sort=backlog"]][:3] == [NAMES[-1], NAMES[1500], NAMES[0]]
        text = read(pages["/"]).text
        assert NAMES[-1] in text and "no consumer: work" in text


def rows(page: bytes) -> list[tuple[str, list[str]]]:
    """Return the rows of the table of topics: names and cells."""
    body = read(page).one("tbody")
    found = []
    for row in body.all("tr"):
        (name,) = row.all("th")
        found.append((name.text.strip(), [cell.text.strip() for cell in row.all("td")]))
    return found


def nsqcy(*words: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "nsqcy", *words, "--json"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert not done.stderr
    return json.loads(done.stdout)


def test_top(many: Any) -> None:
    nsqd, _ = many
    with CountingProxy(nsqd) as proxy:
        found = nsqcy("top", "--interval=10ms", f"--nsqd-http-address={proxy.address}")
        assert proxy.read_since() < 2 * SMALL  # two samples
    assert [(each["topic"], each["depth"]) for each in found["channels"][:2]] == [
        (NAMES[-1], 2),
        (NAMES[1500], 1),
    ]
    assert [each["topic"] for each in found["problems"]] == [NAMES[1500], NAMES[-1]]
    assert (found["omitted_topics"], found["unchecked_topics"]) == (COUNT - 1000, 0)


def test_doctor_knows_all_topics(many: Any) -> None:
    _, lookupd = many
    at = f"--lookupd-http-address={lookupd.http_address}"
    told = nsqcy("doctor", "--host=false", "--sample=0", at)["findings"]
    by_check = {each["check"]: each["level"] for each in told}
    assert by_check["ghost-topics"] == by_check["registration"] == "ok"
    assert [each["level"] for each in told if each["check"] == "idle-channels"] == ["warning"] * 2
