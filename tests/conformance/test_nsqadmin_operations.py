"""nsqadmin's pages and API beyond NSQ's: messages, policies, positions, and single nodes.

The cluster consists of nsqcy's nsqd and an nsqd that, like NSQ's, lacks these features.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest

from nsqcy.testing.http_requests import Answer, Web, eventually
from support.fake_http_daemon import Upstream
from support.fake_http_destination import Destination
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd, free_port
from support.strict_html import Element, read

pytestmark = pytest.mark.ours

SCRIPT = b"<script>alert(1)</script>"
MISSING = "not supported by this nsqd version"
DAY_MS = 24 * 3600 * 1000


@dataclass
class Cluster:
    nsqd: Nsqd
    old: Upstream
    admin: Admin
    endpoint: Destination
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"127.0.0.1:{self.nsqd.http_port}"

    @property
    def web(self) -> Web:
        return self.nsqd.web

    def page(self, path: str, user: str = "me", **query: Any) -> Element:
        answer = self.get(path, user, **query)
        assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        return read(answer.body)

    def get(self, path: str, user: str = "me", **query: Any) -> Answer:
        return self.admin.web.get(path, headers={"X-Forwarded-User": user}, **query)

    def api(self, path: str, **query: Any) -> dict[str, Any]:
        answer = self.get(f"/api{path}", **query)
        assert answer.status == 200, answer
        return self.ours(answer)

    def ours(self, answer: Answer) -> dict[str, Any]:
        """Return the result of nsqcy's nsqd; the other nsqd reports that it lacks the feature."""
        assert answer.status == 200, answer
        nodes: list[dict[str, Any]] = answer.json()["nodes"]
        found = {each["node"]: each for each in nodes}
        assert all(each["error"] == MISSING for name, each in found.items() if name != self.name)
        return found[self.name]

    def ask(self, method: str, path: str, user: str = "me", **said: Any) -> Answer:
        headers = {"X-Forwarded-User": user}
        return self.admin.web.request(method, path, json.dumps(said).encode(), headers=headers)

    def press(self, form: Element, **headers: str) -> Answer:
        """Submit a form as a browser does."""
        every = {
            "X-Forwarded-User": "me",
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": f"http://127.0.0.1:{self.admin.http_port}",
        } | headers
        body = urlencode(form.fields).encode()
        return self.admin.web.post(form.attributes["action"], body, headers=every)

    @contextmanager
    def telling(self, *actions: str) -> Iterator[None]:
        """Check that the endpoint is notified of these actions, in this order. The notification of
        an earlier action may arrive late."""
        before = len(self.endpoint.requests)

        def told() -> list[str]:
            found = [json.loads(each.body) for each in list(self.endpoint.requests)[before:]]
            return [each["action"] for each in found if each["action"] in actions]

        yield
        eventually(lambda: len(told()) >= len(actions))
        assert told() == [*actions]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Both nsqds have the topic `both`."""
    nsqd = Nsqd(
        tmp_path_factory.mktemp("nsqd"),
        workers=1,
        broadcast_address="127.0.0.1",
        retention_time="1h",
        max_defer_timeout="744h",
        msg_timeout="10m",
    ).start()
    endpoint = Destination()
    channel = {"channel_name": "c", "depth": 3}
    both = {"topic_name": "both", "channels": [channel], "depth": 0}
    with Upstream(stats={"topics": [both], "version": "1.3.0"}) as old:
        old.pages["/info"] = old.producer("old")
        nsqd.web.create("both", "c")
        with Admin(
            nsqd_http_address=[f"127.0.0.1:{nsqd.http_port}", old.address],
            admin_user=["me"],
            notification_http_endpoint=endpoint.url(),
        ) as admin:
            yield Cluster(nsqd, old, admin, endpoint)
    endpoint.close()
    nsqd.destroy()


def led_to(answer: Answer) -> str:
    assert answer.status == 303, answer
    return answer.headers["location"]


def article(page: Element) -> Element:
    (found,) = page.all("article")
    return found


def question(page: Element) -> Element:
    return page.one("section", id="question")


def bodies(page: Element) -> list[str]:
    return [each.text for each in page.all("pre")]


# -- messages


@pytest.fixture
def filled(cluster: Cluster, topic: str) -> str:
    """Topic whose channel has a message in every state."""
    cluster.web.create(topic, "c")
    cluster.web.pub(topic, b'{"n":1,"list":["<b>"]}', headers={"X-Nsq-Trace": "<i>"})
    consumer = cluster.nsqd.connect()
    consumer.identify(client_id="<u>")
    consumer.sub(topic, "c", 1)
    consumer.message()
    consumer.rdy(0)
    cluster.web.pub(topic, b"plain")
    cluster.web.pub(topic, b"later", defer=DAY_MS)
    return topic


def test_messages_of_every_state(cluster: Cluster, filled: str) -> None:
    page = cluster.page(f"/peek/{filled}/c")
    assert bodies(page) == ["plain"]
    assert [each.text for each in page.one("nav", **{"class": "tabs"}).all("a")] == [
        *("Queued 1", "In Flight 1", "Deferred 1", "Dead Letters")
    ]
    held = article(cluster.page(f"/peek/{filled}/c", state="in_flight"))
    assert held.one("pre").children == ['{\n  "n": 1,\n  "list": [\n    "<b>"\n  ]\n}']
    assert "trace<i>" in held.one("dl", **{"class": "headers"}).text
    assert "Consumer<u>" in held.text
    later = cluster.page(f"/peek/{filled}/c", state="deferred")
    assert bodies(later) == ["later"]
    times = [each.one("span", **{"class": "when"}).text for each in (later, page)]
    assert [each.startswith("due 2") for each in times] == [True, False]
    assert held.one("span", **{"class": "when"}).text.startswith("times out 2")
    cluster.web.await_counts(filled, "c", depth=1, in_flight_count=1, deferred_count=1)
    found = cluster.api(f"/peek/{filled}/c", state="in_flight")
    assert b64decode(found["messages"][0]["body"]) == b'{"n":1,"list":["<b>"]}'


def test_what_a_topic_has_for_itself(cluster: Cluster, topic: str) -> None:
    cluster.web.pub(topic, b"own")
    assert bodies(cluster.page(f"/peek/{topic}")) == ["own"]
    assert len(cluster.api(f"/peek/{topic}")["messages"]) == 1


def test_the_log_of_a_topic(cluster: Cluster, topic: str) -> None:
    """The page shows the newest messages first, then older ones up to the beginning, or those from
    a given time on."""
    cluster.web.put("/topic/config", b'{"retention_time": "1h"}', topic=topic)
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"%d" % each for each in range(25)])
    cluster.web.do("empty", topic, "c")
    path = f"/peek/{topic}"
    assert bodies(cluster.page(path)) == []
    newest = cluster.page(path, state="log")
    assert bodies(newest) == [str(each) for each in range(15, 25)]
    assert newest.all("a", rel="next") == []
    assert "number 25" in newest.all("article")[-1].text
    assert "attempt" not in newest.all("article")[-1].text
    earlier = cluster.page(newest.one("a", rel="prev").attributes["href"])
    assert bodies(earlier) == [str(each) for each in range(5, 15)]
    first = cluster.page(earlier.one("a", rel="prev").attributes["href"])
    assert bodies(first) == [str(each) for each in range(10)]
    assert first.all("a", rel="prev") == []
    assert bodies(cluster.page(first.one("a", rel="next").attributes["href"]))[0] == "10"
    starts = {each.text: each for each in newest.all("a", **{"class": "button"})}
    assert bodies(cluster.page(starts["Beginning"].attributes["href"]))[0] == "0"
    assert bodies(cluster.page(starts["1 h ago"].attributes["href"]))[0] == "0"
    assert bodies(cluster.page(f"{path}?state=log&at=2199-01-01T00:00")) == []
    wrong = cluster.page(f"{path}?state=log&at=noon")
    assert "INVALID_FROM" in wrong.text
    assert len(cluster.api(path, state="log", **{"from": "-3"})["messages"]) == 3
    cut = article(cluster.page(path, state="log", count="1")).one("a", download="")
    assert cluster.get(cut.attributes["href"]).body == b"24"


def test_bodies_are_never_more_than_text(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    whole = b"\x00\xff" + SCRIPT + bytes(1 << 20)
    for body in (SCRIPT, whole[: 1 << 20], b"\xe2\x80\xaetxt.exe"):
        cluster.web.pub(topic, body)
    answer = cluster.get(f"/peek/{topic}/c")
    empty = cluster.get(f"/peek/{topic}/c?state=in_flight")
    assert answer.body.count(b"<script") == empty.body.count(b"<script")
    assert SCRIPT not in answer.body
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    script, binary, turned = read(answer.body).all("article")
    assert script.one("pre").text == SCRIPT.decode()
    assert binary.one("pre").text.startswith("00000000 00 ff 3c 73 63 72 69 70 74 3e")
    assert f"{(1 << 20) - (16 << 10):,} bytes more" in binary.text
    assert turned.one("pre").text == r"\u202etxt.exe"
    more = binary.one("p", **{"class": "below"}).all("a")[0].attributes["href"]
    alone = article(cluster.page(more))
    assert f"{(1 << 20) - (16 << 10):,} bytes more" in alone.text
    assert "0x" not in alone.text
    in_hex = script.one("p", **{"class": "below"}).one("a").attributes["href"]
    assert article(cluster.page(in_hex)).one("pre").text.startswith("00000000 3c 73 63")


def test_from_page_to_page(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"%d" % each for each in range(25)])
    found: list[str] = []
    path = f"/peek/{topic}/c"
    while path:
        page = cluster.page(path)
        found += bodies(page)
        following = page.all("a", rel="next")
        path = following[0].attributes["href"] if following else ""
    assert found == [str(each) for each in range(25)]


def test_sizes_of_pages(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"%d" % each for each in range(70)])
    path, sizes = f"/peek/{topic}/c", []
    page = cluster.page(path, count="50")
    while True:
        (chosen,) = page.one("select", name="count").all("option", selected="")
        sizes.append((len(bodies(page)), chosen.text))
        following = page.all("a", rel="next")
        if not following:
            break
        page = cluster.page(following[0].attributes["href"])
    assert sizes == [(50, "50"), (20, "50")]
    assert len(bodies(cluster.page(path, count="50", q="1"))) >= 16
    assert len(bodies(cluster.page(path, q="1"))) >= 10


def test_messages_are_filtered(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    for number in range(12):
        cluster.web.pub(topic, b'{"n":%d}' % number)
    cluster.web.pub(topic, b"Plain")
    path = f"/peek/{topic}/c"
    found = cluster.page(path, q="plain")
    assert bodies(found) == ["Plain"]
    assert "1 of 13 examined messages match." in found.text
    assert bodies(cluster.page(f"{path}?path=n+%3D+11")) == ['{ "n": 11 }']
    assert "No message matches." in cluster.page(path, q="gone").text
    wrong = cluster.page(f"{path}?path=a+b")
    assert "invalid JSON path" in wrong.one("p", role="alert").text
    assert bodies(wrong) == []


def test_a_filter_searches_page_after_page(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"%04d" % each for each in range(2500)])
    path = f"/peek/{topic}/c"
    found = cluster.page(path, q="0999")
    assert bodies(found) == ["0999"]
    assert "1 of 2,000 examined messages match." in found.text
    assert bodies(cluster.page(found.one("a", rel="next").attributes["href"])) == []
    assert bodies(cluster.page(path, q="2499")) == []
    further = cluster.page(path, q="2499").one("a", rel="next").attributes["href"]
    assert bodies(cluster.page(further)) == ["2499"]
    in_log = cluster.page(f"/peek/{topic}?state=log&q=2499")
    assert bodies(in_log) == ["2499"]
    assert "These are the newest messages" in in_log.text
    assert bodies(cluster.page(f"/peek/{topic}?state=log&q=0007&from=earliest")) == ["0007"]


def test_a_body_is_downloaded(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    for body in (SCRIPT, bytes(600 << 10)):
        cluster.web.pub(topic, body)
    short, long = cluster.page(f"/peek/{topic}/c").all("article")
    href = short.one("a", download="").attributes["href"]
    answer = cluster.get(href)
    assert (answer.status, answer.body) == (200, SCRIPT)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    beginning = cluster.get(long.one("a", download="").attributes["href"])
    assert len(beginning.body) == 512 << 10
    assert "-beginning.bin" in beginning.headers["content-disposition"]
    assert cluster.get(href, user="you").status == 403
    cluster.web.do("empty", topic, "c")
    assert cluster.get(href).status == 404


def test_a_deferred_message_is_cancelled(cluster: Cluster, filled: str) -> None:
    page = cluster.page(f"/peek/{filled}/c", state="deferred")
    href = article(page).one("h2").one("a").attributes["href"].partition("#")[0]
    box = question(cluster.page(href))
    assert "will be discarded" in box.text
    with cluster.telling("cancel_message"):
        assert led_to(cluster.press(box.one("form"))) == f"/peek/{filled}/c?state=deferred"
    cluster.web.await_counts(filled, "c", deferred_count=0, depth=1)
    again = cluster.press(box.one("form"))
    text = "The message is no longer there (MESSAGE_NOT_FOUND)"
    assert read(again.body).one("div", role="alert").text == text


def test_dead_letters_go_back(cluster: Cluster, topic: str) -> None:
    web, dead = cluster.web, f"{topic}-dead"
    web.create(topic, "c")
    page = cluster.page(f"/peek/{topic}/c", state="dead")
    assert "sets no dead_letter_topic" in page.text
    values = {"max_attempts": 1, "dead_letter_topic": dead}
    assert cluster.ask("PUT", f"/api/policy/{topic}/c", **values).status == 200
    assert "No dead letters yet" in cluster.page(f"/peek/{topic}/c", state="dead").text
    web.create(dead, "look")
    web.pub(dead, b"of another")
    with cluster.nsqd.connect() as consumer:
        consumer.sub(topic, "c", 1)
        web.pub(topic, b"bad")
        consumer.req(consumer.message())
        web.await_counts(dead, "look", depth=2)
    page = cluster.page(f"/peek/{topic}/c", state="dead")
    assert bodies(page) == ["bad"]
    assert "First Published20" in article(page).text
    assert article(page).one("span", **{"class": "attempts"}).text == f"1 attempt in {topic}/c"
    assert f"in {dead}/look." in page.text
    links = cluster.page(f"/topics/{topic}/c").one("nav", **{"class": "further"})
    assert links.all("a", href=f"/peek/{topic}/c?state=dead")
    own = cluster.page(f"/peek/{dead}/look")
    assert own.all("a", href=f"/peek/{dead}/look?ask=redrive#question")
    assert not cluster.page(f"/peek/{topic}/c").all("a", **{"class": "button danger"})
    href = page.one("a", href=f"/peek/{dead}/look?ask=redrive#question").attributes["href"]
    box = question(cluster.page(href.partition("#")[0]))
    assert f"The queue of {dead}/look has 2 messages." in box.text
    with cluster.telling("redrive_channel"):
        assert led_to(cluster.press(box.one("form"))) == f"/peek/{dead}/look"
    web.await_counts(topic, "c", depth=1)
    web.await_counts(dead, "look", depth=1)
    box.one("input", name="limit").attributes["value"] = "none"
    refused = read(cluster.press(box.one("form")).body)
    assert "INVALID_LIMIT" in refused.one("div", role="alert").text
    answer = cluster.ask("POST", f"/api/topics/{dead}/look", action="redrive", limit="5")
    assert cluster.ours(answer)["redriven"] == 1


def test_one_message(cluster: Cluster, topic: str) -> None:
    web, dead = cluster.web, f"{topic}-dead"
    web.create(topic, "c")
    web.create(dead, "look")
    cluster.ask("PUT", f"/api/policy/{topic}/c", max_attempts=1, dead_letter_topic=dead)
    web.mpub(topic, [b"again", b"junk"])
    with cluster.nsqd.connect() as consumer:
        consumer.sub(topic, "c", 2)
        for message in consumer.messages(2):
            consumer.req(message)
        web.await_counts(dead, "look", depth=2)

    def press(text: str, body: str) -> None:
        page = cluster.page(f"/peek/{topic}/c", state="dead")
        (message,) = (each for each in page.all("article") if body in each.text)
        (link,) = (each for each in message.all("a") if each.text == text)
        asked = link.attributes["href"].partition("#")[0]
        sent = cluster.press(question(cluster.page(asked)).one("form"))
        assert led_to(sent) == f"/peek/{dead}/look"

    with cluster.telling("redrive_message"):
        press("Redrive", "again")
    web.await_counts(topic, "c", depth=1)
    with cluster.telling("delete_message"):
        press("Delete", "junk")
    web.await_counts(dead, "look", depth=0)
    answer = cluster.ask("POST", f"/api/topics/{dead}/look", action="delete_message", id="0" * 16)
    assert answer.status == 404
    waiting = cluster.page(f"/peek/{topic}/c")
    assert [each.text for each in waiting.all("a", **{"class": "button danger"})] == ["Delete"]


# -- publishing


def test_a_message_is_published(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    path = f"/topics/{topic}"
    assert cluster.name in cluster.page(path).one("details", id="publish").text

    def send(**fields: str) -> Answer:
        body = urlencode({"action": "publish", "node": cluster.name, **fields}).encode()
        return cluster.admin.web.post(path, body, headers={"X-Forwarded-User": "me"})

    with cluster.telling("publish_message", "publish_message"):
        assert led_to(send(body="a\r\nb", headers="trace: 4bf9")) == f"{path}?published=1"
        assert led_to(send(body="later", defer="3600")) == f"{path}?published=1"
    cluster.web.await_counts(topic, "c", depth=1, deferred_count=1)
    message = article(cluster.page(f"/peek/{topic}/c"))
    assert message.one("pre").children == ["a\nb"]
    assert "trace4bf9" in message.one("dl", **{"class": "headers"}).text
    assert "The message was published." in cluster.page(path, published="1").text
    for fields in ({"body": ""}, {"body": "<b>", "defer": "-5"}, {"body": "<b>", "headers": "x"}):
        page = read(send(**fields).body)
        assert page.one("div", role="alert").text
        assert page.one("textarea", name="body").text == fields["body"]
    cluster.web.await_counts(topic, "c", depth=1, deferred_count=1)


# -- keys


def test_keys_are_shown_paused_and_emptied(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    path = f"/keys/{topic}/c"
    assert "The channel's policy has no rules for keys" in cluster.page(path).text
    links = cluster.page(f"/topics/{topic}/c").one("nav", **{"class": "further"})
    assert not links.all("a", href=path)
    cluster.web.put("/topic/config", b'{"key": "json:/k"}', topic=topic)
    cluster.web.put("/channel/config", b'{"order": "key"}', topic=topic, channel="c")
    links = cluster.page(f"/topics/{topic}/c").one("nav", **{"class": "further"})
    assert links.all("a", href=path)
    assert "No keys." in cluster.page(path).text
    keys = [SCRIPT.decode(), SCRIPT.decode(), "a b&c"]
    cluster.web.mpub(topic, [json.dumps({"k": key}).encode() for key in keys])
    first, second = cluster.page(path).table("Keys")[1:]
    assert first[:4] == [SCRIPT.decode(), cluster.name, "2", "0"]
    assert second[:4] == ["a b&c", cluster.name, "1", "0"]
    assert len(cluster.page(path, q="b&").table("Keys")) == 2
    assert "No key matches." in cluster.page(path, only="blocked").text

    def form(action: str) -> Element:
        forms = cluster.page(path, q="b&").all("form", method="post")
        return next(each for each in forms if each.fields["action"] == action)

    with cluster.telling("pause_key", "unpause_key", "pause_key"):
        for action in ("pause-key", "unpause-key", "pause-key"):
            assert led_to(cluster.press(form(action))) == path
    (row,) = cluster.page(path, only="paused").table("Keys")[1:]
    assert row[0] == "a b&c paused"
    button = cluster.page(path, q="b&").one("a", **{"class": "button danger"})
    box = question(cluster.page(button.attributes["href"].partition("#")[0]))
    assert "The 1 waiting message of key a b&c" in box.text
    with cluster.telling("empty_key"):
        assert led_to(cluster.press(box.one("form"))) == path
    cluster.web.await_counts(topic, "c", depth=2)
    audited = [row[3:] for row in cluster.page("/audit").table("Actions")[1:5]]
    where = [topic, "c", "a b&c", cluster.name, "done"]
    assert audited == [
        [action, *where] for action in ("empty_key", "pause_key", "unpause_key", "pause_key")
    ]
    assert cluster.get(path, "you").status == 403
    headers = {"X-Forwarded-User": "you"}
    assert cluster.press(form("unpause-key"), **headers).status == 403


# -- audit


def test_actions_are_recorded(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    assert cluster.ask("POST", f"/api/topics/{topic}/c", action="pause").status == 200
    assert cluster.ask("POST", f"/api/topics/{topic}/c", action="rate", rate="fast").status == 400
    assert cluster.ask("POST", f"/api/topics/{topic}/c", "you", action="pause").status == 403
    named = {"node": cluster.name, "topic": topic, "channel": "c"}
    assert cluster.ask("POST", f"/api/nodes/{cluster.name}", action="empty", **named).status == 200
    rows = [row[1:] for row in cluster.page("/audit").table("Actions")[1:4]]
    where = ["me", "127.0.0.1"]
    assert rows[0] == [*where, "empty", topic, "c", "", cluster.name, "done"]
    assert rows[1][:-1] == [*where, "set_rate", topic, "c", "", ""]
    assert "INVALID_RATE" in rows[1][-1]
    assert rows[2] == [*where, "pause", topic, "c", "", "", "done"]
    assert cluster.get("/audit", "you").status == 403


# -- policies


def test_a_policy_is_shown_and_set(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    path = f"/policy/{topic}/c"

    def rows() -> dict[str, list[str]]:
        table = cluster.page(path).table("Policy")[1:]
        return {first.split()[0]: row[:2] for first, *row in table}

    def save(**changed: str) -> Answer:
        """Submit the form as it is on the page, with these changes."""
        form = cluster.page(path).one("form", **{"class": "policy"})
        fields = {
            each.attributes["name"]: each.attributes["value"]
            for each in form.all("input")
            if each.attributes.get("type") != "checkbox"
        }
        for each in form.all("select"):
            (chosen,) = each.all("option", selected="")
            fields[each.attributes["name"]] = chosen.text
        fields |= {name.replace("__", "."): value for name, value in changed.items()}
        headers = {"X-Forwarded-User": "me"}
        body = urlencode({**fields, "action": "save"}).encode()
        return cluster.admin.web.post(form.attributes["action"], body, headers=headers)

    assert rows()["rate"] == ["0", "default"]
    with cluster.telling("set_channel_policy"):
        answer = save(value__rate="12.5", value__msg_timeout="5", value__on_full="drop-oldest")
        assert led_to(answer) == path
    assert rows()["rate"] == ["12.5", "http"]
    assert rows()["msg_timeout"] == ["5m", "http"]
    assert rows()["on_full"] == ["drop-oldest", "http"]
    assert rows()["max_depth"] == ["0", "default"]

    problem = read(save(value__rate="<fast>", value__max_depth="9").body)
    field = problem.one("p", id="problem-rate")
    assert 'rate: invalid value "<fast>"' in field.text
    assert problem.one("input", **{"aria-invalid": "true"}).attributes["value"] == "<fast>"
    assert problem.one("input", name="value.max_depth").attributes["value"] == "9"
    assert rows()["rate"] == ["12.5", "http"]
    assert rows()["max_depth"] == ["0", "default"]

    assert led_to(save()) == path
    assert led_to(save(reset__rate="1")) == path
    assert rows()["rate"] == ["0", "default"]
    box = question(cluster.page(path, ask="reset-all"))
    assert "msg_timeout" in box.text
    with cluster.telling("reset_channel_policy"):
        assert led_to(cluster.press(box.one("form"))) == path
    assert rows()["msg_timeout"] == ["10m", "default"]


def test_policies_over_the_api(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    path = f"/api/policy/{topic}"
    found = cluster.ours(cluster.ask("PUT", path, max_msg_size=10))
    assert found["config"]["max_msg_size"] == {"value": 10, "from": "http"}
    refused = cluster.ask("PUT", path, max_msg_size="x")
    assert (refused.status, refused.json()["message"][:14]) == (400, "INVALID_CONFIG")
    assert cluster.ask("PUT", path + "/c", rate=1, node="x").status == 400
    assert cluster.api(f"/policy/{topic}")["config"]["max_msg_size"]["from"] == "http"
    found = cluster.ours(cluster.ask("DELETE", path))
    assert found["config"]["max_msg_size"]["from"] == "default"
    rate = cluster.ask("POST", f"/api/topics/{topic}/c", action="rate", rate="5")
    assert cluster.ours(rate) == {"node": cluster.name}
    assert cluster.api(f"/policy/{topic}/c")["config"]["rate"]["value"] == 5


# -- positions


def test_a_seek_says_first_what_it_means(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"%d" % each for each in range(10)])
    with cluster.nsqd.connect() as consumer:
        consumer.sub(topic, "c", 10)
        for message in consumer.messages(4):
            consumer.fin(message)
        consumer.cls()
    page = cluster.page(f"/seek/{topic}/c")
    assert not page.all("section", id="question")
    assert page.all("a", href=f"/seek/{topic}/c?to=earliest")
    web = cluster.web
    held = sum(web.counts(topic, "c")[key] for key in ("depth", "in_flight_count"))
    page = cluster.page(f"/seek/{topic}/c", to="earliest")
    (row,) = page.table("Effect")[1:]
    assert (row[0], row[2], row[5]) == (cluster.name, "1", str(held))
    box = question(page)
    assert "Afterwards, 10 messages will be waiting on 1 node, of which" in box.text
    assert cluster.api(f"/seek/{topic}/c", to="earliest") | {"now": 0, "again": 0} == {
        "node": cluster.name,
        "now": 0,
        "then": 1,
        "again": 0,
        "skipped": 0,
        "waiting": 10,
        "dropped": held,
    }
    with cluster.telling("seek_channel"):
        assert led_to(cluster.press(box.one("form"))) == f"/topics/{topic}/c"
    web.await_counts(topic, "c", depth=10, in_flight_count=0)
    answer = cluster.ask("POST", f"/api/topics/{topic}/c", action="seek", to="latest")
    assert cluster.ours(answer)["seq"] == 11
    web.await_counts(topic, "c", depth=0)
    refused = cluster.ask("POST", f"/api/topics/{topic}/c", action="seek", to="noon")
    assert (refused.status, refused.json()["message"][:10]) == (400, "INVALID_TO")
    assert "INVALID_AT" in cluster.page(f"/seek/{topic}/c", to="noon").text


# -- single nodes


def test_one_node_only(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.mpub(topic, [b"1", b"2"])
    path = f"/nodes/{cluster.name}"
    box = cluster.page(path, topic=topic, channel="c").one("section", id="actions")
    assert f"channel {topic}/c on {cluster.name} only" in box.text
    with cluster.telling("pause_channel", "empty_channel", "delete_topic"):
        assert led_to(cluster.press(box.one("form"))) == path.replace(":", "%3A")
        cluster.web.await_counts(topic, "c", paused=True)
        for action, words, names in (
            ("empty", "2 messages", {"topic": topic, "channel": "c"}),
            ("delete", "0 messages on", {"topic": topic}),
        ):
            asked = question(cluster.page(path, ask=action, **names))
            assert words in asked.text
            assert led_to(cluster.press(asked.one("form"))) == path.replace(":", "%3A")
    assert cluster.web.topic(topic) is None
    cluster.web.create(topic, "c")
    answer = cluster.ask("POST", f"/api{path}", action="pause", topic=topic)
    assert cluster.ours(answer) == {"node": cluster.name}
    assert cluster.web.counts(topic)["paused"] is True
    for said, status, message in (
        ({"action": "burn", "topic": topic}, 400, "INVALID_ACTION"),
        ({"action": "pause", "topic": "a b"}, 400, "INVALID_TOPIC"),
        ({"action": "pause", "topic": "none-such"}, 404, "TOPIC_NOT_FOUND"),
    ):
        refused = cluster.ask("POST", f"/api{path}", **said)
        assert (refused.status, refused.json()["message"]) == (status, message)
    assert cluster.ask("POST", "/api/nodes/x:1", action="pause", topic=topic).status == 404


def test_a_node_is_drained(cluster: Cluster, topic: str) -> None:
    cluster.web.create(topic, "c")
    cluster.web.pub(topic, b"left")
    path = f"/nodes/{cluster.name}"
    assert cluster.api(f"/drain/{cluster.name}")["draining"] is False
    box = question(cluster.page(path, ask="drain"))
    assert "refuses publishes from now on" in box.text
    with cluster.telling("drain_node", "undrain_node"):
        cluster.press(box.one("form"))
        page = cluster.page(path)
        assert page.all("span", **{"class": "label old"})[0].text == "draining"
        assert cluster.web.post("/pub", b"x", topic=topic).status == 503
        (stop,) = [each for each in page.all("form") if each.all("button", value="undrain")]
        cluster.press(stop)
    assert cluster.web.post("/pub", b"x", topic=topic).status == 200
    answer = cluster.ask("POST", f"/api{path}", action="drain", timeout="x")
    assert (answer.status, answer.json()["message"][:15]) == (400, "INVALID_TIMEOUT")


# -- permissions and missing nsqds


def test_a_user_without_permission_sees_no_messages(cluster: Cluster, filled: str) -> None:
    for path in (
        f"/peek/{filled}/c",
        f"/peek/{filled}",
        f"/api/peek/{filled}/c",
        f"/seek/{filled}/c",
        f"/api/seek/{filled}/c?to=latest",
    ):
        answer = cluster.get(path, user="you")
        assert answer.status == 403
        if path.startswith("/api"):
            assert answer.json() == {"message": "FORBIDDEN"}
        else:
            assert (
                "Only users named by --admin-user"
                in read(answer.body).one("div", role="alert").text
            )
    page = cluster.page(f"/topics/{filled}/c", user="you")
    assert [each.text for each in page.one("nav", **{"class": "further"}).all("a")] == ["Policy"]
    policy = cluster.page(f"/policy/{filled}/c", user="you")
    assert policy.table("Policy")[0] == ["Key", "Value", "From"]
    assert not policy.all("form")
    node = cluster.page(f"/nodes/{cluster.name}", user="you", topic=filled, ask="drain")
    assert not node.all("form") and not node.all("section", id="question")


FORMS = [
    ("/peek/both/c", {"action": "redrive"}),
    ("/peek/both/c", {"action": "cancel", "id": "0" * 16}),
    ("/policy/both", {"action": "set", "key": "max_depth", "value": "1"}),
    ("/policy/both/c", {"action": "reset-all"}),
    ("/seek/both/c", {"action": "seek", "to": "latest"}),
    ("/nodes/{node}", {"action": "delete", "topic": "both"}),
    ("/nodes/{node}", {"action": "drain"}),
]
CALLS = [
    ("POST", "/api/topics/both/c", {"action": "redrive"}),
    ("POST", "/api/topics/both/c", {"action": "seek", "to": "latest"}),
    ("POST", "/api/topics/both/c", {"action": "cancel", "id": "0" * 16}),
    ("POST", "/api/topics/both/c", {"action": "rate", "rate": "1"}),
    ("PUT", "/api/policy/both", {"max_depth": 1}),
    ("PUT", "/api/policy/both/c", {"max_depth": 1}),
    ("DELETE", "/api/policy/both", {}),
    ("DELETE", "/api/policy/both/c", {}),
    ("POST", "/api/nodes/{node}", {"action": "delete", "topic": "both"}),
    ("POST", "/api/nodes/{node}", {"action": "drain"}),
]


@pytest.mark.parametrize(("path", "fields"), FORMS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://elsewhere.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"X-Forwarded-User": "you"},
    ],
    ids=["origin", "site", "user"],
)
def test_no_other_site_and_nobody_else(
    cluster: Cluster, path: str, fields: dict[str, str], headers: dict[str, str]
) -> None:
    every = {"X-Forwarded-User": "me", "Content-Type": "application/x-www-form-urlencoded"}
    cluster.old.asked.clear()
    path = path.format(node=cluster.name)
    answer = cluster.admin.web.post(path, urlencode(fields).encode(), headers=every | headers)
    assert (answer.status, answer.body) == (403, b"FORBIDDEN")
    assert cluster.old.asked == []


@pytest.mark.parametrize(("method", "path", "said"), CALLS)
def test_nobody_else_calls_the_api(
    cluster: Cluster, method: str, path: str, said: dict[str, str]
) -> None:
    answer = cluster.ask(method, path.format(node=cluster.name), user="you", **said)
    assert (answer.status, answer.json()) == (403, {"message": "FORBIDDEN"})


def test_an_nsqd_that_has_no_such_thing(cluster: Cluster) -> None:
    """The page reports the missing feature next to the data of the other nsqd."""
    for path in ("/peek/both/c", "/policy/both/c"):
        page = cluster.page(path)
        assert MISSING in page.text
        assert "No messages." in page.text or page.table("Policy")
    page = cluster.page(f"/nodes/{cluster.old.address}")
    assert "Drain" not in page.text
    answer = cluster.ask("POST", f"/api/nodes/{cluster.old.address}", action="drain")
    assert (answer.status, answer.json()) == (404, {"message": MISSING})


def test_only_nsqds_that_have_no_such_thing(cluster: Cluster) -> None:
    with Admin(nsqd_http_address=[cluster.old.address]) as admin:

        def text(path: str) -> str:
            page = read(admin.web.get(path).body)
            assert not page.all("form") and not page.all("section", id="question")
            return page.text

        assert "No nsqd can show messages" in text("/peek/both/c")
        assert "No nsqd supports policies" in text("/policy/both/c")
        assert "No nsqd supports seeking" in text("/seek/both/c?to=earliest")
        answer = admin.post("/api/topics/both/c", action="seek", to="latest")
        assert (answer.status, answer.json()) == (404, {"message": MISSING})


def test_a_node_that_is_down(cluster: Cluster, filled: str) -> None:
    down = f"127.0.0.1:{free_port()}"
    with Admin(nsqd_http_address=[cluster.name, down]) as admin:
        for path, words in (
            (f"/peek/{filled}/c", "plain"),
            (f"/policy/{filled}/c", "max_attempts"),
            (f"/seek/{filled}/c?to=latest", "will be removed"),
        ):
            page = read(admin.web.get(path).body)
            assert f"{down}: " in page.one("div", role="status").text
            assert words in page.text
        answer = admin.post(f"/api/topics/{filled}/c", action="seek", to="latest")
        assert answer.status == 200 and down in answer.json()["message"]
        # It is unknown whether there are dead letters.
        assert (
            cluster.ask("PUT", f"/api/policy/{filled}/c", dead_letter_topic="grave").status == 200
        )
        answer = admin.web.get(f"/peek/{filled}/c", state="dead")
        assert answer.status == 502
        assert f"{down}: " in read(answer.body).one("div", role="alert").text
