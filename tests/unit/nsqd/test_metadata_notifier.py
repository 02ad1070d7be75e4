"""A worker's notifications to the master about its topics: in order, and complete before it
exits."""

from itertools import pairwise

import gevent

from nsqcy.nsqd.worker.metadata_notifier import AT_ONCE, MetadataNotifier
from nsqcy.testing.http_requests import eventually

Event = tuple[str, str, str | None]
EVENTS: list[Event] = [
    ("topic_created", "t", None),
    ("channel_created", "t", "c"),
    ("topic_deleted", "t", None),
]


def test_events_are_sent_in_order_and_soon() -> None:
    told: list[tuple[str | None, ...]] = []
    notifier = MetadataNotifier(lambda *event: told.append(event))
    for event in EVENTS:
        notifier(*event)
    eventually(lambda: gevent.sleep(0) or len(told) == len(EVENTS))
    notifier.finish()
    assert told == EVENTS


def test_a_flush_does_not_wait_for_the_hub() -> None:
    told: list[tuple[str | None, ...]] = []
    notifier = MetadataNotifier(lambda *event: told.append(event))
    notifier(*EVENTS[0])
    notifier(*EVENTS[1])
    notifier.flush()
    assert told == EVENTS[:2]
    notifier(*EVENTS[2])
    notifier.finish()
    assert told == EVENTS


def test_an_end_before_the_hub_has_turned() -> None:
    told: list[tuple[str | None, ...]] = []
    notifier = MetadataNotifier(lambda *event: told.append(event))
    notifier(*EVENTS[0])
    notifier.finish()
    assert told == EVENTS[:1]


def test_many_events_are_sent_over_several_turns() -> None:
    told: list[tuple[str | None, ...]] = []
    notifier = MetadataNotifier(lambda *event: told.append(event))
    events = [("topic_created", str(number), None) for number in range(3 * AT_ONCE)]
    for event in events:
        notifier(*event)
    sent: list[int] = []
    check = gevent.get_hub().loop.check()
    check.start(lambda: sent.append(len(told)))
    eventually(lambda: gevent.sleep(0) or len(told) == len(events))
    check.stop()
    check.close()
    notifier.finish()
    assert told == events
    assert max(after - before for before, after in pairwise([0, *sent])) <= AT_ONCE
