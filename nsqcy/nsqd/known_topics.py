"""The master's table of all topics and channels, from the workers' reports.

Independent of the file that stores them (nsqd/master/metadata.py) and of nsqlookupds.
"""

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from nsqcy.names import is_ephemeral
from nsqcy.util.slices import Slices

MAX_CHANGES = 10_000


class Change(NamedTuple):
    """The new state of a durable topic, or of a channel. paused: None if it was deleted. A deleted
    topic has no channels; a topic that exists keeps its channels."""

    topic: str
    channel: str
    paused: bool | None


class Topic:
    """A known topic: whether it is paused, and whether each of its channels is paused.

    written: its JSON in nsqd.dat; None: not created since the last change
    since: the last view when the object was created; later views may contain the object
    """

    __slots__ = ("channels", "paused", "since", "written")

    def __init__(self, paused: bool, channels: dict[str, bool], since: object) -> None:
        self.written: bytes | None = None
        self.paused = paused
        self.channels = channels
        self.since = since

    def to_json(self, name: str, slices: Slices) -> bytes:
        """Return the topic, with its durable channels, as in nsqd.dat. Cached until the topic
        changes: encoding ten thousand topics at each change would take long."""
        if self.written is None:
            channels = []
            for channel, paused in self.channels.items():
                slices.step()
                if not is_ephemeral(channel):
                    channels.append(f'{{"name":{quoted(channel)},"paused":{_JSON[paused]}}}')
            listed = f"[{','.join(channels)}]" if channels else "null"
            text = f'{{"name":{quoted(name)},"paused":{_JSON[self.paused]},"channels":{listed}}}'
            self.written = text.encode()
        return self.written


_JSON = {False: "false", True: "true"}


class View(NamedTuple):
    """All topics, in their order, at one moment: their names, and as many topics. Later changes do
    not affect it."""

    names: list[str]
    topics: list[Topic]
    version: int


class KnownTopics:
    """All existing topics and channels. Deleted topics and channels are removed immediately.

    `version` increases with each change. A topic that a view may contain is copied before it
    changes.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._last_view = object()
        self._changes: list[Change] | None = []
        self.version = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def dump(self) -> list[Any]:
        """Return the state for the master's next version."""
        return [[name, each.paused, each.channels] for name, each in self._topics.items()]

    def restore(self, dumped: list[Any]) -> None:
        """Continue with the state of the previous version."""
        self._topics = {
            name: Topic(paused, dict(channels), self._last_view)
            for name, paused, channels in dumped
        }
        self.version += 1

    def replace(self, other: "KnownTopics") -> None:
        """Copy the content of another KnownTopics."""
        self._topics = dict(other._topics)
        self.version += 1

    def get(self, topic: str) -> Topic | None:
        """Return the topic with that name."""
        return self._topics.get(topic)

    def pairs(self, topic: str) -> list[tuple[str, str]]:
        """Return the topic, paired with "", and each of its channels; empty if the topic does not
        exist."""
        found = self._topics.get(topic)
        return [] if found is None else [(topic, name) for name in ("", *found.channels)]

    def create_topic(self, topic: str) -> bool:
        """Add a topic; return whether it is new."""
        if topic in self._topics:
            return False
        self._topics[topic] = Topic(False, {}, self._last_view)
        self._record(topic, "", False)
        return True

    def create_channel(self, topic: str, channel: str) -> bool:
        """Add a channel, and its topic if necessary; return whether it is new."""
        self.create_topic(topic)
        if channel in self._topics[topic].channels:
            return False
        self._changing(topic).channels[channel] = False
        self._record(topic, channel, False)
        return True

    def delete_topic(self, topic: str) -> bool:
        """Remove a topic; return whether it existed."""
        if self._topics.pop(topic, None) is None:
            return False
        self._record(topic, "", None)
        return True

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; return whether it existed."""
        found = self._topics.get(topic)
        if found is None or channel not in found.channels:
            return False
        del self._changing(topic).channels[channel]
        self._record(topic, channel, None)
        return True

    def pause_topic(self, topic: str, paused: bool) -> bool:
        """Set whether a topic is paused; return whether its state changed."""
        found = self._topics.get(topic)
        if found is None or found.paused == paused:
            return False
        self._changing(topic).paused = paused
        self._record(topic, "", paused)
        return True

    def pause_channel(self, topic: str, channel: str, paused: bool) -> bool:
        """Set whether a channel is paused; return whether its state changed."""
        found = self._topics.get(topic)
        if found is None or found.channels.get(channel) in (None, paused):
            return False
        self._changing(topic).channels[channel] = paused
        self._record(topic, channel, paused)
        return True

    def forget_ephemeral(self, topics: set[str]) -> list[str]:
        """Drop the ephemeral topics and channels among `topics`, because their worker has crashed;
        return the dropped topics."""
        found = topics & self._topics.keys()
        for topic in found:
            channels = self._changing(topic).channels
            for channel in [name for name in channels if is_ephemeral(name)]:
                del channels[channel]
        dropped = [topic for topic in found if is_ephemeral(topic)]
        for topic in dropped:
            del self._topics[topic]
        return dropped

    def entry(self, topic: str) -> dict[str, Any]:
        """Return the description from which a worker loads a topic."""
        found = self._topics[topic]
        return {
            "name": topic,
            "paused": found.paused,
            "channels": [
                {"name": name, "paused": paused} for name, paused in found.channels.items()
            ],
        }

    def view(self) -> View:
        """Return all topics as they are now. Takes about 10 ms for a million topics."""
        self._last_view = object()
        return View(list(self._topics), list(self._topics.values()), self.version)

    def take_changes(self) -> list[Change] | None:
        """Return the changes to durable topics and channels since the last call, in their order;
        None if there are more than MAX_CHANGES."""
        changes, self._changes = self._changes, []
        return changes

    def apply(self, change: Change) -> None:
        """Make a change. Making the same changes again has no effect, if all of them are made."""
        topic, channel, paused = change
        if paused is None:
            if channel:
                self.delete_channel(topic, channel)
            else:
                self.delete_topic(topic)
        elif channel:
            self.create_channel(topic, channel)
            self.pause_channel(topic, channel, paused)
        else:
            self.create_topic(topic)
            self.pause_topic(topic, paused)

    def _changing(self, topic: str) -> Topic:
        """Return a topic that is about to change, and is in no view."""
        found = self._topics[topic]
        if found.since is not self._last_view:
            found = Topic(found.paused, dict(found.channels), self._last_view)
            self._topics[topic] = found
        found.written = None
        return found

    def _record(self, topic: str, channel: str, paused: bool | None) -> None:
        self.version += 1
        changes = self._changes
        if changes is None or is_ephemeral(topic) or is_ephemeral(channel):
            return
        changes.append(Change(topic, channel, paused))
        if len(changes) > MAX_CHANGES:
            self._changes = None


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- loading
