"""A worker's notifications to the master about its topics: in order, and complete before it
exits."""

import gevent

from nsqcy.nsqd.worker.metadata_notifier import MetadataNotifier
from nsqcy.testing.http_requests import eventually

Event = tuple[str, str, str | None]
EVENTS: list[Event] = [
    ("topic_created", "t", None),
    ("channel_created", "t", "c"),
    ("topic_deleted", "t", None),
]


def test_the_end_waits_until_all_is_told() -> None:
    told: list[Event] = []

    def tell(*event: str | None) -> None:
        gevent.sleep(0)  # as if waiting for an answer
        told.append(event)  # type: ignore[arg-type]

    notifier = MetadataNotifier(tell)
    notifier(*EVENTS[0])
    notifier(*EVENTS[1])
    eventually(lambda: gevent.sleep(0) or told)  # in the middle of it
    notifier(*EVENTS[2])
    notifier.finish()
    assert told == EVENTS


def test_an_end_before_the_hub_has_turned() -> None:
    told: list[tuple[str | None, ...]] = []
    notifier = MetadataNotifier(lambda *event: told.append(event))
    notifier(*EVENTS[0])
    notifier.finish()
    assert told == EVENTS[:1]
