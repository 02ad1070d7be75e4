"""Registry of topics, channels and producers: nsqlookupd's entire state.

Methods that may take long return iterators: the caller decides when to continue, and the registry
may change in between. Owns the rules for registrations, tombstones and liveness. Reads no clock and
does no I/O: callers pass the time. Entries never expire from memory: inactive or tombstoned
producers are only hidden. Also remembers, for a while, peers that left with topics.

    registration           producers
    client::               every peer that has identified itself
    topic:T:               peers that have topic T, each with its own tombstone or none
    channel:T:C            peers that have channel C of topic T

A registration may have no producers: it was created over HTTP, or the producers have left.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nsqcy.names import is_ephemeral

CLIENT, TOPIC, CHANNEL = "client", "topic", "channel"

REMEMBERED = 3_600_000_000_000
"""Nanoseconds for which a peer that left is remembered."""
MAX_REMEMBERED = 1000

PART = 16  # registrations visited at once


class Moment(NamedTuple):
    """A point in time on both clocks, in nanoseconds. Rules use the monotonic clock; the wall clock
    is for display."""

    steady: int
    wall: int


class Registration(NamedTuple):
    category: str
    key: str = ""
    subkey: str = ""

    def __str__(self) -> str:
        return f"category:{self.category} key:{self.key} subkey:{self.subkey}"


class Peer:
    """An nsqd connection, with the nsqd's IDENTIFY data."""

    __slots__ = (
        "as_producer",
        "authenticated",
        "broadcast_address",
        "connected",
        "hostname",
        "http_port",
        "registrations",
        "remote_address",
        "seen",
        "tcp_port",
        "topology_region",
        "topology_zone",
        "version",
    )

    def __init__(
        self,
        remote_address: str,
        seen: Moment,
        *,
        hostname: str = "",
        broadcast_address: str = "",
        tcp_port: int = 0,
        http_port: int = 0,
        version: str = "",
        topology_zone: str = "",
        topology_region: str = "",
    ) -> None:
        self.remote_address = remote_address  # identifies the peer
        self.connected = self.seen = seen
        self.hostname = hostname
        self.broadcast_address = broadcast_address
        self.tcp_port = tcp_port
        self.http_port = http_port
        self.version = version
        self.topology_zone = topology_zone
        self.topology_region = topology_region
        self.authenticated = False
        self.as_producer: bytes | None = None  # its JSON in lookups; None: not encoded yet
        self.registrations: dict[Registration, Producer] = {}

    def authenticate(self) -> None:
        self.authenticated = True
        self.as_producer = None

    @property
    def node(self) -> str:
        """The peer's name in tombstone requests."""
        return f"{self.broadcast_address}:{self.http_port}"

    @property
    def tcp_address(self) -> str:
        return f"{self.broadcast_address}:{self.tcp_port}"


class Producer:
    """A peer's entry in one registration."""

    __slots__ = ("peer", "tombstoned")

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.tombstoned: Moment | None = None


Producers = dict[Peer, Producer]


class Node(NamedTuple):
    """An active peer, with its topics in parts, and for each topic whether a tombstone hides the
    peer. A part may be empty."""

    peer: Peer
    topics: Iterator[list[tuple[str, bool]]]


class Lost(NamedTuple):
    """A peer that had topics when it left, or that is inactive, and the time when it was last known
    to be alive."""

    peer: Peer
    since: Moment


class Counts(NamedTuple):
    """Counts: active nodes, their topics (producers), how many of these are tombstoned, and all
    topics and channels."""

    nodes: int
    topics: int
    channels: int
    producers: int
    tombstones: int


class Registry:
    """The registry. `inactive_after` and `tombstone_lifetime` are in nanoseconds."""

    def __init__(self, inactive_after: int, tombstone_lifetime: int) -> None:
        self._inactive_after = inactive_after
        self._tombstone_lifetime = tombstone_lifetime
        self._clients: Producers = {}
        self._topics: dict[str, Producers] = {}
        self._vacant: dict[str, None] = {}  # topics without producers
        self._channels: dict[str, dict[str, Producers]] = {}  # topic -> channel -> producers
        self._channel_count = 0
        self._left: dict[str, Lost] = {}  # by host and TCP port, in the order in which they left

    # Commands of peers. They return the registrations that actually changed.

    def identify(self, peer: Peer) -> list[Registration]:
        return self._add(peer, self._clients, Registration(CLIENT))

    def ping(self, peer: Peer, now: Moment) -> int:
        """Update the time of the last ping. Return the nanoseconds since the previous one."""
        passed = now.steady - peer.seen.steady
        peer.seen = now
        return passed

    def register(self, peer: Peer, topic: str, channel: str = "") -> list[Registration]:
        """Register a peer. Keeps an existing tombstone, which only `unregister` removes."""
        added = []
        if channel:
            producers = self._made(topic, channel)
            added = self._add(peer, producers, Registration(CHANNEL, topic, channel))
        producers = self._topics.setdefault(topic, {})
        self._vacant.pop(topic, None)
        self._left.pop(peer.tcp_address, None)
        return added + self._add(peer, producers, Registration(TOPIC, topic))

    def unregister(self, peer: Peer, topic: str, channel: str = "") -> Iterator[list[Registration]]:
        """Unregister a peer from a channel, or from the topic and all its channels."""
        if channel:
            yield self._remove(peer, Registration(CHANNEL, topic, channel))
            if is_ephemeral(channel) and not self._channels.get(topic, {}).get(channel):
                self.delete_channel(topic, channel)
            return
        for other in list(self._channels.get(topic, ())):
            yield self._remove(peer, Registration(CHANNEL, topic, other))
        yield self._remove(peer, Registration(TOPIC, topic))
        if is_ephemeral(topic) and not self._topics.get(topic):
            self._topics.pop(topic, None)
            self._vacant.pop(topic, None)

    def leave(self, peer: Peer, now: Moment) -> Iterator[list[Registration]]:
        """Remove a peer after its connection has ended. Its topics and channels remain known,
        including ephemeral ones."""
        has_topics = any(
            each.category == TOPIC and not is_ephemeral(each.key) for each in peer.registrations
        )
        if has_topics:  # a drained nsqd has none
            self._left.pop(peer.tcp_address, None)
            self._left[peer.tcp_address] = Lost(peer, now)
            if len(self._left) > MAX_REMEMBERED:
                del self._left[next(iter(self._left))]
        for registration in list(peer.registrations):
            yield self._remove(peer, registration)

    # Commands over HTTP

    def create_topic(self, topic: str) -> None:
        if not self._topics.setdefault(topic, {}):
            self._vacant[topic] = None

    def create_channel(self, topic: str, channel: str) -> None:
        self._made(topic, channel)
        self.create_topic(topic)

    def delete_topic(self, topic: str) -> Iterator[Registration]:
        """Delete a topic and yield the removed registrations. Active producers are not notified;
        they reappear when they register again."""
        for channel in list(self._channels.get(topic, ())):
            if self.delete_channel(topic, channel):
                yield Registration(CHANNEL, topic, channel)
        producers = self._topics.pop(topic, None)
        self._vacant.pop(topic, None)
        if producers is not None:
            registration = Registration(TOPIC, topic)
            _forget(producers, registration)
            yield registration

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Delete a channel; return whether it existed."""
        channels = self._channels.get(topic, {})
        producers = channels.pop(channel, None)
        if producers is None:
            return False
        self._channel_count -= 1
        if not channels:
            del self._channels[topic]
        _forget(producers, Registration(CHANNEL, topic, channel))
        return True

    def tombstone(self, topic: str, node: str, now: Moment) -> int:
        """Hide a node from lookups of a topic; return the number of producers hidden."""
        hidden = [each for each in self._topics.get(topic, {}).values() if each.peer.node == node]
        for producer in hidden:
            producer.tombstoned = now
        return len(hidden)

    # Queries

    def topics(self) -> list[str]:
        """Return all topics, unsorted."""
        return list(self._topics)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic, unsorted, including those without producers."""
        return list(self._channels.get(topic, ()))

    def lookup(self, topic: str, now: Moment) -> Iterator[Peer] | None:
        """Return the active producers of a topic without a tombstone; None if the topic is
        unknown."""
        producers = self._topics.get(topic)
        if producers is None:
            return None
        return (
            each.peer
            for each in list(producers.values())
            if self._is_alive(each.peer, now) and not self._is_hidden(each, now)
        )

    def nodes(self, now: Moment) -> Iterator[Node]:
        """Yield each active peer with an iterator over its topics."""
        for peer in list(self._clients):
            if self._is_alive(peer, now):
                yield Node(peer, self._topics_of(peer, now))

    def lost(self, now: Moment) -> Iterator[Lost]:
        """Yield the inactive peers, and those that have left and have not returned.

        A peer has returned if a peer with its address is active, or if a peer with its host name
        and TCP port has connected since it left. A peer that was already connected then is another
        machine with the same host name.
        """
        addresses: set[str] = set()
        connected: dict[tuple[str, int], int] = {}
        for peer in list(self._clients):
            if self._is_alive(peer, now):
                addresses.add(peer.tcp_address)
                host = peer.hostname, peer.tcp_port
                connected[host] = max(connected.get(host, 0), peer.connected.steady)
            else:
                yield Lost(peer, peer.seen)
        for each in list(self._left.values()):
            peer = each.peer
            is_moved = peer.seen.steady <= connected.get((peer.hostname, peer.tcp_port), -1)
            has_returned = is_moved or peer.tcp_address in addresses
            if now.steady - each.since.steady <= REMEMBERED and not has_returned:
                yield each

    def _topics_of(self, peer: Peer, now: Moment) -> Iterator[list[tuple[str, bool]]]:
        registrations = list(peer.registrations)
        for begin in range(0, len(registrations), PART):
            yield [
                (each.key, self._is_hidden(producer, now))
                for each in registrations[begin : begin + PART]
                if each.category == TOPIC and (producer := peer.registrations.get(each)) is not None
            ]

    def abandoned(self, now: Moment) -> Iterator[list[str]]:
        """Yield, in parts, each topic that no active peer has. Peers with a tombstone count."""
        yield list(self._vacant)
        seen: set[str] = set()
        for peer in list(self._clients):
            if self._is_alive(peer, now):
                continue
            for topics in self._topics_of(peer, now):
                new = [topic for topic, _ in topics if topic not in seen]
                seen.update(new)
                yield [
                    topic
                    for topic in new
                    if not any(self._is_alive(each, now) for each in self._topics.get(topic, ()))
                ]

    def counts(self, now: Moment) -> Iterator[Counts]:
        """Count step by step; the last result is complete."""
        nodes = producers = tombstones = 0
        for node in self.nodes(now):
            nodes += 1
            for topics in node.topics:
                producers += len(topics)
                tombstones += sum(is_hidden for _, is_hidden in topics)
                yield Counts(nodes, 0, 0, producers, tombstones)
        yield Counts(nodes, len(self._topics), self._channel_count, producers, tombstones)

    def registrations(self) -> Iterator[Registration]:
        """Yield every registration, with or without producers."""
        yield Registration(CLIENT)
        for topic in list(self._topics):
            yield Registration(TOPIC, topic)
        for topic in list(self._channels):
            for channel in list(self._channels.get(topic, ())):
                yield Registration(CHANNEL, topic, channel)

    def producers(self, registration: Registration) -> list[Producer]:
        """Return the producers of a registration; none if it no longer exists."""
        return list(self._producers(registration).values())

    def _is_alive(self, peer: Peer, now: Moment) -> bool:
        return now.steady - peer.seen.steady <= self._inactive_after

    def _is_hidden(self, producer: Producer, now: Moment) -> bool:
        set_at = producer.tombstoned
        return set_at is not None and now.steady - set_at.steady < self._tombstone_lifetime

    # Keep the tables and the peers' own lists consistent

    def _made(self, topic: str, channel: str) -> Producers:
        channels = self._channels.setdefault(topic, {})
        self._channel_count += channel not in channels
        return channels.setdefault(channel, {})

    def _producers(self, registration: Registration) -> Producers:
        category, topic, channel = registration
        if category == CLIENT:
            return self._clients
        if category == TOPIC:
            return self._topics.get(topic, {})
        return self._channels.get(topic, {}).get(channel, {})

    def _add(
        self, peer: Peer, producers: Producers, registration: Registration
    ) -> list[Registration]:
        if peer in producers:
            return []
        producers[peer] = peer.registrations[registration] = Producer(peer)
        return [registration]

    def _remove(self, peer: Peer, registration: Registration) -> list[Registration]:
        if peer.registrations.pop(registration, None) is None:
            return []
        producers = self._producers(registration)
        del producers[peer]
        if not producers and registration.category == TOPIC:
            self._vacant[registration.key] = None
        return [registration]


def _forget(producers: Producers, registration: Registration) -> None:
    for peer in producers:
        del peer.registrations[registration]
