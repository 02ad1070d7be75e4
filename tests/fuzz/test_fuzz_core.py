"""Garbage sent to one worker's sessions in this process. The worker answers with frames and keeps
no objects.

The test controls the clock. Every conversation is fed in pieces to a separate core, and its topics
are deleted; then no object may be alive. A debug build counts objects; a release build counts
records. The answers do not depend on the positions of the cuts.
"""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fuzz.conversation import alive, told
from fuzz.garbage import CONVERSATIONS, a_golden_one, an_identity, mutated, some_messages
from golden.script import pieces
from nsqcy.server.core import BytesTransport
from nsqcy.testing.wire_client import MAGIC, sized
from support.runs import runs
from support.worker_core import SECOND, Client, Core, mpub

seeds = st.integers(0, 2**32)
numbers = st.sampled_from([0, 1, 2500, 2501, -1, 2**31, 2**63, 2**64]) | st.integers()
names = st.sampled_from([b"a", b"b#ephemeral", b"", b"$", b"n" * 65]) | st.binary(max_size=70)
bodies = st.binary(max_size=300) | st.integers(0, 70_000).map(bytes)
lengths = st.integers(-(2**31), 2**31 - 1).map(lambda n: n.to_bytes(4, "big", signed=True))


def line(*words: bytes) -> bytes:
    return b" ".join(words) + b"\n"


def decimal(number: int) -> bytes:
    return b"%d" % number


sized_bodies = bodies.map(sized) | st.builds(bytes.__add__, lengths, bodies)
messages = st.lists(sized_bodies, max_size=8).map(
    lambda parts: len(parts).to_bytes(4, "big") + b"".join(parts)
)
wrong_lengths = st.integers(1, 1000).map(lambda n: n.to_bytes(4, "big"))
batches = messages.map(sized) | st.builds(bytes.__add__, wrong_lengths, messages)
commands = st.one_of(
    st.builds(lambda topic, body: line(b"PUB", topic) + body, names, sized_bodies),
    st.builds(
        lambda topic, delay, body: line(b"DPUB", topic, decimal(delay)) + body,
        names,
        numbers,
        sized_bodies,
    ),
    st.builds(lambda topic, batch: line(b"MPUB", topic) + batch, names, batches | sized_bodies),
    st.builds(lambda topic, channel: line(b"SUB", topic, channel), names, names),
    st.builds(lambda count: line(b"RDY", decimal(count)), numbers),
    st.builds(
        lambda verb, ident, number: line(verb, ident, decimal(number)),
        st.sampled_from([b"FIN", b"REQ", b"TOUCH"]),
        st.binary(min_size=16, max_size=16),
        numbers,
    ),
    st.builds(
        lambda body: b"IDENTIFY\n" + body,
        sized_bodies | seeds.map(lambda seed: sized(an_identity(random.Random(seed)))),
    ),
    seeds.map(lambda seed: line(b"MPUB", b"a") + sized(some_messages(random.Random(seed)))),
    sized_bodies.map(lambda body: b"AUTH\n" + body),
    st.sampled_from([b"CLS\n", b"NOP\n", b"\n", b"\r\n", b"  V2", b"GET / HTTP/1.1\r\n\r\n"]),
)
# For a client with headers: each body follows a single header or arbitrary data.
one_header = st.builds(
    lambda name, value: bytes([len(name)]) + name + len(value).to_bytes(2, "big") + value,
    st.sampled_from([b"a", b"trace-id", b"", b"Up"]),
    st.binary(max_size=30),
)
headered_bodies = st.builds(
    lambda headers, body: sized(len(headers).to_bytes(2, "big") + headers + body),
    st.lists(one_header, max_size=3).map(b"".join) | st.binary(max_size=40),
    bodies,
)
headered_commands = st.one_of(
    headered_bodies.map(lambda body: b"PUB a\n" + body),
    headered_bodies.map(lambda body: b"DPUB a 10\n" + body),
    st.lists(headered_bodies | sized_bodies, min_size=1, max_size=4).map(
        lambda parts: b"MPUB a\n" + sized(len(parts).to_bytes(4, "big") + b"".join(parts))
    ),
    st.just(b"SUB a c\nRDY 9\n"),
    commands,
)
WITH_HEADERS = MAGIC + b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"headers":true}')
conversations = st.one_of(
    st.lists(headered_commands, max_size=12).map(lambda parts: WITH_HEADERS + b"".join(parts)),
    st.lists(commands, max_size=12).map(lambda parts: MAGIC + b"".join(parts)),
    st.builds(
        lambda parts, seed: MAGIC + mutated(b"".join(parts), random.Random(seed)),
        st.lists(commands, max_size=6),
        seeds,
    ),
    st.binary(max_size=300).map(lambda data: MAGIC + data),
    seeds.map(lambda seed: a_golden_one(random.Random(seed))),
)


# The headers of one message in the batch fill it, and a later message is empty.
TWO_FAULTS = (
    MAGIC + b'IDENTIFY\n\0\0\0+{"feature_negotiation":true,"headers":true}'
    b"MPUB a\n\0\0\0\x1c\0\0\0\3" + b"\0\0\0\2\0\0" + b"\0\0\0\0" + b"\0\n\0\x08\1a\0\4" + bytes(9)
)


@settings(deadline=None, max_examples=runs(60))
@given(conversations, seeds)
@example(TWO_FAULTS, 0)
def test_a_conversation_leaves_nothing_behind(data: bytes, seed: int) -> None:
    whole = told(data, None)
    assert {kind for kind, _ in whole} <= {0, 1, 2}
    assert told(data, random.Random(seed)) == whole


@pytest.mark.parametrize("kind", CONVERSATIONS)
def test_garbage_beside_a_client(kind: str) -> None:
    """One well-behaved client works next to many broken peers; some read slowly or vanish."""
    chance = random.Random(kind)
    core = Core(None)
    before = alive(core)
    consumer = core.client().subscribe("good", "c", 100)
    peers: list[BytesTransport] = []
    for number in range(200):
        peer = BytesTransport(core.manager)
        peers.append(peer)
        peer.full = chance.choice([None, None, 0, 100])
        data = CONVERSATIONS[kind](chance)
        for piece in pieces(data, "random" if len(data) > 1 else "whole", chance):
            peer.feed(piece)
            if chance.random() < 0.5:
                core.settle()
        if chance.random() < 0.5:
            chance.choice(peers).end()
        core.settle()
        if number % 10 == 0:
            core.advance(SECOND)
            works(core, consumer, number)
    core.close()
    core.clients.clear()
    peers.clear()
    del consumer, peer
    assert alive(core) == before


def works(core: Core, consumer: Client, number: int) -> None:
    producer = core.client()
    sent = [b"%d-%d" % (number, each) for each in range(3)]
    assert producer.ask(mpub("good", sent)) == (0, b"OK")
    core.settle()
    got = consumer.messages()
    assert [message.body for message in got] == sent
    for message in got:
        consumer.finish(message.id)
    producer.transport.end()
    core.settle()
