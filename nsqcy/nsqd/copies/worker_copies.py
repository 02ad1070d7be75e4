"""Copies in a worker: connects the copied topics, their groups' host, and the worker's engine.

The engine imports this module only if etcd is configured.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent

from nsqcy.broker.core import Shard, boot_id
from nsqcy.errors import NotWritten
from nsqcy.logging import events
from nsqcy.logging.types import Lines
from nsqcy.nsqd.copies import settings
from nsqcy.nsqd.copies.copy_files import FOLDER, root_of
from nsqcy.nsqd.copies.host import NO_PREDECESSOR, CopiesHost, Predecessor
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.streams import Later
from nsqcy.nsqd.copies.topics import CopiedTopics
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages.topic_verbs import CreateChannel, CreateTopic, TopicVerb
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError

READY_INTERVAL = 0.01  # seconds between checks of whether the groups are open
HURRY_INTERVAL = 0.05  # seconds between checks after a replacement
USABLE_LIMIT = 5.0  # maximum seconds for a command over HTTP to wait for its topic
LOAD_LIMIT = 3.0  # maximum seconds to wait for the groups at startup
FLUSH_LIMIT = 2.0  # maximum seconds to wait for the holders at exit
RETRY_INTERVAL = 1.0  # seconds between attempts to create channels


class Copies:
    """The copies of one worker."""

    def __init__(
        self,
        worker: int,
        options: NsqdOptions,
        secrets: dict[str, Any],
        shard: Shard,
        enter: Callable[[], None],
        later: Later,
        at_owner: Callable[[TopicVerb[None]], None],
        usable: Callable[[bytes], object],
        ready: Callable[[], object],
        log: Lines,
        predecessor: Predecessor = NO_PREDECESSOR,
    ) -> None:
        """
        secrets: see `settings.prepare`
        enter: called before topics are touched
        later: calls a function before the hub polls again
        at_owner: runs a verb in the worker that owns its topic
        usable: called with each topic that `topics.may_use` has denied, once it can be used
        ready: called once, before this
        predecessor: see CopiesHost
        """
        assert shard.policies is not None and shard.io is not None
        self._at_owner = at_owner
        self._log = log
        self._enter = enter
        self.topics = CopiedTopics(shard, shard.policies, self._create_channels, usable, ready, log)
        found = settings.settings(options, secrets, worker)
        folder = Path(options.data_path) / FOLDER
        root = root_of(Path(options.data_path), worker)
        node = Node(folder, root, secrets["machine"], worker, boot_id().hex(), log)
        self._host = CopiesHost(
            shard.io,
            root,
            node,
            found,
            settings.etcd(options, secrets),
            self.topics,
            log,
            enter,
            lambda: shard.is_refusing,
            later,
            predecessor,
        )
        self.topics.attach(self._host)
        shard.host.copies = self.topics
        self._is_resting = False
        if predecessor is not NO_PREDECESSOR:
            gevent.spawn(self._hurry)
        limits = found.limits
        # The other members of this node's groups may be gone, so the node must not wait for them
        # forever.
        gevent.spawn_later(limits.lease + limits.copy_timeout + LOAD_LIMIT, self._become_ready)

    def wait(self) -> None:
        """Wait briefly for the copied topics to become usable."""
        with gevent.Timeout(LOAD_LIMIT, False):
            while not self.topics.is_ready:
                gevent.sleep(READY_INTERVAL)

    def status(self) -> dict[str, Any]:
        """Return the state of the worker's copies (docs/REPLICATION.md)."""
        found = self._host.status()
        for group in found["groups"]:
            group_id = group["group"]
            names = self.topics.names(group_id)
            group["topics"] = names or self._host.topics_on_disk(group_id)
        is_caught_up = self.topics.is_ready and self._host.is_caught_up()
        return found | {"ready": self.topics.is_ready, "caught_up": is_caught_up}

    def figures(self) -> dict[str, Any]:
        """Return the worker's figures for /metrics, by `metrics.families.COPIES`."""
        return self._host.figures() | {"draining": self.topics.draining()}

    # -- the process that takes the place of this one

    def begin_rest(self) -> None:
        """Stop deliveries, and end the streams of other owners: another process takes the place of
        this one. Waits briefly."""
        self._is_resting = True
        self.topics.hold_deliveries(True)
        self._host.begin_rest()

    def obstacle_to_rest(self) -> str:
        """Return why another process could not continue with the topics; empty if it could."""
        if self.topics.is_held and not self._is_resting:
            return "topics with copies are being handed over to other nodes"
        if not self.topics.is_ready:
            return "not all groups of copies are open"
        return self._host.obstacle_to_rest()

    def is_at_rest(self) -> bool:
        """Return whether the files contain everything, and the holders have it."""
        return self.topics.is_recorded() and self._host.is_at_rest()

    def end_rest(self) -> None:
        """Continue, because no other process takes the place of this one."""
        if self._is_resting:
            self._is_resting = False
            self._host.end_rest()
            self.topics.hold_deliveries(False)

    def as_predecessor(self) -> Predecessor:
        """Return what the next process needs."""
        return self._host.as_predecessor()

    def _hurry(self) -> None:
        """Open the groups as soon as possible, because clients wait for the topics."""
        while not self.topics.is_ready:
            gevent.sleep(HURRY_INTERVAL)
            self._enter()
            self._host.hurry()

    def await_usable(self, topic: str) -> None:
        """Wait for a limited time until a topic can be used."""
        with gevent.Timeout(USABLE_LIMIT, False):
            while not self.topics.may_use(topic):
                gevent.sleep(READY_INTERVAL)

    def hand_over(self) -> int:
        """Start or continue handing all of this worker's groups over to other nodes: stop
        deliveries, and release the groups once no message is in flight and the journals contain all
        finished ones. Return the number of groups left."""
        self.topics.hold_deliveries(True)
        if self.topics.in_flight() or not self.topics.is_recorded():
            return max(1, len(self._host.owned_ids()))
        return self._host.release()

    def keep(self) -> int:
        """Stop handing over, and return 0."""
        self.topics.hold_deliveries(False)
        self._host.keep()
        return 0

    def stop_waiting(self) -> None:
        """Save without waiting for the holders from now on."""
        self._host.stop_waiting()

    def stop(self) -> None:
        """Wait until the holders have the saved changes, then stop."""
        self._host.flush(FLUSH_LIMIT)
        self._host.leave()
        self._host.stop()

    def _become_ready(self) -> None:
        if not self.topics.is_ready:
            events.copies_not_opened(self._log)
            self._enter()
            self.topics.become_ready()

    def _create_channels(self, topic: str, channels: list[str], done: Callable[[], object]) -> None:
        gevent.spawn(self._create_until_done, topic, channels, done)

    def _create_until_done(
        self, topic: str, channels: list[str], done: Callable[[], object]
    ) -> None:
        while True:
            try:
                self._at_owner(CreateTopic(topic))
                for channel in channels:
                    self._at_owner(CreateChannel(topic, channel))
                break
            except (Refused, CallTimeout, ChannelClosed, NotWritten, RemoteError):
                gevent.sleep(RETRY_INTERVAL)
        self._enter()
        done()
