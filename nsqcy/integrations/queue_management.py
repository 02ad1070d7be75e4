"""Queue sizes, purging, and cancellation of deferred messages, over the HTTP ports of the nsqds.

Handles topics and one channel; frameworks choose the topics and recognize their messages.
"""

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from nsqcy.client.options import Address
from nsqcy.cluster.deferred import cancel_deferred
from nsqcy.cluster.discovery import nodes, trust_in
from nsqcy.cluster.http_clients import NsqdHTTPClient
from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.errors import RequestError

TIMEOUT = 5.0  # maximum seconds for a response
NOT_FOUND = 404
MAX_BODY = 512 << 10  # maximum bytes of each body to examine; nsqd's limit


@dataclass(frozen=True, slots=True)
class Counts:
    """Message counts of topics and their channel, over all nsqds."""

    waiting: int
    deferred: int
    in_flight: int
    published: int  # messages since the topics were created

    @property
    def queued(self) -> int:
        return self.waiting + self.deferred

    @property
    def unfinished(self) -> int:
        return self.queued + self.in_flight

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            self.waiting + other.waiting,
            self.deferred + other.deferred,
            self.in_flight + other.in_flight,
            self.published + other.published,
        )


NOTHING = Counts(0, 0, 0, 0)


class QueueManagement:
    """Requests about topics and a channel, to every nsqd that holds a part of them.

    http_addresses: the nsqds. If there are none, sizes are unknown; other requests go to the nsqds
    that nsqlookupds report, and to the port after each nsqd's TCP port, as in NSQ's defaults.
    token: a secret for nsqds that require authentication. trust_lookupd: as for the client.
    """

    def __init__(
        self,
        channel: str,
        nsqds: Iterable[str],
        lookupds: Iterable[str] = (),
        http_addresses: Iterable[str] = (),
        token: str | None = None,
        *,
        trust_lookupd: bool = False,
    ) -> None:
        self._channel = channel
        self._nsqds = list(nsqds)
        self._lookupds = list(lookupds)
        self._http_addresses = list(http_addresses)
        named = [*self._http_addresses, *map(_next_port, self._nsqds), *self._lookupds]
        trust = trust_in(lambda: named, all_listed=trust_lookupd)
        self._terms = Terms(request_timeout=TIMEOUT, token=token or "", trust=trust)

    def size(self, topics: Iterable[str]) -> int:
        """Return the number of messages waiting in the topics; 0 if unknown."""
        nsqds = [self._client(each) for each in self._http_addresses]
        with suppress(RequestError, ValueError):
            return sum(self._counts(nsqd, topic).queued for nsqd in nsqds for topic in topics)
        return 0

    def counts(self, topics: Iterable[str]) -> Counts:
        """Return the message counts of topics. Raises ConnectionError."""
        found = NOTHING
        for nsqd in self._all_nsqds():
            for topic in topics:
                with _to(nsqd):
                    found += self._counts(nsqd, topic)
        return found

    def purge(self, topics: Iterable[str]) -> int:
        """Drop the messages of topics; return their number. Raises ConnectionError."""
        size = 0
        for nsqd in self._all_nsqds():
            for topic in topics:
                with _to(nsqd):
                    size += self._counts(nsqd, topic).queued
                    nsqd.empty_topic(topic)
                    nsqd.empty_channel(topic, self._channel)
        return size

    def cancel(self, topics: Iterable[str], is_wanted: Callable[[bytes], bool]) -> int:
        """Drop the deferred messages whose bodies match; return their number. Reads
        all deferred messages of the topics. Raises ConnectionError."""
        cancelled = 0
        for nsqd in self._all_nsqds():
            for topic in topics:
                with _to(nsqd):
                    # Before the first worker has run, the messages are in the topic itself.
                    nsqd.create_channel(topic, self._channel)
                    cancelled += cancel_deferred(
                        nsqd,
                        topic,
                        self._channel,
                        lambda message: is_wanted(b64decode(message["body"])),
                        max_body=MAX_BODY,
                    )
        return cancelled

    def _counts(self, nsqd: NsqdHTTPClient, topic: str) -> Counts:
        """Return the message counts of the topic itself and of the channel."""
        stats: Any = nsqd.stats(topic)
        found = NOTHING
        for each in stats.get("topics") or ():
            found += Counts(each["depth"], 0, 0, each["message_count"])
            for channel in each.get("channels") or ():
                if channel["channel_name"] == self._channel:
                    deferred, in_flight = (
                        channel.get(f"{name}_count", 0) for name in ("deferred", "in_flight")
                    )
                    found += Counts(channel["depth"], deferred, in_flight, 0)
        return found

    def _all_nsqds(self) -> list[NsqdHTTPClient]:
        """Raises ConnectionError if an nsqlookupd does not respond."""
        addresses = dict.fromkeys(self._http_addresses)
        if not addresses:
            addresses = dict.fromkeys(_next_port(each) for each in self._nsqds)
            for each in self._lookupds:
                addresses |= dict.fromkeys(self._registered(each))
        return [self._client(each) for each in addresses]

    def _client(self, address: str) -> NsqdHTTPClient:
        return NsqdHTTPClient.from_url(address, terms=self._terms)

    def _registered(self, address: str) -> list[str]:
        found = nodes([address], web=WebClient(self._terms))
        for error in found.errors.values():
            raise ConnectionError(f"{address}: {error}")
        return [each.http_address for each in found.producers if each.http_port]


def _next_port(tcp_address: str) -> str:
    address = Address.parse(tcp_address)
    return str(Address(address.host, address.port + 1))


@contextmanager
def _to(nsqd: NsqdHTTPClient) -> Iterator[None]:
    """Convert an nsqd's errors to ConnectionError; a missing topic or channel is empty."""
    try:
        yield
    except RequestError as error:
        if error.status != NOT_FOUND:
            raise ConnectionError(f"{nsqd.address}: {error}") from None
