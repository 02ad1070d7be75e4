"""The lookup side of nsqd, in this process, with scripted lookupds: names, timing, and overload."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import pytest

from nsqcy.nsqd.known_topics import KnownTopics
from nsqcy.nsqd.lookup import registration as module
from nsqcy.nsqd.lookup.protocol import REGISTER, UNREGISTER, Command
from nsqcy.nsqd.lookup.registration import Lookup
from support.fake_nsqlookupd import HANG_UP, OK, RAW, SILENCE, FakeLookupd
from support.gevent_hub import Lines, wait_until
from support.nsqd_process import free_port

IDENTITY = {"broadcast_address": "b", "tcp_port": 1, "http_port": 2, "version": "1.3.0"}


class Debugged(Lines):
    def debug(self, text: str, /, **fields: object) -> None:
        self.all.append(text)


@pytest.fixture
def lookupd() -> Iterator[Callable[..., FakeLookupd]]:
    made: list[FakeLookupd] = []

    def make(port: int = 0, host: str = "127.0.0.1") -> FakeLookupd:
        made.append(FakeLookupd(port, host))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def make() -> Iterator[Callable[..., Lookup]]:
    made: list[Lookup] = []

    def make(*addresses: str, known_topics: KnownTopics | None = None, **other: Any) -> Lookup:
        lookup = Lookup(known_topics or KnownTopics(), IDENTITY, 1000, Debugged(), **other)
        made.append(lookup)
        lookup.set_addresses(addresses)
        return lookup

    yield make
    for each in made:
        each.close()
    gevent.sleep(0)


def said(lookup: Lookup, text: str) -> int:
    return sum(text in line for line in lookup.log.all)


# -- time


@pytest.mark.case("LKP-07")
def test_a_ping_every_fifteen_seconds(make, lookupd, monkeypatch):
    assert module.PING_EVERY == 15.0
    monkeypatch.setattr(module, "PING_EVERY", 0.05)
    one = lookupd()
    lookup = make(one.address)
    wait_until(lambda: one.links and one.link.commands == ["PING", "PING", "PING"])
    assert said(lookup, "sending heartbeat") >= 3
    assert len(one.links) == 1


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """Record the pauses between attempts, without waiting."""
    found: list[float] = []
    sleep = gevent.sleep

    def pause(seconds: float) -> None:
        found.append(seconds)
        sleep(0.001)

    monkeypatch.setattr(module, "sleep", pause)
    monkeypatch.setattr(module.random, "uniform", lambda low, high: 1.0)
    return found


def test_attempts_are_further_and_further_apart(make, pauses):
    lookup = make(f"127.0.0.1:{free_port()}")
    wait_until(lambda: len(pauses) >= 10)
    assert pauses[:10] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15.0, 15.0]
    assert said(lookup, "connecting - connection refused") >= 10


def test_so_they_are_when_a_lookupd_hangs_up_soon(make, lookupd, pauses):
    one = lookupd()
    one.answers = lambda command: HANG_UP if command.startswith("REGISTER") else OK
    known_topics = KnownTopics()
    known_topics.create_topic("t")
    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: len(pauses) >= 4)
    assert pauses[:4] == [0.1, 0.2, 0.4, 0.8]
    assert said(lookup, "registering all topics and channels - ") >= 4


def test_a_connection_that_lasted_is_made_again_at_once(make, lookupd, pauses, monkeypatch):
    one = lookupd()
    one.answers = lambda command: HANG_UP if len(one.links) < 4 else OK
    make(one.address)
    wait_until(lambda: len(one.links) == 4 and one.link.identity)
    monkeypatch.setattr(module, "MAX_RETRY", 0.0)
    one.link.close()
    wait_until(lambda: len(pauses) == 4)
    assert pauses == [0.1, 0.2, 0.4, 0.1]


def test_an_answer_that_trickles_in_is_too_late(make, lookupd, monkeypatch):
    monkeypatch.setattr(module, "STEP_LIMIT", 0.1)
    slow, one = lookupd(), lookupd()
    gate = threading.Event()

    def trickle(command: str) -> bytes:
        slow.link.sock.sendall(b"\0\0\0\x7f")
        while not gate.wait(0.03):
            slow.link.sock.sendall(b"x")
        return SILENCE

    slow.answers = trickle
    lookup = make(slow.address, one.address)
    wait_until(lambda: said(lookup, "IDENTIFY - i/o timeout"))
    gate.set()
    wait_until(lambda: one.links and one.link.identity)


# -- overload


def test_a_lookupd_that_is_too_far_behind_is_told_all_anew(make, lookupd, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING", 5)
    one = lookupd()
    known_topics = KnownTopics()
    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: lookup.peers[0].info)
    gevent.sleep(0)
    for number in range(20):
        known_topics.create_topic(f"t{number}")
        lookup.change(Command(REGISTER, f"t{number}"))
    wait_until(lambda: len(one.links) == 2 and len(one.told()) == 20)
    assert said(lookup, "too far behind") == 1


def test_nothing_is_kept_for_one_that_is_away(make, monkeypatch):
    lookup = make(f"127.0.0.1:{free_port()}")
    wait_until(lambda: said(lookup, "refused"))
    for number in range(100):
        lookup.change(Command(REGISTER, f"t{number}"))
    assert not lookup.peers[0]._pending


def test_many_topics_at_once(make, lookupd):
    one = lookupd()
    known_topics = KnownTopics()
    for number in range(700):
        known_topics.create_channel(f"t{number}", "c")
    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: len(one.told()) == 700)
    lookup.change(Command(UNREGISTER, "t5", "c"))
    wait_until(lambda: one.told()[700:] == ["UNREGISTER t5 c"])
    assert set(one.told()[:700]) == {f"REGISTER t{number} c" for number in range(700)}


def test_topics_are_registered_before_the_last_ones_are_answered(make, lookupd):
    """A round trip for each batch would take most of the time with very many topics."""
    one = lookupd()
    known_topics = KnownTopics()
    count = 10 * module.BATCH
    for number in range(count):
        known_topics.create_channel(f"t{number}", "c")
    held: list[str] = []
    one.answers = lambda command: hold(command)

    def hold(command: str) -> bytes:
        """Answer nothing until the nsqd sends no more, then everything."""
        if not command.startswith("REGISTER"):
            return OK
        held.append(command)
        if len(held) < module.WINDOW:
            return SILENCE
        one.answers = None
        return RAW + b"\0\0\0\2OK" * module.WINDOW

    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: len(one.told()) == count and lookup.peers[0].caught_up.is_set())
    assert len(held) == module.WINDOW
    assert one.told() == [f"REGISTER t{number} c" for number in range(count)]
    assert len(one.links) == 1


def test_pings_between_the_registrations_of_many_topics(make, lookupd, monkeypatch):
    monkeypatch.setattr(module, "PING_EVERY", 0.0)
    one = lookupd()
    known_topics = KnownTopics()
    for number in range(module.WINDOW):
        known_topics.create_topic(f"t{number}")
    make(one.address, known_topics=known_topics)
    wait_until(lambda: one.links and one.link.commands.count("PING") > 3)
    monkeypatch.setattr(module, "PING_EVERY", 15.0)
    wait_until(lambda: len(one.told()) == module.WINDOW)
    assert len(one.links) == 1


def test_a_topic_that_is_refused_among_many(make, lookupd):
    one = lookupd()
    known_topics = KnownTopics()
    for number in range(2 * module.WINDOW):
        known_topics.create_topic(f"t{number}")
    one.answers = lambda command: b"E_BAD_TOPIC no" if command == "REGISTER t300" else OK
    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: said(lookup, "registering all topics and channels - E_BAD_TOPIC no"))
    one.answers = None
    wait_until(lambda: len(one.links) > 1 and len(one.told()) == 2 * module.WINDOW)


@pytest.mark.parametrize("fate", ["answers", "hangs up", "is silent", "is away"])
def test_changes_are_awaited_until_every_lookupd_has_answered(make, lookupd, monkeypatch, fate):
    """A lookupd that does not answer, or is down, delays no caller for long."""
    gate = threading.Event()
    one, other = lookupd(), lookupd()

    def answer(command: str) -> bytes | None:
        if not command.startswith("REGISTER"):
            return OK
        gate.wait(30)
        return {"hangs up": HANG_UP, "is silent": SILENCE}.get(fate, OK)

    other.answers = answer
    lookup = make(one.address, f"127.0.0.1:{free_port()}" if fate == "is away" else other.address)
    wait_until(lambda: all(peer.settled.is_set() for peer in lookup.peers) and lookup.peers[0].info)
    lookup.await_answers()
    assert not one.told() and not other.told()
    if fate == "is silent":
        monkeypatch.setattr(module, "STEP_LIMIT", 0.05)
    for name in "ab":
        lookup.change(Command(REGISTER, name))
    waiting = gevent.spawn(lookup.await_answers)
    wait_until(lambda: one.told() == ["REGISTER a", "REGISTER b"])
    if fate in ("answers", "hangs up"):
        wait_until(other.told)
        assert not waiting.ready()
    gate.set()
    wait_until(waiting.ready)
    if fate == "answers":
        assert other.told() == ["REGISTER a", "REGISTER b"]


def test_a_command_that_is_refused(make, lookupd):
    one = lookupd()
    one.answers = lambda command: (
        b"E_BAD_TOPIC no" if len(one.links) == 1 and " t" in command else OK
    )
    known_topics = KnownTopics()
    lookup = make(one.address, known_topics=known_topics)
    wait_until(lambda: lookup.peers[0].info)
    known_topics.create_topic("t")
    lookup.change(Command(REGISTER, "t"))
    wait_until(lambda: len(one.links) == 2 and one.told() == ["REGISTER t"])
    assert said(lookup, "REGISTER t - E_BAD_TOPIC no") <= 1


def test_an_answer_to_nothing_is_the_end(make, lookupd):
    one = lookupd()
    lookup = make(one.address)
    wait_until(lambda: lookup.peers[0].info and one.links)
    one.link.sock.sendall(b"\0\0\0\2OK")
    wait_until(lambda: len(one.links) == 2)
    assert said(lookup, "unsolicited answer") == 1


# -- names


class Names:
    """The addresses that a name resolves to; a test may change them."""

    def __init__(self, *found: Any) -> None:
        self.found: Any = list(found)
        self.asked: list[tuple[str, int]] = []

    def __call__(self, host: str, port: int) -> list[Any]:
        self.asked.append((host, port))
        if isinstance(self.found, Exception):
            raise self.found
        return list(self.found)


def test_a_name_stands_for_several_and_is_followed(make, lookupd, monkeypatch):
    monkeypatch.setattr(module, "RESOLVE_EVERY", 0.02)
    one = lookupd()
    two = lookupd(one.port, "127.0.0.2")
    three = lookupd(one.port, "127.0.0.3")
    names = Names(("127.0.0.1", one.port), ("127.0.0.2", one.port))
    lookup = make(f"lookup.example:{one.port}", look_up=names)
    wait_until(lambda: one.links and two.links)
    assert names.asked[0] == ("lookup.example", one.port)
    name = f"lookup.example:{one.port} at 127.0.0.2"
    assert said(lookup, f"LOOKUP({name}): adding peer") == 1
    names.found = [("127.0.0.3", one.port), ("127.0.0.1", one.port)]
    wait_until(lambda: three.links and two.link.ended.is_set())
    assert said(lookup, f"LOOKUP({name}): removing peer") == 1
    names.found = socket.gaierror(-2, "Name or service not known")
    wait_until(lambda: said(lookup, "name or service not known"))
    seen = len(names.asked)
    wait_until(lambda: len(names.asked) > seen + 2)
    assert len(lookup.peers) == 2 and len(one.links) == 1 and len(three.links) == 1


def test_a_name_beside_the_address_it_stands_for_is_one_lookupd(make, lookupd):
    one = lookupd()
    names = Names(("127.0.0.1", one.port))
    lookup = make(one.address, f"a:{one.port}", f"b:{one.port}", look_up=names)
    wait_until(lambda: len(names.asked) == 2 and all(a.settled.is_set() for a in lookup.addresses))
    wait_until(lambda: one.links)
    assert len(lookup.peers) == len(one.links) == 1
    lookup.set_addresses([f"b:{one.port}"])
    assert len(lookup.peers) == 1
    lookup.set_addresses([])
    wait_until(lambda: one.link.ended.is_set())
    assert not lookup.peers and len(one.links) == 1


def test_the_other_family_of_one_lookupd(make, lookupd):
    """The lookupd listens only at its second address."""
    one = lookupd()
    nobody = ("127.0.0.9", one.port)
    lookup = make()
    place = (nobody, ("127.0.0.1", one.port))
    lookup._peers[nobody] = module.Peer(lookup, "x", place)
    wait_until(lambda: one.links and one.link.identity)


@pytest.mark.parametrize("address", ["nowhere", "a:b", "::1:4160"])
def test_addresses_that_are_none(make, address):
    lookup = make(address)
    assert not lookup.peers
    assert said(lookup, f"LOOKUPD({address}): connecting - ") == 1


# -- AUTH


@pytest.mark.parametrize(
    ("announced", "token", "sent"),
    [({"auth": True}, "s3cret", True), ({}, "s3cret", False), ({"auth": True}, "", False)],
)
def test_a_token_is_sent_to_lookupds_that_announce_auth(make, lookupd, announced, token, sent):
    """NSQ's nsqlookupd would end the connection at an unknown command."""
    fake = lookupd()
    fake.info = {"broadcast_address": "127.0.0.1", "tcp_port": 1, "http_port": 2} | announced
    known = KnownTopics()
    known.create_topic("t")
    lookup = make(fake.address, known_topics=known, token=token)
    wait_until(lambda: "REGISTER t" in fake.told())
    assert fake.told() == ["AUTH s3cret", "REGISTER t"][not sent :]
    assert not said(lookup, "s3cret")


def test_a_refused_token_ends_the_connection(make, lookupd):
    fake = lookupd()
    fake.info = {"broadcast_address": "127.0.0.1", "tcp_port": 1, "http_port": 2, "auth": True}
    fake.answers = lambda command: b"E_AUTH_FAILED no" if command.startswith("AUTH") else OK
    lookup = make(fake.address, token="s3cret")
    wait_until(lambda: said(lookup, "AUTH - E_AUTH_FAILED no"))
    assert not any(command.startswith("REGISTER") for command in fake.told())


# -- the master's next version


def passed_on(before: Lookup) -> Any:
    """Return the state of a lookup that rests, with descriptors of its own."""
    return json.loads(json.dumps(before.dump(os.dup)))


def test_the_next_version_keeps_the_connection(make, lookupd):
    one = lookupd()
    topics = KnownTopics()
    topics.create_topic("before")
    lookup = make(one.address, known_topics=topics)
    wait_until(lambda: lookup.peers and lookup.peers[0]._is_idle)
    successor = Lookup(topics, IDENTITY, 1000, Debugged())
    successor.take_over(passed_on(lookup))
    lookup.close()
    successor.set_addresses([one.address])
    (peer,) = successor.peers
    assert peer.told and peer.info is not None
    topics.create_topic("later")
    successor.change(Command(REGISTER, "later"))
    wait_until(lambda: one.link.commands == ["REGISTER before", "REGISTER later"])
    assert len(one.links) == 1
    assert not said(successor, "connecting") and not said(successor, "adding")
    successor.close()


def test_a_version_with_another_identity_connects_again(make, lookupd):
    """The former connection stays open until everything is registered again."""
    one = lookupd()
    topics = KnownTopics()
    topics.create_topic("t")
    lookup = make(one.address, known_topics=topics)
    wait_until(lambda: lookup.peers and lookup.peers[0]._is_idle)
    former = one.link
    one.answers = lambda command: SILENCE if command.startswith("REGISTER") else OK
    successor = Lookup(topics, {**IDENTITY, "version": "2.0.0"}, 1000, Debugged())
    successor.take_over(passed_on(lookup))
    lookup.close()
    successor.set_addresses([one.address])
    wait_until(lambda: len(one.links) > 1 and one.link.commands)
    assert not former.ended.is_set()
    one.answers = None
    wait_until(former.ended.is_set)
    assert one.link.commands == ["REGISTER t"] and not one.link.ended.is_set()
    assert one.link.identity["version"] == "2.0.0"
    assert successor.peers[0].told
    successor.close()
    wait_until(one.link.ended.is_set)


def test_a_name_is_not_resolved_first(make, lookupd):
    one = lookupd()
    where = ("127.0.0.1", one.port)
    lookup = make(f"name:{one.port}", look_up=lambda host, port: [where])
    wait_until(lambda: lookup.peers and lookup.peers[0]._is_idle)
    resolving = threading.Event()
    successor = Lookup(
        KnownTopics(), IDENTITY, 1000, Debugged(), look_up=lambda *_: resolving.wait() and [where]
    )
    successor.take_over(passed_on(lookup))
    lookup.close()
    successor.set_addresses([f"name:{one.port}"])
    assert [peer.told for peer in successor.peers] == [True]
    resolving.set()
    wait_until(lambda: all(each.settled.is_set() for each in successor.addresses))
    successor.change(Command(REGISTER, "later"))
    wait_until(lambda: one.link.commands == ["REGISTER later"])
    assert len(one.links) == 1
    successor.close()


def test_a_connection_in_use_is_made_again(make, lookupd):
    one = lookupd()
    one.answers = lambda command: SILENCE if command.startswith("REGISTER") else OK
    topics = KnownTopics()
    topics.create_topic("t")
    lookup = make(one.address, known_topics=topics)
    wait_until(lambda: one.links and one.link.commands)
    dumped = passed_on(lookup)
    assert dumped["peers"] == []
    lookup.close()
    one.answers = None
    successor = Lookup(topics, IDENTITY, 1000, Debugged())
    successor.take_over(dumped)
    successor.set_addresses([one.address])
    wait_until(lambda: len(one.links) == 2 and one.link.commands == ["REGISTER t"])
    successor.close()


def test_a_connection_to_an_address_that_is_gone_is_closed(make, lookupd):
    one, other = lookupd(), lookupd()
    lookup = make(one.address)
    wait_until(lambda: lookup.peers and lookup.peers[0]._is_idle)
    successor = Lookup(KnownTopics(), IDENTITY, 1000, Debugged())
    successor.take_over(passed_on(lookup))
    lookup.close()
    successor.set_addresses([other.address])
    wait_until(lambda: one.link.ended.is_set() and other.links)
    successor.close()


def test_a_withdrawal_lasts(make, lookupd):
    one = lookupd()
    topics = KnownTopics()
    topics.create_topic("t")
    lookup = make(one.address, known_topics=topics)
    wait_until(lambda: lookup.peers and lookup.peers[0]._is_idle)
    lookup.withdraw(30)
    wait_until(lambda: lookup.peers[0]._is_idle)
    successor = Lookup(topics, IDENTITY, 1000, Debugged())
    successor.take_over(passed_on(lookup))
    lookup.close()
    successor.set_addresses([one.address])
    successor.change(Command(REGISTER, "hidden"))
    successor.restore(30)
    assert one.link.commands == ["REGISTER t", "UNREGISTER t", "REGISTER t"]
    successor.close()
