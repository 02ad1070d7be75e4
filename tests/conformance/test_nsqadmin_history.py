"""The history that nsqadmin keeps, with scripted daemons: its queries, its API and its plots."""

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from nsqcy.testing.http_requests import eventually
from support.fake_http_daemon import Upstream
from support.nsqadmin_process import Admin, refused
from support.strict_html import read

INTERVAL = "100ms"
SAMPLE = "GET /stats?format=json&include_clients=false&sparse=true&busiest=1000"


def stats(count: int, topics: int = 1) -> dict[str, Any]:
    """Return the /stats of an nsqd that has received `count` messages."""
    channel = {"channel_name": "c", "message_count": count, "depth": 5, "in_flight_count": 2}
    return {
        "topics": [
            {"topic_name": f"t{number}", "message_count": count, "channels": [channel]}
            for number in range(topics)
        ]
    }


@pytest.fixture
def nsqd() -> Iterator[Upstream]:
    with Upstream(stats=stats(100)) as nsqd:
        yield nsqd


@pytest.fixture
def lookupd(nsqd: Upstream) -> Iterator[Upstream]:
    node = nsqd.producer() | {"topics": ["t0"], "tombstones": [False]}
    with Upstream(
        nodes={"producers": [node]}, lookup={"producers": [node]}, topics={"topics": ["t0"]}
    ) as lookupd:
        yield lookupd


@pytest.fixture
def admin(lookupd: Upstream) -> Iterator[Admin]:
    with Admin(lookupd_http_address=lookupd.address, history_interval=INTERVAL) as admin:
        yield admin


def values(admin: Admin, metric: str, **subject: str) -> list[float | None]:
    """Return the known values, with None for the gaps between them."""
    answer = admin.web.get("/api/history", range="1m", **subject)
    if answer.status != 200:
        return []
    found: list[float | None] = answer.json()["metrics"][metric]
    while found and found[0] is None:
        del found[0]
    while found and found[-1] is None:
        del found[-1]
    return found


def test_what_it_tells(admin: Admin, nsqd: Upstream) -> None:
    eventually(lambda: values(admin, "depth", topic="t0"))
    counts = itertools.count(1100, 100)

    def is_rising(subject: dict[str, str]) -> bool:
        nsqd.pages["/stats"] = stats(next(counts))
        return any(values(admin, "in", **subject))

    for subject in ({"topic": "t0"}, {"topic": "t0", "channel": "c"}, {"node": nsqd.address}):
        eventually(lambda subject=subject: is_rising(subject))
        assert set(values(admin, "depth", **subject)) <= {5.0, None}
        assert set(values(admin, "in_flight", **subject)) <= {2.0, None}
        assert values(admin, "latency", **subject) == []
    # There are no other queries. The query for copies is due once a minute, and the first one
    # begins with the history.
    eventually(lambda: "GET /copies" in nsqd.asked)
    asked = list(nsqd.asked)  # the next sample may come at any time
    assert asked.count(SAMPLE) == len(asked) - 1
    assert asked.count("GET /copies") == 1
    told = admin.get("/api/history")
    assert (told["interval"], told["length"], told["series"]) == (0.1, 43200.0, 4)
    shown = admin.get("/api/history", topic="t0", range="10s")
    assert (shown["step"], len(shown["metrics"]["out"])) == (0.1, 100)


def test_what_it_does_not_tell(admin: Admin) -> None:
    refused(admin.web.get("/api/history", topic="none"), 404, "HISTORY_NOT_FOUND")
    for subject in ({"channel": "c"}, {"topic": "t0", "node": "n:1"}):
        refused(admin.web.get("/api/history", **subject), 400, "INVALID_ARG_SUBJECT")
    for text in ("long", "13h", "0s"):
        refused(admin.web.get("/api/history", topic="t0", range=text), 400, "INVALID_ARG_RANGE")


def test_an_nsqd_that_fails_for_a_while(admin: Admin, nsqd: Upstream) -> None:
    """nsqadmin logs one line at the first failure and one at the end; values in between are
    unknown."""
    eventually(lambda: values(admin, "depth", topic="t0"))
    page, nsqd.pages["/stats"] = nsqd.pages["/stats"], 500
    eventually(lambda: f"history: {nsqd.address} is omitted: got response 500" in admin.log_text())
    begun = len(nsqd.asked)
    eventually(lambda: len(nsqd.asked) > begun + 2)
    nsqd.pages["/stats"] = page
    eventually(lambda: f"history: {nsqd.address} is included again" in admin.log_text())
    eventually(lambda: None in values(admin, "depth", topic="t0"))
    assert admin.log_text().count("is omitted") == 1


def test_known_nodes_are_queried_without_nsqlookupds(
    admin: Admin, nsqd: Upstream, lookupd: Upstream
) -> None:
    eventually(lambda: values(admin, "depth", topic="t0"))
    lookupd.pages["/nodes"] = 500
    asked = len(lookupd.asked)
    eventually(lambda: len(lookupd.asked) > asked + 1)
    asked = len(nsqd.asked)
    eventually(lambda: len(nsqd.asked) > asked + 2)


def test_pages_show_it(admin: Admin, nsqd: Upstream) -> None:
    eventually(lambda: len(values(admin, "in", topic="t0", channel="c")) > 1)
    first = read(admin.web.get("/").body)
    assert [each.one("span").text for each in first.all("li")[1:3]] == [
        "Messages in",
        "Messages out",
    ]
    assert len(first.one("ul", **{"class": "tiles"}).all("svg")) == 4
    assert first.all("figure")
    page = read(admin.web.get("/topics").body)
    assert page.table("Topics")[0][:3] == ["Topic", "Attention", "Rate In"]
    assert len(page.all("svg", **{"class": "spark"})) == 2
    for path in ("/topics/t0", "/topics/t0/c", f"/nodes/{nsqd.address}"):
        page = read(admin.web.get(path, range="15m").body)
        titles = [each.one("b").text for each in page.all("figcaption")]
        queue = "Depth" if path.endswith("/c") else "Backlog"
        assert titles == ["Throughput", queue, "In flight and deferred", "Errors"]
        assert page.one("a", **{"aria-current": "true"}).text == "15m"
        assert page.all("path", **{"class": "line0"})[1].attributes["data-values"].endswith("5")
    assert read(admin.web.get("/nodes").body).table("NSQd Nodes")[0][2:4] == [
        "Rate In",
        "Rate Out",
    ]


def test_it_can_be_off(lookupd: Upstream) -> None:
    with Admin(lookupd_http_address=lookupd.address, history_interval="0s") as admin:
        refused(admin.web.get("/api/history", topic="t0"), 404, "HISTORY_OFF")
        page = read(admin.web.get("/topics/t0").body)
        assert not page.all("svg") and not page.all("figure")


def test_pages_of_very_many_topics(lookupd: Upstream, nsqd: Upstream) -> None:
    """Searching and sorting cover all pages of the list."""
    names = [f"t{number}" for number in range(1100)]
    lookupd.pages["/topics"] = {"topics": names}
    nsqd.pages["/stats"] = stats(7, 1100)
    with Admin(lookupd_http_address=lookupd.address) as admin:

        def shown(**query: str) -> list[str]:
            page = read(admin.web.get("/topics", **query).body)
            return [row[0] for row in page.table("Topics")[1:]]

        names.sort()
        assert shown() == names[:500]
        assert shown(page="3") == shown(page="99") == names[1000:]
        assert shown(page="-1") == shown(page="x") == names[:500]
        assert shown(sort="-topic")[0] == "t999"
        assert shown(q="T109") == ["t109", *(f"t109{number}" for number in range(10))]
        page = read(admin.web.get("/topics", q="t", sort="backlog", page="2").body)
        links = page.one("nav", **{"aria-label": "Pages of the list"}).all("a")
        assert [each.attributes["href"] for each in links] == [
            "/topics?q=t&sort=backlog&page=1",
            "/topics?q=t&sort=backlog&page=3",
        ]
