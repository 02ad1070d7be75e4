"""Actions on nsqadmin's pages in a browser: buttons, confirmations, forms."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.browser_visit import Visit, follow, press
from support.loaded_cluster import Lively

expect: Any = pytest.importorskip("playwright.sync_api").expect
Begin = Callable[..., Visit]


@pytest.fixture
def channel(live: Lively) -> Iterator[str]:
    """Path to the page of a channel in the `acted` topic, with three messages on each nsqd."""
    for nsqd in live.nsqds:
        nsqd.web.create("acted", "c")
        nsqd.web.mpub("acted", [b"1", b"2", b"3"])
        nsqd.web.await_counts("acted", "c", depth=3)
    live.known("acted")
    yield "/topics/acted/c"
    live.forget("acted")


def test_pausing(channel: str, live: Lively, visit: Begin) -> None:
    page = visit().to(channel)
    press(page, "Pause Channel")
    paused = page.locator("h1 .label", has_text="paused")
    expect(paused).to_have_count(1)
    for nsqd in live.nsqds:
        nsqd.web.await_counts("acted", "c", paused=True)
    press(page, "UnPause Channel")
    expect(paused).to_have_count(0)
    for nsqd in live.nsqds:
        nsqd.web.await_counts("acted", "c", paused=False)


def test_emptying_asks(channel: str, live: Lively, visit: Begin) -> None:
    page = visit().to(channel)
    follow(page, "Empty Queue")
    question = page.locator("#question")
    expect(question).to_contain_text("Empty channel acted/c?")
    expect(question).to_contain_text("6 messages on 2 nodes will be lost")
    follow(page, "Cancel")
    expect(question).to_have_count(0)
    for nsqd in live.nsqds:
        nsqd.web.await_counts("acted", "c", depth=3)
    follow(page, "Empty Queue")
    press(page, "Empty Queue")
    expect(question).to_have_count(0)
    for nsqd in live.nsqds:
        nsqd.web.await_counts("acted", "c", depth=0)


def test_deleting_a_channel_and_its_topic(channel: str, live: Lively, visit: Begin) -> None:
    page = visit().to(channel)
    follow(page, "Delete Channel")
    page.get_by_label("Type c to confirm").fill("c")
    press(page, "Delete Channel")
    expect(page.locator("h1")).to_have_text("acted")
    expect(page.locator("main")).to_contain_text("No channels exist for this topic.")
    follow(page, "Delete Topic")
    expect(page.locator("#question")).to_contain_text("0 channels and")
    page.get_by_label("Type acted to confirm").fill("act")
    press(page, "Delete Topic")
    expect(page.locator("[role=alert]")).to_contain_text("type the name acted")
    page.get_by_label("Type acted to confirm").fill("acted")
    press(page, "Delete Topic")
    expect(page.locator("h1")).to_contain_text("Topics")
    for nsqd in live.nsqds:
        assert nsqd.web.topic("acted") is None
    expect(page.locator("tbody th", has_text="acted")).to_have_count(0)


def test_publishing(channel: str, live: Lively, visit: Begin) -> None:
    page = visit().to("/topics/acted")
    page.get_by_text("Publish a message").click()
    page.get_by_label("Body").fill("by hand")
    page.get_by_label("Delay in seconds").fill("soon")
    press(page, "Publish")
    expect(page.locator("[role=alert]")).to_contain_text("invalid delay soon")
    expect(page.get_by_label("Body")).to_have_value("by hand")
    page.get_by_label("Delay in seconds").fill("")
    page.get_by_label("Node").select_option(live.nodes[1])
    press(page, "Publish")
    expect(page.locator("[role=status]", has_text="published")).to_be_visible()
    expect(page.get_by_label("Body")).to_have_value("by hand")
    expect(page.get_by_label("Node")).to_have_value(live.nodes[1])
    live.nsqds[1].web.await_counts("acted", "c", depth=4)
