"""nsqlookupd's protocol without a socket: conversations split anywhere, and garbage."""

import json
import struct
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from nsqcy.nsqlookupd.api import as_json
from nsqcy.nsqlookupd.protocol import MAX_BODY, MAX_LINE, Session, SessionContext
from nsqcy.nsqlookupd.registry import Moment, Registry
from nsqcy.users.user import User
from support.runs import runs

NOW = Moment(0, 0)
SIZE = struct.Struct(">i")
IDENTITY = json.dumps(
    {"broadcast_address": "A", "tcp_port": 1, "http_port": 11, "version": "1.3.0"}
).encode()
IDENTIFY = b"IDENTIFY\n" + SIZE.pack(len(IDENTITY)) + IDENTITY


class Lines(list[str]):
    def info(self, text: str, **fields: object) -> None:
        self.append(text)

    warn = error = info


class Client:
    """A session, and all of its answers."""

    def __init__(self, **context: Any) -> None:
        self.registry = Registry(1, 1)
        self.log = Lines()
        shared = SessionContext(self.registry, b"identity", self.log, **context)
        self.session = Session(shared, "1.2.3.4:5")
        self.output = b""

    def say(self, data: bytes) -> None:
        self.session.feed(data)
        self._turns()

    def end(self) -> None:
        self.session.feed_eof()
        self._turns()

    def _turns(self) -> None:
        more = True
        while more:
            answers, more = self.session.turn(NOW)
            self.output += answers

    @property
    def answers(self) -> list[bytes]:
        found, rest = [], self.output
        while rest:
            (size,) = SIZE.unpack(rest[:4])
            assert len(rest) >= 4 + size
            found.append(rest[4 : 4 + size])
            rest = rest[4 + size :]
        return found


def state(client: Client) -> object:
    everything = [
        (registration, [each.peer.node for each in client.registry.producers(registration)])
        for registration in client.registry.registrations()
    ]
    return client.output, client.session.closing, everything, list(client.log)


names = st.sampled_from(["t", "c#ephemeral", "bad$", "", "x" * 65, "\xe9"])
lines = st.builds(
    lambda *words: " ".join(words).encode() + b"\n",
    st.sampled_from(["REGISTER", "UNREGISTER", "PING", "ping", ""]),
    names,
    names,
)
commands = st.one_of(
    lines,
    st.sampled_from(
        [IDENTIFY, b"IDENTIFY\n" + SIZE.pack(-1), b"IDENTIFY\n" + SIZE.pack(2) + b"{}"]
    ),
    st.binary(max_size=20),
)
good = st.sampled_from([b"REGISTER t c\n", b"UNREGISTER t\n", b" PING x \r\n", b"REGISTER u\n"])
conversations = st.one_of(
    st.lists(commands, max_size=8).map(lambda parts: b"  V1" + b"".join(parts)),
    st.lists(commands, max_size=8).map(lambda parts: b"  V1" + IDENTIFY + b"".join(parts)),
    st.lists(good, max_size=20).map(lambda parts: b"  V1" + IDENTIFY + b"".join(parts)),
    st.binary(max_size=50),
)


@pytest.mark.slow
@given(conversations, st.data())
@settings(deadline=None, max_examples=runs(40))
def test_any_cutting_means_the_same(conversation: bytes, data: st.DataObject) -> None:
    whole, cut = Client(), Client()
    whole.say(conversation)
    places = data.draw(st.lists(st.integers(0, len(conversation)), max_size=20))
    edges = [0, *sorted(places), len(conversation)]
    for start, end in pairwise(edges):
        cut.say(conversation[start:end])
    assert state(cut) == state(whole)
    for client in (whole, cut):
        client.end()
        list(client.session.leave(NOW))
    assert state(cut) == state(whole)
    assert whole.session.closing
    assert whole.session.held == 0
    registry = whole.registry
    assert not any(registry.producers(each) for each in registry.registrations())
    for answer in whole.answers[:-1]:
        assert answer in (b"OK", b"identity")  # nothing follows an error


@given(st.binary(max_size=200))
@example(b"IDENTIFY\n" + SIZE.pack(3) + b"\xff\xfe\xfd")
@example(b"IDENTIFY\n" + SIZE.pack(6) + b'"\\ud8"')
@settings(deadline=None)
def test_garbage(garbage: bytes) -> None:
    client = Client()
    client.say(b"  V1" + garbage)
    client.end()
    assert client.session.closing
    assert all(answer == b"OK" or answer.startswith(b"E_") for answer in client.answers)


@given(st.binary(max_size=300))
@settings(deadline=None)
def test_any_body(body: bytes) -> None:
    client = Client()
    client.say(b"  V1IDENTIFY\n" + SIZE.pack(len(body)) + body)
    (answer,) = client.answers
    assert answer.startswith(b"E_BAD_BODY IDENTIFY ")


def test_what_is_held_is_what_arrived() -> None:
    client = Client()
    client.say(b"  V1IDENTIFY\n" + SIZE.pack(MAX_BODY))
    assert client.session.held == 0
    client.say(b"x" * 1000)
    assert client.session.held == 1000
    client.say(b"x" * (MAX_BODY - 1000))
    assert client.session.held == 0
    assert client.answers == [b"E_BAD_BODY IDENTIFY failed to decode JSON body"]


def test_a_line_in_many_pieces() -> None:
    """Each piece is examined once. Otherwise, a line that grows byte by byte would take minutes."""
    client = Client()
    client.say(b"  V1")
    for _ in range(MAX_LINE // 16):
        client.say(b"x" * 16)
    assert not client.session.closing
    client.say(b"y")
    assert client.answers == [b"E_INVALID command is longer than 262144 bytes"]
    assert client.session.held == 0


def test_an_identify_has_at_most_64_kib() -> None:
    client = Client()
    client.say(b"  V1IDENTIFY\n" + SIZE.pack(65537))
    assert client.answers == [b"E_BAD_BODY IDENTIFY body too big 65537 > 65536"]


@pytest.mark.parametrize(
    "key",
    ["remote_address", "hostname", "broadcast_address", "version", "topology_zone"],
)
def test_a_text_has_at_most_1_kib(key: str) -> None:
    for size in (1024, 1025):
        body = json.dumps(json.loads(IDENTITY) | {key: "x" * size}).encode()
        client = Client()
        client.say(b"  V1IDENTIFY\n" + SIZE.pack(len(body)) + body)
        refusal = f"E_BAD_BODY IDENTIFY {key} too long 1025 > 1024".encode()
        assert client.answers == [b"identity" if size == 1024 else refusal]


def test_a_turn_is_bounded() -> None:
    client = Client()
    client.session.feed(b"  V1" + b"PING\n" * 10_000)
    answers, more = client.session.turn(NOW)
    assert more
    assert 0 < len(answers) < 10_000 * 6


def test_commands_behind_an_error_are_not_heard() -> None:
    client = Client()
    client.say(b"  V1" + IDENTIFY + b"nope\nREGISTER t c\n")
    client.say(b"REGISTER t c\n")
    assert client.answers == [b"identity", b"E_INVALID invalid command nope"]
    assert client.registry.topics() == []


def test_what_a_client_sent_does_not_fill_the_log() -> None:
    client = Client()
    client.say(b"  V1" + b"x" * 4000 + b"\n")
    assert client.answers == [b"E_INVALID invalid command " + b"x" * 4000]
    assert all(len(line) < 300 for line in client.log)


# -- AUTH

USERS = {b"good": User("nsqd", register=("a.*",)), b"other": User("other", publish=("*",))}
AUTH = {"user_of": USERS.get}


def producers(client: Client) -> list[tuple[str, bool]]:
    found = client.registry.nodes(NOW)
    return [
        (topic, each.peer.authenticated)
        for each in found
        for topics in each.topics
        for topic, _ in topics
    ]


def test_a_lookup_shows_an_authentication_that_follows_it() -> None:
    client = Client(**AUTH)
    client.say(b"  V1" + IDENTIFY)
    (node,) = client.registry.nodes(NOW)
    assert b"authenticated" not in as_json(node.peer)
    client.say(b"AUTH good\n")
    assert b'"authenticated":true' in as_json(node.peer)


def test_an_nsqd_proves_itself() -> None:
    client = Client(**AUTH)
    client.say(b"  V1" + IDENTIFY + b"AUTH good\nREGISTER a.b\n")
    assert client.answers == [b"identity", b"OK", b"OK"]
    assert producers(client) == [("a.b", True)]
    assert not any("good" in line for line in client.log)
    client.say(b"REGISTER b\n")
    assert client.answers[3] == b"E_UNAUTHORIZED REGISTER nsqd may not register b"
    assert client.session.closing


def test_without_auth_an_nsqd_is_listed_but_not_proved() -> None:
    client = Client(**AUTH)
    client.say(b"  V1" + IDENTIFY + b"REGISTER t\n")
    assert client.answers == [b"identity", b"OK"]
    assert producers(client) == [("t", False)]


def test_where_auth_is_required_nobody_else_is_listed() -> None:
    client = Client(**AUTH, needs_auth=True)
    client.say(b"  V1" + IDENTIFY + b"PING\n")
    assert client.answers == [b"identity", b"OK"]
    assert list(client.registry.nodes(NOW)) == []
    client.say(b"REGISTER t\n")
    assert client.answers[2].startswith(b"E_AUTH_FIRST REGISTER needs AUTH")
    assert client.session.closing
    client = Client(**AUTH, needs_auth=True)
    client.say(b"  V1" + IDENTIFY + b"AUTH good\nREGISTER a.b c\n")
    assert producers(client) == [("a.b", True)]


@pytest.mark.parametrize("token", [b"", b"wrong", b"other", b"good good", b"\xff"])
def test_a_wrong_token(token: bytes) -> None:
    client = Client(**AUTH)
    client.say(b"  V1" + IDENTIFY + b"AUTH " + token + b"\nREGISTER t\n")
    assert client.answers[1].startswith(b"E_AUTH_FAILED")
    assert client.session.closing
    assert producers(client) == []
    assert not token or not any(token.decode("latin-1") in line for line in client.log[4:])


def test_auth_at_the_wrong_time() -> None:
    for before, context in ((b"", AUTH), (IDENTIFY + b"AUTH good\n", AUTH), (IDENTIFY, {})):
        client = Client(**context)
        client.say(b"  V1" + before + b"AUTH good\n")
        assert client.answers[-1] == b"E_INVALID cannot AUTH in current state"
