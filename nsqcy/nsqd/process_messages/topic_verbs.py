"""The admin verbs for topics and channels. Each verb runs in the worker that owns the topic.

A verb is one class: its fields are parsed from the HTTP request, and `run` is the owner's action.
Does not depend on HTTP or other workers; `calls` carries a verb between processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import gevent
from gevent.event import AsyncResult

from nsqcy.channels.core import KeyListing
from nsqcy.errors import NotWritten
from nsqcy.nsqd.process_calls import Call, Refused, Result
from nsqcy.nsqd.process_messages import key_listing
from nsqcy.nsqd.process_messages import peek as peeking
from nsqcy.nsqd.process_messages.positions import Place
from nsqcy.nsqd.process_messages.reports import ChannelPaused, TopicPaused
from nsqcy.process.control import CallTimeout

if TYPE_CHECKING:
    from nsqcy.nsqd.worker.topic_owner import Done, TopicOwner

WRITE_LIMIT = 4.0  # maximum seconds until a change is on disk
MAX_SEARCHED = 10_000  # maximum number of waiting messages to search for a message
PEEK_LIMIT = 4.0  # maximum seconds for reading messages


@contextmanager
def time_to_write() -> Iterator[None]:
    """Raise NotWritten if the block takes too long. The change stays in effect, and may be written
    later."""
    try:
        with gevent.Timeout(WRITE_LIMIT):
            yield
    except (gevent.Timeout, CallTimeout):
        raise NotWritten from None


class TopicVerb(Call["TopicOwner", Result]):
    """A verb for one topic."""

    timeout: ClassVar[float] = 5.0
    creates: ClassVar[bool] = False
    """Whether to place the topic first if it has no owner yet."""
    topic: str


# Topics


class CreateTopic(TopicVerb[None]):
    """Create a topic. Raises Refused (TOO_MANY_TOPICS) if the limit is reached."""

    creates: ClassVar[bool] = True
    topic: str

    def run(self, target: "TopicOwner") -> None:
        found = target.find(self.topic) or target.shard.topic(self.topic.encode(), create=True)
        if found is None:
            raise Refused("NOT_READ" if target.is_unloaded(self.topic) else "TOO_MANY_TOPICS")
        if found.durability != "memory":
            with time_to_write():
                target.save_names()
        target.await_registration()


class DeleteTopic(TopicVerb[None]):
    """Delete a topic. Its policies are kept: `forget_policies` removes them."""

    topic: str

    def run(self, target: "TopicOwner") -> None:
        found = target.topic(self.topic)
        with time_to_write():
            target.make(found, lambda done: target.shard.delete_topic(self.topic.encode(), done))
            if found.durability != "memory":
                target.save_names()


class EmptyTopic(TopicVerb[None]):
    """Drop the messages that the topic stores for future channels."""

    topic: str

    def run(self, target: "TopicOwner") -> None:
        found = target.topic(self.topic)
        with time_to_write():
            target.make(found, found.empty)


class PauseTopic(TopicVerb[None]):
    """Pause or resume a topic. nsqd.dat contains the new state when this returns."""

    topic: str
    paused: bool

    def run(self, target: "TopicOwner") -> None:
        found = target.topic(self.topic)
        target.report(TopicPaused(self.topic, self.paused))
        with time_to_write():
            target.make(found, lambda done: found.pause(self.paused, done))
            target.save_names()


class DescribeLog(TopicVerb[dict[str, Any]]):
    """Return facts about a topic's log; with `at`, also the sequence number of that position."""

    topic: str
    at: Place | None

    def run(self, target: "TopicOwner") -> dict[str, Any]:
        found, seq = target.resolve(self.topic, self.at or Place())
        facts = found.log_facts()
        if self.at is not None:
            facts["at"] = min(max(seq, facts["first_seq"]), facts["fanout_seq"])
        return facts


# Channels


class CreateChannel(TopicVerb[None]):
    """Create a channel, which receives the messages that its topic stores for future channels."""

    topic: str
    channel: str

    def run(self, target: "TopicOwner") -> None:
        found = target.topic(self.topic)
        found.channel(self.channel)
        if found.durability != "memory":
            with time_to_write():
                target.save_names()
        target.await_registration()


class FindChannel(TopicVerb[None]):
    """Raise Refused if the channel does not exist."""

    topic: str
    channel: str

    def run(self, target: "TopicOwner") -> None:
        target.topic_of(self.topic, self.channel)


class DeleteChannel(TopicVerb[None]):
    """Delete a channel. Its policies are kept: `forget_policies` removes them."""

    topic: str
    channel: str

    def run(self, target: "TopicOwner") -> None:
        found = target.topic_of(self.topic, self.channel)
        with time_to_write():
            target.make(found, lambda done: found.delete_channel(self.channel, done))
            if found.durability != "memory":
                target.save_names()


class EmptyChannel(TopicVerb[None]):
    """Drop all messages in a channel."""

    topic: str
    channel: str

    def run(self, target: "TopicOwner") -> None:
        found, _ = target.current_channel(self.topic, self.channel)
        with time_to_write():
            target.make(found, lambda done: found.empty_channel(self.channel, done))


class PauseChannel(TopicVerb[None]):
    """Pause or resume a channel. nsqd.dat contains the new state when this returns."""

    topic: str
    channel: str
    paused: bool

    def run(self, target: "TopicOwner") -> None:
        found = target.topic_of(self.topic, self.channel)
        target.report(ChannelPaused(self.topic, self.channel, self.paused))
        with time_to_write():
            target.make(found, lambda done: found.pause_channel(self.channel, self.paused, done))
            target.save_names()


class PauseKey(TopicVerb[None]):
    """Pause or resume a key of a channel. Raises Refused."""

    topic: str
    channel: str
    key: str
    paused: bool

    def run(self, target: "TopicOwner") -> None:
        found = target.topic_of(self.topic, self.channel)
        key = self.key.encode("utf-8", "surrogateescape")
        problem = found.channels[self.channel].why_not_pause(key)
        if problem is not None and (self.paused or problem != "TOO_MANY_PAUSED_KEYS"):
            raise Refused(problem)
        with time_to_write():
            target.make(found, lambda done: found.pause_key(self.channel, key, self.paused, done))


class EmptyKey(TopicVerb[None]):
    """Drop the messages of a key that wait in a channel. Raises Refused."""

    topic: str
    channel: str
    key: str

    def run(self, target: "TopicOwner") -> None:
        found, channel = target.current_channel(self.topic, self.channel)
        key = self.key.encode("utf-8", "surrogateescape")
        problem = channel.why_not_empty()
        if problem is not None:
            raise Refused(problem)
        with time_to_write():
            target.make(found, lambda done: found.empty_key(self.channel, key, done))


class ListKeys(TopicVerb[dict[str, Any]]):
    """Return the keys of a channel with the most waiting messages. Raises Refused.

    key: only this key; "": all keys. search: only keys that contain this text.
    """

    timeout: ClassVar[float] = 10.0
    topic: str
    channel: str
    limit: int
    key: str
    search: str
    blocked: bool
    paused: bool

    def run(self, target: "TopicOwner") -> dict[str, Any]:
        _, channel = target.current_channel(self.topic, self.channel)
        if channel.keys is None and not channel.paused_keys:
            raise Refused("NO_KEY_RULES")
        listing = KeyListing(channel, self.blocked, self.paused)
        if self.key:
            return key_listing.of_key(listing, channel, self.key.encode("utf-8", "surrogateescape"))
        while not listing.walk(key_listing.WALKED_AT_ONCE):
            gevent.sleep(0)
            target.topic_of(self.topic, self.channel)
        wanted = self.search.encode("utf-8", "surrogateescape")
        return key_listing.page(listing, channel, self.limit, wanted)


class SeekChannel(TopicVerb[int]):
    """Move a channel to a position in its topic's log, or create the channel there. Return the
    sequence number at which it begins."""

    topic: str
    channel: str
    place: Place
    create: bool

    def run(self, target: "TopicOwner") -> int:
        target.current(self.topic)
        found, seq = target.resolve(self.topic, self.place)
        if self.create == (self.channel in found.channels):
            raise Refused("CHANNEL_EXISTS" if self.create else "CHANNEL_NOT_FOUND")
        if self.create:
            found.channel(self.channel)
        begin = 0

        def seek(done: "Done | None") -> None:
            nonlocal begin
            begin = found.seek(self.channel, seq, done)

        with time_to_write():
            target.make(found, seek)
            if self.create and found.durability != "memory":
                target.save_names()
        return begin


class Redrive(TopicVerb[int]):
    """Send at most `limit` messages (0: all) from a dead-letter channel back to their topics, if
    the topics match one of the patterns in `targets` (None: any topic). Return the number of
    messages to check."""

    topic: str
    channel: str
    limit: int
    targets: tuple[str, ...] | None

    def run(self, target: "TopicOwner") -> int:
        _, channel = target.current_channel(self.topic, self.channel)
        return channel.redrive(self.limit, self.targets)


class TakeOut(TopicVerb[None]):
    """Redrive or drop one waiting message; `targets` as for Redrive. Raises Refused."""

    timeout: ClassVar[float] = 10.0  # maximum seconds for the search and for the write
    topic: str
    channel: str
    id: int
    drop: bool
    targets: tuple[str, ...] | None = None

    def run(self, target: "TopicOwner") -> None:
        topic, channel = target.current_channel(self.topic, self.channel)
        if channel.counters()["depth"] > MAX_SEARCHED:
            raise Refused("TOO_MANY_MESSAGES")
        found: AsyncResult[str | None] = AsyncResult()
        if not channel.take_out(self.id, self.drop, found.set, self.targets):
            raise Refused("REDRIVE_UNDER_WAY")
        target.wake()
        try:
            problem = found.get(timeout=WRITE_LIMIT)
        except gevent.Timeout:  # for instance because the channel has been deleted
            problem = "MESSAGE_NOT_FOUND"
        if problem is not None:
            raise Refused(problem)
        with time_to_write():
            target.make(topic, lambda done: topic.record_channel(channel, done))


# Messages


class ListDeferred(TopicVerb[dict[str, Any]]):
    """Return a channel's next deferred messages, and the place after which to continue."""

    topic: str
    channel: str
    limit: int
    after: tuple[int, int] | None

    def run(self, target: "TopicOwner") -> dict[str, Any]:
        _, channel = target.current_channel(self.topic, self.channel)
        upcoming = channel.upcoming(self.limit, self.after)
        last = upcoming[-1][0] if len(upcoming) == self.limit else None
        return {
            "deferred": [
                {
                    "id": f"{id:016x}" if id else None,
                    "seq": seq,
                    "due": due,
                    "attempts": attempts,
                    "size": size or None,
                }
                for _, seq, due, id, attempts, size in upcoming
            ],
            "next": f"{last[0]}.{last[1]}" if last else None,
        }


class Peek(TopicVerb[bytes]):
    """Return a page of messages as JSON, from a channel or, with "", from the topic itself."""

    returns = "blob"
    topic: str
    channel: str
    look: peeking.Look

    def run(self, target: "TopicOwner") -> bytes:
        try:
            with gevent.Timeout(PEEK_LIMIT), target.peeks:
                return self._read(target)
        except gevent.Timeout:
            raise Refused("NOT_READ") from None

    def _read(self, target: "TopicOwner") -> bytes:
        topic, channel, look = self.topic, self.channel, self.look
        found = target.current_channel(topic, channel)[0] if channel else target.topic(topic)
        if look.state == peeking.LOG:
            found, seq = target.resolve(topic, look.place or Place())
            look = peeking.in_log(look, seq, found.first_seq, found.next_seq)
        read: AsyncResult[str | None] = AsyncResult()

        def done(problem: str | None) -> None:
            read.set(problem)
            target.wake()

        after = peeking.after(look)
        peek = found.peek(
            channel, look.state, look.maximum, after, look.max_body, done, look.key_bytes
        )
        try:
            problem = read.get()
        finally:
            peek.cancel()
        if problem:
            raise Refused("NOT_READ")
        return peeking.page(look, peek)


class CancelMessage(TopicVerb[None]):
    """Drop a deferred message. Its removal is on disk when this returns. Raises NotWritten."""

    topic: str
    channel: str
    id: int

    def run(self, target: "TopicOwner") -> None:
        found, _ = target.current_channel(self.topic, self.channel)

        def cancel(done: "Done") -> None:
            if not found.cancel(self.channel, self.id, done):
                raise Refused("MESSAGE_NOT_FOUND")

        with time_to_write():
            target.write(cancel)
