"""Receivers for messages with too many attempts."""

import itertools
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from nsqcy.compat.gnsq.consumer import Consumer
from nsqcy.compat.gnsq.http import NsqdHTTPClient
from nsqcy.compat.gnsq.message import Message

__all__ = ["JSONLogGiveupHandler", "LogGiveupHandler", "NsqdGiveupHandler"]


class LogGiveupHandler:
    """Logs the body. `log` receives a str: bodies are decoded as UTF-8."""

    def __init__(
        self, log: Callable[[str], object] = sys.stdout.write, newline: str = "\n"
    ) -> None:
        self.log = log
        self.newline = newline

    def format_message(self, message: Message) -> str:
        return _text(message.body)

    def __call__(self, consumer: Consumer, message: Message) -> None:
        self.log(self.format_message(message) + self.newline)


class JSONLogGiveupHandler(LogGiveupHandler):
    """Writes the message as a line of JSON."""

    def format_message(self, message: Message) -> str:
        return json.dumps(
            {
                "timestamp": message.timestamp,
                "attempts": message.attempts,
                "id": _text(message.id),
                "body": _text(message.body),
            }
        )


class NsqdGiveupHandler:
    """Publishes the body to another topic over HTTP, trying the nsqds in turn."""

    def __init__(
        self,
        topic: str,
        nsqd_hosts: Sequence[str] = ("localhost",),
        nsqd_class: Callable[[str], Any] = NsqdHTTPClient,
    ) -> None:
        if not nsqd_hosts:
            raise ValueError("at least one nsqd host is required")
        self.topic = topic
        self.nsqds = itertools.cycle([nsqd_class(host) for host in nsqd_hosts])

    def format_message(self, message: Message) -> bytes:
        return message.body

    def __call__(self, consumer: Consumer, message: Message) -> None:
        next(self.nsqds).publish(self.topic, self.format_message(message))


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
