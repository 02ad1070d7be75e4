"""The copied topics of a worker: opened with their group, refused without enough copies, drained
after a takeover.

Knows groups and the shard, but no streams and no registry.
"""

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from nsqcy.broker.shard import Shard
from nsqcy.broker.topic import Topic
from nsqcy.copies.group import Group
from nsqcy.copies.owner import Owner
from nsqcy.storage.mirrored_io import MirroredIo

TOO_FEW = "TOO_FEW_COPIES"
SUFFIX = ".topic"


class Owners(Protocol):
    """The groups that this process owns."""

    def owner(self, group_id: str) -> Owner | None: ...


class _OwnedGroup:
    """A group, from the moment this process owns it."""

    def __init__(self, group: Group, files: MirroredIo, directory: Path) -> None:
        self.group = group
        self.files = files
        self.directory = directory
        self.topics: dict[bytes, Topic] = {}
        self.is_open = False
        self.is_drained = False


class CopiedTopics:
    """The topics of all groups of a worker (`nsqcy.nsqd.copies.host.Topics`)."""

    def __init__(
        self, shard: Shard, create_channels: Callable[[str, Iterable[str]], object]
    ) -> None:
        """
        create_channels: called with a topic, which may belong to another worker, and the channels
            that it must have to receive the messages of a closed group
        """
        self._shard = shard
        self._create_channels = create_channels
        self._groups: dict[str, _OwnedGroup] = {}

    def open(self, group_id: str, key: bytes) -> Topic:
        """Create a topic in an open group."""
        owned = self._groups[group_id]
        topic = self._shard.open_topic(key, owned.files, str(owned.directory))
        owned.topics[key] = topic
        return topic

    def is_open(self, group_id: str) -> bool:
        """Return whether topics can be created in a group."""
        owned = self._groups.get(group_id)
        return owned is not None and owned.is_open and not owned.group.closed

    # -- host.Topics

    def owned(self, group: Group, files: MirroredIo, directory: Path) -> None:
        self._groups[group.id] = _OwnedGroup(group, files, directory)

    def lost(self, group: Group) -> None:
        owned = self._groups.pop(group.id)
        for key in owned.topics:
            if group.closed:
                self._shard.lose_closed(group.id, key)
            else:
                self._shard.lose_topic(key)

    def degraded(self, group_id: str) -> None:
        for topic in self._groups[group_id].topics.values():
            topic.leave_unanswered()

    def tick(self, owners: Owners) -> None:
        """Open the topics of groups that may be served, and watch those that are open."""
        now = time.monotonic()
        for group_id, owned in self._groups.items():
            owner = owners.owner(group_id)
            if owner is None:
                continue
            if not owned.is_open:
                # The records of an earlier process may be known to no other member yet.
                if owner.committed == owner.position or not owner.waits(now):
                    self._open_all(owned)
            elif owned.group.closed:
                self._drain(owned, owner)
            else:
                self._refuse(owned, owner)

    # -- inside

    def _open_all(self, owned: _OwnedGroup) -> None:
        owned.is_open = True
        # A restart makes changes that nobody waits for.
        waits = owned.files.waits
        owned.files.wait(False)
        for path in sorted(owned.directory.glob(f"*{SUFFIX}")):
            key = path.name.removesuffix(SUFFIX).encode()
            directory = str(owned.directory)
            if owned.group.closed:
                topic = self._shard.open_closed(owned.group.id, key, owned.files, directory)
                self._create_channels(topic.name, list(topic.channels))
            else:
                topic = self._shard.open_topic(key, owned.files, directory)
            owned.topics[key] = topic
        owned.files.wait(waits)

    def _refuse(self, owned: _OwnedGroup, owner: Owner) -> None:
        """Accept publishes while there are enough copies."""
        refused = None if owner.accepts() else TOO_FEW
        for topic in owned.topics.values():
            topic.refused = refused

    def _drain(self, owned: _OwnedGroup, owner: Owner) -> None:
        """End a closed group whose messages have all moved."""
        if owned.is_drained or not all(topic.is_moved for topic in owned.topics.values()):
            return
        owned.is_drained = True
        for key in owned.topics:
            self._shard.close_closed(owned.group.id, key)
        owned.topics.clear()
        owner.drained()
