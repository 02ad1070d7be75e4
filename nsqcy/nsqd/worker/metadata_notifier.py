"""Sends topic and channel events to the master, which maintains nsqd.dat and the registrations with
nsqlookupds.

Owns the order of events and other changes. Does not depend on topics or sessions.
"""

from collections import deque
from collections.abc import Callable

import gevent

from nsqcy.logging import events
from nsqcy.logging.logger import Log
from nsqcy.nsqd.process_messages.reports import (
    ChannelCreated,
    ChannelDeleted,
    PoliciesRecalled,
    TopicCreated,
    TopicDeleted,
)
from nsqcy.nsqd.worker.master_link import MasterLink

AT_ONCE = 64  # maximum events per turn; each takes up to 0.1 ms

Notify = Callable[[str, str, str | None], None]


class MetadataNotifier:
    """Runs `notify`, which does not block, for each event and in order, soon after the event.

    Events occur at the end of a turn, where nothing may be sent. A turn runs `notify` for at most
    AT_ONCE events, because publishes to thousands of new topics may arrive together.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._events: deque[tuple[str, str, str | None]] = deque()
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(gevent.spawn, self._flush_some)

    def __call__(self, kind: str, topic: str, channel: str | None) -> None:
        self._events.append((kind, topic, channel))
        self._wake.send()

    def _flush_some(self) -> None:
        for _ in range(min(AT_ONCE, len(self._events))):
            self._notify(*self._events.popleft())
        if self._events:
            self._wake.send()

    def flush(self) -> None:
        """Run `notify` for all events so far."""
        while self._events:
            self._notify(*self._events.popleft())

    def finish(self) -> None:
        """Run `notify` for all events so far; no events follow."""
        self._wake.stop()
        self._wake.close()
        self.flush()


class MasterNotices:
    """Logs an event and reports it to the master, without waiting."""

    def __init__(
        self, worker: int, master: MasterLink, is_held: Callable[[str], bool], log: Log
    ) -> None:
        """is_held: returns whether a topic is waiting for the channels that nsqlookupds list."""
        self._worker = worker
        self._master = master
        self._is_held = is_held
        self._log = log

    def send(self, kind: str, topic: str, about: str | None) -> None:
        channel = about or ""
        match kind:
            case "topic_created":
                events.topic_created(self._log, topic=topic)
                self._master.notify(TopicCreated(self._worker, topic, self._is_held(topic)))
            case "topic_deleted":
                events.topic_deleted(self._log, topic=topic)
                self._master.notify(TopicDeleted(topic))
            case "channel_created":
                events.channel_created(self._log, topic=topic, channel=channel)
                self._master.notify(ChannelCreated(topic, channel))
            case "channel_deleted":
                events.channel_deleted(self._log, topic=topic, channel=channel)
                self._master.notify(ChannelDeleted(topic, channel))
            case "policies_recalled":
                self._master.notify(PoliciesRecalled())
