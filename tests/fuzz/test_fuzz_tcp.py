"""Random and mutated input: the daemon stays up, serves others, and does not grow.

`NSQCY_FUZZ_SECONDS` and `NSQCY_FUZZ_SEED` make a longer or another run.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator

import pytest
from daemon import Nsqd, free_port
from talk import MAGIC, Conn, batch, sized, split_frames

SECONDS = float(os.environ.get("NSQCY_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("NSQCY_FUZZ_SEED", "20240229"))
GROWTH = 64 << 20
WARM_UP = 40

IDENTIFIES = [
    b"{}",
    b'{"feature_negotiation":true,"heartbeat_interval":1000}',
    b'{"feature_negotiation":true,"msg_timeout":1000,"sample_rate":50,"output_buffer_size":-1}',
    b'{"client_id":"\\ud800\\u0000","hostname":null,"x":[[[[{"a":1e400}]]]]}',
    b"[" * 3000,
]
TOPICS = [b"fuzz1", b"fuzz2", b"fuzz3#ephemeral", b"a$", b""]


@pytest.fixture(scope="module")
def target(workers: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nsqd]:
    path = tmp_path_factory.mktemp("victim")
    daemon = Nsqd(path, workers=workers, log_level="error", **fixed_addresses()).start()
    yield daemon
    daemon.destroy()


@pytest.fixture
def victim(target: Nsqd) -> Iterator[Nsqd]:
    yield target
    target.hang_up()


def fixed_addresses() -> dict[str, object]:
    """Ports chosen beforehand, for a daemon too quiet to announce them."""
    ports = [free_port(), free_port()]
    return {
        "announced": False,
        "tcp_address": f"127.0.0.1:{ports[0]}",
        "http_address": f"127.0.0.1:{ports[1]}",
    }


def a_command(chance: random.Random) -> bytes:
    topic = chance.choice(TOPICS)
    ident = b"%016x" % chance.getrandbits(63)
    number = b"%d" % chance.choice([0, 1, 100, 2500, 2501, -1, 2**31, 2**63, 2**64, 10**30])
    body = chance.randbytes(chance.choice([1, 10, 300, 70_000]))
    return chance.choice(
        [
            b"NOP\n",
            b"CLS\n",
            b"SUB " + topic + b" " + chance.choice([b"c", b"d#ephemeral", b"e:f"]) + b"\n",
            b"RDY " + number + b"\n",
            b"FIN " + ident + b"\n",
            b"REQ " + ident + b" " + number + b"\n",
            b"TOUCH " + ident + b"\n",
            b"PUB " + topic + b"\n" + sized(body),
            b"DPUB " + topic + b" " + number + b"\n" + sized(body),
            b"MPUB " + topic + b"\n" + batch([body[:40]] * chance.randint(0, 20)),
            b"IDENTIFY\n" + sized(chance.choice(IDENTIFIES)),
            b"AUTH\n" + sized(b"secret"),
            chance.randbytes(chance.randint(1, 200)) + b"\n",
        ]
    )


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut out, doubled, or replaced by a number at the edge of its range."""
    result = bytearray(data)
    for _ in range(chance.choice([0, 0, 1, 1, 2, 5, 20])):
        at = chance.randrange(len(result) + 1)
        kind = chance.randrange(5)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del result[at : at + chance.randint(1, 20)]
        elif kind == 2:
            result[at:at] = result[at : at + chance.randint(1, 50)]
        elif kind == 3:
            edge = chance.choice([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 5242880, 1048577])
            result[at : at + 4] = edge.to_bytes(4, "big")
        else:
            result[at:at] = chance.randbytes(chance.randint(1, 30))
    return bytes(result)


def a_conversation(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randint(0, 2000))
    commands = b"".join(a_command(chance) for _ in range(chance.randint(1, 12)))
    return MAGIC + mutated(commands, chance)


def a_request(chance: random.Random) -> bytes:
    path = chance.choice(
        [
            b"/ping",
            b"/info",
            b"/stats?format=json",
            b"/stats?format=json&topic=fuzz1",
            b"/pub?topic=fuzz1",
            b"/pub?topic=fuzz1&defer=99999999999999999999",
            b"/mpub?topic=fuzz2",
            b"/mpub?topic=fuzz2&binary=true",
            b"/topic/create?topic=fuzz1",
            b"/topic/delete?topic=fuzz2",
            b"/channel/create?topic=fuzz1&channel=c",
            b"/channel/empty?topic=%ff&channel=%",
            b"/" + b"x" * chance.choice([1, 5000, 100_000]),
        ]
    )
    body = chance.choice([b"", b"x", b"a\nb\nc", batch([b"x", b"y"])[4:], chance.randbytes(3000)])
    method = chance.choice([b"GET", b"POST", b"PUT", b"HEAD", b"OPTIONS", b"get"])
    head = method + b" " + path + b" HTTP/1." + chance.choice([b"0", b"1", b"9"]) + b"\r\n"
    extra = [b"", b"Connection: close\r\n", b"X: " + b"y" * 9000 + b"\r\n"]
    head += b"Host: x\r\n" + chance.choice(extra)
    if chance.random() < 0.3:
        chunk = b"%x\r\n" % len(body) + body + b"\r\n" if body else b""
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n"
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def some_requests(chance: random.Random) -> bytes:
    if chance.random() < 0.1:
        return chance.randbytes(chance.randint(0, 2000))
    return mutated(b"".join(a_request(chance) for _ in range(chance.randint(1, 4))), chance)


def attack(port: int, data: bytes, chance: random.Random) -> bytes:
    """Send `data` in pieces, then half-close or vanish; what was answered before the end.

    A connection that the daemon breaks off is as good as an end; one that never ends is not.
    """
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10.0) as link:
            at = 0
            while at < len(data):
                size = chance.choice([1, 7, 100, 5000, 1 << 20])
                link.sendall(data[at : at + size])
                at += size
            if chance.random() < 0.3:
                return b""
            link.shutdown(socket.SHUT_WR)
            while chunk := link.recv(65536):
                answer += chunk
    except TimeoutError:
        raise
    except OSError:
        pass
    return bytes(answer)


def well_formed(answer: bytes) -> None:
    """Nothing but whole frames of known kinds."""
    frames, rest = split_frames(answer)
    assert len(rest) < 8 or 4 <= int.from_bytes(rest[:4], "big") < 2**21, rest[:64]
    assert {frame.kind for frame in frames} <= {0, 1, 2}


class Witness:
    """Another client of the same daemon: its messages must go through all along."""

    def __init__(self, daemon: Nsqd, topic: str) -> None:
        self.topic = topic
        self.producer: Conn = daemon.connect()
        self.consumer = daemon.connect().sub(topic, "c", rdy=10)
        self.count = 0

    def testify(self) -> None:
        self.count += 1
        self.producer.pub(self.topic, b"%d" % self.count)
        assert [message.body for message in self.consumer.take(1)] == [b"%d" % self.count]


def besiege(daemon: Nsqd, topic: str, one: Callable[[random.Random], None]) -> None:
    """Attacks for a while, each from a seed of its own, named if it fails."""
    processes = [daemon.process.pid, *daemon.workers()]
    witness = Witness(daemon, topic)
    deadline = time.monotonic() + SECONDS
    memory, number = 0, 0
    while time.monotonic() < deadline:
        seed = SEED + number
        try:
            one(random.Random(seed))
        except BaseException as failure:
            failure.add_note(f"seed {seed}")
            raise
        if number % 20 == 0:
            witness.testify()
            daemon.web.post("/topic/empty", topic="fuzz1")
        if number == WARM_UP:
            memory = daemon.memory()
        number += 1
    witness.testify()
    for topic in ("fuzz1", "fuzz2"):
        daemon.web.post("/topic/delete", topic=topic)
    assert number > WARM_UP, f"only {number} attacks"
    assert [daemon.process.pid, *daemon.workers()] == processes
    assert daemon.memory() - memory < GROWTH


def test_commands(victim: Nsqd, topic: str) -> None:
    def one(chance: random.Random) -> None:
        well_formed(attack(victim.tcp_port, a_conversation(chance), chance))

    besiege(victim, topic, one)


def test_requests(victim: Nsqd, topic: str) -> None:
    def one(chance: random.Random) -> None:
        answer = attack(victim.http_port, some_requests(chance), chance)
        assert answer[:5] in (b"", b"HTTP/"), answer[:100]

    besiege(victim, topic, one)


def test_announced_giants(victim: Nsqd, topic: str) -> None:
    """Lengths of gigabytes and half-sent bodies cost what has arrived, not what was announced."""
    victim.connect().usable()
    before = victim.memory()
    for _ in range(100):
        conn = victim.connect()
        conn.send(b"PUB giants\n\x00\x0f\xff\xff", b"x" * 100)
        conn = victim.connect()
        conn.send(b"MPUB giants\n\x00\x4f\xff\xff\x00\x00\x00\x05\x00\x0f\xff\xff", b"x" * 100)
        conn = victim.connect()
        conn.send(b"IDENTIFY\n\x00\x4f\xff\xff", b"{")
    Witness(victim, topic).testify()
    assert victim.memory() - before < GROWTH
    assert victim.web.counts("giants")["message_count"] == 0
