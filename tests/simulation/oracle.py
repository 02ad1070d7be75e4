"""Invariants of every schedule: nothing acknowledged is lost, and nothing refused is delivered.

The oracle sees everything at once, so it detects a broken rule before a crash makes the rule
matter.
"""

from collections import Counter
from typing import TYPE_CHECKING

from nsqcy.copies.group import Group
from nsqcy.copies.owner import Owner
from simulation.disk import Image

if TYPE_CHECKING:
    from simulation.process import OwnedLog, Process
    from simulation.world import World


class Violation(Exception):
    """An invariant is violated."""


class Oracle:
    """Everything that publishers, consumers and log readers have seen."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.refused: set[int] = set()
        self.acknowledged: dict[int, frozenset[str]] = {}
        """The channels that existed when a message was acknowledged."""
        self.deliveries: Counter[tuple[int, str]] = Counter()
        self.contents: dict[str, list[int]] = {}
        """The messages that readers of a group's log may have seen, by sequence number."""
        self.finished: set[tuple[str, int, str]] = set()
        """Group, sequence number and channel of each message that every member knows to be
        finished."""
        self.channels: dict[str, set[str]] = {}
        """Channels of a group's log that a client knows to exist."""
        self.requeued = 0
        self.takeovers = 0

    def group_changed(self, old: Group | None, new: Group) -> None:
        if old is None or len(old.members) < old.min_copies or new.done:
            return
        if len(new.members) < new.min_copies:
            raise Violation(f"{new.id} has only the members {new.members}")
        for node in new.members:
            was_damaged = self.world.clock.now - self.world.damaged.get(node, -99.0) < 20.0
            if node not in old.members and not was_damaged and not self._is_filled(node, new.id):
                raise Violation(f"{node} joins {new.id} without a complete copy")

    def owned(self, process: "Process", group: Group) -> None:
        self.world.log("%s: owns %s", process.node, group)
        if group.closed:
            self.takeovers += 1
        if self.world.values[group.id] == group:
            self._check_copy(process.node, group.id, process.disk.images[group.id])

    def answered(self, log: "OwnedLog", messages: list[int]) -> None:
        channels = frozenset(self.channels.get(log.group_id, ()))
        for message in messages:
            self.acknowledged[message] = channels

    def channel_created(self, log: "OwnedLog", name: str) -> None:
        self.channels.setdefault(log.group_id, set()).add(name)

    def committed(self, process: "Process", log: "OwnedLog", position: int) -> None:
        group_id = log.group_id
        while log.saved and log.saved[0][0] <= position:
            for seq, name in log.saved.popleft()[1]:
                self.finished.add((group_id, seq, name))
        contents = self.contents.setdefault(group_id, [])
        for seq in range(log.checked, log.committed):
            message = log.records[seq].message
            if seq == len(contents):
                contents.append(message)
            elif contents[seq] != message:
                raise Violation(f"{group_id} {seq}: {message} instead of {contents[seq]}")
        group = self._acted_on(process, group_id)
        if group is None or group.done:
            return
        if log.committed > log.checked and len(group.members) < group.min_copies:
            raise Violation(f"{group_id} commits with the members {group.members}")
        for node in group.members:
            image = self.world.disks[node].whole_image(group_id)
            if image is not None:
                self._check_records(node, group_id, image, log.checked)
        log.checked = max(log.checked, log.committed)

    def _acted_on(self, process: "Process", group_id: str) -> Group | None:
        """Return the registry value of a group, as far as its owner has acted on it.

        It determines which nodes need the owner's data. After a restore from a backup, an owner
        that accepts publishes may not know the latest value. Only a process that took the group
        over has acted on that value; it accepts no publishes, so it has no new data.
        """
        owner = process.worker.owner(group_id)
        if not self.world.is_registry_damaged or owner is None:
            return self.world.values[group_id]
        return None if owner.group.closed else owner.group

    def shown(self, log: "OwnedLog", owner: Owner) -> None:
        if log.visible > log.committed and owner.accepts():
            raise Violation(f"{log.group_id} shows more than has been committed")

    def delivered(
        self, process: "Process", log: "OwnedLog", seq: int, name: str, message: int
    ) -> None:
        if message in self.refused:
            raise Violation(f"{message} was refused, but is delivered to {name}")
        # After damage to the registry, an owner that has missed a takeover may continue.
        is_owner = (
            not self.world.is_registry_damaged
            and self.world.values[log.group_id].session == process.session
        )
        if is_owner and (log.group_id, seq, name) in self.finished:
            raise Violation(f"{log.group_id} {seq} was finished in {name}, but is delivered")
        contents = self.contents.get(log.group_id, [])
        if seq < len(contents) and contents[seq] != message:
            raise Violation(f"{log.group_id} {seq}: {message} is delivered as {contents[seq]}")
        self.deliveries[message, name] += 1

    def skipped(self, log: "OwnedLog", seq: int) -> None:
        """Record that an owner has abandoned a damaged record."""
        if log.records[seq].message in self.acknowledged:
            raise Violation(f"{log.group_id} {seq} was acknowledged, but is skipped")

    def moved(self, log: "OwnedLog", seq: int, channels: list[str]) -> None:
        for name in channels:
            is_finished = (log.group_id, seq, name) in self.finished
            if is_finished and not self.world.is_registry_damaged:
                raise Violation(f"{log.group_id} {seq} was finished in {name}, but is moved")

    def is_intact(self, node: str, group_id: str) -> bool:
        """Return whether a node's copy has all committed changes, and can read them."""
        return self.has_all(node, group_id) and self.world.disks[node].read_errors < 1.0

    def _is_filled(self, node: str, group_id: str) -> bool:
        """Return whether a node has received everything that was committed.

        The copy may be damaged if the owner has waited longer than `damage_timeout` for an intact
        one.
        """
        disk = self.world.disks[node]
        image = disk.whole_image(group_id)
        since = self.world.clock.now - self.world.limits.damage_timeout
        if image is None or image.has_damage_of_others(disk, since):
            return False
        return len(image.records()) >= len(self.contents.get(group_id, []))

    def has_all(self, node: str, group_id: str) -> bool:
        """Return whether a node's copy has all committed changes, undamaged."""
        image = self.world.disks[node].whole_image(group_id)
        if image is None or image.is_damaged():
            return False
        contents = self.contents.get(group_id, [])
        return len(image.records()) >= len(contents)

    def lost(self) -> list[tuple[int, str]]:
        """Return acknowledged messages that a channel did not get."""
        return [
            (message, name)
            for message, channels in self.acknowledged.items()
            for name in channels
            if not self.deliveries[message, name]
        ]

    def duplicates(self) -> int:
        """Return the number of redeliveries of messages that no consumer had requeued."""
        return sum(count - 1 for count in self.deliveries.values()) - self.requeued

    def _check_copy(self, node: str, group_id: str, image: Image) -> None:
        self._check_records(node, group_id, image, 0)
        state = image.state()
        done = {(seq, name) for group, seq, name in self.finished if group == group_id}
        done -= state.done | {(seq, "") for seq in state.moved}
        if done and not self.world.is_registry_damaged:
            raise Violation(f"{node} takes over {group_id} without knowing what was finished")
        for name in self.channels.get(group_id, ()):
            if name not in state.channels:
                raise Violation(f"{node} takes over {group_id} without channel {name}")

    def _check_records(self, node: str, group_id: str, image: Image, first: int) -> None:
        contents = self.contents.get(group_id, [])
        records = image.records()
        for seq in range(first, len(contents)):
            if seq >= len(records) or records[seq].message != contents[seq]:
                raise Violation(f"{node} lacks {group_id} {seq}: {contents[seq]}")
