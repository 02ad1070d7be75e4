"""One nsqadmin under test."""

import json
import os
from typing import Any

from nsqcy.testing.http_requests import Answer
from support.daemon_process import Service


class Admin(Service):
    name = "nsqadmin"
    wanted = frozenset({"HTTP"})

    def __init__(self, **options: Any) -> None:
        # Without samples, upstreams get only the queries that a test causes.
        ours = {} if "NSQADMIN_BINARY" in os.environ else {"history_interval": "0s"}
        super().__init__(**(ours | options))

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """Return the JSON at an API path."""
        answer = self.web.get(path, **query)
        assert answer.status == 200, answer
        shown: dict[str, Any] = answer.json()
        return shown

    def post(self, path: str, **fields: Any) -> Answer:
        return self.web.post(path, json.dumps(fields).encode())

    def delete(self, path: str, **fields: Any) -> Answer:
        return self.web.delete(path, json.dumps(fields).encode() if fields else None)

    def point_at(self, *lookupds: str) -> None:
        """Make nsqadmin query these nsqlookupds."""
        path = "/config/nsqlookupd_http_addresses"
        answer = self.web.put(path, json.dumps(lookupds).encode())
        assert answer.json() == [*lookupds], answer


def refused(answer: Answer, status: int, message: str) -> None:
    assert (answer.status, answer.json()) == (status, {"message": message})
    assert answer.headers["content-type"] == "application/json; charset=utf-8"
    assert answer.headers["x-nsq-content-type"] == "nsq; version=1.0"


def done(answer: Answer) -> None:
    assert (answer.status, answer.json()) == (200, {"message": ""}), answer


def warned(answer: Answer) -> str:
    """Return the warning from an action that was carried out, but not on all nodes."""
    assert answer.status == 200, answer
    message: str = answer.json()["message"]
    assert message.startswith("WARNING: "), message
    return message
