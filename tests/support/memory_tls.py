"""Both ends of a TLS connection in memory: the server's layer, and a pyOpenSSL client."""

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from OpenSSL import SSL

from nsqcy.net.core import PIECE
from nsqcy.nsqd.tls import Material, TlsLayer, make_context
from nsqcy.testing.certificates import Identity, make

SERVER = make("server")


def material(server: Identity = SERVER, **changes: object) -> Material:
    """Return the material for a TLS context with this certificate."""
    plain = Material(server.certificate, server.key, "", "", 0x0301, False)
    return plain._replace(**changes)  # type: ignore[arg-type]


class Client:
    """The client's end of a layer."""

    def __init__(
        self, shown: Identity | None = None, newest: int = 0, level: int = 1, above: int = 0
    ) -> None:
        """
        certificates above the shown one in the chain
        """
        context = SSL.Context(SSL.TLS_CLIENT_METHOD)
        context.set_cipher_list(f"DEFAULT:@SECLEVEL={level}".encode())
        context.set_max_proto_version(newest)
        if shown is not None:
            pem, key = shown.certificate.encode(), shown.key.encode()
            context.use_certificate(certificate := x509.load_pem_x509_certificate(pem))
            for _ in range(above):
                context.add_extra_chain_cert(certificate)
            context.use_privatekey(serialization.load_pem_private_key(key, None))
        self.tls = SSL.Connection(context, None)
        self.tls.set_connect_state()

    def take(self) -> bytes:
        pieces = []
        try:
            while True:
                pieces.append(self.tls.bio_read(PIECE))
        except SSL.WantReadError:
            return b"".join(pieces)

    def speak(self, received: bytes = b"") -> bytes:
        """Continue the handshake; return its next bytes."""
        if received:
            self.tls.bio_write(received)
        try:
            self.tls.do_handshake()
        except SSL.WantReadError:
            pass
        return self.take()


def shake_hands(layer: TlsLayer, client: Client) -> None:
    done = False
    answer = b""
    while not done:
        layer.feed(client.speak(answer))
        done = layer.handshake()
        answer = layer.take()
    client.speak(answer)


def pair(wanted: Material, client: Client | None = None) -> tuple[TlsLayer, Client]:
    layer = TlsLayer(make_context(wanted)[0])
    client = client or Client()
    shake_hands(layer, client)
    return layer, client
