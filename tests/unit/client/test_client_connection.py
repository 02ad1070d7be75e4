"""One connection of a client, without a socket: its handshake through every layer, heartbeats,
silence, and arbitrary data from a hostile nsqd."""

import json
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nsqcy.client.codec import Message
from nsqcy.client.connection import Connection, State
from nsqcy.client.errors import ConnectionFailed, Error, NsqdError, ProtocolError
from nsqcy.client.options import Address, ConnectionOptions
from nsqcy.errors import LayerError
from nsqcy.testing import certificates
from nsqcy.testing.encoded_connection import Deflate, Snappy
from support.fake_nsqd import Peer, delivery, frame
from support.runs import runs

RESPONSE, ERROR, MESSAGE = 0, 1, 2
Chop = Callable[[bytes], Iterator[bytes]]


def whole(data: bytes) -> Iterator[bytes]:
    if data:
        yield data


def bytewise(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        yield data[at : at + 1]


class Told:
    """Owner of a connection. Records the calls that it receives."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.then: Callable[[], object] = lambda: None

    def ready(self, connection: Connection, now: float) -> None:
        self.events.append("ready")
        self.then()

    def messages(self, connection: Connection, messages: list[Message], now: float) -> None:
        self.events += [message.body for message in messages]
        self.then()

    def accepted(self, connection: Connection, count: int, now: float) -> None:
        self.events.append(("OK", count))
        self.then()

    def response(self, connection: Connection, data: bytes, now: float) -> None:
        self.events.append(data)
        self.then()

    def refused(self, connection: Connection, error: NsqdError, now: float) -> None:
        self.events.append(error)

    def heartbeat(self, connection: Connection) -> None:
        self.events.append("beat")


class Talk:
    """A connection with a clock and a peer."""

    def __init__(self, peer: Peer | None = None, *, trusted: bool = True, **options: Any) -> None:
        self.now = 100.0
        self.told = Told()
        self.peer = peer or Peer()
        self.connection = Connection(
            Address("localhost", 4150),
            ConnectionOptions(hostname="box.lan", **options),
            self.told,
            trusted=trusted,
        )
        self.connection.codec.wake = lambda: None
        self.connection.begin(self.now)

    def run(self, chop: Chop = whole) -> None:
        """Exchange data until both sides are idle."""
        quiet = False
        while not quiet:
            sent = self.connection.take()
            self.peer.feed(sent)
            said = self.peer.take()
            for piece in chop(said):
                self.connection.feed(piece, self.now)
            quiet = not sent and not said

    def hear(self, *data: bytes) -> None:
        for each in data:
            self.connection.feed(each, self.now)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> certificates.Files:
    return certificates.make("localhost").save(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(files: certificates.Files) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    return context


LAYERS: list[dict[str, Any]] = [
    {},
    {"snappy": True},
    {"deflate": True, "deflate_level": 9},
    {"tls_v1": True},
    {"tls_v1": True, "snappy": True},
    {"tls_v1": True, "deflate": True},
]


def name_of(options: dict[str, Any]) -> str:
    return "+".join(sorted(options)) or "plain"


def talk_through(
    options: dict[str, Any], server: ssl.SSLContext, files: certificates.Files, **more: Any
) -> Talk:
    if "tls_v1" in options:
        options = options | {"tls_options": {"ca_certs": files.certificate}}
    return Talk(Peer(tls=server, **more), **options)


# -- handshakes


def test_the_first_bytes_of_a_connection() -> None:
    talk = Talk()
    sent = talk.connection.take()
    assert sent.startswith(b"  V2IDENTIFY\n")
    (length,) = struct.unpack_from(">I", sent, 13)
    assert json.loads(sent[17:]) == talk.connection.options.identity
    assert len(sent) == 17 + length
    assert talk.connection.state is State.HANDSHAKE


@pytest.mark.parametrize("options", LAYERS, ids=name_of)
@pytest.mark.parametrize("chop", [whole, bytewise])
@pytest.mark.parametrize("auth", [False, True], ids=["open", "auth"])
def test_through_every_layer(
    options: dict[str, Any],
    chop: Chop,
    auth: bool,
    server: ssl.SSLContext,
    files: certificates.Files,
) -> None:
    talk = talk_through(
        options | {"auth_secret": "s3"}, server, files, settings={"auth_required": auth}
    )
    talk.run(chop)
    assert talk.told.events == ["ready"]
    assert talk.connection.state is State.READY
    assert talk.peer.lines == ["IDENTIFY", "AUTH"][: 1 + auth]
    assert talk.peer.bodies[1:] == [b"s3"][:auth]
    large = bytes(range(256)) * 400
    talk.connection.subscribe("t", "c", talk.now)
    talk.connection.codec.publish(b"PUB t\n", large)
    talk.run(chop)
    talk.peer.deliver(large)
    talk.peer.beat()
    talk.run(chop)
    assert talk.told.events == ["ready", ("OK", 2), large, "beat"] or talk.told.events == [
        "ready",
        ("OK", 1),
        ("OK", 1),
        large,
        "beat",
    ]
    assert talk.peer.lines[1 + auth :] == ["SUB t c", "PUB t", "NOP"]
    assert talk.peer.bodies[-1] == large


@pytest.mark.slow
@given(st.data())
@settings(max_examples=runs(40), deadline=None)
@pytest.mark.parametrize("layer", ["plain", "snappy", "deflate"])
def test_bytes_after_the_answer_belong_to_the_next_layer(layer: str, data: st.DataObject) -> None:
    """nsqd sends everything together, split anywhere."""
    coder: Any = {"plain": None, "snappy": Snappy(), "deflate": Deflate()}[layer]
    within = frame(RESPONSE, b"OK") if coder else b""
    within += frame(RESPONSE, b"{}") + frame(RESPONSE, b"_heartbeat_") + delivery(b"first")
    answer = json.dumps({layer: True, "auth_required": True}).encode()
    text = frame(RESPONSE, answer) + (coder.encode(within) if coder else within)
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=10).map(sorted))
    options = {layer: True} if coder else {}
    talk = Talk(auth_secret="s", **options)
    talk.hear(*(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)))
    assert talk.told.events[0] == "ready"
    assert set(talk.told.events[1:]) == {"beat", b"first"}


@pytest.mark.case("CL-002")
def test_an_nsqd_that_knows_no_features() -> None:
    talk = Talk(Peer(settings=b"OK"), snappy=True, auth_secret="s")
    talk.run()
    assert talk.told.events == ["ready"]
    assert talk.connection.max_ready == 2500
    assert talk.peer.lines == ["IDENTIFY"]


@pytest.mark.parametrize(
    ("said", "maximum"),
    [(3, 3), (0, 2500), (-1, 2500), ("3", 2500), (None, 2500), (10**30, 10**30)],
)
def test_the_rdy_that_nsqd_allows(said: Any, maximum: int) -> None:
    talk = Talk(Peer(settings={"max_rdy_count": said}))
    talk.run()
    assert talk.connection.max_ready == maximum


def test_a_layer_that_nsqd_does_not_want() -> None:
    talk = Talk(Peer(settings={"snappy": False}), snappy=True)
    talk.run()
    assert talk.told.events == ["ready"]


@pytest.mark.parametrize("layer", ["tls_v1", "snappy", "deflate"])
def test_a_layer_that_was_not_asked_for(layer: str) -> None:
    talk = Talk(Peer(settings={layer: True}))
    with pytest.raises(ProtocolError, match=f"enabled {layer}, which was not requested"):
        talk.run()


@pytest.mark.parametrize("settings", [{}, b"OK"])
def test_tls_that_nsqd_does_not_offer(settings: Any) -> None:
    with pytest.raises(ConnectionFailed, match="does not support TLS"):
        Talk(Peer(settings=settings), tls_v1=True).run()


@pytest.mark.parametrize("settings", [{}, {"durability": "os"}, {"durability": None}, b"OK"])
def test_durability_that_nsqd_does_not_promise(settings: Any) -> None:
    with pytest.raises(ConnectionFailed, match="localhost:4150 does not support durability fsync"):
        Talk(Peer(settings=settings), durability="fsync").run()


def test_durability_that_nsqd_promises() -> None:
    talk = Talk(Peer(settings={"durability": "fsync"}), durability="fsync")
    talk.run()
    assert talk.told.events == ["ready"]
    assert talk.peer.identity["durability"] == "fsync"


def test_a_certificate_nobody_vouches_for(server: ssl.SSLContext) -> None:
    with pytest.raises(LayerError, match="TLS: certificate not accepted: self-signed certificate"):
        Talk(Peer(tls=server), tls_v1=True).run()


def test_a_certificate_of_another(tmp_path: Path) -> None:
    other = certificates.make("other").save(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other.certificate, other.key)
    talk = Talk(Peer(tls=context), tls_v1=True, tls_options={"ca_certs": other.certificate})
    talk.connection.address = Address("nsqd.lan", 4150)
    with pytest.raises(LayerError, match="certificate not accepted: Hostname mismatch"):
        talk.run()


def test_the_end_of_tls_is_the_end(server: ssl.SSLContext, files: certificates.Files) -> None:
    talk = talk_through({"tls_v1": True}, server, files)
    talk.run()
    tls = talk.peer._coders[0]._tls  # type: ignore[attr-defined]
    with pytest.raises(ssl.SSLWantReadError):
        tls.unwrap()
    with pytest.raises(ConnectionFailed, match="TLS: the peer closed the connection"):
        talk.hear(talk.peer._coders[0].encode(b""))


def test_a_secret_that_is_wanted_and_not_there() -> None:
    talk = Talk(Peer(settings={"auth_required": True}))
    with pytest.raises(ConnectionFailed, match="requires AUTH"):
        talk.run()


def test_a_secret_that_is_refused() -> None:
    def script(peer: Peer, line: str, body: bytes) -> bool:
        if line == "AUTH":
            peer.error("E_AUTH_FAILED AUTH failed")
        return line == "AUTH"

    talk = Talk(Peer(settings={"auth_required": True}, script=script), auth_secret="s")
    with pytest.raises(NsqdError, match="E_AUTH_FAILED"):
        talk.run()


def test_heartbeats_between_two_answers() -> None:
    talk = Talk(snappy=True)
    talk.hear(frame(RESPONSE, b"_heartbeat_"), frame(RESPONSE, b'{"snappy": true}'))
    coder = Snappy()
    talk.hear(coder.encode(frame(RESPONSE, b"_heartbeat_") + frame(RESPONSE, b"OK")))
    assert talk.told.events == ["beat", "beat", "ready"]


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (frame(ERROR, b"E_BAD_BODY IDENTIFY no"), "E_BAD_BODY IDENTIFY no"),
        (frame(ERROR, b"\xff\xfe"), r"\\xff\\xfe"),
        (frame(RESPONSE, b"NO"), "answered IDENTIFY with b'NO'"),
        (frame(RESPONSE, b""), "answered IDENTIFY with b''"),
        (frame(RESPONSE, b"[]"), "answered IDENTIFY with"),
        (frame(RESPONSE, b"\xff{"), "answered IDENTIFY with"),
        (frame(RESPONSE, b"[" * 100000), "answered IDENTIFY with"),
        (frame(RESPONSE, b'{"a":' * 100000), "answered IDENTIFY with"),
        (frame(RESPONSE, b'{"max_rdy_count": 1%s}' % (b"0" * 5000)), "answered IDENTIFY with"),
        (frame(3, b"{}"), "frame of unknown type 3"),
        (delivery(), "sent a message during the handshake"),
        (b"HTTP/1.1 400 Bad Request\r\n", "TCP endpoint is required: use nsqd's TCP port"),
        (struct.pack(">I", 14) + b"E_BAD_PROTOCOL", "nsqlookupd answered: use nsqd's TCP port"),
        (bytes.fromhex("15030100020250"), "a TLS server answered"),
        (struct.pack(">iI", 1 << 30, RESPONSE), "announced a frame of 1073741824 bytes"),
    ],
)
def test_answers_that_are_none(said: bytes, error: str) -> None:
    for chop in (whole, bytewise):
        talk = Talk()
        with pytest.raises(Error, match=error):
            for piece in chop(said):
                talk.hear(piece)
        assert talk.told.events == []


def test_an_upgrade_that_is_refused() -> None:
    talk = Talk(snappy=True)
    talk.hear(frame(RESPONSE, b'{"snappy": true}'))
    with pytest.raises(ProtocolError, match="answered an upgrade with b'KO'"):
        talk.hear(Snappy().encode(frame(RESPONSE, b"KO")))


@pytest.mark.parametrize("layer", ["snappy", "deflate"])
def test_a_layer_that_cannot_be_read(layer: str) -> None:
    talk = Talk(**{layer: True})
    talk.hear(frame(RESPONSE, b'{"%b": true}' % layer.encode()))
    with pytest.raises(LayerError):
        talk.hear(b"\xff" * 100)


# -- after the handshake


def ready(**options: Any) -> Talk:
    talk = Talk(**options)
    talk.run()
    assert talk.told.events.pop() == "ready"
    return talk


@pytest.mark.case("CL-063")
def test_heartbeats_are_answered() -> None:
    talk = ready()
    talk.hear(frame(RESPONSE, b"_heartbeat_"))
    assert talk.connection.take() == b"NOP\n"
    assert talk.told.events == ["beat"]


def test_oks_are_counted_between_other_answers() -> None:
    talk = ready()
    ok = frame(RESPONSE, b"OK")
    talk.hear(ok * 3 + frame(ERROR, b"E_FIN_FAILED x") + ok + frame(RESPONSE, b"_heartbeat_"))
    talk.hear(ok + frame(RESPONSE, b"CLOSE_WAIT") + delivery(b"m"))
    kinds = [str(each) if isinstance(each, NsqdError) else each for each in talk.told.events]
    assert kinds[:4] == [("OK", 3), "E_FIN_FAILED x", ("OK", 1), "beat"]
    assert kinds[4:] == [b"m", ("OK", 1), b"CLOSE_WAIT"]
    assert talk.connection.drained


def test_after_a_fatal_error_nothing_counts() -> None:
    talk = ready()
    with pytest.raises(NsqdError, match="E_INVALID"):
        talk.hear(frame(ERROR, b"E_INVALID bad") + frame(RESPONSE, b"OK"))
    assert str(talk.connection.failure) == "E_INVALID bad"
    assert [str(each) for each in talk.told.events] == ["E_INVALID bad"]


def test_frames_of_no_type() -> None:
    with pytest.raises(ProtocolError, match="frame of unknown type 4294967295"):
        ready().hear(frame(0xFFFFFFFF, b"x"))


def test_a_callback_may_close_the_connection() -> None:
    talk = ready()
    talk.told.then = talk.connection.close
    talk.hear(frame(RESPONSE, b"OK") + frame(RESPONSE, b"x") + frame(RESPONSE, b"y"))
    talk.hear(frame(RESPONSE, b"OK"))
    assert talk.told.events == [("OK", 1)]


def test_a_closed_connection_does_not_begin() -> None:
    talk = Talk()
    connection = Connection(talk.connection.address, talk.connection.options, talk.told)
    connection.close()
    connection.begin(talk.now)
    assert connection.state is State.CLOSED
    assert connection.take() == b""
    assert connection.due == float("inf")


def test_silence() -> None:
    talk = ready(heartbeat_interval=10)
    assert talk.connection.due == 120.0
    talk.now = 119.0
    talk.connection.check(talk.now)
    talk.hear(frame(RESPONSE, b"_heartbeat_"))
    talk.now = 120.0
    talk.connection.check(talk.now)
    assert talk.connection.due == 139.0
    with pytest.raises(ConnectionFailed, match="has sent nothing for 20 s"):
        talk.connection.check(139.0)


def test_any_byte_breaks_the_silence() -> None:
    talk = ready(heartbeat_interval=10)
    talk.now = 119.0
    talk.hear(b"\0")
    talk.connection.check(138.0)
    with pytest.raises(ConnectionFailed):
        talk.connection.check(139.0)


def test_no_heartbeats_no_silence() -> None:
    talk = ready(heartbeat_interval=-1)
    assert talk.connection.due == float("inf")
    talk.connection.check(1e9)


@pytest.mark.parametrize(("timeout", "allowed"), [(0.1, 10.0), (1.0, 10.0), (15.0, 15.0)])
def test_a_handshake_ends(timeout: float, allowed: float) -> None:
    talk = Talk(timeout=timeout)
    assert talk.connection.due == 100.0 + allowed
    talk.connection.check(99.9 + allowed)
    with pytest.raises(ConnectionFailed, match="did not complete the handshake in time"):
        talk.connection.check(100.0 + allowed)


def test_the_owner_is_woken_for_what_a_layer_says(
    server: ssl.SSLContext, files: certificates.Files
) -> None:
    talk = talk_through({"tls_v1": True}, server, files)
    talk.peer.feed(talk.connection.take())
    woken: list[bool] = []
    talk.connection.codec.wake = lambda: woken.append(True)
    talk.hear(talk.peer.take())
    assert woken
    assert talk.connection.take().startswith(b"\x16\x03")  # a TLS handshake


@given(st.lists(st.binary(max_size=100), max_size=8), st.booleans())
@settings(max_examples=runs(60), deadline=None)
def test_garbage(pieces: list[bytes], shaken: bool) -> None:
    talk = ready() if shaken else Talk()
    try:
        talk.hear(*pieces)
    except Error as error:
        check(error)


@given(st.binary(max_size=100) | st.just(b"\x1b[31m\n" * 10_000), st.booleans())
@settings(max_examples=runs(60), deadline=None)
def test_any_error(text: bytes, shaken: bool) -> None:
    talk = ready() if shaken else Talk()
    with pytest.raises(NsqdError) as caught:
        talk.hear(frame(ERROR, b"E_" + text))
    check(caught.value)


def check(error: Error) -> None:
    """Another program's text becomes one short line."""
    assert str(error).isprintable()
    assert len(str(error)) < 20_000


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("tls_options", "sent"),
    [
        ({"ca_certs": "ours"}, True),
        ({"ca_certs": "ours", "cert_reqs": ssl.CERT_NONE}, False),
        ({"ca_certs": "ours", "check_hostname": False}, False),
        ({"cert_reqs": ssl.CERT_NONE}, False),
    ],
)
def test_a_certificate_of_our_ca_proves_an_nsqd(
    tls_options: dict[str, Any], sent: bool, server: ssl.SSLContext, files: certificates.Files
) -> None:
    if "ca_certs" in tls_options:
        tls_options = tls_options | {"ca_certs": files.certificate}
    peer = Peer(tls=server, settings={"auth_required": True})
    talk = Talk(peer, tls_v1=True, tls_options=tls_options, auth_secret="s", trusted=False)
    if sent:
        talk.run()
        assert peer.bodies[1:] == [b"s"]
        return
    with pytest.raises(ConnectionFailed, match="token withheld"):
        talk.run()
    assert peer.bodies[1:] == []


KEYS = ["max_rdy_count", "tls_v1", "snappy", "deflate", "auth_required", "x"]


@given(st.dictionaries(st.sampled_from(KEYS), json_values) | json_values)
@settings(max_examples=runs(40), deadline=None)
def test_any_json(answer: Any) -> None:
    talk = Talk(snappy=True, auth_secret="s")
    try:
        talk.hear(frame(RESPONSE, json.dumps(answer).encode()))
        talk.hear(frame(RESPONSE, b"OK"))
    except Error as error:
        check(error)
    assert talk.connection.max_ready > 0
