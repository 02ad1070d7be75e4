"""A hostile nsqd: after any input, a client's core continues, and ends when it is closed.

NSQCY_FUZZ_ROUNDS=100000 makes a longer run.
"""

import json
import logging
import os
import random
import struct
from random import Random
from typing import Any

import pytest

from nsqcy.client.codec import Publish
from nsqcy.client.consumer import ConsumerCore
from nsqcy.client.errors import Error, Requeue
from nsqcy.client.producer import ProducerCore
from support.fake_network import Net, Wire
from support.fake_nsqd import SETTINGS, delivery, frame

ROUNDS = int(os.environ.get("NSQCY_FUZZ_ROUNDS", "400"))
STEPS = 30
WORDS = [b"OK", b"_heartbeat_", b"CLOSE_WAIT", b"", b"E_INVALID x", b"E_FIN_FAILED x", b"\xff"]
WORDS += [b"E_PUB_FAILED", b"E_", b"{}", b"[]", b"null", b"1e999", b'"', b"[" * 5000]


@pytest.fixture(autouse=True)
def quiet() -> Any:
    log = logging.getLogger("nsqcy.client")
    log.disabled = True
    yield
    log.disabled = False


def settings(rng: Random) -> bytes:
    """Return an answer to IDENTIFY with some odd values."""
    odd = [None, True, False, 0, -1, 1, 10**40, 1.5, "x", [], {}, [[]] * 50]
    said: dict[str, Any] = dict(SETTINGS)
    for _ in range(rng.randint(0, 3)):
        names = ["max_rdy_count", "tls_v1", "snappy", "deflate", "auth_required", "x"]
        said[rng.choice(names)] = rng.choice(odd)
    return json.dumps(said).encode()


def something(rng: Random) -> bytes:
    """Return one or more frames, most of them complete."""
    kind = rng.choice([0, 0, 1, 2, 3, 0xFFFFFFFF])
    said = rng.choice(
        [
            lambda: frame(0, settings(rng)),
            lambda: frame(0, b"OK") * rng.randint(1, 4),
            lambda: frame(kind, rng.choice(WORDS)),
            lambda: delivery(b"x" * rng.randint(0, 9), attempts=rng.randint(0, 65535)),
            lambda: struct.pack(">II", rng.getrandbits(32), kind),
            lambda: rng.randbytes(rng.randint(1, 40)),
        ]
    )()
    if rng.random() < 0.1:
        at = rng.randrange(len(said))
        said = said[:at] + bytes([rng.randrange(256)]) + said[at + 1 :]
    if rng.random() < 0.1:
        said = said[: rng.randrange(len(said))]
    return said


def hear(net: Net, wire: Wire, data: bytes, rng: Random) -> None:
    cut = rng.randrange(len(data) + 1)
    for piece in (data[:cut], data[cut:]):
        if wire.open:
            net.core.received(wire.connection, piece, net.time)
    if wire.open:
        wire.connection.take()
        net.core.answered(net.time)


def step(net: Net, rng: Random) -> None:
    wires = [each for each in net.wires if not each.closed]
    if not wires:
        net.tick(rng.choice([0.5, 20, 90]))
        return
    wire = rng.choice(wires)
    if not wire.open:
        wire.open = True
        wire.peer.feed = lambda data: None  # type: ignore[method-assign]  # it sends anything
        net.core.connected(wire.connection, net.time)
        if rng.random() < 0.7:  # otherwise the handshake never ends
            hear(net, wire, frame(0, rng.choice([b"OK", json.dumps(SETTINGS).encode()])), rng)
    elif rng.random() < 0.05:
        wire.lose()
    else:
        hear(net, wire, something(rng), rng)


def test_a_consumer() -> None:
    for seed in range(ROUNDS):
        rng = Random(seed)
        options = {"snappy": rng.random() < 0.2, "max_in_flight": rng.randint(0, 9)}
        net = Net()
        core = net.core = ConsumerCore(
            net, "t", "c", ["a", "b"], keywords={**options, "close_timeout": 5}, rng=rng
        )
        core.start(net.time)
        for _ in range(STEPS):
            step(net, rng)
            if net.delivered and rng.random() < 0.5:
                message = net.delivered.pop()
                ends: list[Any] = [RuntimeError(), Requeue(1), ValueError()]
                core.raised(message, rng.choice(ends))
        assert all(each.connection.in_flight >= 0 for each in net.wires)
        assert core.flow.total_ready <= core.flow.max_in_flight
        core.stop(net.time, graceful=rng.random() < 0.5)
        net.tick(6)
        assert net.ends == 1, seed
        assert all(each.closed for each in net.wires)


class Ended(Publish):
    """Publish that counts how often it ends."""

    def __init__(self, body: bytes) -> None:
        super().__init__("t", b"PUB t\n", body, None)
        self.ends = 0

    def done(self, error: Error | None) -> None:
        self.ends += 1


def test_a_producer() -> None:
    for seed in range(ROUNDS):
        rng = random.Random(seed)
        net = Net()
        core = net.core = ProducerCore(
            net, ["a", "b"], keywords={"close_timeout": 5, "retries": 2}, rng=rng
        )
        core.start(net.time)
        published = []
        for _ in range(STEPS):
            step(net, rng)
            if rng.random() < 0.5:
                published.append(Ended(b"x" * rng.randint(1, 9)))
                core.publish(published[-1])
        core.stop(net.time, graceful=rng.random() < 0.5)
        net.tick(6)
        assert net.ends == 1, seed
        assert [each.ends for each in published] == [1] * len(published), seed
        assert core.pending_bytes == 0
        assert all(each.closed for each in net.wires)
