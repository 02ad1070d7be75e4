"""Knocking at the TCP ports of nsqds as a client does, and looking at their certificates.

Certificates are read and not judged: that is what clients do, each with its own authorities.
"""

import json
import socket
import ssl
import struct
import time
from typing import Any

from cryptography import x509
from urllib3.util import Url

from nsqcy.cluster.discovery import host_port
from nsqcy.cluster.web_client import PORTS, Terms, reason
from nsqcy.doctor.facts import Door
from nsqcy.util.self_connect import refuse_itself

MAGIC = b"  V2"
HEAD = struct.Struct(">ii")  # size, which counts the kind; kind
RESPONSE = 0
MAX_ANSWER = 1 << 20
IDENTITY = {"feature_negotiation": True, "tls_v1": True, "user_agent": "nsqcy-doctor"}


class _Garbage(Exception):
    """An answer that no nsqd gives."""


def knock(host: str, port: int, terms: Terms) -> Door:
    """Whether an nsqd answers there; if it speaks TLS, until when its certificate is good."""
    address = host_port(host, port)
    try:
        with _connect(host, port, terms) as sock:
            settings = _identify(sock, time.monotonic() + terms.whole)
            if not settings.get("tls_v1"):
                return Door(address)
            try:
                return Door(address, tls=True, expires=_expiry(sock))
            except (OSError, ValueError) as error:
                return Door(address, tls=True, tls_error=reason(error))
    except OSError as error:
        return Door(address, reason(error))
    except (ValueError, OverflowError):  # a host that cannot be one
        return Door(address, "it is not an address")
    except _Garbage as error:
        return Door(address, str(error))


def https_expiry(url: Url, terms: Terms) -> float | None:
    """Until when the certificate of an address with https is good; None if it cannot be seen."""
    if url.scheme != "https" or not url.host:
        return None
    try:
        with _connect(url.host.strip("[]"), url.port or PORTS["https"], terms) as sock:
            return _expiry(sock)
    except (OSError, ValueError, OverflowError):
        return None


def _connect(host: str, port: int, terms: Terms) -> socket.socket:
    limits = [each for each in (terms.connect_timeout, terms.whole) if each > 0]
    sock = socket.create_connection((host, port), timeout=min(limits))
    refuse_itself(sock)
    sock.settimeout(terms.whole)
    return sock


def _identify(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """What nsqd answers to an IDENTIFY."""
    body = json.dumps(IDENTITY).encode()
    sock.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    size, kind = HEAD.unpack(_exactly(sock, HEAD.size, deadline))
    if not 4 <= size <= MAX_ANSWER or kind not in (0, 1, 2):
        raise _Garbage("what answers is not an nsqd")
    data = _exactly(sock, size - 4, deadline)
    if kind != RESPONSE:
        raise _Garbage(f"it answers {data[:100].decode('utf-8', 'replace')!r}")
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError):
        settings = {}  # `OK`, as the first ones said
    return settings if isinstance(settings, dict) else {}


def _exactly(sock: socket.socket, count: int, deadline: float) -> bytes:
    data = bytearray()
    while len(data) < count:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        sock.settimeout(left)
        piece = sock.recv(count - len(data))
        if not piece:
            raise _Garbage("it hangs up on an IDENTIFY")
        data += piece
    return bytes(data)


def _expiry(sock: socket.socket) -> float:
    """Seconds since the epoch."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(sock) as tls:
        certificate = tls.getpeercert(binary_form=True)
    if not certificate:
        raise ValueError("no certificate")
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
