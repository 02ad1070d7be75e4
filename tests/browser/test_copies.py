"""The copies page in a browser, for a healthy cluster and for one at risk."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.browser_visit import BASE, Visit, follow
from support.copies_with_admin import CopiesWithAdmin, copies_with_admin
from support.copying_nsqds import BUDGET
from support.etcd_process import needs_etcd

expect: Any = pytest.importorskip("playwright.sync_api").expect
pytestmark = needs_etcd
Begin = Callable[..., Visit]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CopiesWithAdmin]:
    home = tmp_path_factory.mktemp("copies")
    with copies_with_admin(home, base_path=BASE, history_interval="200ms") as found:
        yield found


def test_the_pages(cluster: CopiesWithAdmin, visit: Begin) -> None:
    visitor = visit(url=f"http://127.0.0.1:{cluster.admin.http_port}")
    visitor.look_at("/copies")
    visitor.look_at("/topics/orders")
    page = visitor.look_at(f"/nodes/{cluster.nodes[0]}")
    follow(page.locator("header"), "Copies")
    expect(page.locator("h1")).to_contain_text("Copies")
    page.get_by_role("link", name="Owner").click()
    expect(page.locator("th[aria-sort=ascending]")).to_have_text("Owner")
    follow(page.locator("tbody th"), "mails")
    expect(page.locator("h1")).to_contain_text("mails")
    follow(page, "2 of 2")
    page.wait_for_url("**/copies")


def test_risks(cluster: CopiesWithAdmin, visit: Begin) -> None:
    """They appear on the open page, and are stated in words, not only in colour."""
    visitor = visit(url=f"http://127.0.0.1:{cluster.admin.http_port}")
    page = visitor.to("/copies")
    expect(page.locator("main")).to_contain_text("No risks")
    (member,) = cluster.etcd.members
    member.kill()
    risk = page.locator(".risks li").first
    expect(risk).to_contain_text("critical etcd does not respond", timeout=BUDGET * 1000)
    visitor.look_at("/copies")
    cluster.etcd.restart(member)
    expect(page.locator("main")).to_contain_text("No risks", timeout=BUDGET * 1000)
