"""The master's table of all topics and channels, from the workers' reports.

Independent of the file that stores them (nsqd/master/metadata.py) and of nsqlookupds.
"""

import json
from collections.abc import Iterator
from typing import Any

from nsqcy.names import is_ephemeral


class Topic:
    """A known topic: whether it is paused, and whether each of its channels is paused.

    written: its JSON in nsqd.dat; None: not created since the last change
    """

    __slots__ = ("channels", "paused", "written")

    def __init__(self, paused: bool = False, channels: dict[str, bool] | None = None) -> None:
        self.written: bytes | None = None
        self.paused = paused
        self.channels = {} if channels is None else channels


class KnownTopics:
    """All existing topics and channels. Deleted topics and channels are removed immediately.

    `version` increases with each change.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self.version = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

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
        self._topics[topic] = Topic()
        self.version += 1
        return True

    def create_channel(self, topic: str, channel: str) -> bool:
        """Add a channel, and its topic if necessary; return whether it is new."""
        self.create_topic(topic)
        found = self._topics[topic]
        if channel in found.channels:
            return False
        found.channels[channel] = False
        self._changed(found)
        return True

    def delete_topic(self, topic: str) -> bool:
        """Remove a topic; return whether it existed."""
        self.version += topic in self._topics
        return self._topics.pop(topic, None) is not None

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove a channel; return whether it existed."""
        found = self._topics.get(topic)
        if found is None or found.channels.pop(channel, None) is None:
            return False
        self._changed(found)
        return True

    def pause_topic(self, topic: str, paused: bool) -> bool:
        """Set whether a topic is paused; return whether its state changed."""
        found = self._topics.get(topic)
        if found is None or found.paused == paused:
            return False
        found.paused = paused
        self._changed(found)
        return True

    def pause_channel(self, topic: str, channel: str, paused: bool) -> bool:
        """Set whether a channel is paused; return whether its state changed."""
        found = self._topics.get(topic)
        if found is None or found.channels.get(channel) in (None, paused):
            return False
        found.channels[channel] = paused
        self._changed(found)
        return True

    def forget_ephemeral(self, topics: set[str]) -> list[str]:
        """Drop the ephemeral topics and channels among `topics`, because their worker has crashed;
        return the dropped topics."""
        found = topics & self._topics.keys()
        for topic in found:
            channels = self._topics[topic].channels
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

    def written(self, topic: str) -> bytes:
        """Return a topic, with its durable channels, as in nsqd.dat. Cached until the topic
        changes: encoding the JSON of ten thousand topics at each change would delay the hub."""
        found = self._topics[topic]
        if found.written is None:
            entry = self.entry(topic)
            durable = [each for each in entry["channels"] if not is_ephemeral(each["name"])]
            found.written = to_json({**entry, "channels": durable or None})
        return found.written

    def _changed(self, topic: Topic) -> None:
        topic.written = None
        self.version += 1


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


# -- loading
