"""Sessions whose clients need authorization, and that continue in another process."""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nsqcy.ipc.core import Quota, QuotaTable
from nsqcy.nsqd.auth.authorizations import Authorization
from nsqcy.nsqd.auth.user_file import authorization
from nsqcy.protocol.core import Session
from nsqcy.users.user import User
from support.taken_over import Workers
from support.worker_core import ERROR, RESPONSE, SECOND, Client

OK = (RESPONSE, b"OK")
USER = User("u", publish=("*",), subscribe=("*",))
PUB = b"PUB t\n" + struct.pack(">i", 1) + b"x"


class Auth:
    """Authorizes every client as the same user, when told to."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 4096)
        self.limits: dict[str, Any] = {}
        self.sessions: list[Session] = []
        self.begin()

    def begin(self) -> None:
        """A process starts: it counts the connections again."""
        self.quota = Quota(QuotaTable(memoryview(self.memory), 0), "u", **self.limits)
        self.sessions = []

    def ask(self, session: Session) -> None:
        self.sessions.append(session)

    def answer(self) -> None:
        while self.sessions:
            self.sessions.pop().authorized(self.found())

    def found(self) -> Authorization:
        return replace(authorization(USER, self.quota), ttl=60)

    def of_certificate(self, names: tuple[str, ...]) -> None:
        return None

    def restore(self, source: bytes) -> Authorization:
        assert source == b"user u"
        return self.found()


class Guarded(Workers):
    def __init__(self, base: Path, auth: Auth) -> None:
        super().__init__(base, 1, auth=auth)
        self.auth = auth

    def on_ended(self) -> None:
        self.auth.begin()

    def replace(self, index: int = 0) -> None:
        super().replace(index)
        self.settle()

    def client(self, answered: bool = True) -> Client:
        client = self.cores[0].client()
        client.send(b"AUTH\n\0\0\0\1s")
        if answered:
            self.auth.answer()
            kind, _ = client.answer() or (ERROR, b"")
            assert kind == RESPONSE
        return client


@pytest.fixture
def auth() -> Auth:
    return Auth()


@pytest.fixture
def worker(tmp_path: Path, auth: Auth) -> Iterator[Guarded]:
    made = Guarded(tmp_path, auth)
    yield made
    made.close()


def test_an_authorization_stays_until_it_expires(worker: Guarded, auth: Auth) -> None:
    client = worker.client()
    shown = client.session.counters()
    assert shown["authed"] and shown["auth_identity"] == "u"
    worker.replace()
    assert client.session.counters() == shown
    worker.cores[0].advance(60 * SECOND - 1)
    assert client.ask(PUB) == OK
    assert auth.sessions == []
    worker.cores[0].advance(1)
    assert client.ask(PUB) is None
    assert auth.sessions == [client.session]
    assert client.session.secret == b"s"
    worker.replace()
    assert auth.sessions == [client.session]
    auth.answer()
    worker.settle()
    assert client.answer() == OK


def test_an_auth_server_is_asked_again(worker: Guarded, auth: Auth) -> None:
    client = worker.client(answered=False)
    client.send(PUB)
    worker.replace()
    assert auth.sessions == [client.session] and client.session.secret == b"s"
    auth.answer()
    worker.settle()
    kind, answer = client.answer() or (ERROR, b"")
    assert kind == RESPONSE and b'"identity":"u"' in answer
    assert client.answer() == OK


def test_a_client_must_still_authenticate(worker: Guarded) -> None:
    client = worker.cores[0].client()
    worker.replace()
    assert client.session.unauthenticated
    assert client.ask(PUB) == (ERROR, b"E_AUTH_FIRST AUTH required before PUB")


def test_connections_and_publishes_count_for_the_quota_once(worker: Guarded, auth: Auth) -> None:
    auth.limits = {"max_connections": 2, "rate": 1}
    auth.begin()
    client = worker.client()
    assert client.ask(PUB) == OK
    client.send(PUB * 2)
    worker.settle()
    assert client.answer() is None
    worker.replace()
    connections, _, messages, *_ = auth.quota.figures(worker.cores[0].now)
    assert (connections, messages) == (1, 1)
    for count in (2, 3):
        assert client.answer() is None
        worker.cores[0].advance(2 * SECOND)
        worker.settle()
        assert client.answer() == OK
        assert auth.quota.figures(worker.cores[0].now)[2] == count
