"""Sizes of queues, purging, and cancelling of tasks, over the HTTP ports of the nsqds.

The option `nsqd_http_addresses` has the addresses. Without it, sizes are unknown; purging and
cancelling use what nsqlookupds report, or the port after an nsqd's TCP port, as in NSQ's defaults.
"""

import json
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nsqcy.client.options import Address
from nsqcy.cluster.http_clients import LookupdClient, NsqdHTTPClient
from nsqcy.cluster.web_client import Terms
from nsqcy.errors import RequestError
from nsqcy.integrations.kombu.settings import Settings
from nsqcy.integrations.queue_names import nsq_name

TIMEOUT = 5.0  # seconds for a response
NOT_FOUND = 404
PAGE = 100  # messages per request; nsqd's limit
MAX_BODY = 512 << 10  # bytes of each body to look at; nsqd's limit


class Management:
    """Requests about topics, to every nsqd of a connection."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channel = nsq_name(settings.options.channel)
        secret = settings.producer.get("auth_secret") or ""
        self._terms = Terms(request_timeout=TIMEOUT, token=secret)

    def size(self, topics: list[str]) -> int:
        """Return the number of messages that wait in the topics; 0 if it is unknown.

        kombu asks for it with every declaration of a queue, so it does not search for addresses.
        """
        nsqds = [self._client(each) for each in self._settings.options.nsqd_http_addresses]
        with suppress(RequestError, ValueError):
            return sum(self._depth(nsqd, topic) for nsqd in nsqds for topic in topics)
        return 0

    def purge(self, topics: list[str]) -> int:
        """Drop the messages of topics; return how many there were. Raises ConnectionError."""
        size = 0
        for nsqd in self._nsqds():
            for topic in topics:
                with _to(nsqd):
                    size += self._depth(nsqd, topic)
                    nsqd.empty_topic(topic)
                    nsqd.empty_channel(topic, self._channel)
        return size

    def cancel(self, topics: list[str], task_id: str) -> int:
        """Drop the deferred messages of a task; return how many there were. Reads through all
        deferred messages of the topics. Raises ConnectionError."""
        cancelled = 0
        for nsqd in self._nsqds():
            for topic in topics:
                with _to(nsqd):
                    for message in self._deferred(nsqd, topic):
                        if _task_id(message) == task_id:
                            nsqd.cancel_message(topic, self._channel, message["id"])
                            cancelled += 1
        return cancelled

    def _deferred(self, nsqd: NsqdHTTPClient, topic: str) -> Iterator[dict[str, Any]]:
        start: str | None = None
        while True:
            page = nsqd.peek_channel(
                topic, self._channel, "deferred", count=PAGE, start=start, max_body=MAX_BODY
            )
            yield from page["messages"]
            if (start := page["next"]) is None:
                return

    def _depth(self, nsqd: NsqdHTTPClient, topic: str) -> int:
        """Return the number of messages in the queue's channel, and in the topic itself."""
        stats: Any = nsqd.stats(topic)
        depth = 0
        for each in stats["topics"] or ():
            depth += int(each["depth"])
            for channel in each["channels"] or ():
                if channel["channel_name"] == self._channel:
                    depth += int(channel["depth"]) + int(channel.get("deferred_count", 0))
        return depth

    def _nsqds(self) -> list[NsqdHTTPClient]:
        """Raises ConnectionError if an nsqlookupd does not respond."""
        addresses = dict.fromkeys(self._settings.options.nsqd_http_addresses)
        if not addresses:
            addresses = dict.fromkeys(_next_port(each) for each in self._settings.nsqds)
            for each in self._settings.lookupds:
                addresses |= dict.fromkeys(self._registered(each))
        return [self._client(each) for each in addresses]

    def _client(self, address: str) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(address, terms=self._terms)

    def _registered(self, address: str) -> list[str]:
        lookupd = LookupdClient.from_url(address, terms=self._terms)
        try:
            nodes = lookupd.nodes()["producers"]
            return [str(Address(each["broadcast_address"], each["http_port"])) for each in nodes]
        except (RequestError, KeyError, TypeError) as error:
            raise ConnectionError(f"{lookupd.address}: {error}") from None


def _next_port(tcp_address: str) -> str:
    address = Address.parse(tcp_address)
    return str(Address(address.host, address.port + 1))


def _task_id(message: dict[str, Any]) -> str | None:
    try:
        found = json.loads(b64decode(message["body"]))["properties"]["correlation_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return found if isinstance(found, str) else None


@contextmanager
def _to(nsqd: NsqdHTTPClient) -> Iterator[None]:
    """Turn an nsqd's errors into ConnectionError; a missing topic or channel is empty."""
    try:
        yield
    except RequestError as error:
        if error.status != NOT_FOUND:
            raise ConnectionError(f"{nsqd.address}: {error}") from None
