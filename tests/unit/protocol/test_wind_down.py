"""Sessions when nsqd exits: the answered commands, the goodbyes, and the end of the connections."""

import errno
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsqcy.config.policies import Policies
from nsqcy.server.core import BytesTransport
from support.two_workers import Near
from support.worker_core import ERROR, RESPONSE, Client, Core, mpub

OK = (RESPONSE, b"OK")
GOODBYE = (RESPONSE, b"_goodbye_")


def pub(topic: str = "t", body: bytes = b"x") -> bytes:
    return f"PUB {topic}\n".encode() + struct.pack(">i", len(body)) + body


@pytest.fixture
def core(tmp_path: Path) -> Iterator[Core]:
    policies = Policies()
    policies.set("t", {"durability": "fsync"})
    made = Core(tmp_path, policies=policies)
    yield made
    made.close()


@pytest.fixture
def near() -> Iterator[Near]:
    made = Near()
    yield made
    made.close()


class Exit:
    """Winds a worker down, and records when its producers have left."""

    def __init__(self, core: Core) -> None:
        self.left = False
        core.manager.wind_down(self.note)

    def note(self) -> None:
        self.left = True


def answers(client: Client) -> list[tuple[int, bytes]]:
    client.look()
    heard, client.heard = client.heard, []
    return heard


def test_a_goodbye_follows_the_last_answer(core: Core) -> None:
    client = core.client(goodbye=True)
    client.send(pub("memory") * 3)
    ending = Exit(core)
    client.send(pub("memory") * 2)
    core.settle()
    assert answers(client) == [OK] * 3 + [GOODBYE]
    assert core.counters("memory")["message_count"] == 3
    assert not client.closed and not ending.left, "it reads until the client has closed"
    client.transport.end()
    assert client.closed and ending.left


def test_publishes_that_wait_for_the_log_are_answered_first(core: Core) -> None:
    client = core.client(goodbye=True)
    client.send(pub() * 3)
    ending = Exit(core)
    client.send(pub() * 2)
    assert answers(client) == []
    core.settle()
    assert answers(client) == [OK] * 3 + [GOODBYE]
    assert core.counters("t")["message_count"] == 3
    client.transport.end()
    assert ending.left


def test_a_publish_that_fails_is_answered_with_its_error(core: Core) -> None:
    """The error is as clear to the client as a goodbye."""
    client = core.client(goodbye=True)
    assert client.publish("t", b"first") == OK
    core.io.fault("fdatasync", 1, errno.EIO, times=100)
    client.send(pub() * 3)
    ending = Exit(core)
    core.settle()
    (kind, text), *rest = answers(client)
    assert kind == ERROR and text.startswith(b"E_PUB_FAILED") and not rest
    assert client.closed and ending.left


@pytest.mark.parametrize("unfinished", [b"PUB t\n\0\0\0\4ab", mpub("t", [b"x" * 99] * 9)[:-5]])
def test_unfinished_commands_are_dropped(core: Core, unfinished: bytes) -> None:
    client = core.client(goodbye=True)
    client.send(unfinished)
    ending = Exit(core)
    core.settle()
    assert answers(client) == [GOODBYE]
    client.send(b"cd" + pub() * 5)
    client.transport.end()
    assert ending.left and core.manager.input_bytes == 0 and core.topic("t") is None


def test_a_client_that_did_not_ask_gets_its_answers(core: Core) -> None:
    client, idle = core.client(), core.client()
    client.send(pub() * 3)
    ending = Exit(core)
    client.send(pub() * 2)
    core.settle()
    assert answers(client) == [OK] * 3 and answers(idle) == []
    assert client.closed and idle.closed and ending.left


def test_answers_that_are_not_read_yet_are_sent(core: Core) -> None:
    client = core.client(goodbye=True)
    client.transport.full = 4
    client.send(pub("memory") * 3)
    ending = Exit(core)
    core.settle()
    assert not ending.left
    client.transport.full = None
    core.settle()
    assert answers(client) == [OK] * 3 + [GOODBYE]


def test_half_closed_connections_end_on_their_own(core: Core) -> None:
    client = core.client(goodbye=True)
    client.send(pub() * 3)
    client.transport.end()
    ending = Exit(core)
    core.settle()
    assert answers(client)[:3] == [OK] * 3
    assert client.closed and ending.left


def test_consumers_stay(core: Core) -> None:
    consumer = core.client(goodbye=True).subscribe("t", "c", 10)
    producer = core.client(goodbye=True)
    producer.send(pub() * 3)
    ending = Exit(core)
    core.settle()
    producer.transport.end()
    assert ending.left and not consumer.closed
    for message in consumer.messages():
        consumer.finish(message.id)
    core.settle()
    assert core.counters("t", "c")["depth"] == 0


def test_a_client_that_waits_for_a_log_is_disconnected(core: Core) -> None:
    assert core.client().publish("t", b"x") == OK
    reader = core.client(goodbye=True, topic_log=True)
    reader.send(b"LOG_META t 60000 9\n")
    core.settle()
    assert answers(reader) == []
    ending = Exit(core)
    assert reader.closed
    core.settle()
    assert ending.left


def test_a_client_that_has_not_begun_is_disconnected(core: Core) -> None:
    transport = BytesTransport(core.manager)
    assert Exit(core).left and transport.closed


def test_forwarded_publishes_are_answered_first(near: Near) -> None:
    client = near.client(goodbye=True)
    client.send(pub() * 3)
    ending = Exit(near)
    assert Exit(near.owner).left, "the far end of the stream is not a producer"
    client.send(pub() * 2)
    near.settle()
    assert answers(client) == [OK] * 3 + [GOODBYE]
    assert near.owner.counters("t")["message_count"] == 3
    client.transport.end()
    assert ending.left


def migrating(near: Near) -> Client:
    client = near.client(goodbye=True)
    assert client.ask(b"SUB t c\n") is None
    assert near.moved == [client.session]
    return client


def test_a_session_that_migrates_gets_its_goodbye_where_it_arrives(near: Near) -> None:
    client = migrating(near)
    ending = Exit(near)
    near.settle()
    assert answers(client) == [] and not ending.left
    state, unread, unsent = client.session.pack()
    Exit(near.owner)
    arrived: Any = Client.__new__(Client)
    arrived.known, arrived.heard, arrived.core = b"", [], near.owner
    arrived.transport = BytesTransport(near.owner.manager, "127.0.0.1:5")
    arrived.transport.client.unpack(state, unread, unsent)
    near.owner.settle()
    assert answers(arrived) == [OK, GOODBYE], "the first was not sent yet"
    near.manager.close_sessions()
    assert ending.left
    arrived.transport.end()


def test_a_session_that_cannot_migrate_gets_its_goodbye(near: Near) -> None:
    client = migrating(near)
    Exit(near)
    client.session.stay()
    near.settle()
    assert answers(client) == [GOODBYE]
