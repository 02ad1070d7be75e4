"""The registry of nsqlookupd, compared with a model too simple to be wrong, and with many
producers."""

from dataclasses import dataclass, field
from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nsqcy.nsqlookupd.registry import CLIENT, MAX_REMEMBERED, Moment, Peer, Registration, Registry
from support.runs import runs
from support.sanitizer import within

INACTIVE, LIFETIME = 100, 30
TOPICS = ["t", "u", "e#ephemeral"]
CHANNELS = ["c", "d", "e#ephemeral"]

topics = st.sampled_from(TOPICS)
channels = st.sampled_from(CHANNELS)
maybe_channels = st.sampled_from(["", *CHANNELS])
numbers = st.integers(0, 3)

Key = tuple[str, str, str]


@dataclass
class Model:
    """A flat map that is searched completely: registration -> peer -> time of its tombstone."""

    entries: dict[Key, dict[int, int | None]] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)

    def add(self, key: Key, peer: int) -> None:
        self.entries.setdefault(key, {}).setdefault(peer, None)

    def remove(self, key: Key, peer: int) -> None:
        self.entries.get(key, {}).pop(peer, None)

    def drop_if_ephemeral(self, key: Key) -> None:
        if (key[2] or key[1]).endswith("#ephemeral") and not self.entries.get(key):
            self.entries.pop(key, None)

    def alive(self, peer: int, now: int) -> bool:
        return now - self.seen[peer] <= INACTIVE

    def hidden(self, topic: str, peer: int, now: int) -> bool:
        at = self.entries[("topic", topic, "")][peer]
        return at is not None and now - at < LIFETIME


class Machine(RuleBasedStateMachine):
    """Four nsqds that connect and disconnect, two of them at the same address, and an operator."""

    @initialize()
    def start(self) -> None:
        self.registry = Registry(INACTIVE, LIFETIME)
        self.model = Model()
        self.peers: dict[int, Peer] = {}
        self.now = 1000

    @property
    def moment(self) -> Moment:
        return Moment(self.now, self.now + 5)

    @staticmethod
    def node(number: int) -> str:
        return f"host{number // 2}:1"

    def get(self, number: int) -> Peer:
        if number not in self.peers:
            address = f"host{number // 2}"
            peer = Peer(str(number), self.moment, broadcast_address=address, http_port=1)
            assert self.registry.identify(peer) == [Registration(CLIENT)]
            self.peers[number] = peer
            self.model.seen[number] = self.now
            self.model.add(("client", "", ""), number)
        return self.peers[number]

    @rule(passed=st.integers(0, 120))
    def wait(self, passed: int) -> None:
        self.now += passed

    @rule(number=numbers)
    def ping(self, number: int) -> None:
        peer = self.get(number)
        assert self.registry.ping(peer, self.moment) == self.now - self.model.seen[number]
        self.model.seen[number] = self.now

    @rule(number=numbers, topic=topics, channel=maybe_channels)
    def register(self, number: int, topic: str, channel: str) -> None:
        peer = self.get(number)
        before = set(peer.registrations)
        added = self.registry.register(peer, topic, channel)
        if channel:
            self.model.add(("channel", topic, channel), number)
        self.model.add(("topic", topic, ""), number)
        assert set(added) == set(peer.registrations) - before

    @rule(number=numbers, topic=topics, channel=maybe_channels)
    def unregister(self, number: int, topic: str, channel: str) -> None:
        peer = self.get(number)
        before = set(peer.registrations)
        removed = chain.from_iterable(self.registry.unregister(peer, topic, channel))
        key = ("channel", topic, channel) if channel else ("topic", topic, "")
        self.model.remove(key, number)
        if not channel:
            for each in CHANNELS:
                self.model.remove(("channel", topic, each), number)
        self.model.drop_if_ephemeral(key)
        assert set(removed) == before - set(peer.registrations)

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        peer = self.get(number)
        before = set(peer.registrations)
        left = chain.from_iterable(
            self.registry.leave(self.peers.pop(number), Moment(self.now, self.now))
        )
        assert set(left) == before
        for peers in self.model.entries.values():
            peers.pop(number, None)

    @rule(topic=topics)
    def create_topic(self, topic: str) -> None:
        self.registry.create_topic(topic)
        self.model.entries.setdefault(("topic", topic, ""), {})

    @rule(topic=topics, channel=channels)
    def create_channel(self, topic: str, channel: str) -> None:
        self.registry.create_channel(topic, channel)
        self.model.entries.setdefault(("topic", topic, ""), {})
        self.model.entries.setdefault(("channel", topic, channel), {})

    @rule(topic=st.sampled_from([*TOPICS, "*", ""]))
    def delete_topic(self, topic: str) -> None:
        keys = [key for key in self.model.entries if key[0] != "client" and key[1] == topic]
        assert set(self.registry.delete_topic(topic)) == {Registration(*key) for key in keys}
        for key in keys:
            del self.model.entries[key]

    @rule(topic=topics, channel=channels)
    def delete_channel(self, topic: str, channel: str) -> None:
        there = self.model.entries.pop(("channel", topic, channel), None) is not None
        assert self.registry.delete_channel(topic, channel) == there

    @rule(topic=topics, number=numbers)
    def tombstone(self, topic: str, number: int) -> None:
        node = self.node(number)
        peers = self.model.entries.get(("topic", topic, ""), {})
        hit = [each for each in peers if self.node(each) == node]
        assert self.registry.tombstone(topic, node, self.moment) == len(hit)
        for each in hit:
            peers[each] = self.now

    @invariant()
    def they_agree(self) -> None:
        everything = {
            tuple(registration): {
                int(each.peer.remote_address): each.tombstoned and each.tombstoned.steady
                for each in self.registry.producers(registration)
            }
            for registration in self.registry.registrations()
        }
        assert everything == {("client", "", ""): {}} | self.model.entries
        for number, peer in self.peers.items():
            owned = {key for key, peers in self.model.entries.items() if number in peers}
            assert {tuple(each) for each in peer.registrations} == owned

    @invariant()
    def what_is_shown(self) -> None:
        model, now = self.model, self.now
        known = [key[1] for key in model.entries if key[0] == "topic"]
        assert sorted(self.registry.topics()) == sorted(known)
        *_, counts = self.registry.counts(self.moment)
        assert counts.topics == len(known)
        assert counts.channels == sum(key[0] == "channel" for key in model.entries)
        for topic in TOPICS:
            mine = [key[2] for key in model.entries if key[:2] == ("channel", topic)]
            assert sorted(self.registry.channels(topic)) == sorted(mine)
            found = self.registry.lookup(topic, self.moment)
            peers = model.entries.get(("topic", topic, ""))
            assert (found is None) == (peers is None)
            assert {int(peer.remote_address) for peer in found or ()} == {
                each
                for each in peers or ()
                if model.alive(each, now) and not model.hidden(topic, each, now)
            }
        assert sorted(chain.from_iterable(self.registry.abandoned(self.moment))) == sorted(
            topic
            for topic in known
            if not any(model.alive(each, now) for each in model.entries["topic", topic, ""])
        )
        assert {
            int(peer.remote_address): dict(chain.from_iterable(topics))
            for peer, topics in self.registry.nodes(self.moment)
        } == {
            number: {
                key[1]: model.hidden(key[1], number, now)
                for key, peers in model.entries.items()
                if key[0] == "topic" and number in peers
            }
            for number in self.peers
            if model.alive(number, now)
        }


Machine.TestCase.settings = settings(max_examples=runs(40), stateful_step_count=40, deadline=None)
TestRegistry = Machine.TestCase


def test_the_edges_of_time() -> None:
    registry = Registry(INACTIVE, LIFETIME)
    peer = Peer("1", Moment(0, 0), broadcast_address="h", http_port=1)
    registry.identify(peer)
    registry.register(peer, "t")

    def shown(at: int) -> bool:
        found = registry.lookup("t", Moment(at, 0))
        assert found is not None
        return bool(list(found))

    assert shown(INACTIVE) and not shown(INACTIVE + 1)
    assert list(registry.nodes(Moment(INACTIVE, 0)))
    assert not list(registry.nodes(Moment(INACTIVE + 1, 0)))
    registry.tombstone("t", "h:1", Moment(10, 0))
    assert shown(10 + LIFETIME) and not shown(10 + LIFETIME - 1)


def test_negative_times_hide_everything_and_nothing() -> None:
    """NSQ accepts negative values: all producers are silent, and no tombstone hides one."""
    registry = Registry(-1, -1)
    peer = Peer("1", Moment(0, 0), broadcast_address="h", http_port=1)
    registry.identify(peer)
    registry.register(peer, "t")
    assert list(registry.lookup("t", Moment(0, 0)) or ("none",)) == []
    registry = Registry(INACTIVE, -1)
    registry.register(peer, "u")
    registry.tombstone("u", "h:1", Moment(0, 0))
    assert list(registry.lookup("u", Moment(0, 0)) or ()) == [peer]


# Takes some tenths of a second; scanning everything for each producer would take hours.
@pytest.mark.slow
@pytest.mark.timeout(within(20))
def test_a_thousand_producers_of_a_hundred_topics() -> None:
    registry = Registry(INACTIVE, LIFETIME)
    now = Moment(0, 0)
    peers = [Peer(str(n), now, broadcast_address=f"h{n}", http_port=1) for n in range(1000)]
    for peer in peers:
        registry.identify(peer)
        for topic in range(100):
            registry.register(peer, f"t{topic}", "c")
    for topic in range(100):
        assert len(list(registry.lookup(f"t{topic}", now) or ())) == 1000
    assert sum(len([*chain.from_iterable(topics)]) for _, topics in registry.nodes(now)) == 100_000
    assert sum(len(registry.producers(each)) for each in registry.registrations()) == 201_000
    for peer in peers:
        assert len(list(registry.leave(peer, now))) == 201
    assert len(registry.topics()) == 100
    assert not any(registry.producers(each) for each in registry.registrations())


def at(seconds: float) -> Moment:
    return Moment(int(seconds * 1e9), int(seconds * 1e9))


def names(registry: Registry, seconds: float) -> list[str]:
    return [each.peer.tcp_address for each in registry.lost(at(seconds))]


def a_peer(port: int = 1, host: str = "a", hostname: str = "", seen: float = 0) -> Peer:
    return Peer("x", at(seen), broadcast_address=host, hostname=hostname, tcp_port=port)


def test_peers_that_left_are_remembered_until_they_return() -> None:
    registry = Registry(at(9e9).steady, 1)
    peer = a_peer()
    registry.identify(peer)
    registry.register(peer, "t")
    assert names(registry, 1) == []
    list(registry.leave(peer, at(2)))
    assert names(registry, 3) == names(registry, 2 + 3600) == ["a:1"]
    assert [each.since for each in registry.lost(at(3))] == [at(2)]
    assert names(registry, 3 + 3600) == []

    again = a_peer()  # nsqd crashes again before it has registered its topics
    registry.identify(again)
    assert names(registry, 3) == []
    list(registry.leave(again, at(4)))
    assert names(registry, 5) == ["a:1"]
    registry.identify(a_peer(host="b", hostname="h"))
    assert names(registry, 5) == ["a:1"]

    third = a_peer()
    registry.identify(third)
    registry.register(third, "t")
    list(registry.unregister(third, "t"))  # it is drained
    list(registry.leave(third, at(6)))
    assert names(registry, 6) == []


def test_a_peer_may_return_with_another_address() -> None:
    registry = Registry(at(9e9).steady, 1)
    old = a_peer(host="10.0.0.1", hostname="nsqd-0")
    registry.identify(old)
    registry.register(old, "t")
    list(registry.leave(old, at(1)))
    registry.identify(a_peer(2, host="10.0.0.2", hostname="nsqd-0"))
    assert names(registry, 1) == ["10.0.0.1:1"]
    registry.identify(a_peer(host="10.0.0.2", hostname="nsqd-0"))
    assert names(registry, 1) == []


def test_a_machine_with_the_same_host_name_does_not_hide_a_lost_one() -> None:
    registry = Registry(at(9e9).steady, 1)
    registry.identify(a_peer(host="10.0.0.2", hostname="clone"))
    lost = a_peer(host="10.0.0.1", hostname="clone", seen=1)
    registry.identify(lost)
    registry.register(lost, "t")
    registry.ping(lost, at(2))
    list(registry.leave(lost, at(3)))
    assert names(registry, 4) == ["10.0.0.1:1"]


def test_peers_without_topics_and_inactive_ones() -> None:
    registry = Registry(at(10).steady, 1)
    for port, topic in enumerate(("", "t#ephemeral")):
        peer = a_peer(port)
        registry.identify(peer)
        if topic:
            registry.register(peer, topic)
        list(registry.leave(peer, at(1)))
    registry.identify(a_peer(7))
    assert names(registry, 1) == [] and names(registry, 20) == ["a:7"]


def test_the_number_of_remembered_peers_is_limited() -> None:
    registry = Registry(1, 1)
    for port in range(MAX_REMEMBERED + 5):
        peer = a_peer(port)
        registry.register(peer, "t")
        list(registry.leave(peer, at(1)))
    assert len(names(registry, 1)) == MAX_REMEMBERED
    assert names(registry, 1)[0] == "a:5"
