"""Connects to the TCP ports of nsqds as a client does, and reads their certificates.

Certificates are not verified: clients do that with their own CAs.
"""

import json
import socket
import ssl
import struct
import time
from dataclasses import replace
from typing import Any

from cryptography import x509
from urllib3.util import Url

from nsqcy.cluster.web_client import PORTS, Terms, reason
from nsqcy.doctor.facts import Door
from nsqcy.names import host_port
from nsqcy.util.self_connect import refuse_itself

MAGIC = b"  V2"
HEAD = struct.Struct(">ii")  # size (including the kind) and kind
RESPONSE = 0
MAX_ANSWER = 1 << 20
IDENTITY = {"feature_negotiation": True, "tls_v1": True, "user_agent": "nsqcy-doctor"}
IDENTITY |= {"topic_log": True}  # the response then identifies the nsqd instance


class _Garbage(Exception):
    """A response that does not come from an nsqd."""


def knock(host: str, port: int, terms: Terms) -> Door:
    """Return whether an nsqd answers on this port and, with TLS, when its certificate expires."""
    address = host_port(host, port)
    try:
        with _connect(host, port, terms) as sock:
            settings = _identify(sock, time.monotonic() + terms.whole)
            door = Door(address, instance=str(settings.get("instance", "")))
            if not settings.get("tls_v1"):
                return door
            try:
                return replace(door, tls=True, expires=_expiry(sock))
            except (OSError, ValueError) as error:
                return replace(door, tls=True, tls_error=reason(error))
    except OSError as error:
        return Door(address, reason(error))
    except (ValueError, OverflowError):  # an invalid host
        return Door(address, "invalid address")
    except _Garbage as error:
        return Door(address, str(error))


def https_expiry(url: Url, terms: Terms) -> float | None:
    """Return when the certificate at an https address expires; None if it cannot be read."""
    if url.scheme != "https" or not url.host:
        return None
    try:
        with _connect(url.host.strip("[]"), url.port or PORTS["https"], terms) as sock:
            return _expiry(sock)
    except (OSError, ValueError, OverflowError):
        return None


def accepts(url: Url, terms: Terms) -> bool:
    """Return whether a connection to this URL's port is accepted."""
    if not url.host:
        return False
    try:
        with _connect(url.host.strip("[]"), url.port or PORTS[url.scheme or "http"], terms):
            return True
    except (OSError, ValueError, OverflowError):
        return False


def _connect(host: str, port: int, terms: Terms) -> socket.socket:
    limits = [each for each in (terms.connect_timeout, terms.whole) if each > 0]
    sock = socket.create_connection((host, port), timeout=min(limits))
    refuse_itself(sock)
    sock.settimeout(terms.whole)
    return sock


def _identify(sock: socket.socket, deadline: float) -> dict[str, Any]:
    """Send IDENTIFY and return nsqd's response."""
    body = json.dumps(IDENTITY).encode()
    sock.sendall(MAGIC + b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
    size, kind = HEAD.unpack(_exactly(sock, HEAD.size, deadline))
    if not 4 <= size <= MAX_ANSWER or kind not in (0, 1, 2):
        raise _Garbage("the server is not an nsqd")
    data = _exactly(sock, size - 4, deadline)
    if kind != RESPONSE:
        raise _Garbage(f"unexpected response {data[:100].decode('utf-8', 'replace')!r}")
    try:
        settings = json.loads(data)
    except (ValueError, RecursionError):
        settings = {}  # `OK`: the response of early nsqd versions
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
            raise _Garbage("connection closed after IDENTIFY")
        data += piece
    return bytes(data)


def _expiry(sock: socket.socket) -> float:
    """Return the expiry time of the peer's certificate, in seconds since the epoch."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with context.wrap_socket(sock) as tls:
        certificate = tls.getpeercert(binary_form=True)
    if not certificate:
        raise ValueError("no certificate")
    return x509.load_der_x509_certificate(certificate).not_valid_after_utc.timestamp()
