"""Notifications: reports each action with its user and address to an HTTP endpoint.

Owns a thread that sends the notifications one by one, so that no request waits for the endpoint. A
notification that cannot be sent is logged and dropped.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from urllib3.util import parse_url

from nsqcy.cluster.web_client import WebClient
from nsqcy.config.daemon_options import hostname
from nsqcy.errors import RequestError
from nsqcy.http.parser import Head
from nsqcy.http.router import Request
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.util.gotext import json_bytes

MAX_WAITING = 1000  # maximum queued notifications; the rest are dropped, as is the queue at exit
MAX_ANSWER = 1 << 20  # bytes


class Notifier:
    """Sends notifications. `send` does not block. Without an endpoint, nothing is sent."""

    def __init__(
        self, endpoint: str, web: WebClient, log: Lines, user_of: Callable[[Head], str]
    ) -> None:
        self._endpoint = endpoint
        self._user_of = user_of
        self._web = web
        self._log = log
        self._waiting: queue.Queue[bytes] = queue.Queue(MAX_WAITING)
        if endpoint:
            threading.Thread(target=self._run, daemon=True).start()

    def send(
        self, request: Request, action: str, topic: str, channel: str = "", node: str = ""
    ) -> None:
        if not self._endpoint:
            return
        user = self._user_of(request.head)
        body = notification(request, int(time.time()), action, topic, channel, node, user)
        try:
            self._waiting.put_nowait(json_bytes(body))
        except queue.Full:
            events.notification_lost(self._log, MAX_WAITING, action=action)

    def _run(self) -> None:
        while True:
            body = self._waiting.get()
            try:
                self._post(body)
            except RequestError as error:
                events.notification_failed(self._log, error=str(error))

    def _post(self, body: bytes) -> None:
        try:
            url = parse_url(self._endpoint)
        except ValueError:
            raise RequestError("--notification-http-endpoint is not a URL") from None
        headers = {"Content-Type": "application/json"}
        self._web.ask(url, "POST", headers, body, maximum=MAX_ANSWER)


def notification(
    request: Request, now: int, action: str, topic: str, channel: str, node: str, user: str
) -> dict[str, Any]:
    """Return the notification for an action, in NSQ's format."""
    head = request.head
    scheme = "https" if head.header("X-Scheme") == "https" else "http"
    found = {
        "action": action,
        "topic": topic,
        "channel": channel,
        "node": node,
        "timestamp": now,
        "user": user,
        "remote_ip": request.peer,
        "user_agent": head.header("User-Agent"),
        "url": f"{scheme}://{head.header('Host')}{head.target}",
        "via": hostname(),
    }
    return {key: value for key, value in found.items() if value or key not in _WHERE_GIVEN}


_WHERE_GIVEN = ("channel", "node", "user")
