"""A visit to nsqadmin with a browser that records the errors on each page."""

from typing import Any

DARK, LIGHT = "rgb(18, 23, 29)", "rgb(255, 255, 255)"
WIDTHS = 390, 1440
BASE = "/nsq"  # base path of nsqadmin
PATIENCE = 20_000  # ms: CI machines are slow


class Visit:
    """A page and its problems: errors, policy violations, requests to other hosts."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        self.asked: list[str] = []  # paths, without static files
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", self._asked)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(self.url):
            self.wrong.append(f"asked {request.url}")
        elif "/static/" not in request.url:
            self.asked.append(request.url.removeprefix(self.url))

    def to(self, path: str, status: int = 200) -> Any:
        answer = self.page.goto(self.url + path)
        assert answer.status == status
        return self.page

    def look_at(self, path: str) -> Any:
        """Check a page in both colour schemes and widths: wide content scrolls in its own box."""
        page = self.to(path)
        assert page.locator("main h1").count() == 1, path
        assert page.title().endswith(" - nsqadmin"), path
        assert not page.locator("[role=alert]").count(), path
        for scheme, ground in (("light", LIGHT), ("dark", DARK)):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("getComputedStyle(document.body).backgroundColor") == ground
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
        return page

    def forgive(self, text: str) -> None:
        """Expect an error."""
        left = [each for each in self.wrong if text not in each]
        assert len(left) < len(self.wrong)
        self.wrong = left


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def follow(page: Any, name: str) -> None:
    page.get_by_role("link", name=name, exact=True).click()
