"""The server's TLS: accepted files, accepted clients, and how its work is spread over turns."""

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import gevent
import pytest
from cryptography import x509
from OpenSSL import SSL

from nsqcy.config import loader
from nsqcy.errors import LayerEnd, LayerError
from nsqcy.net.core import PIECE
from nsqcy.nsqd.options import NSQD, NsqdOptions, resolve
from nsqcy.nsqd.tls import (
    Handshake,
    Handshakes,
    TlsError,
    TlsLayer,
    load,
    make_context,
    names_in,
    read_material,
    suite_name,
)
from nsqcy.server.core import Loop, accept_socket
from nsqcy.testing.certificates import Identity, make
from nsqcy.testing.wire_client import MAGIC, sized
from nsqcy.util.pem_files import PemError
from support.memory_tls import SERVER, Client, material, pair, shake_hands
from support.weak_certificates import WEAK_AUTHORITY, WEAK_CLIENT
from support.worker_core import Core

AUTHORITY = make("authority", authority=True)
CLIENT = make("client", by=AUTHORITY)
STRANGER = make("stranger")


# -- files


@pytest.fixture
def options(tmp_path: Path) -> NsqdOptions:
    files = SERVER.save(tmp_path)
    words = [f"--tls-cert={files.certificate}", f"--tls-key={files.key}"]
    return resolve(loader.load(NSQD, words))


def test_no_certificate_no_tls() -> None:
    assert read_material(resolve(loader.load(NSQD, [])), False) is None


def test_the_files_are_read(options: NsqdOptions) -> None:
    found = read_material(options, old_versions=True)
    assert found == material(old_versions=True)


def test_old_versions_are_those_before_1_2(options: NsqdOptions) -> None:
    found = read_material(options.replace(tls_min_version=0x0303), old_versions=True)
    assert found is not None
    assert not found.old_versions


def test_a_missing_file_is_named(options: NsqdOptions) -> None:
    with pytest.raises(TlsError, match="open /nowhere: no such file or directory"):
        load(options.replace(tls_key="/nowhere"), False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"certificate": ""}, "the certificate file is empty"),
        ({"key": "?"}, "the key file is not in PEM format"),
        ({"key": STRANGER.key}, "mismatch"),
        ({"root_ca": "?"}, "the root CA file is not in PEM format"),
    ],
)
def test_bad_files_are_refused(changes: dict[str, str], text: str) -> None:
    with pytest.raises((TlsError, PemError), match=text):
        make_context(material(**changes))


def test_a_chain_is_sent_whole() -> None:
    child = make("child", by=AUTHORITY)
    _, client = pair(material(child, certificate=child.certificate + AUTHORITY.certificate))
    shown = client.tls.get_peer_cert_chain(as_cryptography=True)
    names = [each.subject.rfc4514_string() for each in shown or ()]
    assert names == ["CN=child", "CN=authority"]


@pytest.mark.parametrize("server", [make("late", expired=True), SERVER])
def test_expired_and_self_signed_certificates_serve(server: Identity) -> None:
    context, warnings = make_context(material(server))
    assert warnings == []
    shake_hands(TlsLayer(context), Client())


def test_a_weak_certificate_serves_with_a_warning() -> None:
    context, warnings = make_context(material(WEAK_AUTHORITY))
    assert ["the server's certificate is weak" in each for each in warnings] == [True]
    shake_hands(TlsLayer(context), Client(newest=SSL.TLS1_2_VERSION, level=0))


# -- versions and cipher suites


@pytest.mark.parametrize(
    ("newest", "name", "suite"),
    [
        (SSL.TLS1_2_VERSION, "TLS1.2", "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"),
        (SSL.TLS1_3_VERSION, "TLS1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_facts(newest: int, name: str, suite: str) -> None:
    layer, _ = pair(material(), Client(newest=newest))
    assert layer.facts() == {"version": name, "cipher_suite": suite, "common_name": ""}


def test_suites_have_their_iana_names() -> None:
    assert suite_name("ECDHE-RSA-AES128-GCM-SHA256") == "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
    assert suite_name("TLS_AES_128_GCM_SHA256") == "TLS_AES_128_GCM_SHA256"


def test_every_suite_that_can_be_agreed_on_has_its_iana_name() -> None:
    context, _ = make_context(material(old_versions=True))
    offered = SSL.Connection(context, None).get_cipher_list()
    assert {"TLS_AES_128_GCM_SHA256", "TLS_CHACHA20_POLY1305_SHA256"} < set(offered)
    assert [each for each in offered if not suite_name(each).startswith("TLS_")] == []


@pytest.mark.slow
def test_old_versions_only_when_asked_for() -> None:
    old = Client(newest=SSL.TLS1_1_VERSION, level=0)
    with pytest.raises(LayerError):
        pair(material(), old)
    wanted = material(old_versions=True)
    assert "tls1.0" in make_context(wanted)[1][0].lower()
    layer, _ = pair(wanted, Client(newest=SSL.TLS1_1_VERSION, level=0))
    assert layer.facts()["version"] == "TLS1.1"


def test_the_least_version_is_kept() -> None:
    with pytest.raises(LayerError):
        pair(material(min_version=0x0304), Client(newest=SSL.TLS1_2_VERSION))


# -- client certificates


@pytest.mark.parametrize(
    ("policy", "shown", "admitted"),
    [
        ("", None, True),
        ("bogus", None, True),
        ("require", None, False),
        ("require", STRANGER, True),
        ("require", make("late", expired=True), True),
        ("require-verify", None, False),
        ("require-verify", STRANGER, False),
        ("require-verify", CLIENT, True),
        ("require-verify", make("old", by=AUTHORITY, expired=True), False),
    ],
)
def test_who_is_let_in(policy: str, shown: Identity | None, admitted: bool) -> None:
    wanted = material(policy=policy, root_ca=AUTHORITY.certificate)
    client = Client(shown)
    if admitted:
        layer, _ = pair(wanted, client)
        named = shown.name if shown and policy else ""
        assert layer.facts()["common_name"] == named
    else:
        with pytest.raises(LayerError):
            pair(wanted, client)


@pytest.mark.parametrize(
    ("names", "common_names", "expected"),
    [
        ((), (), ["billing"]),
        (("127.0.0.1",), (), ["billing"]),
        (("shipping.example.com",), (), ["shipping.example.com"]),
        (
            ("a@example.com", "spiffe://example/a", "a.example.com"),
            (),
            ["a.example.com", "spiffe://example/a", "a@example.com"],
        ),
        ((), ("shipping",), []),
        (("a.example.com",), ("shipping",), ["a.example.com"]),
    ],
)
def test_the_names_that_count(
    names: tuple[str, ...], common_names: tuple[str, ...], expected: list[str]
) -> None:
    made = make("billing", names=names, common_names=common_names)
    found = x509.load_pem_x509_certificate(made.certificate.encode())
    assert list(names_in(found)) == expected


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
@pytest.mark.parametrize(("above", "text"), [(4, ""), (5, "more than 5 certificates")])
def test_a_client_shows_few_unverified_certificates(above: int, text: str, newest: int) -> None:
    client = Client(SERVER, newest, above=above)
    with pytest.raises(LayerError, match=text) if text else contextlib.nullcontext():
        pair(material(policy="require"), client)


def test_unverified_certificates_count_before_the_end_of_a_handshake() -> None:
    layer, client = TlsLayer(make_context(material(policy="require"))[0]), Client(SERVER, above=5)
    layer.feed(client.speak())
    assert not layer.handshake()
    layer.feed(client.speak(layer.take())[:-1])
    with pytest.raises(LayerError, match="more than 5 certificates"):
        layer.handshake()


@pytest.mark.parametrize("newest", [SSL.TLS1_2_VERSION, SSL.TLS1_3_VERSION])
def test_a_handshake_has_a_limit(newest: int) -> None:
    client = Client(SERVER, newest, above=40)
    with pytest.raises(LayerError, match="more than 16384 bytes in the handshake"):
        pair(material(policy="require"), client)


def test_an_ambiguous_common_name_is_not_reported() -> None:
    layer, _ = pair(material(policy="require"), Client(make("billing", common_names=("shipping",))))
    assert layer.facts()["common_name"] == ""


def test_a_weak_authority_lowers_the_level_with_a_warning() -> None:
    wanted = material(policy="require-verify", root_ca=WEAK_AUTHORITY.certificate)
    assert "a client CA has a weak key" in make_context(wanted)[1][0]
    layer, _ = pair(wanted, Client(WEAK_CLIENT, level=0))
    assert layer.facts()["common_name"] == "weak client"


# -- data


def test_data_comes_through() -> None:
    layer, client = pair(material())
    data = bytes(range(256)) * 1000
    layer.write(data)
    client.tls.bio_write(layer.take())
    received = b""
    while len(received) < len(data):
        received += client.tls.recv(PIECE)
    assert received == data
    assert layer.read() == b""
    sent = 0
    while sent < len(data):
        sent += client.tls.send(data[sent:])
    layer.feed(client.take())
    received = b""
    while piece := layer.read():
        assert len(piece) <= PIECE
        received += piece
    assert received == data


def test_a_record_can_be_decoded_without_the_next() -> None:
    layer, client = pair(material())
    for _ in range(4):
        assert client.tls.send(bytes(16384)) == 16384
    layer.enough = 1
    layer.feed(client.take())
    assert [len(layer.read()) for _ in range(5)] == [16384] * 4 + [0]


def test_the_end_is_said_and_heard() -> None:
    layer, client = pair(material())
    client.tls.shutdown()
    layer.feed(client.take())
    with pytest.raises(LayerEnd):
        layer.read()
    layer.close()
    client.tls.bio_write(layer.take())
    with pytest.raises(SSL.ZeroReturnError):
        client.tls.recv(10)


def test_a_damaged_record_is_refused() -> None:
    layer, client = pair(material())
    client.tls.send(b"hello")
    wire = bytearray(client.take())
    wire[-1] ^= 1
    layer.feed(bytes(wire))
    with pytest.raises(LayerError):
        layer.read()


def test_noise_gets_no_alert() -> None:
    layer = TlsLayer(make_context(material())[0])
    layer.feed(b"SUB topic channel\n" * 10)
    with pytest.raises(LayerError):
        layer.handshake()
    assert layer.take() == b""


# -- handshakes, turn by turn


class Conversation:
    """A handshake with a client: its callbacks, and the path of its bytes."""

    def __init__(self, line: Handshakes, log: list[str], name: str = "") -> None:
        self.client = Client()
        self.answer = b""
        self.called: list[str] = []
        self.name = name
        self.log = log
        self.handshake: Handshake = line.begin(self)

    def speak(self) -> None:
        self.handshake.feed(self.client.speak(self.answer))
        self.answer = b""

    def send_encoded(self, data: bytes) -> None:
        self.log.append(f"step {self.name}")
        self.answer += data

    def want_input(self) -> None:
        self.speak()

    def handshake_done(self, error: str | None) -> None:
        self.log.append(f"done {self.name} {error}")


@pytest.fixture
def line() -> Iterator[Callable[..., Handshakes]]:
    made = []

    def start(limit: float = 5.0) -> Handshakes:
        context, _ = make_context(material())
        made.append(Handshakes(gevent.get_hub().loop, context, limit))
        return made[-1]

    yield start
    for each in made:
        each.close()


def await_that(holds: Callable[[], object]) -> None:
    with gevent.Timeout(10):
        while not holds():
            gevent.sleep(0.001)


def test_one_step_a_turn(line: Callable[..., Handshakes]) -> None:
    handshakes = line()
    log: list[str] = []
    peers = [Conversation(handshakes, log, str(i)) for i in range(5)]
    turns = gevent.get_hub().loop.prepare()
    turns.start(lambda: log.append("turn"))
    for peer in peers:
        peer.speak()
    await_that(lambda: sum(each.startswith("done") for each in log) == 5)
    turns.stop()
    turns.close()
    assert [each for each in log if each.startswith("done")] == [f"done {i} None" for i in range(5)]
    steps = 0
    for each in log:
        steps = 0 if each == "turn" else steps + each.startswith("step")
        assert steps <= 1


def test_a_silent_peer_is_given_up(line: Callable[..., Handshakes]) -> None:
    log: list[str] = []
    Conversation(line(0.05), log)
    await_that(lambda: log)
    assert log == ["done  tls: handshake timed out"]


def test_our_own_time_is_not_the_peers(line: Callable[..., Handshakes]) -> None:
    """Before the connection's turn, the loop is busy for longer than the time limit of a peer."""
    log: list[str] = []
    peer = Conversation(line(0.1), log)
    peer.speak()
    time.sleep(0.3)
    await_that(lambda: "done  None" in log)


def test_a_connection_that_is_gone_is_forgotten(line: Callable[..., Handshakes]) -> None:
    handshakes = line(0.05)
    log: list[str] = []
    first, second = Conversation(handshakes, log, "1"), Conversation(handshakes, log, "2")
    first.speak()
    second.speak()
    first.handshake.cancel()
    await_that(lambda: "done 2 None" in log)
    assert not any("1" in each for each in log)


def test_new_files_are_for_new_handshakes(line: Callable[..., Handshakes]) -> None:
    handshakes = line()
    log: list[str] = []
    before = Conversation(handshakes, log, "before")
    handshakes.context, _ = make_context(material(STRANGER))
    after = Conversation(handshakes, log, "after")
    before.speak()
    after.speak()
    await_that(lambda: sum(each.startswith("done") for each in log) == 2)
    names = []
    for each in (before, after):
        each.client.speak(each.answer)
        shown = each.client.tls.get_peer_certificate(as_cryptography=True)
        assert shown is not None
        names.append(shown.subject.rfc4514_string())
    assert names == ["CN=server", "CN=stranger"]


def test_input_after_a_failed_handshake(
    line: Callable[..., Handshakes],
) -> None:
    """The connection exists until the client has received the error, or forever if the client does
    not read."""
    core = Core(None, tls_cert="there is one")
    loop = Loop(core.manager, gevent.get_hub(), line(0.05))
    ours, client = socket.socketpair()
    client.setblocking(False)
    accept_socket(loop, ours.detach(), "peer")
    client.send(MAGIC + b"IDENTIFY\n" + sized(b'{"tls_v1": true, "feature_negotiation": true}'))
    await_that(lambda: loop.end_turn() or readable(client))
    client.recv(1000)
    client.send(b"\x16")
    await_that(lambda: any("tls: handshake timed out" in each for each in core.log.lines))
    client.send(b"more")
    for _ in range(3):
        gevent.sleep(0.001)
    loop.end_turn()
    assert b"E_IDENTIFY_FAILED IDENTIFY failed tls: handshake timed out" in client.recv(1000)
    assert client.recv(1000) == b""
    loop.stop()
    core.close()
    client.close()


def readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])
