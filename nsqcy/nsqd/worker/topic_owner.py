"""The topics of one worker, for the verbs in nsqd/process_messages/topic_verbs.py.

Waits for published messages, for the log, and until a change is on disk. Does not depend on HTTP or
other workers.
"""

from collections.abc import Callable
from typing import Any

import gevent
from gevent.event import AsyncResult
from gevent.lock import BoundedSemaphore

from nsqcy.broker.core import Shard, Topic
from nsqcy.channels.core import Channel
from nsqcy.errors import NotWritten
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages.positions import Place
from nsqcy.nsqd.process_messages.reports import (
    AwaitRegistration,
    ChannelPaused,
    SaveNames,
    TopicPaused,
)
from nsqcy.nsqd.worker.master_link import MasterLink
from nsqcy.nsqd.worker.read_health import read_health

Done = Callable[[str | None], object]
"""Called with None once a change is on disk, or with the reason why it may be lost."""

READ_INTERVAL = 0.002  # seconds between checks of whether a log block has been read
ARRIVAL_LIMIT = 2.0  # maximum seconds until published messages are in their channels
MAX_PEEKS = 8  # maximum concurrent peeks: each may hold several megabytes


class TopicOwner:
    """This worker's topics, as used by verbs."""

    def __init__(
        self,
        shard: Shard,
        enter: Callable[[], None],
        master: MasterLink,
        report_names: Callable[[], None],
    ) -> None:
        """
        enter: begins a turn of the event loop; called before a topic is touched
        report_names: reports created and deleted topics and channels to the master
        """
        self.shard = shard
        self.master = master
        self._report_names = report_names
        self.peeks = BoundedSemaphore(MAX_PEEKS)
        self._enter = enter
        self._wake = gevent.get_hub().loop.async_()
        self._wake.start(lambda: None)

    def find(self, name: str) -> Topic | None:
        """Return the topic, or None."""
        self._enter()
        return self.shard.topic(name.encode())

    def topic(self, name: str) -> Topic:
        """Return the topic. Raises Refused."""
        found = self.find(name)
        if found is None:
            raise Refused("NOT_READ" if self.is_unloaded(name) else "TOPIC_NOT_FOUND")
        return found

    def is_unloaded(self, name: str) -> bool:
        """Return whether the topic exists, but could not be read from the disk yet."""
        return self.shard.is_unloaded(name.encode())

    def topic_of(self, topic: str, channel: str) -> Topic:
        """Return the topic if the channel exists. Raises Refused."""
        found = self.topic(topic)
        if channel not in found.channels:
            raise Refused("CHANNEL_NOT_FOUND")
        return found

    def current(self, name: str) -> Topic:
        """Return the topic once its channels have every message published before the call. Raises
        Refused, for example if nsqlookupds do not report a new topic's channels."""
        found = self.topic(name)
        with gevent.Timeout(ARRIVAL_LIMIT, Refused("NOT_READ")):
            while found.pass_on():
                gevent.sleep(READ_INTERVAL)
                found = self.topic(name)
        return found

    def current_channel(self, topic: str, channel: str) -> tuple[Topic, Channel]:
        """Return the topic and the channel, as `current` does. Raises Refused."""
        found = self.current(topic)
        if channel not in found.channels:
            raise Refused("CHANNEL_NOT_FOUND")
        return found, found.channels[channel]

    def resolve(self, topic: str, place: Place) -> tuple[Topic, int]:
        """Return the topic, and the sequence number of a position in its log. Waits for the log if
        necessary."""
        found = self.topic(topic)
        while place.time is not None:
            seq = found.seq_at(place.time)
            if seq is not None:
                return found, seq
            if found.is_stalled:
                raise Refused("NOT_READ")
            gevent.sleep(READ_INTERVAL)
            found = self.topic(topic)
        return found, place.seq

    def health(self) -> dict[str, Any]:
        """Return the outcome and time of this worker's latest write to a log; if applicable, also
        the hung disk operation, the reason why copies cannot be protected, or the unreadable
        topics."""
        copies = self.shard.host.copies
        return {
            "health": self.shard.host.health,
            "health_at": self.shard.host.health_at,
            "hung": self.shard.hung,
            "copies": "" if copies is None else copies.trouble(),
            "reads": read_health(self.shard.unreadable()),
        }

    def write(self, change: Callable[[Done], object]) -> None:
        """Make a change to a topic, passing the callback `done`, and return once the change is as
        durable as the topic's class promises. Raises NotWritten."""
        written: AsyncResult[str | None] = AsyncResult()

        def done(problem: str | None) -> None:
            written.set(problem)
            self.wake()

        change(done)
        if written.get() is not None:
            raise NotWritten

    def make(self, topic: Topic, change: Callable[[Done | None], object]) -> None:
        """Like `write`, but return immediately if the topic has the class memory."""
        if topic.durability == "memory":
            change(None)
        else:
            self.write(change)

    def report(self, paused: TopicPaused | ChannelPaused) -> None:
        """Report a pause to the master, after the creation of the topic or channel."""
        self._report_names()
        self.master.notify(paused)

    def save_names(self) -> None:
        """Return once nsqd.dat contains all changes to the names and pauses
        of topics and channels. Raises NotWritten."""
        self._report_names()
        self.master.call(SaveNames())

    def await_registration(self) -> None:
        """Return once nsqlookupds list all topics and channels, or do not answer in time."""
        if self.shard.announce_new:
            self._report_names()
            self.master.call(AwaitRegistration())

    def wake(self) -> None:
        """Keep the event loop's next poll from blocking, as it otherwise would at the end of a
        turn."""
        self._wake.send()
