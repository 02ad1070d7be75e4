"""Unfinished commands: clients that exhaust the input budget do not block others."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.server.core import BytesTransport
from support.worker_core import ERROR, RESPONSE, SECOND, Core, frames

KIB, MIB = 1 << 10, 1 << 20
BUDGET = 16 * MIB  # reading stops at 3/4 of the budget, or at half of that per address
OK = (RESPONSE, b"OK")

Make = Callable[..., Core]


class Guard:
    """Requires AUTH."""

    def of_certificate(self, names: tuple[str, ...]) -> None:
        return None


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    cores: list[Core] = []

    def make(**settings: Any) -> Core:
        cores.append(Core(tmp_path, max_input_bytes=BUDGET, **settings))
        return cores[-1]

    yield make
    for core in cores:
        core.close()


class Peer:
    """A client with an address."""

    def __init__(self, core: Core, address: str) -> None:
        self.transport = BytesTransport(core.manager, f"{address}:1")
        self.core = core
        self.send(b"  V2")

    def send(self, *parts: bytes) -> bool:
        """Send, as far as the worker reads; return whether it read everything."""
        data = b"".join(parts)
        for at in range(0, len(data), 64 * KIB):
            if not self.transport.wants_input:
                return False
            self.transport.feed(data[at : at + 64 * KIB])
        return True

    def answers(self) -> list[tuple[int, bytes]]:
        self.core.settle()
        return [each for each in frames(self.transport.sent()) if each[1] != b"_heartbeat_"]

    @property
    def closed(self) -> bool:
        return bool(self.transport.closed)


def half_an_identify(size: int = 60_000) -> bytes:
    return b"IDENTIFY\n" + struct.pack(">i", 64 * KIB) + b"x" * size


def half_a_publish(size: int = 900 * KIB) -> bytes:
    return b"PUB a\n" + struct.pack(">i", MIB) + b"x" * size


def publish(size: int = 900 * KIB) -> bytes:
    return b"PUB t\n" + struct.pack(">i", size) + b"x" * size


def test_an_address_has_a_share_of_the_input_before_auth(make: Make) -> None:
    core = make(auth=Guard())
    other = Peer(core, "2.2.2.2")
    other.send(half_an_identify())
    peers = [Peer(core, "1.1.1.1") for _ in range(10)]
    for peer in peers:
        peer.send(half_an_identify())
        assert core.manager.input_bytes <= BUDGET // 16 // 8 + 2 * 64 * KIB
    refusal = (ERROR, b"E_INVALID too much unfinished input before AUTH")
    assert [peer.answers() for peer in peers] == [[refusal]] * 8 + [[]] * 2
    assert other.answers() == []


def test_all_input_before_auth_has_a_limit(make: Make) -> None:
    core = make(auth=Guard())
    peers = [Peer(core, f"1.1.1.{number}") for number in range(100)]
    for peer in peers:
        peer.send(half_an_identify())
    assert core.manager.input_bytes <= BUDGET // 16
    kept = [peer for peer in peers if not peer.answers()]
    assert kept == peers[-len(kept) :] and len(kept) > 10


def test_it_does_not_count_after_auth(make: Make) -> None:
    core = make()
    peers = [Peer(core, "1.1.1.1") for _ in range(100)]
    for peer in peers:
        peer.send(half_an_identify())
    assert all(peer.answers() == [] for peer in peers)


def test_an_address_leaves_room_for_others(make: Make) -> None:
    core = make()
    hogs = [Peer(core, "1.1.1.1") for _ in range(30)]
    read = [hog.send(half_a_publish()) for hog in hogs]
    assert not all(read)
    assert core.manager.input_bytes < BUDGET * 3 // 4
    other = Peer(core, "2.2.2.2")
    assert other.send(publish())
    assert other.answers() == [OK]


def test_silent_clients_are_dropped_until_others_can_continue(make: Make) -> None:
    core = make()
    hogs = [Peer(core, "1.1.1.1") for _ in range(12)]
    read = [hog for hog in hogs if hog.send(half_a_publish())]
    assert 1 < len(read) < len(hogs)
    victim = Peer(core, "1.1.1.1")
    assert not victim.send(publish())
    core.advance(2 * SECOND)
    refusal = (ERROR, b"E_BAD_MESSAGE PUB failed to read message body")
    answers = [hog.answers() for hog in read]
    assert [refusal] in answers and all(each in ([], [refusal]) for each in answers)
    assert victim.transport.wants_input


def test_a_newcomer_need_not_wait_for_all_that_came_before(make: Make) -> None:
    core = make()
    hogs = [Peer(core, "1.1.1.1") for _ in range(200)]
    for hog in hogs:
        hog.send(half_a_publish(100 * KIB))
    victim = Peer(core, "1.1.1.1")
    body = publish()
    victim.send(body[: 100 * KIB])
    assert not victim.transport.wants_input
    core.advance(2 * SECOND)
    assert victim.transport.wants_input
    victim.send(body[100 * KIB :])
    assert victim.answers() == [OK]


def test_nothing_is_left_behind(make: Make) -> None:
    for settings in ({}, {"auth": Guard()}):
        core = make(**settings)
        for address in ("1.1.1.1", "2.2.2.2"):
            peers = [Peer(core, address) for _ in range(5)]
            for peer in peers:
                peer.send(half_an_identify())
        core.manager.close_sessions()
        assert core.manager.input_bytes == 0
