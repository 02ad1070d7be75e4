"""Sessions whose user has a quota: which ones wait, which continue, and the counters."""

import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqcy.ipc.core import Quota, QuotaTable
from nsqcy.nsqd.auth.authorizations import AuthFailure, Authorization
from nsqcy.nsqd.auth.user_file import authorization
from nsqcy.protocol.core import Session
from nsqcy.server.core import BytesTransport
from nsqcy.users.user import User
from support.worker_core import ERROR, MILLISECOND, RESPONSE, SECOND, Client, Core, log_pub, mpub

OK = (RESPONSE, b"OK")
MINUTE = 60 * SECOND
USER = User("u", publish=("*",), subscribe=("*",))


class Asked:
    """Authorizes every client as the same user."""

    def __init__(self) -> None:
        self.ttl = 3600
        self.quota: Quota | None = None
        self.sessions: list[Session] = []

    def make(self, **limits: float) -> Quota:
        maximum = int(limits.get("connections", 0))
        table = QuotaTable(memoryview(mmap.mmap(-1, 4096)), 0)
        quota = Quota(table, "u", maximum, limits.get("rate", 0), limits.get("size", 0))
        self.quota = quota
        return quota

    def ask(self, session: Session) -> None:
        self.sessions.append(session)

    def answer(self) -> None:
        while self.sessions:
            self.sessions.pop().authorized(self.found())

    def found(self) -> Authorization:
        return replace(authorization(USER, self.quota), ttl=self.ttl)

    def of_certificate(self, names: tuple[str, ...]) -> Authorization | None:
        return self.found() if names == ("u",) else None

    def restore(self, source: bytes) -> Authorization:
        if source != b"user u":
            raise AuthFailure("nobody")
        return self.found()


def pub(topic: str = "t", body: bytes = b"x") -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def core(asked: Asked, tmp_path: Path) -> Iterator[Core]:
    core = Core(tmp_path, auth=asked)
    yield core
    core.close()


@pytest.fixture
def client(core: Core, asked: Asked) -> Callable[..., Client]:
    def client(**identity: Any) -> Client:
        client = core.client(**identity)
        client.send(b"AUTH\n\0\0\0\1s")
        asked.answer()
        return client

    return client


def welcome(client: Client) -> Client:
    kind, said = client.answer() or (None, b"")
    assert kind == RESPONSE, said
    return client


def answers(client: Client) -> int:
    """Return the number of publishes answered since the last call."""
    count = 0
    while client.answer() == OK:
        count += 1
    return count


def published(core: Core) -> int:
    found = core.topic("t")
    return 0 if found is None else int(found.counters()["message_count"])


Connect = Callable[..., Client]


def test_publishes_wait_and_none_is_lost(core: Core, asked: Asked, client: Connect) -> None:
    asked.make(rate=10)
    one = welcome(client())
    one.send(pub() * 25)
    assert answers(one) == 10
    assert core.log.lines == ["AUTH: user u is exceeding its publish quota"]
    rates = []
    for _ in range(20):
        core.advance(100 * MILLISECOND)
        rates.append(answers(one))
    assert sum(rates) == 15 and max(rates) == 1
    assert published(core) == 25
    core.advance(MINUTE)
    assert one.ask(pub()) == OK and len(core.log.lines) == 1


def test_who_waits_is_counted_for_as_long(core: Core, asked: Asked, client: Connect) -> None:
    """The waiting time is counted once, even if the session is rechecked often or disconnects."""
    quota = asked.make(rate=1)
    one, two = welcome(client()), welcome(client())
    one.send(pub() * 3)
    two.send(pub())
    assert quota.figures(core.now)[4] == 0
    core.advance(SECOND // 2)
    assert quota.figures(core.now)[4] == SECOND
    core.manager.report(two.session, OSError("the connection was reset"))
    while published(core) < 3:
        core.advance(10 * MILLISECOND)
    waited = quota.figures(core.now)[4]
    assert 1.5 * SECOND < waited < 1.6 * SECOND
    core.advance(MINUTE)
    assert quota.figures(core.now)[2:5] == (3, 3, waited)


def test_what_is_not_read_waits_at_the_client(core: Core, asked: Asked, client: Connect) -> None:
    asked.make(rate=1)
    one = welcome(client())
    one.send(pub() * 2)
    assert not one.transport.wants_input
    core.advance(10 * SECOND)
    assert one.transport.wants_input


def test_a_throttled_publisher_does_not_delay_others(
    core: Core, asked: Asked, client: Connect
) -> None:
    asked.make(rate=10)
    slow = welcome(client())
    slow.send(pub() * 11)
    assert answers(slow) == 10
    asked.quota = None
    free = welcome(client())
    assert [free.ask(pub()) for _ in range(20)] == [OK] * 20


def test_connections_of_a_user_share(core: Core, asked: Asked, client: Connect) -> None:
    asked.make(rate=100)
    crowd = [welcome(client()) for _ in range(5)]
    for each in crowd:
        each.send(pub() * 200)
    assert sum(map(answers, crowd)) == 100
    got = [0] * 5
    for _ in range(200):
        core.advance(10 * MILLISECOND)
        got = [count + answers(each) for count, each in zip(got, crowd, strict=True)]
    assert 195 <= sum(got) <= 200
    assert min(got) > 0


@pytest.mark.parametrize(
    ("command", "messages"),
    [
        (pub(), 1),
        (mpub("t", [b"x"] * 5), 5),
        (b"DPUB t 10\n" + pub()[6:], 1),
        (log_pub("t", 1, [b"x"] * 5), 5),
    ],
)
def test_a_command_pays_once(
    core: Core, asked: Asked, client: Connect, command: bytes, messages: int
) -> None:
    """A command counts once even if it arrives in pieces and is checked repeatedly."""
    quota = asked.make(rate=100)
    one = welcome(client(topic_log=True))
    left = 100
    for _ in range(3):
        for byte in command:
            one.send(bytes([byte]))
        core.settle()
        assert one.answer() is not None
        left -= messages
    quota.pay(core.now, left - 1, 0)
    assert quota.wait(core.now) == 0
    quota.pay(core.now, 1, 0)
    assert quota.wait(core.now) == 1


def test_bytes_are_those_of_messages(core: Core, asked: Asked, client: Connect) -> None:
    quota = asked.make(size=1000)
    one = welcome(client())
    assert one.ask(pub(body=b"x" * 1500)) == OK
    assert one.ask(pub()) is None
    core.advance(SECOND // 2 + 11 * MILLISECOND)
    assert one.answer() == OK
    assert quota.wait(core.now) == 0


def test_a_connection_too_many(core: Core, asked: Asked, client: Connect) -> None:
    quota = asked.make(connections=2)
    one, two, three = client(), client(), client()
    welcome(one), welcome(two)
    refusal = b"E_AUTH_FAILED AUTH failed: user u has reached its max_connections of 2"
    assert three.answer() == (ERROR, refusal)
    core.settle()
    assert three.closed
    assert quota.connections() == 2
    one.transport.end()
    core.settle()
    assert quota.connections() == 1
    welcome(client())


def test_a_certificate_is_a_connection_too(core: Core, asked: Asked, client: Connect) -> None:
    quota = asked.make(connections=1)
    one, two = core.client(), core.client()
    for each in (one, two):
        each.session.certificate_names = ("u",)
    assert [one.ask(pub()) for _ in range(3)] == [OK] * 3
    assert quota.connections() == 1
    refusal = b"E_AUTH_FAILED AUTH failed: user u has reached its max_connections of 1"
    assert two.ask(pub()) == (ERROR, refusal)


def test_who_is_known_again_is_counted_once(core: Core, asked: Asked, client: Connect) -> None:
    asked.ttl = 60
    old = asked.make(connections=1)
    one = welcome(client())
    for limits in ({"connections": 1}, {"rate": 5.0}):
        core.advance(MINUTE)
        one.send(pub())
        asked.answer()
        core.settle()
        assert answers(one) == 1 and old.connections() == 1
        new = asked.make(**limits)
        core.advance(MINUTE)
        one.send(pub())
        asked.answer()
        core.settle()
        assert (old.connections(), new.connections()) == (0, 1)
        assert answers(one) == 1
        old = new
    asked.quota = None
    core.advance(MINUTE)
    one.send(pub())
    asked.answer()
    core.settle()
    assert old.connections() == 0


def test_who_moves_here_is_counted_though_there_are_too_many(
    core: Core, asked: Asked, client: Connect
) -> None:
    quota = asked.make(connections=1)
    state, unread, unsent = welcome(client()).session.pack()
    arrived = BytesTransport(core.manager, "127.0.0.1:99")
    arrived.client.unpack(state, unread, unsent)
    assert quota.connections() == 2
    arrived.end()
    core.settle()
    assert quota.connections() == 1


def test_who_waits_looks_again_when_the_file_was_read(
    core: Core, asked: Asked, client: Connect
) -> None:
    quota = asked.make(rate=0.01)
    one = welcome(client())
    one.send(pub() * 3)
    assert answers(one) == 1
    quota.change(0, 0, 0)
    core.manager.quotas_changed()
    core.settle()
    assert answers(one) == 2


def test_who_leaves_waits_no_more(core: Core, asked: Asked, client: Connect) -> None:
    quota = asked.make(rate=1)
    one, two = welcome(client()), welcome(client())
    for each in (one, two):
        each.send(pub() * 2)
    alone = quota.turn(core.now)
    core.manager.report(one.session, OSError("the connection was reset"))
    assert quota.turn(core.now) == alone - 10 * MILLISECOND
    for _ in range(3):
        core.advance(2 * SECOND)
    assert published(core) == 3
