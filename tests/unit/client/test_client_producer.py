"""A producer's decisions, on a simulated network: destinations, matching of answers, retries.

NSQCY_RUNS=20 tries many more histories.
"""

import logging
import math
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nsqcy.client.codec import Publish
from nsqcy.client.errors import (
    Closed,
    ConnectionFailed,
    Error,
    NoConnection,
    NsqdError,
    ProtocolError,
    PublishTimeout,
)
from nsqcy.client.options import Address
from nsqcy.client.producer import Heads, ProducerCore, dpub_head
from nsqcy.testing.wire_client import ERROR, RESPONSE
from support.fake_network import Net, Wire
from support.fake_nsqd import SETTINGS, Peer, delivery, frame
from support.runs import runs, steps

PROFILE = settings(max_examples=runs(40), stateful_step_count=steps(40), deadline=None)

A, B, C = (Address(name, 4150) for name in "abc")
WAITING = "waiting"


class Told(Publish):
    """A publish that records its outcomes."""

    def __init__(self, *about: Any) -> None:
        super().__init__(*about)
        self.ends: list[Error | None] = []
        self.then: Callable[[], object] = lambda: None

    def done(self, error: Error | None) -> None:
        self.ends.append(error)
        self.then()

    @property
    def end(self) -> Any:
        """The only outcome so far; None for an OK."""
        assert len(self.ends) < 2, "ended twice"
        return self.ends[0] if self.ends else WAITING


def make(body: bytes = b"m", deadline: float = math.inf, topic: str = "t") -> Told:
    return Told(topic, b"PUB %b\n" % topic.encode(), body, None, deadline)


def silent(peer: Peer, line: str, body: bytes) -> bool:
    """Script that does not answer publishes."""
    return line.startswith("PUB")


class Pool:
    """A producer, its network, and its publishes."""

    def __init__(
        self, nsqds: Any = "a", lookupds: Any = (), *, script: Any = None, **options: Any
    ) -> None:
        self.net = Net(script=script)
        self.core = self.net.core = ProducerCore(
            self.net, nsqds, lookupds, keywords=options, rng=Random(0)
        )
        self.answers = 0  # number of answered lookups
        self.core.start(self.net.time)

    def accept(self) -> "Pool":
        for wire in self.net.pending():
            wire.accept()
        return self

    def publish(self, body: bytes = b"m", within: float = math.inf, topic: str = "t") -> Told:
        publish = make(body, self.net.time + within, topic)
        self.core.publish(publish)
        return publish

    def run(self) -> None:
        for wire in self.net.live():
            wire.run()

    def bodies(self, number: int) -> list[bytes]:
        return self.net.wires[number].peer.bodies[1:]

    def fail_all(self, seconds: float) -> None:
        """Advance the clock while all connection attempts fail."""
        end = self.net.time + seconds
        while self.net.time < end:
            for wire in self.net.pending():
                wire.lose()
            self.net.tick(0.1)


# -- commands


def test_command_lines_are_checked_and_kept() -> None:
    heads = Heads(b"PUB")
    assert heads["t"] == b"PUB t\n"
    assert heads["t"] is heads["t"]
    for number in range(3000):
        assert heads[f"t{number}"] == b"PUB t%d\n" % number
    assert dpub_head("t", 1500) == b"DPUB t 1500\n"
    assert dpub_head("t", -1000) == b"DPUB t -1000\n"


@pytest.mark.parametrize("topic", ["b d", "", "x" * 65, b"t", 1, None])
def test_names_of_topics(topic: Any) -> None:
    for head in (Heads(b"PUB").__getitem__, lambda topic: dpub_head(topic, 1)):
        with pytest.raises(ValueError, match="is not a valid topic name"):
            head(topic)


def test_delays_no_number_can_hold() -> None:
    with pytest.raises(ValueError, match="cannot be deferred"):
        dpub_head("t", 2**63)


def test_without_an_address() -> None:
    with pytest.raises(ValueError, match="needs nsqd_tcp_addresses or lookupd"):
        ProducerCore(Net(), keywords={})


# -- one nsqd


def test_answers_come_in_order() -> None:
    pool = Pool(script=silent).accept()
    publishes = [pool.publish(b"%d" % number) for number in range(5)]
    assert pool.core.pending_bytes == 5
    pool.run()
    assert pool.bodies(0) == [b"0", b"1", b"2", b"3", b"4"]
    peer = pool.net.wires[0].peer
    for number in range(5):
        peer.answer()
        pool.run()
        assert [each.end for each in publishes].count(None) == number + 1
        assert pool.core.pending_bytes == 4 - number


def test_a_publish_waits_for_the_first_connection() -> None:
    pool = Pool()
    publish = pool.publish()
    assert publish.end == WAITING and len(pool.core.waiting) == 1 and pool.core.has_unsent
    pool.accept()
    assert publish.end is None and not pool.core.waiting and not pool.core.has_unsent
    assert pool.bodies(0) == [b"m"]


def test_a_refused_publish_fails_alone() -> None:
    """nsqd does not execute publishes sent after a refused one, so they are retried."""

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if body == b"bad":
            peer.error("E_BAD_MESSAGE PUB no")
        return body == b"bad"

    pool = Pool(script=script).accept()
    errors: list[Error] = []
    pool.core.on_error = errors.append
    publishes = [pool.publish(body) for body in (b"1", b"bad", b"2", b"3")]
    pool.run()
    assert [each.end for each in publishes[2:]] == [WAITING] * 2
    pool.net.tick()
    pool.accept()
    assert [each.end for each in publishes if each.body != b"bad"] == [None] * 3
    assert isinstance(publishes[1].end, NsqdError) and publishes[1].end.code == "E_BAD_MESSAGE"
    assert pool.bodies(1) == [b"2", b"3"]
    assert [str(each) for each in errors] == ["E_BAD_MESSAGE PUB no"]
    assert pool.core.pending_bytes == 0


@pytest.mark.parametrize("nsqds", [("a",), ("a", "b")])
def test_after_a_goodbye_unanswered_publishes_are_sent_again(nsqds: tuple[str, ...]) -> None:
    """nsqd has executed none of these publishes, and reports this as it exits."""
    pool = Pool(nsqds, script=silent, retries=0).accept()
    publishes = [pool.publish(b"%d" % number) for number in range(4)]
    pool.run()
    first = pool.net.wires[0]
    sent = [each for each in publishes if each.body in first.peer.bodies]
    first.peer.answer()
    first.peer.answer(b"_goodbye_")
    pool.run()
    assert sent[0].end is None
    assert [each.end for each in sent[1:]] == [WAITING] * len(sent[1:])
    assert not first.open, "the client has closed the connection"
    pool.net.tick()
    pool.accept()
    left = [wire.peer for wire in pool.net.live()]
    assert sorted(b for peer in left for b in peer.bodies[1:]) == sorted(
        each.body for each in publishes if each is not sent[0]
    )
    for peer in left:
        for _ in peer.bodies[1:]:
            peer.answer()
    pool.run()
    assert [each.end for each in publishes] == [None] * 4
    assert pool.core.pending_bytes == 0


def test_a_publish_after_a_goodbye_fails_with_no_connection() -> None:
    """The publish was not executed, and nsqd does not return."""
    pool = Pool(script=silent).accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[0].peer.answer(b"_goodbye_")
    pool.run()
    pool.fail_all(30)
    assert type(publish.end) is NoConnection


@pytest.mark.parametrize("retries", [0, 3])
def test_refused_publishes_cost_only_themselves(retries: int) -> None:
    """The refused publishes outnumber the attempts of a publish."""

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if body == b"bad":
            peer.error("E_BAD_MESSAGE PUB message too big 3 > 2")
        return body == b"bad"

    pool = Pool(script=script, retries=retries).accept()
    bad = [pool.publish(b"bad") for _ in range(6)]
    good = [pool.publish(b"g") for _ in range(20)]
    for _ in range(7):
        pool.run()
        pool.net.tick()
        pool.accept()
    assert [each.end for each in good] == [None] * 20
    assert [str(each.end) for each in bad] == ["E_BAD_MESSAGE PUB message too big 3 > 2"] * 6
    assert {each.tries for each in good} == {0}
    assert pool.core.pending_bytes == 0


def test_publishes_behind_one_that_cannot_be_stored_were_surely_not_published() -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("PUB"):
            peer.error("E_PUB_FAILED PUB failed disk is full")
        return line.startswith("PUB")

    pool = Pool(script=script, retries=1).accept()
    publishes = [pool.publish() for _ in range(5)]
    for _ in range(5):
        pool.run()
        pool.net.tick(1)
        pool.accept()
    kinds = [type(each.end) for each in publishes]
    assert kinds == [NsqdError, NsqdError, NoConnection, NoConnection, NoConnection]


def publish_of(head: bytes, body: bytes) -> Told:
    return Told("t", head, body, None, math.inf)


def batch(*sizes: int, before: bytes = b"") -> bytes:
    messages = [before + b"m" * size for size in sizes]
    framed = [struct.pack(">I", len(each)) + each for each in messages]
    return struct.pack(">I", len(sizes)) + b"".join(framed)


LIMITS = {"max_msg_size": 10, "max_body_size": 60, "max_defer_timeout": 1000}
HEADED = b"\0\3abc"  # three bytes of headers


@pytest.mark.parametrize(
    ("head", "body", "headers", "text"),
    [
        (b"PUB t\n", b"m" * 11, False, "E_BAD_MESSAGE PUB message too big 11 > 10"),
        (b"PUB t\n", b"m" * 10, False, None),
        (b"PUB t\n", HEADED + b"m" * 10, True, None),
        (b"PUB t\n", HEADED + b"m" * 11, True, "E_BAD_MESSAGE PUB message too big 11 > 10"),
        (b"DPUB t 1001\n", b"m", False, "E_INVALID DPUB timeout 1001 out of range 0-1000"),
        (b"DPUB t 1000\n", b"m", False, None),
        (b"DPUB t -1\n", b"m", False, "E_INVALID DPUB could not parse timeout -1"),
        (b"DPUB t 5\n", b"m" * 11, False, "E_BAD_MESSAGE DPUB message too big 11 > 10"),
        (b"MPUB t\n", batch(10, 10), False, None),
        (b"MPUB t\n", batch(3, 11), False, "E_BAD_MESSAGE MPUB message too big 11 > 10"),
        (b"MPUB t\n", batch(10, 10, before=HEADED), True, None),
        (b"MPUB t\n", batch(1, 11, before=HEADED), True, "E_BAD_MESSAGE MPUB message too big 11"),
        (b"MPUB t\n", batch(*[10] * 4), False, None),
        (b"MPUB t\n", batch(*[10] * 4, 1), False, "E_BAD_BODY MPUB body too big 65 > 60"),
    ],
)
def test_a_publish_above_a_limit_is_not_sent(
    head: bytes, body: bytes, headers: bool, text: str | None
) -> None:
    pool = Pool(headers=headers)
    pool.net.wires[0].peer.settings = SETTINGS | {"limits": LIMITS, "headers": headers}
    early, late = publish_of(head, body), publish_of(head, body)
    pool.core.publish(early)  # before the limits are known
    pool.accept()
    pool.core.publish(late)
    pool.run()
    for publish in (early, late):
        if text is None:
            assert publish.end is None
        else:
            assert isinstance(publish.end, NsqdError) and str(publish.end).startswith(text)
    assert len(pool.net.live()) == 1 and pool.core.pending_bytes == 0
    assert len(pool.bodies(0)) == (2 if text is None else 0)


RAISED = LIMITS | {"max_msg_size": 20, "max_defer_timeout": 5000}


def limited(**options: Any) -> Pool:
    pool = Pool(**options)
    peer = pool.net.wires[0].peer
    peer.settings, peer.limits = SETTINGS | {"limits": LIMITS}, RAISED
    return pool.accept()


def test_a_topic_may_have_higher_limits() -> None:
    pool = limited()
    peer = pool.net.wires[0].peer
    large, small, late = pool.publish(b"m" * 20), pool.publish(), publish_of(b"DPUB t 5000\n", b"m")
    pool.core.publish(late)
    pool.run()
    assert [each.end for each in (large, small, late)] == [None] * 3
    assert pool.core.pending_bytes == 0
    again = pool.publish(b"m" * 20)
    pool.run()
    assert again.end is None and len(peer.said("LIMITS")) == 1, "the answer is remembered"
    too_large = pool.publish(b"m" * 21)
    pool.run()
    assert str(too_large.end) == "E_BAD_MESSAGE PUB message too big 21 > 20"
    assert len(peer.said("LIMITS")) == 2, "a refusal is never from memory"
    peer.limits = LIMITS | {"max_msg_size": 21}
    raised = pool.publish(b"m" * 21)
    pool.run()
    assert raised.end is None and len(pool.net.live()) == 1


def no_limits(peer: Peer, line: str, body: bytes) -> bool:
    """Script that does not answer LIMITS."""
    return line.startswith("LIMITS")


def test_a_connection_is_lost_before_nsqd_answers_which_limits_a_topic_has() -> None:
    pool = limited(script=no_limits)
    large = pool.publish(b"m" * 20)
    pool.run()
    pool.net.peers = {"settings": SETTINGS | {"limits": RAISED}}
    pool.net.wires[0].lose()
    pool.net.tick()
    pool.accept()
    pool.run()
    assert large.end is None and pool.bodies(1) == [b"m" * 20] and pool.core.pending_bytes == 0


def test_nsqd_answers_too_late_which_limits_a_topic_has() -> None:
    pool = limited(script=no_limits)
    large = pool.publish(b"m" * 20, within=1.0)
    pool.run()
    pool.net.tick(2.0)
    assert isinstance(large.end, PublishTimeout)
    pool.net.wires[0].peer.answer(b'{"max_msg_size":20}')
    pool.run()
    assert pool.core.pending_bytes == 0 and pool.bodies(0) == []
    large = pool.publish(b"m" * 21)
    pool.core.stop(pool.net.time, graceful=False)
    assert isinstance(large.end, Closed) and pool.core.pending_bytes == 0


def test_nsqd_refuses_the_question_for_the_limits_of_a_topic() -> None:
    def refuse(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("LIMITS"):
            peer.error("E_UNAUTHORIZED AUTH failed for LIMITS on t")
        return line.startswith("LIMITS")

    pool = limited(script=refuse)
    before, large, after = pool.publish(), pool.publish(b"m" * 20), pool.publish()
    pool.run()
    assert before.end is None and str(large.end).startswith("E_UNAUTHORIZED")
    pool.net.tick()
    pool.accept()
    pool.run()
    assert after.end is None and pool.core.pending_bytes == 0


@pytest.mark.parametrize("answer", [b"OK", b"{"])
def test_a_strange_answer_to_the_question_for_limits(answer: bytes) -> None:
    """Nothing was published, so the next connection publishes all messages."""
    pool = limited(script=no_limits)
    publishes = [pool.publish(b"m" * 20), pool.publish(b"2"), pool.publish(b"3")]
    pool.run()
    pool.net.peers = {"settings": SETTINGS | {"limits": RAISED}}
    pool.net.wires[0].peer.answer(answer)
    pool.run()
    assert [each.end for each in publishes] == [WAITING] * 3
    pool.net.tick()
    pool.accept()
    assert [each.end for each in publishes] == [None] * 3
    assert pool.bodies(1) == [b"m" * 20, b"2", b"3"] and pool.core.pending_bytes == 0


def test_strange_answers_to_the_question_for_limits_have_an_end() -> None:
    pool = limited(script=no_limits, retries=2)
    pool.net.peers = {"settings": SETTINGS | {"limits": LIMITS}, "script": no_limits}
    large = pool.publish(b"m" * 20)
    for wire in range(3):
        pool.run()
        pool.net.wires[wire].peer.answer()
        pool.run()
        pool.net.tick(10)
        pool.accept()
    assert type(large.end) is NoConnection and pool.core.pending_bytes == 0


# -- publishes that wait for an answer to LIMITS


def held() -> tuple[Pool, list[Told]]:
    """Return a pool, and publishes to one topic that are waiting for the topic's limits."""
    pool = limited(script=no_limits)
    publishes = [pool.publish(body) for body in (b"m" * 20, b"2", b"m" * 15, b"4")]
    pool.run()
    assert pool.net.wires[0].peer.said("LIMITS") == ["LIMITS t"] and pool.bodies(0) == []
    assert pool.core.has_unsent
    return pool, publishes


def answer(pool: Pool, most: int) -> None:
    """Answer LIMITS: messages of the topic may have this number of bytes."""
    pool.net.wires[0].peer.answer(b'{"max_msg_size":%d}' % most)
    pool.run()


def test_no_publish_overtakes_one_that_waits_for_limits() -> None:
    pool, publishes = held()
    answer(pool, 20)
    assert [each.end for each in publishes] == [None] * 4
    assert pool.bodies(0) == [each.body for each in publishes]
    assert pool.core.pending_bytes == 0 and not pool.core.has_unsent
    pool.publish(b"5")
    pool.publish(b"m" * 20)
    pool.run()
    assert pool.bodies(0)[4:] == [b"5", b"m" * 20]
    assert len(pool.net.wires[0].peer.said("LIMITS")) == 1, "the answer is remembered"


def test_publishes_wait_only_for_the_limits_of_their_topic() -> None:
    pool, first = held()
    peer = pool.net.wires[0].peer
    peer.script = lambda peer, line, body: True  # answers nothing
    second = [pool.publish(body, topic="another") for body in (b"m" * 20, b"6")]
    other = pool.publish(b"other", topic="third")
    pool.run()
    assert pool.bodies(0) == [b"other"] and peer.said("LIMITS") == ["LIMITS t", "LIMITS another"]
    answer(pool, 20)
    assert pool.bodies(0) == [b"other", *(each.body for each in first)]
    last = pool.publish(b"7", topic="another")
    pool.run()
    answer(pool, 20)
    publishes = [other, *first, *second, last]
    assert pool.bodies(0) == [each.body for each in publishes]
    for number in range(len(publishes)):
        assert [each.end for each in publishes[number:]] == [WAITING] * (len(publishes) - number)
        peer.answer()
        pool.run()
    assert [each.end for each in publishes] == [None] * len(publishes)
    assert pool.core.pending_bytes == 0


def test_one_above_its_limits_costs_only_itself() -> None:
    pool, (largest, *others) = held()
    late: list[Told] = []
    largest.then = lambda: late.append(pool.publish(b"late"))
    answer(pool, 15)
    assert str(largest.end) == "E_BAD_MESSAGE PUB message too big 20 > 15"
    assert [each.end for each in others + late] == [None] * 4
    assert pool.bodies(0) == [b"2", b"m" * 15, b"4", b"late"]
    assert pool.core.pending_bytes == 0 and len(pool.net.live()) == 1


def test_a_callback_stops_the_producer_when_limits_arrive() -> None:
    pool, publishes = held()
    publishes[0].then = lambda: pool.core.stop(pool.net.time, graceful=False)
    answer(pool, 10)
    assert isinstance(publishes[0].end, NsqdError) and isinstance(publishes[2].end, NsqdError)
    assert isinstance(publishes[1].end, Closed) and isinstance(publishes[3].end, Closed)
    assert pool.core.pending_bytes == 0 and pool.net.ends == 1


@pytest.mark.parametrize("left", [False, True], ids=["lost", "goodbye"])
def test_publishes_behind_a_question_keep_their_order_on_the_next_connection(left: bool) -> None:
    pool, publishes = held()
    pool.net.peers = {"settings": SETTINGS | {"limits": LIMITS}}
    if left:
        pool.net.wires[0].peer.answer(b"_goodbye_")
        pool.run()
    else:
        pool.net.wires[0].lose()
    pool.net.tick()
    (wire,) = pool.net.pending()
    wire.peer.limits = RAISED
    wire.accept()
    assert [each.end for each in publishes] == [None] * 4
    assert pool.bodies(1) == [each.body for each in publishes] and pool.core.pending_bytes == 0
    assert [each.tries for each in publishes] == [not left] * 4


def test_publishes_behind_a_question_were_surely_not_published() -> None:
    pool, publishes = held()
    pool.net.wires[0].lose()
    pool.fail_all(60)
    assert [type(each.end) for each in publishes] == [NoConnection] * 4
    assert pool.core.pending_bytes == 0


def test_a_refused_question_costs_only_the_publish_that_needs_it() -> None:
    pool, (asker, *others) = held()
    pool.net.peers = {"settings": SETTINGS | {"limits": RAISED}}
    pool.net.wires[0].peer.error("E_UNAUTHORIZED AUTH failed for LIMITS on t")
    pool.run()
    assert str(asker.end).startswith("E_UNAUTHORIZED")
    pool.net.tick()
    pool.accept()
    assert [each.end for each in others] == [None] * 3
    assert [each.tries for each in others] == [0] * 3 and pool.core.pending_bytes == 0


@pytest.mark.parametrize("refused", [False, True])
def test_publishes_behind_a_question_time_out_alone(refused: bool) -> None:
    pool = limited(script=no_limits)
    asker, first = pool.publish(b"m" * 20, within=1.0), pool.publish(b"1")
    second, third = pool.publish(b"2", within=1.0), pool.publish(b"3")
    pool.run()
    pool.net.tick(2.0)
    assert isinstance(asker.end, PublishTimeout) and isinstance(second.end, PublishTimeout)
    assert [first.end, third.end] == [WAITING] * 2 and pool.core.pending_bytes == 2
    if refused:
        pool.net.wires[0].peer.error("E_INVALID no")
        pool.run()
        pool.net.tick()
        pool.accept()
    else:
        answer(pool, 20)
    assert [first.end, third.end] == [None] * 2 and pool.core.pending_bytes == 0
    assert pool.bodies(-1) == [b"1", b"3"]


def test_an_interrupted_publish_behind_a_question_is_not_sent() -> None:
    pool, publishes = held()
    for publish in publishes[:2]:
        publish.is_abandoned = True
        pool.core.withdraw(publish, pool.net.time)
    assert pool.core.pending_bytes == 16
    answer(pool, 20)
    assert [each.end for each in publishes] == [WAITING, WAITING, None, None]
    assert pool.bodies(0) == [b"m" * 15, b"4"] and pool.core.pending_bytes == 0


def test_a_graceful_end_waits_for_publishes_behind_a_question(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, publishes = held()
    pool.core.stop(pool.net.time)
    pool.net.tick(1)
    assert pool.net.ends == 0
    assert caplog.messages == [
        "[producer] close() waits at most 29 s more for a:4150 (unanswered publishes: 4)"
    ]
    answer(pool, 20)
    assert [each.end for each in publishes] == [None] * 4 and pool.net.ends == 1


def test_a_graceful_end_does_not_wait_for_a_question_of_no_publish() -> None:
    pool, publishes = held()
    pool.core.stop(pool.net.time)
    for publish in publishes:
        assert pool.net.ends == 0
        publish.is_abandoned = True
        pool.core.withdraw(publish, pool.net.time)
    assert pool.net.ends == 1 and pool.core.pending_bytes == 0


def test_an_end_at_once_tells_publishes_behind_a_question() -> None:
    pool, publishes = held()
    pool.core.stop(pool.net.time, graceful=False)
    assert all(isinstance(each.end, Closed) for each in publishes)
    assert pool.core.pending_bytes == 0


def test_an_nsqd_without_limits_decides_itself() -> None:
    for more in ({}, {"limits": True}, {"limits": {"max_msg_size": "10"}}):
        pool = Pool()
        pool.net.wires[0].peer.settings = SETTINGS | more
        pool.accept()
        publishes = [publish_of(b"PUB t\n", b"m" * 99), publish_of(b"DPUB t 9999999\n", b"m")]
        for publish in publishes:
            pool.core.publish(publish)
        pool.run()
        assert [each.end for each in publishes] == [None, None]


def test_a_callback_of_a_refused_publish_may_stop_the_producer() -> None:
    pool = Pool()
    pool.net.wires[0].peer.settings = SETTINGS | {"limits": LIMITS}
    large, other = pool.publish(b"m" * 11), pool.publish()
    large.then = lambda: pool.core.stop(pool.net.time, graceful=False)
    pool.accept()
    assert isinstance(large.end, NsqdError) and isinstance(other.end, Closed)
    assert pool.core.pending_bytes == 0 and pool.net.ends == 1


def test_a_graceful_end_after_a_refused_publish() -> None:
    pool = Pool()
    pool.net.wires[0].peer.settings = SETTINGS | {"limits": LIMITS}
    large = pool.publish(b"m" * 11)
    pool.core.stop(pool.net.time)
    pool.accept()
    assert isinstance(large.end, NsqdError) and pool.net.ends == 1


@pytest.mark.case("CL-057")
def test_a_lost_connection_fails_what_was_sent() -> None:
    pool = Pool(script=silent).accept()
    publishes = [pool.publish() for _ in range(3)]
    pool.run()
    pool.net.wires[0].lose()
    assert all(isinstance(each.end, ConnectionFailed) for each in publishes)
    assert pool.core.pending_bytes == 0
    pool.net.tick()
    assert len(pool.net.wires) == 2  # retried immediately
    late = pool.publish()
    pool.accept()
    pool.run()
    pool.net.wires[1].peer.answer()
    pool.run()
    assert late.end is None


def test_one_that_hangs_up_is_not_tried_without_a_pause() -> None:
    pool = Pool()
    for _ in range(3):
        pool.accept()
        pool.net.wires[-1].lose()
        pool.net.tick()
    assert len(pool.net.wires) == 2
    pool.net.tick(0.5)
    assert len(pool.net.wires) == 2
    pool.net.tick(1)
    assert len(pool.net.wires) == 3


@pytest.mark.parametrize("sign", ["OK", "age"])
def test_one_that_works_is_tried_at_once(sign: str) -> None:
    pool = Pool()
    for number in range(5):
        pool.accept()
        if sign == "OK":
            assert pool.publish().end == WAITING
        else:
            pool.net.tick(5)
        pool.run()
        pool.net.wires[number].lose()
        pool.net.tick()
    assert len(pool.net.wires) == 6


FRAMES = {
    "heartbeat": frame(RESPONSE, b"_heartbeat_"),
    "OK": frame(RESPONSE, b"OK"),
    "response": frame(RESPONSE, b"{}"),
    "goodbye": frame(RESPONSE, b"_goodbye_"),
    "error": frame(ERROR, b"E_BAD_MESSAGE no"),
    "milder error": frame(ERROR, b"E_FIN_FAILED no"),
    "message": delivery(),
}


@pytest.mark.parametrize("lookups", [False, True], ids=["fixed", "found"])
@pytest.mark.parametrize("sent", FRAMES.values(), ids=FRAMES)
def test_a_frame_alone_is_no_reason_to_reconnect_at_once(
    sent: bytes, lookups: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that completes the handshake, sends a frame, and closes the connection."""
    pool = Pool((), "l:4161") if lookups else Pool("a")
    end = pool.net.time + 60
    while pool.net.time < end:
        if pool.net.lookups > pool.answers:  # each time, another nsqd is listed
            pool.answers += 1
            pool.core.found([Address(f"n{pool.answers}", 4150)], [], pool.net.time)
        for wire in pool.net.pending():
            wire.accept()
            wire.peer.send(sent)
            wire.run()
            if not wire.closed:
                wire.lose()
        pool.net.tick(0.01)
    assert len(pool.net.wires) <= (40 if lookups else 12)
    assert pool.net.lookups <= 20
    assert len(caplog.messages) <= 100


def test_log_lines_about_one_nsqd_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """Each refused publish closes its connection, which had worked until then."""

    def refuse(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("PUB"):
            peer.error("E_BAD_MESSAGE no")
        return line.startswith("PUB")

    pool = Pool(script=refuse).accept()
    publishes = []
    for _ in range(200):
        publishes.append(pool.publish())
        pool.run()
        pool.net.tick(0.01)
        pool.accept()
    assert all(isinstance(each.end, NsqdError) for each in publishes)
    assert 5 <= len(caplog.messages) <= 8
    assert "similar warnings omitted: " in caplog.text


def test_queries_that_find_no_nsqd_become_rarer() -> None:
    pool = Pool((), "l:4161")
    for _ in range(3000):
        if pool.net.lookups > pool.answers:
            pool.answers += 1
            pool.core.found([], ["l:4161: connection refused"], pool.net.time)
        pool.net.tick(0.1)
    assert pool.answers <= 30
    pool.publish()
    pool.net.tick(0.5)
    assert pool.net.lookups > pool.answers, "a caller waits"


def test_nothing_waits_for_ever_for_one_that_is_down() -> None:
    pool = Pool(retries=3)
    publish = pool.publish()
    pool.fail_all(60)
    assert isinstance(publish.end, ConnectionFailed)
    assert publish.tries == 4
    assert pool.core.pending_bytes == 0
    late = pool.publish()
    pool.fail_all(61)
    assert isinstance(late.end, ConnectionFailed)


def test_a_long_outage_does_not_make_callers_wait_longer() -> None:
    """While no caller is waiting, the pauses between reconnects grow."""
    pool = Pool(retries=3)
    pool.fail_all(300)
    publish = pool.publish()
    pool.fail_all(8)
    assert isinstance(publish.end, NoConnection)
    wires = len(pool.net.wires)
    pool.fail_all(300)
    assert len(pool.net.wires) - wires < 50


def test_many_callers_do_not_cause_many_connections() -> None:
    pool = Pool(retries=3)
    pool.fail_all(300)
    wires = len(pool.net.wires)
    for _ in range(100):
        pool.publish(within=0.05)
        pool.fail_all(0.1)
    assert len(pool.net.wires) - wires <= 20


def test_one_that_comes_back_in_time() -> None:
    pool = Pool(retries=3)
    publish = pool.publish()
    pool.net.wires[0].lose()
    pool.net.tick(1)
    pool.accept()
    assert publish.end is None


def test_a_permanent_error_fails_a_publish_at_once() -> None:
    pool = Pool()
    publish = pool.publish()
    wire = pool.net.wires[0]
    pool.core.connected(wire.connection, pool.net.time)
    pool.core.received(wire.connection, b"HTTP/1.1 400", pool.net.time)
    assert isinstance(publish.end, ProtocolError)
    assert "nsqd TCP endpoint" in str(publish.end)


def test_tls_that_cannot_be_is_a_connection_that_failed() -> None:
    pool = Pool(tls_v1=True, retries=0)
    publish = pool.publish()
    (wire,) = pool.net.wires
    pool.core.connected(wire.connection, pool.net.time)
    yes = b'{"tls_v1":true}'
    for data in (struct.pack(">ii", len(yes) + 4, 0) + yes, b"this is no TLS"):
        pool.core.received(wire.connection, data, pool.net.time)
    assert isinstance(publish.end, ConnectionFailed)
    assert str(publish.end).startswith("a:4150: TLS: ")


def test_a_publish_may_move_to_another_nsqd_after_a_permanent_error() -> None:
    pool = Pool(["a", "b"])
    publish = pool.publish()
    wire, other = pool.net.wires
    pool.core.connected(wire.connection, pool.net.time)
    pool.core.received(wire.connection, b"HTTP/1.1 400", pool.net.time)
    other.lose()
    assert publish.end == WAITING
    pool.net.tick(1)
    next(each for each in pool.net.pending() if each.connection.address == B).accept()
    assert publish.end is None


def test_an_answer_to_nothing() -> None:
    for said in (lambda peer: peer.answer(), lambda peer: peer.answer(b"what?")):
        pool = Pool().accept()
        errors: list[Error] = []
        pool.core.on_error = errors.append
        said(pool.net.wires[0].peer)
        pool.net.wires[0].hear()
        assert pool.net.wires[0].closed
        assert isinstance(errors[0], ProtocolError)


def test_more_oks_than_publishes() -> None:
    pool = Pool(script=silent).accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[0].peer.answer()
    pool.net.wires[0].peer.answer()
    pool.net.wires[0].hear()
    assert publish.end is None
    assert pool.net.wires[0].closed and pool.core.pending_bytes == 0


def test_messages_are_not_for_producers() -> None:
    pool = Pool().accept()
    pool.net.wires[0].peer.send(delivery())
    pool.net.wires[0].hear()
    assert pool.net.wires[0].closed


def test_an_error_that_is_for_consumers() -> None:
    pool = Pool(script=silent).accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[0].peer.error("E_FIN_FAILED x", close=False)
    pool.run()
    assert publish.end == WAITING and not pool.net.wires[0].closed
    pool.net.wires[0].peer.answer()
    pool.run()
    assert publish.end is None
    assert pool.publish().end == WAITING  # the publish was sent
    assert not pool.core.waiting


def test_silence_is_an_end() -> None:
    pool = Pool(script=silent, heartbeat_interval=10).accept()
    publish = pool.publish()
    pool.net.tick(21)
    assert isinstance(publish.end, ConnectionFailed)
    assert len(pool.net.wires) == 2


# -- time


def test_no_answer_in_time() -> None:
    pool = Pool(script=silent).accept()
    publish, other = pool.publish(b"12", within=5), pool.publish(b"345")
    pool.run()
    pool.net.tick(6)
    assert isinstance(publish.end, PublishTimeout)
    assert "no OK from a:4150 in time" in str(publish.end)
    assert pool.core.pending_bytes == 5  # the answer may still arrive, and must be matched
    pool.net.wires[0].peer.answer()
    pool.run()
    assert other.end == WAITING and pool.core.pending_bytes == 3
    pool.net.wires[0].peer.answer()
    pool.run()
    assert other.end is None and pool.core.pending_bytes == 0


def test_no_connection_in_time() -> None:
    pool = Pool()
    pool.fail_all(300)
    late = pool.publish(within=0.1)
    pool.net.tick(0.2)
    assert str(late.end) == "no nsqd became available in time: a:4150: lost"
    pool = Pool()
    publish, other = pool.publish(within=5), pool.publish(within=7)
    pool.net.tick(5.5)
    assert isinstance(publish.end, NoConnection)
    assert other.end == WAITING
    pool.net.tick(2)
    assert isinstance(other.end, NoConnection)
    assert pool.core.pending_bytes == 0


def test_a_timed_out_publish_is_not_retried() -> None:
    pool = Pool(["a", "b"], script=silent)
    pool.net.wires[0].accept()
    publish = pool.publish(within=1)
    pool.run()
    pool.net.tick(2)
    assert isinstance(publish.end, PublishTimeout)
    pool.net.wires[1].accept()
    pool.net.wires[0].lose()
    pool.run()
    assert pool.bodies(1) == []
    assert pool.core.pending_bytes == 0


# -- texts of errors

SENT_BEFORE = "an earlier attempt may have published the message: a:4150: lost"


def taken_by_a() -> tuple[Pool, Told]:
    """A publish that nsqd a received but did not answer before it exited; b does not listen."""
    pool = Pool(["a", "b"], script=silent)
    pool.net.wires[0].accept()
    publish = pool.publish()
    pool.run()
    assert pool.bodies(0) == [b"m"]
    pool.net.wires[0].lose()
    assert publish.end == WAITING
    return pool, publish


def assert_in_doubt(publish: Told) -> None:
    assert isinstance(publish.end, ConnectionFailed)
    assert not isinstance(publish.end, NoConnection)
    assert SENT_BEFORE in str(publish.end)


def test_what_was_sent_and_finds_no_other_nsqd_is_in_doubt() -> None:
    pool, publish = taken_by_a()
    never_sent = pool.publish()
    pool.fail_all(30)
    assert_in_doubt(publish)
    assert isinstance(never_sent.end, NoConnection)


def test_what_was_sent_and_then_times_out_is_in_doubt() -> None:
    pool, publish = taken_by_a()
    publish.deadline = pool.net.time + 1
    never_sent = pool.publish(within=1)
    pool.fail_all(2)
    assert_in_doubt(publish)
    assert isinstance(never_sent.end, NoConnection)


def test_what_was_sent_is_in_doubt_although_the_other_server_is_no_nsqd() -> None:
    pool, publish = taken_by_a()
    for wire in pool.net.pending():
        pool.core.connected(wire.connection, pool.net.time)
        pool.core.received(wire.connection, b"HTTP/1.1 400", pool.net.time)
    pool.fail_all(30)
    assert_in_doubt(publish)


@pytest.mark.parametrize("errors", [[], ["l:4161: refused"]], ids=["unlisted", "down"])
def test_what_was_sent_is_in_doubt_although_lookupds_list_no_nsqd(errors: list[str]) -> None:
    pool = Pool((), "l:4161", script=silent)
    pool.core.found([A, B], [], pool.net.time)
    pool.net.wires[0].accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[0].lose()
    for _ in range(100):
        for wire in pool.net.pending():
            wire.lose()
        if pool.net.lookups > pool.answers + 1:
            pool.answers += 1
            pool.core.found([], errors, pool.net.time)
        pool.net.tick(0.5)
    assert_in_doubt(publish)


@pytest.mark.parametrize("answer", ["goodbye", "E_BAD_MESSAGE"])
def test_what_was_sent_is_in_doubt_although_the_next_nsqd_did_not_execute_it(answer: str) -> None:
    """The second nsqd refuses an earlier publish, or answers with a goodbye."""
    pool = Pool(["a", "b"], script=silent, retries=1)
    pool.net.wires[0].accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[1].accept()
    pool.net.wires[0].lose()
    pool.run()
    assert pool.bodies(1) == [b"m"]
    peer = pool.net.wires[1].peer
    if answer == "goodbye":
        peer.answer(b"_goodbye_")
    else:
        pool.core.nsqds[B].pending.appendleft(make(b"bad"))
        pool.core.pending_bytes += 3
        peer.error("E_BAD_MESSAGE no")
    pool.run()
    pool.fail_all(60)
    assert_in_doubt(publish)


def test_a_refusal_names_the_attempt_before_it() -> None:
    pool = Pool(["a", "b"], script=silent)
    pool.net.wires[0].accept()
    publish = pool.publish()
    pool.run()
    pool.net.wires[1].accept()
    pool.net.wires[0].lose()
    pool.run()
    pool.net.wires[1].peer.error("E_BAD_TOPIC no")
    pool.run()
    assert isinstance(publish.end, NsqdError)
    assert SENT_BEFORE in publish.end.__notes__


# -- several nsqds


def test_all_are_used() -> None:
    pool = Pool(["a", "b", "c"]).accept()
    for number in range(9):
        pool.publish(b"%d" % number)
    pool.run()
    assert [len(pool.bodies(number)) for number in range(3)] == [3, 3, 3]


def test_publishes_of_a_lost_connection_go_to_another() -> None:
    pool = Pool(["a", "b"], script=silent).accept()
    retried: list[tuple[Publish, Error]] = []
    pool.core.on_retry = lambda publish, error: retried.append((publish, error))
    publishes = [pool.publish(b"%d" % number) for number in range(4)]
    pool.run()
    pool.net.wires[0].lose()
    pool.run()
    assert pool.bodies(0) == [b"0", b"2"]
    assert pool.bodies(1) == [b"1", b"3", b"0", b"2"]
    assert [each[0].body for each in retried] == [b"0", b"2"]
    for _ in range(4):
        pool.net.wires[1].peer.answer()
    pool.run()
    assert [each.end for each in publishes] == [None] * 4


@pytest.mark.parametrize("code", ["E_PUB_FAILED", "E_MPUB_FAILED", "E_DPUB_FAILED"])
def test_a_publish_that_one_nsqd_cannot_accept_goes_to_another(code: str) -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("PUB") and peer is pool.net.wires[0].peer:
            peer.error(f"{code} disk is full")
            return True
        return False

    pool = Pool(["a", "b"], script=script).accept()
    publish = pool.publish()
    pool.run()
    pool.run()
    assert publish.end is None
    assert pool.bodies(1) == [b"m"]


def test_one_that_refuses_what_others_take_is_left_alone_for_longer_each_time() -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        draining = [each.peer for each in pool.net.wires if each.connection.address == A]
        if line.startswith("PUB") and peer in draining:
            peer.error("E_PUB_FAILED PUB failed draining")
            return True
        return False

    pool = Pool(["a", "b"], script=script, reconnect_interval=1)
    pool.accept()
    pool.run()
    told = []
    for _ in range(1000):
        told.append(pool.publish())
        for _ in range(3):
            pool.run()
        pool.net.tick(0.1)
        pool.accept()
    assert [each.end for each in told] == [None] * 1000
    assert 3 <= sum(wire.connection.address == A for wire in pool.net.wires) <= 12


def test_a_publish_that_every_nsqd_would_reject_is_tried_once() -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("PUB"):
            peer.error("E_BAD_MESSAGE too big")
        return line.startswith("PUB")

    pool = Pool(["a", "b"], script=script).accept()
    publish = pool.publish()
    pool.run()
    assert isinstance(publish.end, NsqdError)
    assert pool.bodies(1) == []


def test_the_error_of_one_publish_is_no_reason_for_others() -> None:
    """While one nsqd refuses a publish, the other is down."""

    def script(peer: Peer, line: str, body: bytes) -> bool:
        if body == b"bad":
            peer.error("E_BAD_MESSAGE no")
        return bool(body)

    pool = Pool(["a", "b"])
    pool.net.peers["script"] = None
    pool.net.wires[0].accept()
    pool.net.wires[0].peer.script = script
    pool.net.wires[1].lose()
    bad, good = pool.publish(b"bad"), pool.publish(b"good")
    pool.run()
    assert isinstance(bad.end, NsqdError)
    assert good.end == WAITING
    pool.net.tick()
    pool.accept()
    assert good.end is None


def test_rounds_are_counted_with_many_that_overlap() -> None:
    """A connection attempt is always in progress, but callers do not wait forever."""
    pool = Pool([f"h{number}" for number in range(50)], retries=2)
    publish = pool.publish()
    for _ in range(400):
        for wire in pool.net.pending()[:-1]:
            wire.lose()
        pool.net.tick(0.5)
        if publish.ends:
            break
    assert isinstance(publish.end, ConnectionFailed)


# -- lookupds


def test_nsqds_are_found() -> None:
    pool = Pool((), "l:4161")
    publish = pool.publish()
    assert pool.net.lookups == 1
    pool.core.found([A, B], [], pool.net.time)
    pool.accept()
    assert publish.end is None
    assert len(pool.net.wires) == 2


def test_lookupds_that_know_nobody() -> None:
    pool = Pool((), "l:4161", retries=1)
    publish = pool.publish()
    for _ in range(2):
        assert publish.end == WAITING
        pool.core.found([], [], pool.net.time)
        pool.net.tick(1)
    assert isinstance(publish.end, NoConnection)
    assert "no nsqd is registered with the lookupds" in str(publish.end)


def test_lookupds_that_are_down() -> None:
    pool = Pool((), "l:4161", retries=0)
    publish = pool.publish()
    pool.core.found([], ["l:4161: Connection refused"], pool.net.time)
    assert isinstance(publish.end, NoConnection)
    assert "Connection refused" in str(publish.end)


def test_slow_lookupds_are_not_a_reason_to_be_ticked() -> None:
    pool = Pool((), "l:4161")
    pool.net.tick(1000)
    assert pool.net.lookups == 1


def test_an_nsqd_that_is_no_longer_listed() -> None:
    pool = Pool("c", "l:4161")
    pool.core.found([A, B], [], pool.net.time)
    pool.core.found([B], [], pool.net.time)
    for wire in pool.net.pending():
        wire.lose()
    assert set(pool.core.nsqds) == {B, C}
    pool.core.found([], ["l: down"], pool.net.time)
    assert set(pool.core.nsqds) == {B, C}


# -- the end


def test_a_graceful_end_waits_for_answers() -> None:
    pool = Pool(script=silent).accept()
    publishes = [pool.publish() for _ in range(2)]
    pool.core.stop(pool.net.time)
    pool.run()
    with pytest.raises(Closed):
        pool.publish()
    assert pool.net.ends == 0
    pool.net.wires[0].peer.answer()
    pool.net.wires[0].peer.answer()
    pool.run()
    assert [each.end for each in publishes] == [None, None]
    assert pool.net.ends == 1 and pool.net.wires[0].closed
    assert pool.core.due == math.inf


def test_an_end_does_not_wait_for_answers_that_have_timed_out() -> None:
    pool = Pool(script=silent).accept()
    late = pool.publish(within=2)
    pool.net.tick(3)
    assert isinstance(late.end, PublishTimeout)
    awaited = pool.publish(within=5)
    pool.core.stop(pool.net.time)
    assert pool.net.ends == 0
    pool.net.tick(6)
    assert isinstance(awaited.end, PublishTimeout)
    assert pool.net.ends == 1 and pool.core.pending_bytes == 0
    pool = Pool(script=silent).accept()
    pool.publish(within=2)
    pool.net.tick(3)
    pool.core.stop(pool.net.time)
    assert pool.net.ends == 1 and pool.core.pending_bytes == 0


def test_a_graceful_end_that_takes_too_long() -> None:
    pool = Pool(script=silent, close_timeout=5).accept()
    publish = pool.publish()
    pool.core.stop(pool.net.time)
    pool.net.tick(6)
    assert isinstance(publish.end, Closed)
    assert pool.net.ends == 1 and pool.core.pending_bytes == 0


def test_a_graceful_end_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool(["a", "b"], script=silent).accept()
    for _ in range(3):
        pool.publish()
    pool.core.stop(pool.net.time)
    pool.net.tick(0.9)
    assert caplog.messages == []
    pool.net.tick(20)
    assert caplog.messages == [
        "[producer] close() waits at most 29 s more for a:4150 (unanswered publishes: 2), "
        "b:4150 (unanswered publishes: 1)"
    ]


def test_a_graceful_end_says_that_it_has_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    pool = Pool()
    pool.publish()
    pool.core.stop(pool.net.time)
    pool.net.tick(1)
    assert caplog.messages == [
        "[producer] close() waits at most 29 s more for a connection (waiting publishes: 1)"
    ]


def test_a_graceful_end_of_what_waits() -> None:
    pool = Pool()
    publish = pool.publish()
    pool.core.stop(pool.net.time)
    pool.accept()
    assert publish.end is None and pool.net.ends == 1


def test_a_graceful_end_of_what_waits_in_vain() -> None:
    pool = Pool()
    publish = pool.publish(within=2)
    pool.core.stop(pool.net.time)
    pool.net.tick(3)
    assert isinstance(publish.end, NoConnection) and pool.net.ends == 1


def test_an_end_at_once() -> None:
    pool = Pool(["a", "b"], "l:4161", script=silent)
    pool.net.wires[0].accept()
    sent = pool.publish()
    pool.net.wires[0].lose()
    waiting = pool.publish()
    pool.core.stop(pool.net.time, graceful=False)
    assert isinstance(sent.end, Closed) and isinstance(waiting.end, Closed)
    assert pool.net.ends == 1 and all(each.closed for each in pool.net.wires)
    attempts = len(pool.net.wires)
    pool.core.found([C], [], pool.net.time)
    pool.net.tick(100)
    assert len(pool.net.wires) == attempts and pool.core.pending_bytes == 0


def test_a_callback_may_stop_the_producer() -> None:
    pool = Pool(script=silent).accept()
    publishes = [pool.publish() for _ in range(3)]
    publishes[0].then = lambda: pool.core.stop(pool.net.time, graceful=False)
    pool.run()
    for _ in range(3):
        pool.net.wires[0].peer.answer()
    pool.net.wires[0].hear()
    assert publishes[0].end is None
    assert all(isinstance(each.end, Closed) for each in publishes[1:])
    assert pool.net.ends == 1 and pool.core.pending_bytes == 0


def test_a_callback_may_publish() -> None:
    pool = Pool(retries=0)
    again: list[Told] = []
    publish = pool.publish()
    publish.then = lambda: again.append(pool.publish(b"again"))
    pool.net.wires[0].lose()
    assert isinstance(publish.end, ConnectionFailed)
    pool.net.tick(1)
    pool.accept()
    assert again[0].end is None
    late = pool.publish(within=1)
    late.then = lambda: again.append(pool.publish(b"late"))
    pool.net.wires[-1].peer.script = silent
    pool.net.tick(2)
    pool.run()
    assert again[1].end == WAITING


# -- random histories


QUESTION = b""  # stands for a LIMITS command in lists of bodies


class Histories(RuleBasedStateMachine):
    """Nsqds that start, exit and refuse, compared with the messages that each has accepted."""

    @initialize(
        fixed=st.sets(st.sampled_from("abc"), min_size=1),
        lookups=st.booleans(),
        retries=st.integers(0, 3),
        seed=st.integers(0, 3),
    )
    def begin(self, fixed: set[str], lookups: bool, retries: int, seed: int) -> None:
        logging.getLogger("nsqcy.client").disabled = True
        self.net = Net(script=self.script, settings={"limits": {"max_msg_size": 7}})
        self.core = self.net.core = ProducerCore(
            self.net,
            sorted(fixed),
            "l:4161" if lookups else (),
            keywords={"retries": retries, "heartbeat_interval": 1000, "close_timeout": 30},
            rng=Random(seed),
        )
        self.alone = len(fixed) == 1 and not lookups
        self.answers = 0  # number of answered lookups
        self.published: list[Told] = []
        self.unanswered: dict[Peer, list[bytes]] = {}  # bodies by nsqd, in order of arrival
        self.arrived: dict[tuple[Peer, str], list[bytes]] = {}  # bodies by nsqd and command line
        self.retried: set[bytes] = set()
        self.withdrawn: set[bytes] = set()  # timed out before they were sent
        self.accepted: list[bytes] = []
        self.refused: set[bytes] = set()
        self.stopped = False
        self.core.on_retry = lambda publish, error: self.retried.add(publish.body)
        self.core.start(self.net.time)

    def teardown(self) -> None:
        logging.getLogger("nsqcy.client").disabled = False

    def script(self, peer: Peer, line: str, body: bytes) -> bool:
        if line.startswith("PUB"):
            self.arrived.setdefault((peer, line), []).append(body)
        if line.startswith(("PUB", "LIMITS")):
            self.unanswered.setdefault(peer, []).append(body)
            return True
        return False

    def some(self, wires: list[Wire], index: int) -> Wire | None:
        return wires[index % len(wires)] if wires else None

    @rule(index=st.integers(0, 9))
    def accept(self, index: int) -> None:
        if wire := self.some(self.net.pending(), index):
            wire.accept()

    @rule(index=st.integers(0, 9))
    def refuse(self, index: int) -> None:
        if wire := self.some(self.net.pending(), index):
            wire.lose()

    @rule(index=st.integers(0, 9), executed=st.booleans())
    def lose(self, index: int, executed: bool) -> None:
        """If `executed`, only the answers are lost."""
        if wire := self.some(self.net.live(), index):
            if executed:
                wire.flush()
                self.accepted += filter(None, self.unanswered.get(wire.peer, ()))
            wire.lose()

    @rule(index=st.integers(0, 9))
    def leave(self, index: int) -> None:
        if wire := self.some(self.net.live(), index):
            wire.flush()
            wire.peer.answer(b"_goodbye_")
            wire.run()

    @precondition(lambda self: not self.stopped)
    @rule(
        count=st.integers(1, 4),
        size=st.integers(4, 9),
        within=st.sampled_from([0.5, 5.0, math.inf, math.inf]),
        topic=st.sampled_from("tu"),
    )
    def publish(self, count: int, size: int, within: float, topic: str) -> None:
        for number in range(count):  # the first may exceed the usual limit
            body = b"%0*d" % (size if number == 0 else 4, len(self.published))
            self.published.append(make(body, self.net.time + within, topic))
            self.core.publish(self.published[-1])

    @rule(index=st.integers(0, 99))
    def interrupt(self, index: int) -> None:
        waiting = [each for each in self.published if each.end == WAITING]
        if waiting:
            publish = waiting[index % len(waiting)]
            publish.is_abandoned = True
            before = self.core.pending_bytes
            self.core.withdraw(publish, self.net.time)
            if self.core.pending_bytes < before:
                self.withdrawn.add(publish.body)

    @rule(index=st.integers(0, 9), count=st.integers(1, 9), most=st.sampled_from([3, 7, 8, 9]))
    def ok(self, index: int, count: int, most: int) -> None:
        if wire := self.some(self.net.live(), index):
            wire.run()
            for _ in range(min(count, len(self.unanswered.get(wire.peer, ())))):
                body = self.unanswered[wire.peer].pop(0)
                if body == QUESTION:
                    wire.peer.answer(b'{"max_msg_size":%d}' % most)
                else:
                    self.accepted.append(body)
                    wire.peer.answer()
            wire.run()

    @rule(index=st.integers(0, 9), code=st.sampled_from(["E_BAD_MESSAGE", "E_PUB_FAILED"]))
    def error(self, index: int, code: str) -> None:
        if wire := self.some(self.net.live(), index):
            wire.run()
            if not wire.closed and self.unanswered.get(wire.peer):
                self.refused.add(self.unanswered[wire.peer].pop(0))
                wire.peer.error(f"{code} no")
                wire.run()

    @rule(seconds=st.sampled_from([0.1, 1.0, 7.0]))
    def wait(self, seconds: float) -> None:
        self.net.tick(seconds)

    @precondition(lambda self: self.net.lookups > self.answers)
    @rule(names=st.sets(st.sampled_from("abcd")), errors=st.booleans())
    def lookups_answer(self, names: set[str], errors: bool) -> None:
        self.answers += 1
        found = sorted((Address(name, 4150) for name in names), key=str)
        self.core.found(found, ["l: down"] if errors else [], self.net.time)

    @rule(graceful=st.booleans(), sure=st.integers(0, 6))
    def stop(self, graceful: bool, sure: int) -> None:
        if not sure:
            self.stopped = True
            self.core.stop(self.net.time, graceful=graceful)

    @invariant()
    def everybody_is_told_once_and_the_truth(self) -> None:
        if not hasattr(self, "net"):
            return
        for publish in self.published:
            end = publish.end  # never twice
            if end is None:
                assert publish.body in self.accepted
            elif isinstance(end, NsqdError) and publish.error is None:
                assert publish.body in self.refused or publish.body not in self.accepted
            elif isinstance(end, NoConnection):
                assert publish.body not in self.accepted

    @invariant()
    def bytes_are_counted(self) -> None:
        if not hasattr(self, "net"):
            return
        held = [*self.core.waiting]
        for nsqd in self.core.nsqds.values():
            held += nsqd.publishes()
        assert self.core.pending_bytes == sum(len(each.body) for each in held)
        assert {each.body for each in self.awaited} <= {each.body for each in held}

    @property
    def awaited(self) -> list[Told]:
        return [each for each in self.published if each.end == WAITING and each.is_awaited()]

    @invariant()
    def nothing_overtakes(self) -> None:
        """On one connection, publishes to one topic arrive in order."""
        if not hasattr(self, "net"):
            return
        for bodies in self.arrived.values():
            numbers = [int(each) for each in bodies if self.alone or each not in self.retried]
            assert numbers == sorted(numbers)
            assert self.withdrawn.isdisjoint(bodies) or self.retried & self.withdrawn

    @invariant()
    def with_one_nsqd_nothing_is_published_twice(self) -> None:
        if hasattr(self, "net") and self.alone:
            assert len(self.accepted) == len(set(self.accepted))

    @invariant()
    def after_the_end_nobody_is_called(self) -> None:
        if hasattr(self, "net") and self.net.ends:
            assert self.net.ends == 1
            assert not self.net.live() and not self.net.pending()
            assert self.core.due == math.inf
            assert not self.awaited

    def finish(self) -> None:
        """Stop all nsqds."""
        for wire in self.net.live():
            wire.lose()
        end = self.net.time + 300
        while self.net.time < end and self.awaited:
            for wire in self.net.pending():
                wire.lose()
            if self.net.lookups > self.answers:
                self.answers += 1
                self.core.found([], [], self.net.time)
            self.net.tick(0.5)

    @rule(sure=st.integers(0, 9))
    def nothing_hangs(self, sure: int) -> None:
        if not sure:
            self.finish()
            assert self.awaited == []
            assert self.core.pending_bytes == 0


Histories.TestCase.settings = PROFILE
TestHistories = pytest.mark.slow(Histories.TestCase)


def test_a_note_names_the_option_that_sets_a_limit() -> None:
    error = NsqdError("E_INVALID DPUB timeout 3600001 out of range 0-3600000")
    assert error.__notes__ == [
        "nsqd's options --max-defer-timeout and --max-req-timeout limit the delay; "
        "max_defer_timeout in a topic's policy overrides them"
    ]
    assert not hasattr(NsqdError("E_BAD_TOPIC PUB topic name"), "__notes__")
