"""A client that has not authenticated yet: its permitted commands, and the work that it can
cause."""

import json
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from nsqcy.nsqd.auth.authorizations import Authorization, parse
from nsqcy.protocol.core import Session
from nsqcy.server.core import BytesTransport
from support.fake_auth_server import answer, grant
from support.worker_core import ERROR, RESPONSE, Client, Core, frames

MAX_IDENTIFY = 65536
MAX_SECRET = 16384
MAX_TEXT = 1024
MAX_UNREAD = 8192
OK = (RESPONSE, b"OK")


class Servers:
    """Records the sessions that request authorization; a test answers."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def ask(self, session: Session) -> None:
        self.sessions.append(session)

    def of_certificate(self, names: tuple[str, ...]) -> Authorization | None:
        return None


@pytest.fixture
def servers() -> Servers:
    return Servers()


@pytest.fixture(params=["auth", "no auth"])
def core(request: pytest.FixtureRequest, servers: Servers, tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path, auth=servers if request.param == "auth" else None)
    yield made
    made.close()


@pytest.fixture
def guarded(servers: Servers, tmp_path: Path) -> Iterator[Core]:
    made = Core(tmp_path, auth=servers)
    yield made
    made.close()


def sized(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def identify(**fields: Any) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


def padded(size: int) -> bytes:
    """Return an IDENTIFY with a body of this size."""
    return b"IDENTIFY\n" + sized(b"{}".ljust(size))


def test_an_identify_has_at_most_64_kib(core: Core) -> None:
    assert core.client().ask(padded(MAX_IDENTIFY)) == OK
    client = core.client()
    client.send(b"IDENTIFY\n", struct.pack(">i", MAX_IDENTIFY + 1))
    text = b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"
    assert client.answer() == (ERROR, text)


@pytest.mark.parametrize(
    "key", ["client_id", "hostname", "user_agent", "topology_region", "topology_zone"]
)
def test_a_text_has_at_most_1_kib(key: str, core: Core) -> None:
    assert core.client().ask(identify(**{key: "é" * (MAX_TEXT // 2)})) == OK
    text = f"E_BAD_BODY IDENTIFY {key} too long 1026 > 1024".encode()
    assert core.client().ask(identify(**{key: "é" * (MAX_TEXT // 2 + 1)})) == (ERROR, text)


def test_a_secret_has_at_most_16_kib(core: Core, servers: Servers) -> None:
    client = core.client()
    client.send(b"AUTH\n", struct.pack(">i", MAX_SECRET + 1))
    assert client.answer() == (ERROR, b"E_BAD_BODY AUTH body too big 16385 > 16384")
    assert not servers.sessions


def test_no_body_is_awaited_before_auth(guarded: Core) -> None:
    for command in (b"PUB t\n", b"DPUB t 5\n", b"MPUB t\n"):
        client = guarded.client()
        client.send(command, struct.pack(">i", 1000), b"x")
        name = command.split()[0]
        assert client.answer() == (ERROR, b"E_AUTH_FIRST AUTH required before " + name)
    assert guarded.manager.input_bytes == 0


def test_a_body_after_auth_waits_for_its_answer(guarded: Core, servers: Servers) -> None:
    client = guarded.client()
    client.send(b"AUTH\n", sized(b"s"), b"PUB t\n", struct.pack(">i", 3), b"a")
    servers.sessions.pop().authorized(parse(answer(grant(), ttl=60)))
    guarded.settle()
    client.send(b"bc")
    guarded.settle()
    assert [client.answer() for _ in range(2)][1] == OK


def test_a_turn_parses_few_identifies(core: Core) -> None:
    """Clients that send many IDENTIFYs at once do not delay others."""
    one = identify(heartbeat_interval=60_000)
    clients = [core.client() for _ in range(3)]
    core.settle()
    for client in clients:
        client.send(one * 100)
    answered = [0]
    while answered[-1] < 300:
        core.manager.run_turn(core.now, core.wall)
        for client in clients:
            client.look()
        answered.append(sum(len(client.heard) for client in clients))
    steps = [later - earlier for earlier, later in pairwise(answered)]
    assert max(steps) <= 2 * 64 and all(steps)


def test_a_turn_parses_one_large_identify(core: Core) -> None:
    clients = [core.client() for _ in range(5)]
    core.settle()
    for client in clients:
        client.send(padded(MAX_IDENTIFY))
    for turn in range(len(clients)):
        for client in clients:
            client.look()
        # The first IDENTIFY arrived between two turns.
        assert sum(len(client.heard) for client in clients) == 1 + turn
        core.manager.run_turn(core.now, core.wall)
    assert [client.answer() for client in clients] == [OK] * 5


def test_a_client_that_reads_no_answers(guarded: Core) -> None:
    transport = BytesTransport(guarded.manager)
    transport.full = 0
    one = identify(feature_negotiation=True)
    transport.feed(b"  V2" + one * 200)
    guarded.settle()
    assert MAX_UNREAD < len(transport.unsent()) < MAX_UNREAD + 1024
    assert not transport.wants_input
    transport.full = None
    guarded.settle()
    assert len(list(frames(transport.sent()))) == 200


def test_limits_grow_with_auth(guarded: Core, servers: Servers) -> None:
    client: Client = guarded.client()
    assert client.session.unauthenticated
    client.send(b"AUTH\n", sized(b"s"))
    servers.sessions.pop().authorized(parse(answer(grant(), ttl=60)))
    assert not client.session.unauthenticated
