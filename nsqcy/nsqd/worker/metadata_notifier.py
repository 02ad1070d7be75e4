"""Sends topic and channel events to the master, which maintains nsqd.dat and the registrations with
nsqlookupds.

Owns the event order. Does not depend on topics or sessions.
"""

from collections import deque
from collections.abc import Callable

import gevent
from gevent import Greenlet

from nsqcy.logging.logger import Log
from nsqcy.nsqd.master.reports import (
    ChannelCreated,
    PoliciesRecalled,
    SaveChannelDeletion,
    SaveTopicDeletion,
    TopicCreated,
)
from nsqcy.nsqd.worker.master_link import MasterLink
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError

Notify = Callable[[str, str, str | None], None]


class MetadataNotifier:
    """Runs `notify` for each event, in order and in its own greenlet.

    Events occur at the end of a turn, where nothing may wait or spawn.
    """

    def __init__(self, notify: Notify) -> None:
        self._notify = notify
        self._events: deque[tuple[str, str, str | None]] = deque()
        self._running: Greenlet | None = None
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(self._start)

    def __call__(self, kind: str, topic: str, channel: str | None) -> None:
        self._events.append((kind, topic, channel))
        self._wake.send()

    def finish(self) -> None:
        """Return once `notify` has run for all events so far."""
        self._wake.stop()
        self._wake.close()
        if self._running:
            self._running.join()
        self._run()

    def _start(self) -> None:
        if not self._running:
            self._running = gevent.spawn(self._run)

    def _run(self) -> None:
        while self._events:
            self._notify(*self._events.popleft())


class MasterNotices:
    """Logs an event and reports it to the master."""

    def __init__(
        self, worker: int, master: MasterLink, is_held: Callable[[str], bool], log: Log
    ) -> None:
        """is_held: returns whether a topic is waiting for the channels that nsqlookupds list."""
        self._worker = worker
        self._master = master
        self._is_held = is_held
        self._log = log

    def send(self, kind: str, topic: str, channel: str | None) -> None:
        try:
            self._send(kind, topic, channel)
        except (CallTimeout, ChannelClosed, RemoteError) as error:
            self._log.error(f"failed to notify the master of {kind} {topic} {channel}: {error}")

    def _send(self, kind: str, topic: str, channel: str | None) -> None:
        match kind:
            case "topic_created":
                self._log.info(f"TOPIC({topic}): created", event="topic_created", topic=topic)
                self._master.notify(TopicCreated(self._worker, topic, self._is_held(topic)))
            case "topic_deleted":
                self._log.info(f"TOPIC({topic}): deleting", event="topic_deleted", topic=topic)
                self._master.call(SaveTopicDeletion(topic))
            case "channel_created":
                self._log.info(
                    f"TOPIC({topic}): new channel({channel})",
                    event="channel_created",
                    topic=topic,
                    channel=channel,
                )
                self._master.notify(ChannelCreated(topic, channel or ""))
            case "channel_deleted":
                self._log.info(
                    f"TOPIC({topic}): deleting channel {channel}",
                    event="channel_deleted",
                    topic=topic,
                    channel=channel,
                )
                self._master.call(SaveChannelDeletion(topic, channel or ""))
            case "policies_recalled":
                self._master.notify(PoliciesRecalled())
