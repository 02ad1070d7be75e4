"""nsqadmin's pages with scripted daemons: their content, and the effects of their forms."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from nsqcy.testing.http_requests import Answer
from support.fake_http_daemon import Upstream
from support.nsqadmin_process import Admin
from support.strict_html import Element, read

NAME = "<b>&#ephemeral"  # not a valid topic name, but an nsqd may send it anyway

CHANNEL: dict[str, Any] = {
    "channel_name": "c",
    "depth": 1500,
    "backend_depth": 500,
    "in_flight_count": 2,
    "deferred_count": 3,
    "message_count": 2000,
    "requeue_count": 4,
    "timeout_count": 5,
    "client_count": 1,
    "global_msg_count": 10,
    "paused": True,
    "policy": {"max_attempts": 2, "dead_letter_topic": "u"},
    "clients": [
        {
            "client_id": "i",
            "hostname": "<i>",
            "remote_address": "10.0.0.1:77",
            "user_agent": "ua",
            "tls": True,
            "snappy": True,
            "authed": True,
            "auth_identity": "me",
            "auth_identity_url": "javascript:alert(1)",
            "sample_rate": 5,
            "topology_zone": "z",
            "ready_count": 2500,
            "in_flight_count": 2500,
        }
    ],
    "e2e_processing_latency": {"count": 2, "percentiles": [{"quantile": 0.99, "value": 1500000}]},
}
CURSOR = {"name": "lake", "log_id": "5b0e", "seq": 4000, "lag": 1712, "age": 63, "overrun": True}
COUNTS = ["Backlog", "In-Flight", "Deferred", "Messages", "Channels", "Connections"]
NODE: dict[str, Any] = {
    "nsqcy": "0.1.0",
    "start_time": 1_700_000_000,
    "refusing_publishes": [],
    "disk": {"size": 4 << 30, "free": 1 << 30},
    "master": {"resident": 30 << 20, "cpu": 1.0},
    "workers": [
        {
            "worker": 0,
            "up": True,
            "restarts": 1,
            "tcp": 3,
            "failing": 0,
            "memory": 1 << 20,
            "memory_limit": 4 << 20,
            "resident": 50 << 20,
            "cpu": 7.5,
        },
        {"worker": 1, "up": False, "restarts": 2},
    ],
    "lookupds": {"l:4160": True},
}
BUSIEST = "GET /stats?format=json&include_clients=false&sparse=true&busiest=1000"
TOPIC: dict[str, Any] = {"depth": 7, "message_count": 2007, "paused": False}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Upstream]:
    topics = [
        TOPIC | {"topic_name": "t", "channels": [CHANNEL], "cursors": [CURSOR]},
        TOPIC | {"topic_name": "u", "channels": [], "depth": 9},
        TOPIC | {"topic_name": NAME, "channels": []},
    ]
    with Upstream(stats={"topics": topics}, node=NODE) as nsqd:
        for action in ("create", "pause", "unpause", "empty", "delete"):
            for what in ("topic", "channel"):
                nsqd.pages[f"/{what}/{action}"] = {}
        yield nsqd


@pytest.fixture(scope="module")
def lookupd(nsqd: Upstream) -> Iterator[Upstream]:
    producer = nsqd.producer("host", topology_zone="z")
    names = ["t", "u", "gone"]
    node = producer | {"topics": names, "tombstones": [False, False, True]}
    with Upstream(
        lookup={"producers": [producer]},
        nodes={"producers": [node]},
        topics={"topics": ["t", "u", "gone"]},
        channels={"channels": ["old"]},
    ) as lookupd:
        for path in ("topic/create", "channel/create", "topic/delete", "topic/tombstone"):
            lookupd.pages[f"/{path}"] = {}
        lookupd.pages["/channel/delete"] = {}
        yield lookupd


@pytest.fixture(scope="module")
def running(lookupd: Upstream) -> Iterator[Admin]:
    with Admin(lookupd_http_address=lookupd.address, admin_user=["me"], base_path="b/") as admin:
        yield admin


@pytest.fixture
def admin(running: Admin, lookupd: Upstream, nsqd: Upstream) -> Admin:
    lookupd.asked.clear()
    nsqd.asked.clear()
    return running


def get(admin: Admin, path: str, user: str = "me", *, status: int = 200, **query: str) -> Element:
    path = "/b" + ("" if path == "/" else path).replace("/?", "?", 1)
    answer = admin.web.get(path, headers={"X-Forwarded-User": user}, **query)
    assert (answer.status, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    return read(answer.body)


def press(admin: Admin, form: Element, **headers: str) -> Answer:
    """Submit a form as a browser does."""
    assert form.attributes["method"] == "post"
    every = {
        "X-Forwarded-User": "me",
        "Content-Type": "application/x-www-form-urlencoded",
        "Origin": f"http://127.0.0.1:{admin.http_port}",
    } | headers
    body = urlencode(form.fields).encode()
    return admin.web.post(form.attributes["action"], body, headers=every)


def led_to(answer: Answer) -> str:
    assert answer.status == 303, answer
    return answer.headers["location"]


def posts(upstream: Upstream) -> list[str]:
    return [each.removeprefix("POST ") for each in upstream.asked if each.startswith("POST ")]


def form(page: Element, action: str) -> Element:
    (found,) = [each for each in page.all("form") if each.all("button", value=action)]
    return found


# -- content


def test_streams(admin: Admin, nsqd: Upstream, lookupd: Upstream) -> None:
    page = get(admin, "/topics")
    assert page.one("h1").text == "Topics 3 ⚠ 3"
    assert page.table("Topics") == [
        ["Topic", "Attention", *COUNTS],
        ["gone", "⚠ no nsqd", "0", "0", "0", "0", "0", "0"],
        ["t", "⚠ paused: c", "1,507", "2", "3", "2,007", "1", "1"],
        ["u", "⚠ dead letters", "9", "0", "0", "2,007", "0", "0"],
    ]
    assert page.all("a", href="/b/topics/t")
    (sign,) = page.all("a", href="/b/topics/t/c")
    assert sign.text == "⚠ paused: c", "a sign links to the page that shows the problem"
    assert nsqd.asked == [BUSIEST]
    assert sorted(lookupd.asked) == ["GET /nodes", "GET /topics?abandoned=true"]


@pytest.mark.ours
def test_the_overview(admin: Admin, nsqd: Upstream, lookupd: Upstream) -> None:
    page = get(admin, "/")
    assert page.one("h1").text == "Overview"
    (tiles,) = page.all("ul", **{"class": "tiles"})
    shown = {each.one("span").text: each.one("b").text for each in tiles.all("li")}
    assert shown == {
        "Nodes": "1 up",
        "Backlog": "1,523",
        "In flight": "2",
        "Dead letters": "9",
        "Fullest disk": "75 %",
    }
    (items,) = page.all("ul", **{"class": "items"})
    named = [
        f"nsqd {nsqd.address} ⚠ 1 of 2 workers down",
        "topic t ⚠ paused: c",
        "topic u ⚠ dead letters",
        f"topic {NAME} ⚠ no channel",
    ]
    for each, begin in zip(items.all("li"), named, strict=True):
        assert each.text.startswith(begin)
    assert "Start its consumers" in items.text  # the remedy, without a tooltip
    assert page.all("a", href=f"/b/nodes/{nsqd.address.replace(':', '%3A')}")
    assert nsqd.asked == [BUSIEST, "GET /node"]
    assert lookupd.asked == ["GET /nodes?topics=false"]


@pytest.mark.ours
def test_the_overview_of_another_nsqd(admin: Admin, nsqd: Upstream) -> None:
    """NSQ's nsqd reports no disk and no workers."""
    known = nsqd.pages.pop("/node")
    try:
        page = get(admin, "/")
    finally:
        nsqd.pages["/node"] = known
    assert "Fullest disk" not in page.text
    assert not page.all("div", role="status")


def test_streams_that_are_looked_for(admin: Admin) -> None:
    def names(**query: str) -> list[str]:
        return [row[0] for row in get(admin, "/topics", **query).table("Topics")[1:]]

    assert names(sort="attention") == ["gone", "t", "u"]
    assert names(sort="backlog") == ["t", "u", "gone"]
    assert names(q="o") == ["gone"]
    assert names(sort="nothing") == ["gone", "t", "u"]


@pytest.mark.ours
def test_the_channels_of_all_topics(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, "/channels")
    assert page.one("h1").text == "Channels 1 ⚠ 1"
    head, row = page.table("Channels")
    assert head[:4] == ["Channel", "Attention", "Depth", "Memory + Disk"]
    assert row == ["t/c", "⚠ paused", "1,500", "1,000 + 500", "2", "3", "4", "5", "2,000", "1"]
    assert page.all("a", href="/b/topics/t/c")
    assert nsqd.asked == [BUSIEST]
    assert len(get(admin, "/channels", q="T/C", sort="-depth").table("Channels")) == 2
    assert "No channel name matches." in get(admin, "/channels", q="no-such").text


@pytest.mark.ours
def test_connections(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, "/connections")
    (row,) = page.table("Connections")[1:]
    assert row[:4] == ["<i>:77 (i)", "t/c", "", nsqd.address]
    assert page.all("a", href="/b/topics/t/c")
    assert nsqd.asked == ["GET /stats?format=json&sparse=true"]


def test_no_streams(admin: Admin) -> None:
    with (
        Upstream(topics={"topics": []}, nodes={"producers": []}) as empty,
        Admin(lookupd_http_address=empty.address) as other,
    ):
        page = read(other.web.get("/topics").body)
        assert "No Topics Found" in page.text
        assert "There are no channels." in read(other.web.get("/channels").body).text
        assert "No client is consuming" in read(other.web.get("/connections").body).text
        first = read(other.web.get("/").body)
        for each in (page, first):
            assert "curl -d hello 'http://127.0.0.1:4151/pub?topic=greetings'" in each.text
            assert "nsqcy pub greetings hello" in each.text
        assert "0 up" in first.text
        assert "No nsqd is known." in first.text
        assert page.one("body").attributes["data-admin"] == "true"


def test_a_topic(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, "/topics/t")
    label = f"host:{nsqd.port} ({nsqd.address}) Tombstone …"
    assert page.table("Topic Message Queue") == [
        ["NSQd Host", "Depth", "Memory + Disk", "Messages", "Channels"],
        [label, "7", "7 + 0", "2,007", "1"],
        ["Total:", "7", "7 + 0", "2,007", "1"],
    ]
    (row,) = page.table("Channel Message Queues")[1:]
    assert row[:2] == ["c", "⚠ paused"]
    assert row[2:] == ["1,500", "1,000 + 500", "2", "3", "4", "5", "2,000", "1", "1.5ms"]
    assert page.table("Channel Message Queues")[0][-1] == "99th"
    assert page.all("a", href="/b/topics/t/c")
    assert "Messages queue until there is one." in get(admin, "/topics/u").text


@pytest.mark.ours
def test_a_topic_with_dead_letters(admin: Admin) -> None:
    page = get(admin, "/topics/u")
    assert page.one("h1").text == "u ⚠ dead letters"
    assert "Receives the dead letters of t/c." in page.text
    assert "Receives" not in get(admin, "/topics/t").text


@pytest.mark.ours
def test_readers_of_a_log(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, "/topics/t")
    assert page.table("Log Readers") == [
        ["Reader", "NSQd Host", "Lag", "Position", "Last Seen"],
        ["lake overrun", nsqd.address, "1,712", "4,000", "1m 3s ago"],
    ]
    assert "Log Readers" not in get(admin, "/topics/u").text


def test_a_channel(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, "/topics/t/c")
    head, row, total = page.table("Channel")
    assert head[-2:] == ["Delivery", "99th"]
    assert row[1:] == total[1:]
    assert row[-2:] == ["global 100.00%", "1.5ms"]
    head, client = page.table("Client Connections")
    shown = dict(zip(head, client, strict=True))
    assert shown.pop("Connected")
    assert shown == {
        "Client Host": "<i>:77 (i)",
        "Finish Rate": "0/s",
        "In-Flight / RDY": "saturated 2,500 / 2,500",
        "Attributes": "Sampled 5%TLSSnappyAuthedzzoneLocal",
        "NSQd Host": nsqd.address,
        "Finished": "0",
        "Requeued": "0",
        "Messages": "0",
        "User-Agent": "ua",
    }
    assert not [each for each in page.all("a") if "javascript" in each.attributes["href"]]


def test_nodes(admin: Admin, nsqd: Upstream, lookupd: Upstream) -> None:
    page = get(admin, "/nodes")
    assert page.one("h1").text == "NSQd Nodes (1)"
    head, row = page.table("NSQd Nodes")
    shown = dict(zip(head, row, strict=True))
    uptime = shown.pop("Uptime")
    assert re.fullmatch(r"\d+d( \d+h)?", uptime)
    assert shown == {
        "Hostname": "host ⚠ 1 of 2 workers down",
        "Address": nsqd.address,
        "CPU": "0 %",
        "Memory": "80 MiB",
        "Disk Used": "75 %",
        "Topics": "3gonetu",
        "Lookupd Conns.": f"1{lookupd.address}/127.0.0.1:{nsqd.port + 1}",
        "Version": "1.3.0",
        "Zone": "z",
        "TCP Port": str(nsqd.port),
    }
    assert page.one("a", title="tombstoned").text == "gone"


def test_a_node(admin: Admin, nsqd: Upstream) -> None:
    page = get(admin, f"/nodes/{nsqd.address}")
    assert page.one("h1").text == f"{nsqd.address} ⚠ 1 of 2 workers down"
    assert "3 Topics · 6,021 Messages · 1 Client" in page.text
    (tiles,) = page.all("ul", **{"class": "tiles"})
    shown = {each.one("span").text: each.one("b").text for each in tiles.all("li")}
    assert shown.pop("Uptime")
    assert shown == {
        "Workers": "1 of 2 up",
        "CPU": "0 %",
        "Memory": "80 MiB",
        "Disk": "75 % used",
        "Connections": "3",
    }
    assert [row[:2] for row in page.table("Workers")[1:]] == [["0", "up"], ["1", "down"]]
    topics = {row[0]: row[1:] for row in page.table("Topics")[1:] if len(row) > 1}
    assert topics["t ⋯ ⚠ paused: c"] == ["1,507", "1,007 + 500", "2", "3", "2,007", "1", "1"]
    assert topics[f"{NAME} ⋯"] == ["7", "7 + 0", "0", "0", "2,007", "0", "0"]
    assert page.one("summary", title="Details of t")
    assert page.table("Channels of t")[1][:2] == ["c ⋯ ⚠ paused", "1,500"]
    assert page.table("Clients of t/c")[1][0] == "<i>:77 (i)"
    assert page.all("a", href="/b/topics/%3Cb%3E%26%23ephemeral")


@pytest.mark.ours
def test_a_node_of_another_nsqd(admin: Admin, nsqd: Upstream) -> None:
    known = nsqd.pages.pop("/node")
    try:
        page = get(admin, f"/nodes/{nsqd.address}")
        nodes = get(admin, "/nodes")
    finally:
        nsqd.pages["/node"] = known
    assert not page.all("ul", **{"class": "tiles"})
    assert "CPU" not in nodes.table("NSQd Nodes")[0]
    assert [row[0] for row in page.table("Topics")[1:] if len(row) > 1]


def test_lookup(admin: Admin, lookupd: Upstream) -> None:
    page = get(admin, "/lookup")
    assert lookupd.address in page.text
    assert page.one("ul", **{"class": "tree"}).text == "Delete goneDelete old"


def test_the_counter(admin: Admin) -> None:
    page = get(admin, "/counter")
    assert page.one("p", **{"class": "counter"}).text == "2,000"
    assert page.one("meta", **{"http-equiv": "refresh"}).attributes["content"] == "5"


@pytest.mark.parametrize(
    ("path", "why", "sentence", "back"),
    [
        ("/nodes/x:1", "NODE_NOT_FOUND", "nsqd x:1 is unknown.", "/nodes"),
        ("/topics/t/none", "CHANNEL_NOT_FOUND", "Topic t has no channel none.", "/topics/t"),
        ("/seek/t/none", "CHANNEL_NOT_FOUND", "Topic t has no channel none.", "/topics/t"),
        ("/topics/none", "TOPIC_NOT_FOUND", "No nsqd has a topic none.", "/topics"),
        ("/topics/none/c", "TOPIC_NOT_FOUND", "No nsqd has a topic none.", "/topics"),
        ("/peek/t/c?node=x:1", "NODE_NOT_FOUND", "nsqd x:1 has no topic t.", "/topics/t"),
    ],
)
def test_what_there_is_not_has_a_page(
    path: str, why: str, sentence: str, back: str, admin: Admin
) -> None:
    page = get(admin, path, status=404)
    assert page.one("div", role="alert").text.endswith(f" ({why})")
    (shown,) = page.all("section", **{"class": "lost"})
    assert shown.one("p").text == sentence
    assert shown.all("a", href=f"/b{back}")


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.ours
def test_a_browser_gets_a_page_for_an_unknown_path(admin: Admin) -> None:
    answer = admin.web.get("/b/nope", headers=BROWSER)
    assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    (shown,) = read(answer.body).all("section", **{"class": "lost"})
    assert shown.one("p").text == "nsqadmin has no page at this address."
    assert [each.attributes["href"] for each in shown.all("a")] == ["/b", "/b/topics", "/b/nodes"]


@pytest.mark.ours
@pytest.mark.parametrize(
    ("path", "headers"), [("/b/nope", {}), ("/b/api/nope", BROWSER), ("/nope", BROWSER)]
)
def test_programs_get_json(path: str, headers: dict[str, str], admin: Admin) -> None:
    answer = admin.web.get(path, headers=headers)
    assert (answer.status, answer.json()) == (404, {"message": "NOT_FOUND"})


@pytest.mark.ours
def test_an_action_on_what_there_is_not(admin: Admin, lookupd: Upstream) -> None:
    """The error appears only once, although both the action and the page encounter it."""
    headers = {"X-Forwarded-User": "me", "Content-Type": "application/x-www-form-urlencoded"}
    known, lookupd.pages["/lookup"] = lookupd.pages["/lookup"], {"producers": []}
    try:
        answer = admin.web.post("/b/topics/none", b"action=pause", headers=headers)
    finally:
        lookupd.pages["/lookup"] = known
    assert answer.status == 404
    text = "The topic does not exist (TOPIC_NOT_FOUND)"
    assert read(answer.body).one("div", role="alert").text == text


@pytest.mark.ours
def test_the_base_path_as_it_is(admin: Admin) -> None:
    assert admin.web.get("/b/config/base_path").body == b"/b"


def test_a_node_that_is_down(admin: Admin, nsqd: Upstream) -> None:
    """Pages show what is known from other daemons, and why the rest is missing."""
    stats, nsqd.pages["/stats"] = nsqd.pages["/stats"], 500
    try:
        first, topics, channels = (get(admin, path) for path in ("/", "/topics", "/channels"))
        counter = get(admin, "/counter", status=502)
    finally:
        nsqd.pages["/stats"] = stats
    for page in (first, topics, channels):
        told = page.one("div", role="status").text
        assert f"{nsqd.address}: got response 500 Internal Server Error" in told
    assert "1 down" in first.text and "does not answer" in first.text
    names = [row[:2] for row in topics.table("Topics")[1:]]
    assert names == [["gone", ""], ["t", ""], ["u", ""]]
    assert "got response 500 Internal Server Error" in counter.one("div", role="alert").text


def test_names_that_are_no_text(admin: Admin, lookupd: Upstream) -> None:
    page = get(admin, "/topics/%FF", status=404)
    assert page.one("section", **{"class": "lost"}).one("p").text == "No nsqd has a topic \ufffd."
    assert "GET /lookup?topic=%EF%BF%BD" in lookupd.asked
    assert (
        get(admin, "/topics?q=%FF%22%3E").one("input", type="search").attributes["value"]
        == '\ufffd">'
    )
    assert get(admin, "/topics?q=%").one("input", type="search").attributes["value"] == ""


def test_nobody_may_frame_them(admin: Admin) -> None:
    headers = admin.web.get("/b").headers
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


# -- forms


def test_a_user_without_permission_sees_no_buttons(admin: Admin, nsqd: Upstream) -> None:
    for path in ("/topics/t", "/topics/t/c", f"/nodes/{nsqd.address}", "/lookup"):
        page = get(admin, path, user="you")
        assert not page.all("form", method="post")
        assert "Tombstone" not in page.text


def test_pausing(admin: Admin, nsqd: Upstream) -> None:
    answer = press(admin, form(get(admin, "/topics/t"), "pause"))
    assert led_to(answer) == "/b/topics/t"
    answer = press(admin, form(get(admin, "/topics/t/c"), "unpause"))
    assert led_to(answer) == "/b/topics/t/c"
    assert posts(nsqd) == ["/topic/pause?topic=t", "/channel/unpause?topic=t&channel=c"]


@pytest.mark.parametrize(
    ("path", "query", "told", "then", "words"),
    [
        ("/topics/t", "empty", "/topic/empty?topic=t", "/b/topics/t", "7 messages"),
        (
            "/topics/t",
            "delete",
            "/topic/delete?topic=t",
            "/b/topics",
            "1 channel and 1,507 messages on 1 node",
        ),
        (
            "/topics/t/c",
            "empty",
            "/channel/empty?topic=t&channel=c",
            "/b/topics/t/c",
            "1,505 messages",
        ),
        (
            "/topics/t/c",
            "delete",
            "/channel/delete?topic=t&channel=c",
            "/b/topics/t",
            "1 consumer will be disconnected",
        ),
    ],
)
def test_what_destroys_asks(
    path: str, query: str, told: str, then: str, words: str, admin: Admin, nsqd: Upstream
) -> None:
    """The page states what would be lost, and does nothing until the user confirms."""
    page = get(admin, path)
    assert not page.all("button", value=query)
    assert page.all("a", href=f"/b{path}?ask={query}#question")
    box = get(admin, path, ask=query).one("section", id="question")
    assert words in box.text
    assert box.all("a", href=f"/b{path}")
    assert posts(nsqd) == []
    confirmation = box.one("form")
    if query == "delete":
        for typed in ("", "other"):
            type_name(confirmation, typed)
            refused = press(admin, confirmation)
            assert "type the name" in read(refused.body).one("div", role="alert").text
            assert read(refused.body).one("section", id="question")
        assert posts(nsqd) == []
        type_name(confirmation, path.rpartition("/")[2])
    assert led_to(press(admin, confirmation)) == then
    assert posts(nsqd) == [told]


def type_name(confirmation: Element, name: str) -> None:
    confirmation.one("input", name="typed").attributes["value"] = name


def test_tombstones_ask(admin: Admin, nsqd: Upstream, lookupd: Upstream) -> None:
    node = nsqd.address
    for path, query in (("/topics/t", {"node": node}), (f"/nodes/{node}", {"topic": "t"})):
        box = get(admin, path, ask="tombstone", **query).one("section", id="question")
        assert "hidden from consumers of t" in box.text
        assert led_to(press(admin, box.one("form"))) == f"/b{path.replace(':', '%3A')}"
    assert posts(nsqd) == ["/topic/delete?topic=t"] * 2
    query_string = urlencode({"topic": "t", "node": node})
    assert posts(lookupd) == [f"/topic/tombstone?{query_string}"] * 2
    assert not get(admin, "/topics/t", ask="tombstone", node="x:1").all("section", id="question")


def test_creating(admin: Admin, lookupd: Upstream, nsqd: Upstream) -> None:
    creation = form(get(admin, "/lookup"), "create")
    body = urlencode({"topic": "new", "channel": "c", "action": "create"}).encode()
    answer = admin.web.post(creation.attributes["action"], body, headers={"X-Forwarded-User": "me"})
    assert led_to(answer) == "/b/lookup"
    assert posts(lookupd) == ["/topic/create?topic=new", "/channel/create?topic=new&channel=c"]
    body = urlencode({"topic": "newer", "action": "create"}).encode()
    for path in ("/", "/topics"):
        assert form(get(admin, path), "create").attributes["action"] == "/b/topics"
    answer = admin.web.post("/b/topics", body, headers={"X-Forwarded-User": "me"})
    assert led_to(answer) == "/b/topics/newer"
    assert posts(lookupd)[2:] == posts(nsqd)[-1:] == ["/topic/create?topic=newer"]
    body = urlencode({"topic": "a b", "action": "create"}).encode()
    answer = admin.web.post("/b/lookup", body, headers={"X-Forwarded-User": "me"})
    text = read(answer.body).one("div", role="alert").text
    assert text.startswith("A topic's name has 1 to 64 of") and text.endswith("(INVALID_TOPIC)")


def test_deleting_what_is_inactive(admin: Admin, lookupd: Upstream) -> None:
    query = {"ask": "delete", "topic": "gone", "channel": "old"}
    box = get(admin, "/lookup", **query).one("section", id="question")
    assert "Delete channel gone/old?" in box.text
    assert led_to(press(admin, box.one("form"))) == "/b/lookup"
    assert posts(lookupd) == ["/channel/delete?topic=gone&channel=old"]


def test_failures_are_reported(admin: Admin, nsqd: Upstream) -> None:
    pausing = form(get(admin, "/topics/t"), "pause")
    nsqd.pages["/topic/pause"] = 500
    try:
        answer = press(admin, pausing)
    finally:
        nsqd.pages["/topic/pause"] = {}
    page = read(answer.body)
    assert "got response 500" in page.one("div", role="status").text
    assert page.table("Topic Message Queue")


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://elsewhere.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
def test_forms_of_other_sites(headers: dict[str, str], admin: Admin, nsqd: Upstream) -> None:
    answer = press(admin, form(get(admin, "/topics/t"), "pause"), **headers)
    assert (answer.status, answer.body) == (403, b"FORBIDDEN")
    stranger = press(admin, form(get(admin, "/topics/t"), "pause"), **{"X-Forwarded-User": "you"})
    assert stranger.status == 403
    assert posts(nsqd) == []
