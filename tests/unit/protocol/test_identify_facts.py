"""Every worker that executes a client's commands has the settings that IDENTIFY negotiated."""

import json
import struct
from collections.abc import Iterator
from dataclasses import fields

import pytest

from nsqcy.nsqd.worker.negotiate import Identity
from nsqcy.protocol.core import NEGOTIATED, Session
from nsqcy.server.core import BytesTransport
from support.two_workers import Near
from support.worker_core import MILLISECOND, SECOND, Core

# Fields of an identity that a session does not take by name: the answer, the layers of the
# connection, the heartbeats of the worker that has the socket, and a durability that may be absent.
NOT_BY_NAME = {"answer", "tls", "snappy", "deflate", "deflate_level"}
NOT_BY_NAME |= {"heartbeat_interval", "durability"}

WANTED = {
    "client_id": "id",
    "hostname": "host",
    "user_agent": "agent",
    "topology_region": "region",
    "topology_zone": "zone",
    "msg_timeout": 2000,
    "sample_rate": 7,
    "output_buffer_size": 100,
    "output_buffer_timeout": 30,
    "feature_negotiation": True,
    "topic_log": True,
    "limits": True,
    "headers": True,
    "dead_letters": True,
    "goodbye": True,
    "heartbeat_interval": 5000,
    "durability": "os",
}
AGREED = {name: value for name, value in WANTED.items() if name in NEGOTIATED} | {
    "asked_timeout": True,
    "msg_timeout": 2 * SECOND,
    "output_buffer_timeout": 30 * MILLISECOND,
}

TOO_BUSY = 600  # permille; no consumer migrates to an owner that is this busy


@pytest.fixture
def near() -> Iterator[Near]:
    made = Near()
    yield made
    made.close()


def identified(core: Core) -> BytesTransport:
    transport = BytesTransport(core.manager)
    text = json.dumps(WANTED).encode()
    transport.feed(b"  V2IDENTIFY\n" + struct.pack(">i", len(text)) + text)
    return transport


def known_to(session: Session) -> dict[str, object]:
    return {name: getattr(session, name) for name in NEGOTIATED}


def test_every_option_of_identify_is_in_the_one_list() -> None:
    assert {field.name for field in fields(Identity)} == {*NEGOTIATED, *NOT_BY_NAME}
    assert AGREED.keys() == set(NEGOTIATED)


def test_the_worker_that_has_the_socket_knows_it(near: Near) -> None:
    assert known_to(identified(near).client) == AGREED


def test_the_owner_of_a_topic_knows_it(near: Near) -> None:
    transport = identified(near)
    near.busy(TOO_BUSY)
    transport.feed(b"SUB t c\n")
    near.settle()
    (far,) = near.owner.manager.sessions
    assert known_to(far) == AGREED
    assert far.durability == transport.client.durability


def test_the_worker_to_which_it_migrates_knows_it(near: Near) -> None:
    before = identified(near).client
    after = BytesTransport(near.owner.manager).client
    after.unpack(*before.pack())
    assert known_to(after) == AGREED
    assert after.durability == before.durability
    assert after.heartbeat_interval == 5 * SECOND
