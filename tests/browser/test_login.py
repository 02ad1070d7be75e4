"""nsqadmin with a users file in a browser: what each role may see and do, and protection against
requests from other sites.

One of its two nsqds is down: the pages show the data of the other nsqd and a warning.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from nsqcy.users.hashes import hash_password
from support.browser_visit import BASE, Visit, follow, press
from support.nsqadmin_process import Admin
from support.nsqd_process import Nsqd, free_port

expect: Any = pytest.importorskip("playwright.sync_api").expect
Begin = Callable[..., Visit]
CHEAP = 10  # hash cost that takes almost no time
PASSWORDS = {"anna": "secret of anna", "ben": "secret of ben"}
ELSEWHERE = "http://elsewhere.example/"


@dataclass
class Place:
    nsqd: Nsqd
    down: str
    url: str

    @property
    def node(self) -> str:
        return f"127.0.0.1:{self.nsqd.http_port}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    home = tmp_path_factory.mktemp("nsqd")
    users = home / "users.ini"
    users.write_text(
        "".join(
            f"[user {name}]\nrole = {role}\npassword = {hash_password(PASSWORDS[name], CHEAP)}\n"
            for name, role in (("anna", "operate"), ("ben", "view"))
        )
    )
    down = f"127.0.0.1:{free_port()}"
    nsqd = Nsqd(home, workers=1, broadcast_address="127.0.0.1").start()
    try:
        nsqd.web.create("kept", "c")
        nsqd.web.pub("kept", b"mine")
        nsqd.web.await_counts("kept", "c", depth=1)
        nodes = [f"127.0.0.1:{nsqd.http_port}", down]
        with Admin(nsqd_http_address=nodes, auth_file=users, base_path=BASE) as admin:
            yield Place(nsqd, down, f"http://127.0.0.1:{admin.http_port}")
    finally:
        nsqd.destroy()


def enter(page: Any, name: str, password: str = "") -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password or token").fill(password or PASSWORDS[name])
    press(page, "Log in")


def test_a_user_with_view_permission_only(place: Place, visit: Begin) -> None:
    """The user sees all data except messages, and the only button logs out."""
    visitor = visit(width=390, url=place.url)
    page = visitor.look_at("/topics/kept/c")
    expect(page.locator("h1")).to_have_text("Log in")
    enter(page, "ben", "wrong")
    expect(page.locator("[role=alert]")).to_have_text("Wrong name or password.")
    visitor.forgive("401")
    enter(page, "ben")
    expect(page.locator("h1")).to_contain_text("c")
    page.wait_for_url("**/topics/kept/c")
    for path in ("/topics/kept/c", "/topics/kept", f"/nodes/{place.node}", "/policy/kept/c"):
        page = visitor.look_at(path)
        assert page.get_by_role("button").all_text_contents()[1:] == ["Log out ben"], path
        assert not page.locator(".button").count(), path
    for path in ("/peek/kept/c", "/seek/kept/c"):
        page = visitor.to(path, status=403)
        visitor.forgive("403")
        expect(page.locator("[role=alert]")).to_contain_text("ben has the view role")
        expect(page.locator("body")).not_to_contain_text("mine")
    assert page.request.get(f"{visitor.url}/api/peek/kept/c").status == 403
    press(page, "Log out ben")
    expect(page.locator("h1")).to_have_text("Log in")
    page.go_back()
    expect(page.locator("h1")).to_have_text("Log in")


def test_who_may_act(place: Place, visit: Begin) -> None:
    """Actions work although a node is down."""
    visitor = visit(url=place.url)
    enter(visitor.to("/peek/kept/c"), "anna")
    expect(visitor.page.locator("pre")).to_have_text("mine")
    for path, what in (
        ("/peek/kept/c", "mine"),
        ("/policy/kept/c", "max_attempts"),
        ("/topics/kept", "Channel Message Queues"),
    ):
        page = visitor.look_at(path)
        expect(page.locator(".bar.warning")).to_contain_text(place.down)
        expect(page.locator("main")).to_contain_text(what)
    page = visitor.to(f"/nodes/{place.node}")
    follow(page, "Drain …")
    expect(page.locator("#question")).to_contain_text("1 message left")
    press(page, "Drain")
    expect(page.locator(".label.old", has_text="draining")).to_be_visible()
    press(page, "Stop Draining")
    expect(page.get_by_role("link", name="Drain …")).to_be_visible()
    page = visitor.to("/topics/kept")
    press(page, "Pause Topic")
    press(page, "UnPause Topic")
    expect(page.get_by_role("button", name="Pause Topic", exact=True)).to_be_visible()
    place.nsqd.web.await_counts("kept", paused=False)


def test_no_other_site_acts(place: Place, visit: Begin) -> None:
    """A form on another site is treated as if the user had not logged in."""
    visitor = visit(url=place.url)
    page = visitor.to("/topics/kept")
    enter(page, "anna")
    expect(page.locator("h1")).to_contain_text("kept")
    lure = f'<form method="post" action="{visitor.url}/topics/kept"><button name="action"'
    lure += ' value="pause">A prize</button></form>'
    page.route(ELSEWHERE, lambda route: route.fulfill(body=lure, content_type="text/html"))
    page.goto(ELSEWHERE)
    press(page, "A prize")
    expect(page.locator("h1")).to_have_text("Log in")
    visitor.forgive(ELSEWHERE)
    place.nsqd.web.await_counts("kept", paused=False)
