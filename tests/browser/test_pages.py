"""nsqadmin's pages in a browser, for a cluster under load: viewing only, without actions."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from nsqcy.testing.http_requests import eventually
from support.browser_visit import BASE, DARK, LIGHT, Visit, press
from support.loaded_cluster import Lively
from support.nsqadmin_process import Admin
from support.nsqlookupd_process import Lookupd

expect: Any = pytest.importorskip("playwright.sync_api").expect
Begin = Callable[..., Visit]

TICK = 5000  # ms between two updates of a page


def sampled(live: Lively, **subject: str) -> list[float]:
    """Return the recorded rates of incoming messages."""
    answer = live.admin.web.get(f"{BASE}/api/history", range="15m", **subject)
    if answer.status != 200:
        return []
    return [each for each in answer.json()["metrics"]["in"] if each is not None]


def number(text: str) -> int:
    return int(text.replace(",", ""))


def cell(page: Any, row: str, column: str) -> Any:
    """Return a cell of the only table, by row name and column heading."""
    titles = page.locator("thead th").all_text_contents()
    return page.locator(f'tbody tr[data-key="{row}"]').locator("th, td").nth(titles.index(column))


def test_every_page(live: Lively, visit: Begin) -> None:
    visitor = visit()
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    paths = ["/", "/topics", "/topics/orders", "/topics/orders/billing", "/topics/audit", "/nodes"]
    paths += [f"/nodes/{live.nodes[0]}", "/counter", "/lookup", "/topics/orders?ask=delete"]
    for path in paths:
        expect(visitor.look_at(path).locator("#theme")).to_be_visible()
        # The first page loads the files that all pages share; the browser then caches them.
        fetched = visitor.page.evaluate(
            "performance.getEntriesByType('resource').filter((each) => each.transferSize).length"
        )
        assert bool(fetched) == (path == "/"), path


def test_what_somebody_should_look_at(live: Lively, visit: Begin) -> None:
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    page = visit().to("/topics?sort=attention")
    expect(cell(page, "audit", "Attention")).to_have_text("⚠ no channel")
    expect(cell(page, "invoices", "Attention")).to_have_text(re.compile(". no consumer: ledger"))
    expect(cell(page, "orders", "Attention")).to_have_text(re.compile(r"⚠ requeued [\d.]+/s"))
    page = visit().to("/topics/invoices/ledger")
    expect(page.locator("h1")).to_have_text(re.compile("ledger . no consumer"))


def test_plots_are_drawn(live: Lively, visit: Begin) -> None:
    eventually(lambda: len(sampled(live, topic="orders", channel="billing")) > 2)
    page = visit().to("/topics/orders/billing?range=15m")
    titles = ["Throughput", "Depth", "In flight and deferred", "Errors", "Latency"]
    assert page.locator(".plot figcaption b").all_text_contents() == titles
    assert page.locator(".frames a[aria-current]").text_content() == "15m"
    spoken = page.locator(".plot svg").first.get_attribute("aria-label")
    assert re.match(r"Throughput\. In: [\d,.]+/s now, maximum", spoken)
    assert page.locator(".plot path.line0").first.bounding_box()["width"] > 0
    page.get_by_role("link", name="6h").click()
    expect(page.locator(".frames a[aria-current]")).to_have_text("6h")
    expect(page.locator(".plot .x span").first).to_have_text("−6h")


def test_values_are_read_out(live: Lively, visit: Begin) -> None:
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    page = visit().to("/topics/orders?range=15m")
    plot = page.locator(".plot").first
    time, value = plot.locator("time"), plot.locator("output").first
    latest = value.text_content()
    box = plot.locator(".canvas").bounding_box()
    page.mouse.move(box["x"] + 2, box["y"] + 20)
    expect(time).to_have_text(re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC$"))
    shown = time.text_content()
    expect(page.locator(".plot time")).to_have_text([shown] * page.locator(".plot").count())
    expect(value).to_have_text("–")  # older than all samples
    page.mouse.move(0, 0)
    expect(value).to_have_text(latest)
    plot.focus()
    page.keyboard.press("ArrowLeft")
    expect(value).to_have_text(re.compile(r"[\d,.]+/s"))
    page.keyboard.press("Escape")
    expect(time).to_be_empty()


def test_a_part_of_the_plots_is_enlarged(live: Lively, visit: Begin) -> None:
    """All plots show the selected part, even after an update."""
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/topics/orders?range=15m")
    whole = "0 -2 720 164"
    boxes = (
        "[...document.querySelectorAll('.plot svg')].map((each) => each.getAttribute('viewBox'))"
    )
    canvas = page.locator(".canvas").first.bounding_box()
    middle = canvas["y"] + canvas["height"] / 2
    page.mouse.move(canvas["x"] + canvas["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(canvas["x"] + canvas["width"], middle)
    page.mouse.up()
    expect(page.locator(".plot.zoomed")).to_have_count(page.locator(".plot").count())
    (box,) = {*page.evaluate(boxes)}
    left, _, width, _ = map(float, box.split())
    assert left == pytest.approx(360, abs=15) and width == pytest.approx(360, abs=15)
    label = page.locator(".plot .x span").first
    expect(label).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    page.clock.run_for(TICK)
    expect(page.locator(".plot.zoomed")).to_have_count(page.locator(".plot").count())
    assert whole not in page.evaluate(boxes)
    press(page, "Reset zoom")
    assert {*page.evaluate(boxes)} == {whole}
    expect(label).to_have_text("−15m")
    expect(page.get_by_text("Reset zoom")).to_be_hidden()


def test_plots_are_enlarged_by_keys(live: Lively, visit: Begin) -> None:
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    page = visit().to("/topics/orders?range=15m")
    plot = page.locator(".plot").first
    plot.focus()
    page.keyboard.press("+")
    expect(plot.locator("svg")).to_have_attribute("viewBox", re.compile(r"^180\S* -2 360"))
    page.keyboard.press("Escape")
    expect(plot.locator("svg")).to_have_attribute("viewBox", "0 -2 720 164")


def test_figures_are_kept_up_to_date(live: Lively, visit: Begin) -> None:
    """A visible page updates its figures in place, with one request."""
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/topics")
    page.evaluate("document.querySelector('tbody a').focus(); window.mark = 1")
    messages = cell(page, "orders", "Messages")
    before = number(messages.text_content())

    def published() -> int:
        return sum(nsqd.web.counts("orders")["message_count"] for nsqd in live.nsqds)

    eventually(lambda: published() > before)
    visitor.asked.clear()
    page.clock.run_for(TICK)
    expect(messages).not_to_have_text(f"{before:,}")
    assert number(messages.text_content()) > before
    assert page.evaluate("window.mark") == 1
    assert page.evaluate("document.activeElement.textContent") == "audit"
    assert visitor.asked == ["/topics"]
    expect(page.locator("#live")).to_have_text("live")

    page.evaluate("Object.defineProperty(document, 'hidden', {value: true, configurable: true})")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(100 * TICK)
    assert visitor.asked == ["/topics"]
    page.evaluate("Object.defineProperty(document, 'hidden', {value: false})")
    with page.expect_response(visitor.url + "/topics"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")


def test_a_page_that_is_not_answered_says_so(visit: Begin) -> None:
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/counter")
    page.route("**/counter", lambda route: route.abort())
    page.clock.run_for(TICK)
    expect(page.locator("#live")).to_have_text("not live")
    page.unroute("**/counter")
    page.clock.run_for(TICK)
    expect(page.locator("#live")).to_have_text("live")
    visitor.forgive("ERR_FAILED")


def test_a_page_without_its_cluster_says_so(visit: Begin) -> None:
    with (
        Lookupd() as lookupd,
        Admin(lookupd_http_address=lookupd.http_address, base_path=BASE) as admin,
    ):
        visitor = visit(url=f"http://{admin.http_address}")
        visitor.page.clock.install()
        page = visitor.to("/topics")
        expect(page.locator("#live")).to_have_text("live")
        lookupd.kill()
        page.clock.run_for(TICK)
        expect(page.locator("main")).to_contain_text("failed to query any nsqlookupd")
        expect(page.locator("#live")).to_have_text("not live")
        lookupd.start()
        page.clock.run_for(2 * TICK)
        expect(page.locator("#live")).to_have_text("live")
        visitor.forgive("502")


def test_a_page_says_that_its_topic_is_gone(live: Lively, visit: Begin) -> None:
    for nsqd in live.nsqds:
        nsqd.web.create("brief")
    live.known("brief")
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/topics/brief")
    live.forget("brief")
    page.clock.run_for(TICK)
    expect(page.locator("main")).to_contain_text("No nsqd has a topic brief.")
    expect(page.locator("#live")).to_have_text("live")
    visitor.forgive("404")


def test_the_switch_of_colours_is_remembered(visit: Begin) -> None:
    page = visit(color_scheme="light").to("/topics")

    def ground() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    assert (ground(), page.locator("#theme").text_content()) == (LIGHT, "◐ Auto")
    page.locator("#theme").click()
    page.locator("#theme").click()
    assert ground() == DARK
    page.reload()
    assert (ground(), page.locator("#theme").text_content()) == (DARK, "☾ Dark")
    page.locator("#theme").click()
    assert ground() == LIGHT


def test_searching(visit: Begin) -> None:
    visitor = visit()
    page = visitor.to("/topics?sort=backlog")
    page.keyboard.press("/")
    page.keyboard.type("OIC")
    names = page.locator("tbody tr:visible th")
    expect(names).to_have_text(["invoices"])
    page.wait_for_url(re.compile(r"\?sort=backlog&q=OIC$"))
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("input[type=search]")).to_be_focused()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "invoices"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("invoices")
    page.go_back()
    page.locator("input[type=search]").fill("")
    expect(names).to_have_count(4)


def test_sorting(visit: Begin) -> None:
    page = visit().to("/topics")
    names = page.locator("tbody th")
    page.locator("thead a", has_text="Topic").click()
    expect(names).to_have_text(["audit", "invoices", "mails", "orders"])
    page.locator("thead a", has_text="Topic").click()
    expect(names).to_have_text(["orders", "mails", "invoices", "audit"])
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Topic")
    page.locator("thead a", has_text="Channels").click()
    expect(names.first).to_have_text("orders")
    expect(page.locator("th[aria-sort]")).to_have_text("Channels")


def test_columns_can_be_hidden(visit: Begin) -> None:
    """The choice survives an update and a reload, and applies to this table only."""
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/topics")
    titles = page.locator("thead th:visible")
    count = titles.count()
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Deferred").uncheck()
    expect(titles).to_have_count(count - 1)
    expect(cell(page, "orders", "Deferred")).to_be_hidden()
    page.clock.run_for(TICK)
    expect(page.get_by_label("Deferred")).not_to_be_checked()
    expect(titles).to_have_count(count - 1)
    page.reload()
    expect(titles).to_have_count(count - 1)
    page.get_by_text("Columns", exact=True).click()
    page.get_by_label("Deferred").check()
    expect(titles).to_have_count(count)


def test_the_name_stays_while_a_table_scrolls(visit: Begin) -> None:
    page = visit(width=700).to("/topics")
    box, name = page.locator(".table"), page.locator("tbody th").first
    assert box.evaluate("(box) => box.scrollWidth > box.clientWidth")
    before = name.bounding_box()["x"]
    box.evaluate("(box) => box.scrollTo(10_000, 0)")
    assert name.bounding_box()["x"] == before


def test_rows_are_cards_on_a_phone(visit: Begin) -> None:
    page = visit(width=390).to("/topics")
    row = page.locator('tr[data-key="orders"]')
    box = page.locator(".table")
    assert box.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    label = "getComputedStyle(cell, '::before').content"
    messages = row.locator("td", has_text=re.compile(r"^[\d,]+$")).last
    assert "Connections" in messages.evaluate(f"(cell) => {label}")
    name = row.locator("th").bounding_box()
    assert messages.bounding_box()["y"] >= name["y"] + name["height"]
    expect(cell(page, "audit", "Channels")).to_be_hidden()  # it is 0


def test_with_the_keyboard_alone(visit: Begin) -> None:
    page = visit().to("/topics")
    page.keyboard.press("Tab")
    skip = page.get_by_text("Skip to content")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["x"] >= 0
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("h1 a")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("input[type=search]")).to_be_focused()
    page.locator("tbody a").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "invoices"
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(style) == "solid"


def test_without_scripts(live: Lively, visit: Begin) -> None:
    eventually(lambda: len(sampled(live, topic="orders")) > 2)
    visitor = visit(java_script_enabled=False)
    page = visitor.to("/topics/orders?range=15m")
    assert page.locator(".plot path.line0").count() >= 4
    expect(page.locator("#theme")).to_be_hidden()
    page = visitor.to("/topics")
    assert page.locator("svg.spark").count() >= 4
    page.locator("input[type=search]").fill("mail")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("tbody th")).to_have_text(["mails"])


@contextmanager
def hanging(nsqd: Any) -> Iterator[None]:
    """Suspend all processes of an nsqd."""
    family = [nsqd.process.pid, *nsqd.workers()]
    for pid in family:
        psutil.Process(pid).send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(family):
            psutil.Process(pid).send_signal(signal.SIGCONT)


def test_a_node_that_hangs(live: Lively, visit: Begin) -> None:
    """Pages show the data of the other nodes and identify the hung node, whose plots have a
    gap."""
    node = live.nodes[1]
    eventually(lambda: len(sampled(live, node=node)) > 2)
    visitor = visit()
    visitor.page.clock.install()
    page = visitor.to("/topics")
    with hanging(live.nsqds[1]):
        eventually(lambda: f"history: {node} is omitted" in live.admin.log_text())
        page.clock.run_for(TICK)
        expect(page.locator(".bar.warning")).to_contain_text(f"{node}: timed out")
        expect(page.locator("tbody tr")).to_have_count(4)
    taken = len(sampled(live, node=node))
    eventually(lambda: len(sampled(live, node=node)) > taken)
    history = live.admin.web.get(f"{BASE}/api/history", range="1m", node=node).json()
    known = ["-" if each is None else "x" for each in history["metrics"]["depth"]]
    assert re.search("x-+x", "".join(known))
