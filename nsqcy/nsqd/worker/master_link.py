"""What a worker says to the master: one method per message, and the way to the other workers.

Owns no state but the channel; the other half is `master.py`.
"""

from collections.abc import Sequence

from nsqcy.process.control import Answer, Channel

PLACE_TIMEOUT = 5.0
SAVE_TIMEOUT = 30.0  # the master writes and syncs nsqd.dat before it answers


class MasterLink:
    """A worker's line to the master. Calls block the calling greenlet; the rest never blocks."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def up(self) -> None:
        """This worker has booted and can be told what to load."""
        self._channel.notify("up")

    def place(self, topic: str) -> int:
        """The worker a topic belongs to; the master places it if it is new."""
        return int(self._channel.call("place", PLACE_TIMEOUT, topic=topic).value)

    def topic_created(self, topic: str, held: bool = False) -> None:
        """A topic of ours exists; `held`: the answer is `seed`, with the channels it is to have."""
        self._channel.notify("topic_created", topic=topic, held=held)

    def channel_created(self, topic: str, channel: str) -> None:
        """A channel of a topic of ours exists."""
        self._channel.notify("channel_created", topic=topic, channel=channel)

    def save_topic(self, topic: str) -> None:
        """A topic of ours exists; returns when nsqd.dat names it."""
        self._channel.call("topic_created", SAVE_TIMEOUT, topic=topic)

    def save_channel(self, topic: str, channel: str) -> None:
        """A channel of a topic of ours exists; returns when nsqd.dat names it."""
        self._channel.call("channel_created", SAVE_TIMEOUT, topic=topic, channel=channel)

    def topic_deleted(self, topic: str) -> None:
        """A topic is no more; returns when nsqd.dat no longer names it."""
        self._channel.call("topic_deleted", SAVE_TIMEOUT, topic=topic)

    def channel_deleted(self, topic: str, channel: str) -> None:
        """A channel is no more; returns when nsqd.dat no longer names it."""
        self._channel.call("channel_deleted", SAVE_TIMEOUT, topic=topic, channel=channel)

    def topic_paused(self, topic: str, paused: bool) -> None:
        """A topic was paused or unpaused; returns when nsqd.dat says so."""
        self._channel.call("topic_paused", SAVE_TIMEOUT, topic=topic, paused=paused)

    def channel_paused(self, topic: str, channel: str, paused: bool) -> None:
        """A channel was paused or unpaused; returns when nsqd.dat says so."""
        self._channel.call(
            "channel_paused", SAVE_TIMEOUT, topic=topic, channel=channel, paused=paused
        )

    def ask(
        self,
        worker: int | None,
        method: str,
        timeout: float,
        /,
        *,
        blob: bytes = b"",
        fds: Sequence[int] = (),
        **args: object,
    ) -> Answer:
        """Call a method of another worker's engine, through the master; None: the master's."""
        return self._channel.call(method, timeout, to=worker, blob=blob, fds=fds, **args)
