"""Cancelling deferred messages by their key, with a real nsqd, for both interfaces."""

from datetime import timedelta
from typing import Any

import pytest

from conftest import one_worker
from nsqcy.client import Error
from nsqcy.testing.http_requests import eventually
from support.client_interfaces import Face
from support.nsqd_process import Nsqd, free_port

HOUR = timedelta(hours=1)


def publish(face: Face, daemon: Nsqd, topic: str, *keys: str | None, name: str) -> None:
    """Publish deferred messages with these keys to a topic with the channel `c`."""
    daemon.web.post(f"/topic/create?topic={topic}")
    daemon.web.post(f"/channel/create?topic={topic}&channel=c")
    producer = face.producer(f"127.0.0.1:{daemon.tcp_port}", headers=True)
    for key in keys:
        headers = None if key is None else {name: key}
        face.call(producer.publish, topic, b"later", HOUR, headers=headers)


def deferred(daemon: Nsqd, topic: str) -> list[Any]:
    page = daemon.web.get(f"/channel/peek?topic={topic}&channel=c&state=deferred").json()
    return [each["headers"] for each in page["messages"]]


@pytest.mark.parametrize("options", [{}, {"header": "job"}])
def test_messages_with_the_key_are_cancelled(
    face: Face, shared: Nsqd, topic: str, options: dict[str, Any]
) -> None:
    name = options.get("header", "cancel-key")
    publish(face, shared, topic, "order-17", None, "order-18", "order-17", name=name)
    eventually(lambda: len(deferred(shared, topic)) == 4)
    address = f"127.0.0.1:{shared.http_port}"
    cancel = face.module.cancel
    assert face.call(cancel, topic, "c", "order-17", address, **options) == 2
    assert face.call(cancel, topic, "c", "order-17", address, **options) == 0
    assert deferred(shared, topic) == [{}, {name: "order-18"}]


@one_worker
def test_a_missing_channel_has_no_messages(face: Face, shared: Nsqd, topic: str) -> None:
    address = f"http://127.0.0.1:{shared.http_port}"
    assert face.call(face.module.cancel, topic, "c", "x", address) == 0


@one_worker
def test_an_unreachable_nsqd_does_not_hide_the_others(face: Face, shared: Nsqd, topic: str) -> None:
    publish(face, shared, topic, "x", name="cancel-key")
    eventually(lambda: deferred(shared, topic))
    port = free_port()
    addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{shared.http_port}"]
    url = f"http://127.0.0.1:{port}/channel/peek"
    with pytest.raises(Error, match=f"^{url}: cannot cancel .x.: .*refused"):
        face.call(face.module.cancel, topic, "c", "x", addresses)
    assert deferred(shared, topic) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("no name", "c", "x", "127.0.0.1:4151"), "not a valid topic name"),
        (("t", "c", "", "127.0.0.1:4151"), "must be non-empty text"),
        (("t", "c", "x", ()), "needs nsqd_http_addresses"),
        (("t", "c", "x", "ftp://nsqd"), "ftp"),
    ],
)
def test_what_cannot_be(face: Face, arguments: Any, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        face.call(face.module.cancel, *arguments)
