"""All of this nsqd's topics and channels: their owners, their entries in nsqd.dat, and their
registration with nsqlookupds.

Owns the order in which these three change. Does not handle messages.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from nsqcy.errors import NotWritten
from nsqcy.logging.logger import Log
from nsqcy.names import is_ephemeral
from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.lookup import protocol
from nsqcy.nsqd.lookup.channel_discovery import ChannelDiscovery
from nsqcy.nsqd.lookup.registration import Lookup
from nsqcy.nsqd.master import metadata
from nsqcy.nsqd.master.placement import Placement
from nsqcy.nsqd.master.workers import Workers
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_messages.to_worker import Announced, EndHold, Placed
from nsqcy.process.ancillary import Keep
from nsqcy.users import token_file


class TopicRegistry:
    """Handles workers' reports about topics, and saves the durable topics."""

    def __init__(
        self,
        data_path: str,
        workers: int,
        alive: Workers,
        options: NsqdOptions | None,
        log: Log,
        give_way: Callable[[], object],
    ) -> None:
        """
        options: None if there are no nsqlookupds
        give_way: called between slices of long work
        """
        self.known_topics = KnownTopics()
        self.placement = Placement(workers)
        self.lookup: Lookup | None = None
        self._store = metadata.Store(self.known_topics, data_path, log, give_way)
        self._data_path = data_path
        self._workers = alive
        self._log = log
        self._discovery: ChannelDiscovery | None = None
        self._introducing: list[tuple[int, str]] = []  # workers, each with its new topic
        self._copied: dict[str, int] = {}
        """The worker for each topic that this nsqd serves from its copies."""
        if options is not None and options.etcd_endpoints:
            from nsqcy.nsqd.copies.copy_files import served_topics

            self._copied = served_topics(Path(data_path), workers)
        if options is not None:
            self.lookup = Lookup(
                self.known_topics,
                protocol.identity(options),
                options.max_body_size,
                log,
                token=token_file.read(options.lookupd_auth_token_file),
            )
            self._discovery = ChannelDiscovery(self.lookup, options, log)

    def load(self) -> None:
        """Read nsqd.dat and place its topics."""
        for topic, worker in self._copied.items():
            self.placement.pin(topic, worker)
        self.known_topics.replace(metadata.load(self._data_path, self._log))
        for topic in sorted(self.known_topics):
            self.placement.place(topic)

    @property
    def activity(self) -> str:
        """Return what keeps the registry from resting; empty if nothing does."""
        return "nsqd.dat is being written" if self._store.is_writing else ""

    def dump(self, keep: Keep) -> dict[str, Any]:
        """Return the state for the master's next version."""
        return {
            "known_topics": self.known_topics.dump(),
            "placement": self.placement.dump(),
            "introducing": self._introducing,
            "lookup": None if self.lookup is None else self.lookup.dump(keep),
        }

    def restore(self, dumped: dict[str, Any]) -> None:
        """Continue with the state of the previous version, and write nsqd.dat. The connections to
        nsqlookupds continue when their addresses are set."""
        self.known_topics.restore(dumped["known_topics"])
        self.placement.restore(dumped["placement"])
        if self.lookup is not None and dumped["lookup"] is not None:
            self.lookup.take_over(dumped["lookup"])
        for worker, topic in dumped["introducing"]:
            self.introduce(worker, topic)
        self._store.persist_now()

    def prepare_discovery(self) -> None:
        """Import the modules that nsqlookupd queries need."""
        if self._discovery is not None:
            self._discovery.prepare()

    def persist(self) -> None:
        """Write nsqd.dat. Raises OSError."""
        self._store.persist()

    def topics_of(self, worker: int) -> list[dict[str, Any]]:
        """Return the entries of the topics that a worker must load."""
        topics = [each for each in self.known_topics if self.placement.place(each) == worker]
        return [self.known_topics.entry(topic) for topic in topics]

    def worker_died(self, index: int) -> None:
        """Drop the ephemeral topics and channels of a crashed worker."""
        placed = self.placement.table().items()
        topics = {name for name, worker in placed if worker == index}
        before = [pair for name in topics for pair in self.known_topics.pairs(name)]
        for topic in self.known_topics.forget_ephemeral(topics):
            self.placement.retire(topic)
        for topic, channel in before:
            if (topic, channel) not in self.known_topics.pairs(topic):
                self._announce(protocol.UNREGISTER, topic, channel)

    def place(self, topic: str) -> int:
        """Return a topic's owner. All workers are notified of a new topic first."""
        known = self.placement.worker_of(topic) is not None
        worker = self.placement.place(topic)
        if not known:
            self._workers.notify(Placed(topic, worker))
        return worker

    def topic_created(self, topic: str) -> bool:
        """Add a topic; return whether it is new."""
        self.placement.place(topic)
        changed = self.known_topics.create_topic(topic)
        if changed:
            self._announce(protocol.REGISTER, topic)
        return changed

    def introduce(self, worker: int, topic: str) -> None:
        """Report to a worker when nsqlookupds list its new topic, then the channels that they list
        for it. Never blocks."""
        gevent.spawn(self._introduce, worker, topic)

    def await_registration(self) -> None:
        """Return once the connected nsqlookupds list every topic and channel. An nsqlookupd that
        does not answer in time delays the caller until it is considered lost."""
        if self.lookup is not None:
            self.lookup.await_answers()

    def channel_created(self, topic: str, channel: str) -> bool:
        """Add a channel; return whether it is new."""
        changed = self.known_topics.create_channel(topic, channel)
        if changed:
            self._announce(protocol.REGISTER, topic, channel)
        return changed

    def topic_deleted(self, topic: str) -> bool:
        """Remove a topic; return whether it existed."""
        self.placement.retire(topic)
        for pair in self.known_topics.pairs(topic):
            self._announce(protocol.UNREGISTER, *pair)
        return self.known_topics.delete_topic(topic)

    def channel_deleted(self, topic: str, channel: str) -> bool:
        """Remove a channel; return whether it existed."""
        changed = self.known_topics.delete_channel(topic, channel)
        if changed:
            self._announce(protocol.UNREGISTER, topic, channel)
        return changed

    def save(self) -> None:
        """Return once nsqd.dat contains all changes. Raises NotWritten."""
        try:
            self._store.catch_up()
        except OSError:  # failures are logged
            raise NotWritten from None

    def save_now(self, topic: str, channel: str = "") -> None:
        """Begin to write nsqd.dat, unless the change is to an ephemeral topic or channel."""
        if _is_durable(topic, channel):
            self._store.persist_now()

    def save_soon(self, topic: str, channel: str = "") -> None:
        """Like `save_now`, but other changes may join this one first."""
        if _is_durable(topic, channel):
            self._store.persist_soon()

    def _announce(self, verb: str, topic: str, channel: str = "") -> None:
        if self.lookup is not None:
            self.lookup.change(protocol.Command(verb, topic, channel))

    def _introduce(self, worker: int, topic: str) -> None:
        self._introducing.append((worker, topic))
        try:
            self._introduce_to(worker, topic)
        finally:
            self._introducing.remove((worker, topic))

    def _introduce_to(self, worker: int, topic: str) -> None:
        # Register first, because publishers wait for it.
        self.await_registration()
        handle = self._workers.get(worker)
        if handle is not None:
            Announced(topic).notify(handle.channel)
        channels: list[str] = []
        try:
            if self._discovery is not None:
                channels = self._discovery.channels(topic)
        finally:
            handle = self._workers.get(worker)
            if handle is not None:
                EndHold(topic, channels).notify(handle.channel)


def _is_durable(topic: str, channel: str) -> bool:
    return not is_ephemeral(topic) and not is_ephemeral(channel)
