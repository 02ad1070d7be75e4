"""Somebody who looks at nsqadmin with a browser, and sees what goes wrong there."""

from typing import Any

BASE = "/nsq"  # path that nsqadmin is below
PATIENCE = 20_000  # ms: machines of CI are slow


class Visit:
    """A page, and what went wrong on it: errors, what its policy forbids, requests to others."""

    def __init__(self, page: Any, url: str) -> None:
        self.page, self.url = page, url
        self.wrong: list[str] = []
        self.asked: list[str] = []  # paths, without what is static
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

    def to(self, path: str) -> Any:
        answer = self.page.goto(self.url + path)
        assert answer.status == 200
        return self.page
