"""Server-side TLS: certificates, the client certificate policy, and non-blocking handshakes.

Owns the OpenSSL contexts. The master reads the files into a Material, which it sends to workers
when they start and after a SIGHUP; a worker creates a context from it. A connection's TLS is a
layer (nsqcy.net.tls_stream) over bytes in memory, which both TCP and HTTPS use. This module does
not depend on their protocols or on sockets.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from OpenSSL import SSL, crypto

from nsqcy.errors import LayerError
from nsqcy.net.tls_stream import TlsStream
from nsqcy.nsqd.options import REQUIRE_VERIFY, NsqdOptions
from nsqcy.util import pem_files
from nsqcy.util.pem_files import PemError

REQUIRE = "require"  # accept any certificate, regardless of its issuer
TLS_1_2 = 0x0303
HANDSHAKE_LIMIT = 5.0  # maximum total seconds to wait for a peer
MAX_HANDSHAKE = 8 << 10  # maximum bytes without a client certificate; OpenSSL would buffer 128 KiB
MAX_CERTIFICATES = 16 << 10  # maximum bytes with a client certificate and its CAs' certificates
# maximum certificates from a client whose certificate is not verified; OpenSSL keeps them decoded
MAX_UNVERIFIED = 5

_VERSIONS = {0x0301: "TLS1.0", 0x0302: "TLS1.1", 0x0303: "TLS1.2", 0x0304: "TLS1.3"}
_RECORDS = b"\x15\x16"  # the first byte of a TLS record: an alert or a handshake

# OpenSSL's cipher suite names, and the IANA names that Go also uses. TLS 1.3 suites have the same
# name in both.
_SUITES = {
    "DES-CBC3-SHA": "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "AES128-SHA": "TLS_RSA_WITH_AES_128_CBC_SHA",
    "AES256-SHA": "TLS_RSA_WITH_AES_256_CBC_SHA",
    "AES128-SHA256": "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "AES256-SHA256": "TLS_RSA_WITH_AES_256_CBC_SHA256",
    "AES128-GCM-SHA256": "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "AES256-GCM-SHA384": "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "RC4-SHA": "TLS_RSA_WITH_RC4_128_SHA",
    "ECDHE-ECDSA-RC4-SHA": "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "ECDHE-ECDSA-AES128-SHA": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "ECDHE-ECDSA-AES256-SHA": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "ECDHE-ECDSA-AES128-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "ECDHE-ECDSA-AES256-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305": "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "ECDHE-RSA-RC4-SHA": "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "ECDHE-RSA-DES-CBC3-SHA": "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "ECDHE-RSA-AES128-SHA": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "ECDHE-RSA-AES256-SHA": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "ECDHE-RSA-AES128-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "ECDHE-RSA-AES256-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA384",
    "ECDHE-RSA-AES128-GCM-SHA256": "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305": "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
}

# Only suites from the table, strongest first.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES:RSA+AESGCM:RSA+AES:!PSK:!SRP:!AESCCM:!AESCCM8"
_ANY_LEVEL = ":@SECLEVEL=0"
_TOO_WEAK = frozenset({"ee key too small", "ca key too small", "ca md too weak"})
_STRONG_RSA = 2048  # minimum bits that OpenSSL accepts at its default level


class TlsError(Exception):
    """The files are unusable for TLS; str() returns the file and the reason."""


class Material(NamedTuple):
    """Input for a context. All fields are JSON values."""

    certificate: str  # PEM: the server's certificate, then its CA certificates
    key: str  # PEM
    root_ca: str  # PEM; empty: the system's CAs
    policy: str
    min_version: int
    old_versions: bool  # TLS versions before 1.2 are enabled explicitly


def load(options: NsqdOptions, old_versions: bool) -> tuple[Material | None, list[str]]:
    """Read the configured files and check them; also return warnings for the operator. Raises
    TlsError."""
    try:
        material = read_material(options, old_versions)
        if material is None:
            return None, []
        return material, [*_check_files(options, material), *make_context(material)[1]]
    except PemError as error:
        raise TlsError(str(error)) from None


def _check_files(options: NsqdOptions, material: Material) -> Iterator[str]:
    """Check the files, so that errors name them; return warnings. Raises PemError."""
    now = datetime.now(UTC)
    chain = pem_files.check_pair(
        material.certificate, options.tls_cert, material.key, options.tls_key
    )
    yield from pem_files.validity_warnings(chain, options.tls_cert, now)
    if options.tls_root_ca_file:
        roots = pem_files.certificates(material.root_ca, options.tls_root_ca_file)
        yield from pem_files.validity_warnings(roots, options.tls_root_ca_file, now)


def read_material(options: NsqdOptions, old_versions: bool) -> Material | None:
    """Read the configured files; return None if there are none. Raises PemError.

    TLS before 1.2 requires OpenSSL's lowest security level, so NSQ's default does not enable it:
    `old_versions` means that the user has set the option.
    """
    if not options.tls_cert:
        return None
    return Material(
        certificate=pem_files.read(options.tls_cert),
        key=pem_files.read(options.tls_key),
        root_ca=pem_files.read(options.tls_root_ca_file) if options.tls_root_ca_file else "",
        policy=options.tls_client_auth_policy,
        min_version=options.tls_min_version,
        old_versions=old_versions and options.tls_min_version < TLS_1_2,
    )


def of_nodes(certificate: str, key: str, root_ca: str) -> SSL.Context:
    """Return a context for connections from nodes, whose certificates a CA has signed. The
    parameters are files. Raises PemError."""
    read = pem_files.read
    texts = read(certificate), read(key), read(root_ca)
    try:
        return _build(Material(*texts, REQUIRE_VERIFY, TLS_1_2, False), lowered=False)
    except SSL.Error as error:
        raise PemError(_text(error)) from None


def make_context(material: Material) -> tuple[SSL.Context, list[str]]:
    """Return a server context, and warnings for the operator. Raises TlsError and PemError."""
    warnings = []
    lowered = False
    if material.old_versions:
        lowered = True
        version = _VERSIONS[material.min_version]
        warnings.append(f"TLS: OpenSSL's security level is 0, because {version} was requested")
    elif material.policy == REQUIRE_VERIFY and _is_weak(material.root_ca):
        lowered = True
        warnings.append(
            "TLS: OpenSSL's security level is 0, because a client CA has a weak key or signature"
        )
    try:
        context = _build(material, lowered)
    except SSL.Error as error:
        if lowered or not _TOO_WEAK & set(_reasons(error)):
            raise TlsError(_text(error)) from None
        context = _build_lowered(material)
        warnings.append(
            "TLS: OpenSSL's security level is 0, because the server's certificate is weak "
            f"({_text(error)})"
        )
    return context, warnings


def _build_lowered(material: Material) -> SSL.Context:
    try:
        return _build(material, lowered=True)
    except SSL.Error as error:
        raise TlsError(_text(error)) from None


def _build(material: Material, lowered: bool) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(material.min_version)
    context.set_cipher_list((_CIPHERS + (_ANY_LEVEL if lowered else "")).encode())
    # Other workers cannot use a worker's session tickets, nor can the same worker after it reloads
    # the files.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_COMPRESSION)
    context.set_session_id(b"nsqd")
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    chain = pem_files.certificates(material.certificate, "the certificate file")
    context.use_certificate(chain[0])
    for above in chain[1:]:
        context.add_extra_chain_cert(above)
    context.use_privatekey(pem_files.private_key(material.key, "the key file"))
    context.check_privatekey()
    _set_policy(context, material)
    context.set_app_data(material.policy)
    return context


def _set_policy(context: SSL.Context, material: Material) -> None:
    demanded = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
    if material.policy == REQUIRE:
        context.set_verify(demanded, _accept)
    elif material.policy == REQUIRE_VERIFY:
        context.set_verify(demanded)
    if not material.root_ca:
        context.set_default_verify_paths()
        return
    store = context.get_cert_store()
    assert store is not None  # every context has a store
    for each in pem_files.certificates(material.root_ca, "the root CA file"):
        store.add_cert(crypto.X509.from_cryptography(each))
        if material.policy == REQUIRE_VERIFY:
            context.add_client_ca(each)


def _accept(*found: object) -> bool:
    """Accept any error that OpenSSL reports about a client's certificate."""
    return True


def _is_weak(root_ca: str) -> bool:
    """Return whether OpenSSL would reject signatures by one of these CAs."""
    return any(
        _bits(each.public_key()) < _STRONG_RSA
        or isinstance(each.signature_hash_algorithm, hashes.SHA1 | hashes.MD5)
        for each in (pem_files.certificates(root_ca, "the root CA file") if root_ca else ())
    )


def _bits(key: object) -> int:
    """Return the size of an RSA key; other keys are considered strong."""
    return key.key_size if isinstance(key, rsa.RSAPublicKey) else _STRONG_RSA


def _reasons(error: Exception) -> list[str]:
    """Return the reasons in a pyOpenSSL error, which contains triples of library, function and
    reason."""
    if error.args and isinstance(error.args[0], list):
        return [str(entry[2]) for entry in error.args[0] if entry[2]]
    return [str(error)] if str(error) else []


def _text(error: Exception) -> str:
    return "; ".join(_reasons(error)) or "unknown error"


class TlsLayer(TlsStream):
    """Server-side TLS of one connection."""

    def __init__(self, context: SSL.Context) -> None:
        self._context = context
        self._first = b""
        self._received = 0  # bytes of the handshake

    @cached_property
    def _connection(self) -> SSL.Connection:
        """Created at the first handshake step, because thousands of clients may connect at the same
        time."""
        connection = SSL.Connection(self._context, None)
        connection.set_accept_state()
        self.attach(connection)
        return connection

    def feed(self, data: bytes) -> None:
        self._first = self._first or data[:1]
        super().feed(data)

    def release(self) -> None:
        """Free the state of an ended connection. After this, nothing can be decoded or encoded."""
        super().release()
        self.__dict__.pop("_connection", None)

    def handshake(self) -> bool:
        """Continue the handshake. Return True if it is done, False if it needs input. Raises
        LayerError."""
        while True:
            try:
                self._connection.do_handshake()
            except SSL.WantReadError:
                self._received += (passed := self.pass_input())
                if not passed:
                    self._check_chain()
                    return False
                if self._received > self._maximum:
                    raise LayerError(
                        f"tls: more than {self._maximum} bytes in the handshake"
                    ) from None
            except SSL.Error as error:
                if self._first not in _RECORDS:
                    # The peer could not read an alert.
                    self.take()
                raise LayerError(f"tls: {_text(error)}") from None
            else:
                self._check_chain()
                return True

    def _check_chain(self) -> None:
        if self._context.get_app_data() == REQUIRE:
            above = self._connection.get_peer_cert_chain(as_cryptography=True) or ()
            if 1 + len(above) > MAX_UNVERIFIED:
                raise LayerError(f"tls: more than {MAX_UNVERIFIED} certificates")

    @property
    def _maximum(self) -> int:
        asks_certificates = self._context.get_app_data() in (REQUIRE, REQUIRE_VERIFY)
        return MAX_CERTIFICATES if asks_certificates else MAX_HANDSHAKE

    def certificate_names(self) -> tuple[str, ...]:
        """Return the names in the client's certificate; empty if the certificate was not
        verified."""
        if self._context.get_app_data() != REQUIRE_VERIFY:
            return ()
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        return () if certificate is None else names_in(certificate)

    def facts(self) -> dict[str, str]:
        """Return facts about the connection after the handshake, as JSON values."""
        version = self._connection.get_protocol_version()
        certificate = self._connection.get_peer_certificate(as_cryptography=True)
        return {
            "version": _VERSIONS.get(version, f"Unknown {version}"),
            "cipher_suite": suite_name(self._connection.get_cipher_name() or ""),
            "common_name": _common_name(certificate) if certificate else "",
        }


def names_in(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names in a certificate: its alternative names (DNS, URI, e-mail) or, if
    it has none of these, its common name, as RFC 6125 requires."""
    names: tuple[str, ...] = ()
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for kind in (x509.DNSName, x509.UniformResourceIdentifier, x509.RFC822Name):
            names += tuple(found.get_values_for_type(kind))
    except x509.ExtensionNotFound:
        pass
    except (x509.DuplicateExtension, ValueError):
        return ()
    return tuple(filter(None, names or (_common_name(certificate),)))


def _common_name(certificate: x509.Certificate) -> str:
    """Return the common name; empty if there are several, because then none of them is the name."""
    found = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else ""


def suite_name(name: str) -> str:
    """Return the IANA name of an OpenSSL cipher suite."""
    return _SUITES.get(name, name)


class Owner(Protocol):
    """A connection with a handshake in progress."""

    def send_encoded(self, data: bytes) -> None:
        """Send these bytes unchanged."""

    def want_input(self) -> None:
        """Read the socket again. After each feed(), the socket is not read until this call or the
        end of the handshake."""

    def handshake_done(self, error: str | None) -> None:
        """Called when the handshake has succeeded, or failed with this error. Any alert has been
        sent."""


class Handshakes:
    """The handshakes in progress in a worker.

    One step takes as long as handling thousands of messages. Each turn of the loop therefore takes
    at most one step, for the handshake that has waited longest. Waiting for a turn does not count
    against the peer's time limit.
    """

    def __init__(self, loop: Any, context: SSL.Context, limit: float = HANDSHAKE_LIMIT) -> None:
        """loop: the hub's loop. context: for new handshakes; may be replaced at any time."""
        self.context = context
        self.limit = limit
        self._loop = loop
        self._waiting: deque[Handshake] = deque()
        self._check = loop.check()
        self._idle = loop.idle()

    def begin(self, owner: Owner) -> "Handshake":
        """Begin a handshake: wait for the owner's peer to send data, which the owner passes to
        feed()."""
        return Handshake(self, owner, TlsLayer(self.context))

    def close(self) -> None:
        """Stop all steps."""
        self._stop()
        self._check.close()
        self._idle.close()

    def timer(self, seconds: float, late: Callable[[], None]) -> Any:
        """Return a running timer of the loop."""
        timer = self._loop.timer(max(seconds, 0.0))
        timer.start(late)
        return timer

    def enqueue(self, handshake: "Handshake") -> None:
        """Schedule a call to the handshake's step() in its turn."""
        if not self._waiting:
            self._check.start(self._turn)
            # An active idle watcher keeps the poll from blocking.
            self._idle.start(_nothing)
        self._waiting.append(handshake)

    def _turn(self) -> None:
        while self._waiting and not self._waiting.popleft().step():
            pass
        if not self._waiting:
            self._stop()

    def _stop(self) -> None:
        self._check.stop()
        self._idle.stop()


def _nothing() -> None:
    """Do nothing: the event only ends a poll."""


class Handshake:
    """One handshake: waits for the peer, then for its turn, repeatedly until it is done."""

    def __init__(self, line: Handshakes, owner: Owner, layer: TlsLayer) -> None:
        self.layer = layer
        self._line = line
        self._owner: Owner | None = owner  # None: the handshake has ended
        self._left = line.limit
        self._await_peer()

    def feed(self, data: bytes) -> None:
        """Accept bytes from the peer. Do not read its socket until want_input() is called."""
        if self._owner is not None and self._stop_waiting():
            self.layer.feed(data)
            self._line.enqueue(self)

    def cancel(self) -> None:
        """Stop, because the connection has ended."""
        self._stop_waiting()
        self._owner = None

    def step(self) -> bool:
        """Take a step; return whether there was one to take."""
        owner = self._owner
        if owner is None:
            return False
        error = None
        done = False
        try:
            done = self.layer.handshake()
        except LayerError as failed:
            error = str(failed)
        encoded = self.layer.take()
        if encoded:
            owner.send_encoded(encoded)
        if self._owner is None:
            return True
        if done or error is not None:
            self._owner = None
            owner.handshake_done(error)
        else:
            self._await_peer()
            owner.want_input()
        return True

    def _await_peer(self) -> None:
        self._since = time.monotonic()
        self._timer = self._line.timer(self._left, self._late)

    def _stop_waiting(self) -> bool:
        if self._timer is None:
            return False
        self._timer.stop()
        self._timer.close()
        self._timer = None
        self._left -= time.monotonic() - self._since
        return True

    def _late(self) -> None:
        owner = self._owner
        self.cancel()
        if owner is not None:
            owner.handshake_done("tls: handshake timed out")
