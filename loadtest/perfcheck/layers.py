"""The daemon's encodings of connections in memory, with peers that encode data for them."""

import ssl
from collections.abc import Callable

from nsqcy.net.core import ByteLayer, DeflateLayer, SnappyLayer
from nsqcy.nsqd.tls import Material, TlsLayer, make_context
from nsqcy.testing.certificates import make

TLS_1_2 = 0x0303
Encode = Callable[[bytes], bytes]


def layers() -> dict[str, tuple[ByteLayer, Encode]]:
    """Return each of nsqd's layers by name, with the function by which its peer encodes bytes for
    it."""
    return {
        "tls": secured(),
        "snappy": (SnappyLayer(), encoder(SnappyLayer())),
        "deflate": (DeflateLayer(), encoder(DeflateLayer())),
    }


def encoder(peer: ByteLayer) -> Encode:
    def encode(data: bytes) -> bytes:
        peer.write(data)
        return peer.take()

    return encode


def secured() -> tuple[ByteLayer, Encode]:
    """Return the layer of a connection after its TLS handshake."""
    identity = make("localhost")
    material = Material(identity.certificate, identity.key, "", "", TLS_1_2, False)
    layer = TlsLayer(make_context(material)[0])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(incoming, outgoing)
    done = False
    while not done:
        try:
            client.do_handshake()
        except ssl.SSLWantReadError:
            pass
        layer.feed(outgoing.read())
        done = layer.handshake()
        incoming.write(layer.take())

    def encode(data: bytes) -> bytes:
        client.write(data)
        return outgoing.read()

    return layer, encode
