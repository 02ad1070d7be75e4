"""A session whose client needs authorization: commands that wait for it, and commands that need no
new decision."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.nsqd.auth.authorizations import Authorization, parse
from nsqcy.protocol.core import Session
from nsqcy.server.core import BytesTransport
from support.fake_auth_server import answer, grant
from support.worker_core import ERROR, RESPONSE, SECOND, Client, Core

OK = (RESPONSE, b"OK")


class Asked:
    """Records the sessions that request authorization; a test answers."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []

    def ask(self, session: Session) -> None:
        self.sessions.append(session)

    def of_certificate(self, names: tuple[str, ...]) -> Authorization | None:
        return None

    def restore(self, source: bytes) -> Authorization:
        return parse(source)


class Counted(Authorization):
    """Counts the decisions."""

    asked = 0

    def permits(self, topic: str, channel: str) -> bool:
        self.asked += 1
        return super().permits(topic, channel)


def counted(*grants: dict[str, Any], ttl: int = 60) -> Counted:
    found = parse(answer(*grants, ttl=ttl))
    return Counted(found.source, found.ttl, found.identity, found.identity_url, found.grants)


def pub(topic: str) -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", 1) + b"x"


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def make(asked: Asked, tmp_path: Path) -> Iterator[Callable[..., Core]]:
    cores: list[Core] = []

    def make(**settings: Any) -> Core:
        cores.append(Core(tmp_path, auth=asked, **settings))
        return cores[-1]

    yield make
    for core in cores:
        core.close()


def authorize(core: Core, asked: Asked, authorization: Authorization) -> Client:
    client = core.client()
    client.send(b"AUTH\n\0\0\0\1s")
    assert client.answer() is None
    asked.sessions.pop().authorized(authorization)
    assert client.answer() == (RESPONSE, authorization.response)
    return client


def test_consecutive_publishes_to_a_topic_are_authorized_once(make: Any, asked: Asked) -> None:
    core = make()
    authorization = counted()
    client = authorize(core, asked, authorization)
    for _ in range(100):
        assert client.ask(pub("t")) == OK
    assert authorization.asked == 1
    for topic in ("u", "t", "u"):
        for _ in range(10):
            assert client.ask(pub(topic)) == OK
    assert authorization.asked == 4


def test_subscribing_says_nothing_of_publishing(make: Any, asked: Asked) -> None:
    core = make()
    grants = grant("^t$", permissions=["subscribe"]), grant("^u$")
    client = authorize(core, asked, counted(*grants))
    assert client.ask(pub("u")) == OK
    client.subscribe("t", "c")
    refusal = b'E_UNAUTHORIZED AUTH failed for PUB on "t" ""'
    assert client.ask(pub("t")) == (ERROR, refusal)


def test_it_expires_to_the_nanosecond(make: Any, asked: Asked) -> None:
    core = make()
    client = authorize(core, asked, counted(ttl=2))
    core.advance(2 * SECOND - 1)
    assert client.ask(pub("t")) == OK
    core.advance(1)
    assert client.ask(pub("t")) is None
    assert asked.sessions == [client.session]
    assert client.session.secret == b"s"


def test_one_question_for_all_that_waits(make: Any, asked: Asked) -> None:
    core = make()
    client = authorize(core, asked, counted(ttl=2))
    core.advance(2 * SECOND)
    for _ in range(3):
        client.send(pub("t"))
        core.settle()
    assert len(asked.sessions) == 1
    assert core.topic("t") is None
    asked.sessions[0].authorized(counted(ttl=2))
    core.settle()
    assert [client.answer() for _ in range(4)] == [OK, OK, OK, None]
    core.advance(2 * SECOND)
    client.send(pub("t"))
    assert len(asked.sessions) == 2
    asked.sessions[1].auth_failed()
    core.settle()
    assert client.answer() == (ERROR, b"E_AUTH_FAILED AUTH failed")
    assert client.closed


def test_an_error_waits_for_the_answers_before_it(make: Any, asked: Asked) -> None:
    """A publish that is being written is answered before one that is refused."""
    core = make(mem_queue_size=0)
    client = authorize(core, asked, counted(ttl=2))
    client.send(pub("t"))
    core.scheduler.now += 2 * SECOND
    client.send(pub("t"), pub("t"))
    (session,) = asked.sessions
    session.auth_failed()
    assert client.answer() is None
    core.settle()
    assert [client.answer(), client.answer()] == [OK, (ERROR, b"E_AUTH_FAILED AUTH failed")]
    assert client.closed


def test_a_long_batch_is_authorized_once(make: Any, asked: Asked) -> None:
    """The batch is authorized before its body arrives, and not again when the rest arrives."""
    core = make()
    client = authorize(core, asked, counted(ttl=2))
    batch = struct.pack(">ii", 1, 5) + b"hello"
    client.send(b"MPUB t\n", struct.pack(">i", len(batch)), batch[:-2])
    core.advance(3 * SECOND)
    assert client.ask(batch[-2:]) == OK
    assert asked.sessions == []


def test_nobody_is_asked_about_a_huge_secret(make: Any, asked: Asked) -> None:
    client = make().client()
    client.send(b"AUTH\n", struct.pack(">i", 16384), b"s" * 16384)
    assert asked.sessions == [client.session]
    client = make().client()
    refusal = (ERROR, b"E_BAD_BODY AUTH body too big 16385 > 16384")
    assert client.ask(b"AUTH\n", struct.pack(">i", 16385)) == refusal
    assert asked.sessions[1:] == []
    assert client.session.secret is None


def test_silence_while_it_is_asked_is_not_the_clients(make: Any, asked: Asked) -> None:
    core = make()
    client = core.client(heartbeat_interval=1000)
    client.send(b"AUTH\n\0\0\0\1s")
    for _ in range(10):
        core.advance(SECOND)
    assert not client.closed
    authorization = counted()
    asked.sessions[0].authorized(authorization)
    assert client.answer() == (RESPONSE, authorization.response)
    core.advance(SECOND)
    assert not client.closed
    core.advance(2 * SECOND)
    assert client.closed


def test_it_moves_with_the_session(make: Any, asked: Asked) -> None:
    core = make()
    there = authorize(core, asked, parse(answer(grant("^t$"), ttl=60)))
    core.advance(20 * SECOND)
    state, unread, unsent = there.session.pack()
    transport = BytesTransport(core.manager)
    transport.client.unpack(state, unread, unsent)
    here = transport.client
    assert (here.secret, here.authed, here.auth_identity) == (b"s", True, "me")
    transport.feed(pub("t"))
    core.settle()
    assert transport.sent().endswith(b"OK")
    core.advance(40 * SECOND)
    transport.feed(pub("t"))
    assert asked.sessions == [here]


@pytest.mark.parametrize("kind", ["far end", "lenient"])
def test_who_was_checked_elsewhere_is_not_checked(kind: str, make: Any) -> None:
    core = make()
    transport = BytesTransport(core.manager)
    if kind == "lenient":
        transport.client.be_lenient()
    else:
        state, _, _ = transport.client.pack()
        known = {"authed": True, "auth_identity": "a", "auth_identity_url": "b", "tls": None}
        known |= {"snappy": False, "deflate": False}
        transport.client.adopt_hello(state | known | {"lenient": False, "transfers": False})
        transport.feed(b"  V2")
        assert transport.client.counters()["auth_identity"] == "a"
    transport.feed(pub("t"))
    core.settle()
    assert transport.sent() == b"\0\0\0\x06\0\0\0\0OK"
