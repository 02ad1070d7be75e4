"""nsqadmin pages that NSQ lacks, in a browser: messages, policies, seeking, single nodes."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.browser_visit import Visit, follow, press
from support.loaded_cluster import Lively, trouble

expect: Any = pytest.importorskip("playwright.sync_api").expect
Begin = Callable[..., Visit]
PEEK = "/peek/refunds/bank"


@pytest.fixture(scope="module", autouse=True)
def refunds(live: Lively) -> Iterator[None]:
    with trouble(live):
        yield


def row(page: Any, caption: str, name: str) -> list[str]:
    """Return the cells of the row with this name, without extra whitespace."""
    table = page.locator(f'[role=region][aria-label="{caption}"]')
    texts = table.locator("tbody tr", has_text=name).locator("th, td").all_text_contents()
    return [" ".join(each.split()) for each in texts]


def test_every_page(live: Lively, visit: Begin) -> None:
    visitor = visit()
    node = f"/nodes/{live.nodes[0]}"
    states = [f"{PEEK}?state={each}" for each in ("queued", "in_flight", "deferred", "dead")]
    others = ["/peek/refunds", "/policy/refunds", "/policy/refunds/bank", "/topics/refunds"]
    others += ["/audit", "/peek/refunds-dead/look", f"{PEEK}?q=paid", "/topics/refunds?ask=delete"]
    others += ["/seek/refunds/bank", "/seek/refunds/bank?to=earliest", "/topics/refunds/report"]
    asking = [f"{node}?topic=refunds&channel=bank", f"{node}?ask=drain", f"{PEEK}?ask=redrive"]
    for path in [*states, *others, *asking]:
        visitor.look_at(path)


def test_what_is_wrong_with_them(live: Lively, visit: Begin) -> None:
    page = visit().to("/topics?sort=attention&q=refunds")
    name, sign = row(page, "Topics", "refunds-dead")[:2]
    assert name == "refunds-dead" and sign.endswith("dead letters")
    expect(page.locator('tr[data-key="refunds"] .signs')).to_contain_text("paused: report")
    follow(page, "refunds")
    page.wait_for_url("**/topics/refunds")
    reader = row(page, "Log Readers", "lake")
    assert reader[1] == live.nodes[0] and int(reader[2]) > 0
    assert row(page, "Channel Message Queues", "report")[:2] == ["report", "⚠ paused"]


def test_messages(live: Lively, visit: Begin) -> None:
    page = visit().to("/topics/refunds/bank")
    follow(page.locator(".further"), "Messages")
    bodies = page.locator("pre.body")
    expect(bodies).to_have_count(10)
    assert '"value": 12.50' in bodies.nth(0).text_content()
    expect(page.locator(".headers").first).to_have_text("trace4bf92f35")
    assert bodies.nth(1).text_content().startswith("00000000  00 01 02 03")
    expect(bodies.nth(2)).to_have_text("R-2044 was paid twice")
    follow(page, "Next messages")
    expect(bodies).to_have_count(3)
    page.go_back()
    expect(page.locator(".message dl").first).to_be_hidden()
    page.locator(".message summary").first.click()
    expect(page.locator(".message dl").first).to_be_visible()
    page.locator(".message").first.get_by_role("link", name="show as hex").click()
    expect(bodies).to_have_count(1)
    expect(bodies).to_have_text(re.compile(r"^00000000  7b 22 72"))

    follow(page, "In Flight 1")
    expect(page.locator(".message dl").first).to_contain_text("teller")
    follow(page, "Deferred 1")
    expect(bodies).to_have_text("R-2045")
    follow(page, "Cancel")
    expect(page.locator("#question")).to_contain_text("will be discarded")
    press(page, "Cancel Message")
    expect(page.locator("main")).to_contain_text("No messages.")
    live.nsqds[0].web.await_counts("refunds", "bank", deferred_count=0)

    follow(page, "Dead Letters")
    expect(bodies).to_have_count(2)
    follow(page, "Redrive …")
    expect(page.locator("#question")).to_contain_text("refunds-dead/look has 2 messages")
    press(page, "Redrive")
    expect(page.locator("#question")).to_have_count(0)
    live.nsqds[0].web.await_counts("refunds-dead", "look", depth=0)
    live.nsqds[0].web.await_counts("refunds", "bank", depth=15)


def test_a_policy(visit: Begin) -> None:
    page = visit(width=390).to("/topics/refunds/report")
    follow(page, "Policy")
    line = page.locator('tr[data-key="rate"]')
    field = line.get_by_label("rate")

    def set_to(value: str) -> None:
        field.fill(value)
        press(page, "Save")

    set_to("12.5")
    expect(line).to_contain_text("http")
    assert row(page, "Policy", "rate")[1:3] == ["12.5", "http"]
    set_to("fast")
    expect(line.locator("[role=alert]")).to_contain_text('rate: invalid value "fast"')
    expect(field).to_have_value("fast")
    expect(field).to_have_attribute("aria-invalid", "true")
    assert row(page, "Policy", "rate")[1:3] == ["12.5", "http"]
    field.fill("12.5")
    line.get_by_label("Reset").check()
    press(page, "Save")
    expect(line).to_contain_text("default")
    page.get_by_label("Unit of msg_timeout").select_option("min")
    set_to("7")
    follow(page, "Reset All")
    expect(page.locator("#question")).to_contain_text("return to their configured values")
    press(page, "Reset All")
    expect(page.locator("#question")).to_have_count(0)
    assert row(page, "Policy", "rate")[1:3] == ["0", "default"]


def test_seeking(live: Lively, visit: Begin) -> None:
    web = live.nsqds[0].web
    web.create("refunds", "late")
    web.pub("refunds", b"held")
    web.await_counts("refunds", "late", depth=1)
    page = visit().to("/topics/refunds/late")
    follow(page, "Seek")
    page.get_by_label("A time such as").fill("never")
    press(page, "Show")
    expect(page.locator(".notice")).to_contain_text("INVALID")
    page.get_by_label("Time in UTC").fill("2026-01-31T12:00:00")
    expect(page.locator("output.local")).to_contain_text("in your time zone")
    press(page, "Show Time")
    expect(page.locator("#question")).to_contain_text("to 2026-01-31T12:00:00Z?")
    follow(page, "1 h ago")
    expect(page.locator("#question")).to_contain_text("Seek refunds/late to 20")
    follow(page, "To the Beginning")
    assert row(page, "Effect", live.nodes[0])[-1] == "1"
    expect(page.locator("#question")).to_contain_text("Seek refunds/late to earliest?")
    assert web.counts("refunds", "late")["depth"] == 1
    press(page, "Seek")
    expect(page.locator("h1")).to_contain_text("late")
    end = web.get("/topic/log", topic="refunds").json()["next_seq"]
    web.await_counts("refunds", "late", depth=end - 1)


def test_one_node_only(live: Lively, visit: Begin) -> None:
    """An action on one node leaves the other node unchanged."""
    for nsqd in live.nsqds:
        nsqd.web.create("apart", "c")
        nsqd.web.pub("apart", b"x")
        nsqd.web.await_counts("apart", "c", depth=1)
    here, there = live.nsqds
    page = visit().to(f"/nodes/{live.nodes[0]}")

    def open_box() -> None:
        page.get_by_title("Details of apart").click()
        page.get_by_title("Actions on channel apart/c here").click()

    open_box()
    press(page, "Pause Here")
    expect(page.locator('tr[data-key="apart"]')).to_contain_text("⚠ paused: c")
    here.web.await_counts("apart", "c", paused=True)
    open_box()
    press(page, "UnPause Here")
    here.web.await_counts("apart", "c", paused=False)
    open_box()
    follow(page, "Empty Here")
    expect(page.locator("#question")).to_contain_text("1 message on")
    press(page, "Empty Here")
    here.web.await_counts("apart", "c", depth=0)
    open_box()
    follow(page, "Delete Here")
    press(page, "Delete Here")
    expect(page.locator("main")).to_contain_text("No channels exist for this topic.")
    assert here.web.channel("apart", "c") is None
    there.web.await_counts("apart", "c", depth=1, paused=False)
    live.forget("apart")


def test_keys(live: Lively, visit: Begin) -> None:
    web = live.nsqds[0].web
    web.create("tenants", "mail")
    live.known("tenants", on=1)
    live.set_policy("tenants/mail", fair=True)
    try:
        for key, count in {"acme": 3, "<b>globex</b>": 2}.items():
            for _ in range(count):
                web.pub("tenants", b"x", headers={"X-Nsq-Key": key})
        visitor = visit()
        page = visitor.to("/topics/tenants/mail")
        follow(page.locator(".further"), "Keys")
        assert row(page, "Keys", "globex")[:4] == ["<b>globex</b>", live.nodes[0], "2", "0"]
        line = page.locator("tbody tr", has_text="acme")
        press(line, "Pause")
        expect(line).to_contain_text("paused")
        visitor.look_at("/keys/tenants/mail")
        page.get_by_label("State").select_option("paused")
        press(page, "Filter")
        expect(page.locator("tbody tr")).to_have_count(1)
        follow(page, "Empty …")
        expect(page.locator("#question")).to_contain_text("The 3 waiting messages of key acme")
        press(page, "Empty Key")
        expect(line).to_have_count(1)
        web.await_counts("tenants", "mail", depth=2)
        press(line, "UnPause")
        expect(line).to_have_count(0)
    finally:
        live.forget("tenants")
