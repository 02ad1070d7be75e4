"""NsqdAdmin for asyncio. Owns only the threads: administration.py decides what each method does."""

import asyncio
from typing import Any

from nsqcy.client import administration
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

    def __repr__(self) -> str:
        return repr(self._admin)

    async def create_topic(self, topic: str) -> None:
        """Create a topic, unless it exists."""
        await asyncio.to_thread(self._admin.create_topic, topic)

    async def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel, and its topic, unless they exist."""
        await asyncio.to_thread(self._admin.create_channel, topic, channel)

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic with its channels and all messages."""
        await asyncio.to_thread(self._admin.delete_topic, topic)

    async def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages."""
        await asyncio.to_thread(self._admin.delete_channel, topic, channel)

    async def topic_policy(self, topic: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a topic's policy, and return all; see nsqcy.NsqdAdmin."""
        return await asyncio.to_thread(self._admin.topic_policy, topic, **keys)

    async def channel_policy(self, topic: str, channel: str, **keys: Any) -> dict[str, Any]:
        """Set keys of a channel's policy, and return all; see nsqcy.NsqdAdmin."""
        return await asyncio.to_thread(self._admin.channel_policy, topic, channel, **keys)

    async def peek(
        self, topic: str, channel: str, state: str = "queued", *, count: int = 20
    ) -> list[PeekedMessage]:
        """Return a channel's first messages without consuming them; see nsqcy.NsqdAdmin."""
        return await asyncio.to_thread(self._admin.peek, topic, channel, state, count=count)

    async def redrive(self, topic: str, channel: str) -> int:
        """Return dead letters to the channels that they came from; see nsqcy.NsqdAdmin."""
        return await asyncio.to_thread(self._admin.redrive, topic, channel)
