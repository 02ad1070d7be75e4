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
from nsqcy.nsqd.copies.host import CopiesHost
from nsqcy.nsqd.copies.node import Node
from nsqcy.nsqd.copies.streams import Later
from nsqcy.nsqd.copies.topics import CopiedTopics
from nsqcy.nsqd.options import NsqdOptions
from nsqcy.nsqd.process_calls import Refused
from nsqcy.nsqd.process_messages.topic_verbs import CreateChannel, CreateTopic, TopicVerb
from nsqcy.process.control import CallTimeout, ChannelClosed, RemoteError

READY_INTERVAL = 0.01  # seconds between checks of whether the groups are open
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
        log: Lines,
    ) -> None:
        """
        secrets: see `settings.prepare`
        enter: called before topics are touched
        later: calls a function before the hub polls again
        at_owner: runs a verb in the worker that owns its topic
        usable: called with each topic that `topics.may_use` has denied, once it can be used
        """
        assert shard.policies is not None and shard.io is not None
        self._at_owner = at_owner
        self._log = log
        self._enter = enter
        self.topics = CopiedTopics(shard, shard.policies, self._create_channels, usable, log)
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
        )
        self.topics.attach(self._host)
        shard.host.copies = self.topics
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
        return found | {"ready": self.topics.is_ready}

    def figures(self) -> dict[str, Any]:
        """Return the worker's figures for /metrics, by `metrics.families.COPIES`."""
        return self._host.figures() | {"draining": self.topics.draining()}

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
