"""NsqdAdmin for asyncio. Owns only the threads: administration.py decides what each method does."""

from typing import Any

from nsqcy.client import administration
from nsqcy.client.aio_threads import MAX_REQUESTS, Threads
from nsqcy.client.peeked_message import PeekedMessage
from nsqcy.client.times import Duration


class NsqdAdmin:
    """nsqcy.NsqdAdmin for asyncio: sends each request in a thread."""

    def __init__(
        self,
        nsqd_http_address: str,
        *,
        auth_secret: str | None = None,
        timeout: Duration = 5.0,
    ) -> None:
        self._admin = administration.NsqdAdmin(
            nsqd_http_address, auth_secret=auth_secret, timeout=timeout
        )
        self._threads = Threads(MAX_REQUESTS)

    def __repr__(self) -> str:
        return repr(self._admin)

    async def create_topic(self, topic: str) -> None:
        """Create a topic, unless it exists."""
        await self._threads.call(self._admin.create_topic, topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic, unless they exist."""
        await self._threads.call(self._admin.create_channel, topic, channel)

    async def delete_topic(self, topic: str) -> bool:
        """Delete a topic with its channels and all messages. Return whether it existed."""
        return await self._threads.call(self._admin.delete_topic, topic)

    async def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel with its messages. Return whether it existed."""
        return await self._threads.call(self._admin.delete_channel, topic, channel)

    async def empty_topic(self, topic: str) -> None:
        """Drop the messages in the topic itself, but not those in its channels."""
        await self._threads.call(self._admin.empty_topic, topic)

    async def empty_channel(self, topic: str, channel: str) -> None:
        """Drop the messages of a channel."""
        await self._threads.call(self._admin.empty_channel, topic, channel)

    async def pause_topic(self, topic: str) -> None:
        """Pause a topic: its channels receive no new messages."""
        await self._threads.call(self._admin.pause_topic, topic)

    async def unpause_topic(self, topic: str) -> None:
        """Unpause a topic."""
        await self._threads.call(self._admin.unpause_topic, topic)

    async def pause_channel(self, topic: str, channel: str) -> None:
        """Pause a channel: its consumers receive no messages."""
        await self._threads.call(self._admin.pause_channel, topic, channel)

    async def unpause_channel(self, topic: str, channel: str) -> None:
        """Unpause a channel."""
        await self._threads.call(self._admin.unpause_channel, topic, channel)

    async def seek(self, topic: str, channel: str, to: administration.Position) -> int:
        """Move a channel to a position in its topic's log; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.seek, topic, channel, to)

    async def stats(self, topic: str | None = None, channel: str | None = None) -> dict[str, Any]:
        """Return statistics; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.stats, topic, channel)

    async def topic_policy(self, topic: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a topic's policy, and return all; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.topic_policy, topic, **keys)

    async def channel_policy(self, topic: str, channel: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a channel's policy, and return all; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.channel_policy, topic, channel, **keys)

    async def peek(
        self, topic: str, channel: str, state: str = "queued", *, count: int = 20
    ) -> list[PeekedMessage]:
        """Return a channel's first messages without consuming them; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.peek, topic, channel, state, count=count)

    async def redrive(
        self, topic: str, channel: str, *, id: str | None = None, limit: int | None = None
    ) -> int:
        """Return dead letters to the channels that they came from; see nsqcy.NsqdAdmin."""
        return await self._threads.call(self._admin.redrive, topic, channel, id=id, limit=limit)
