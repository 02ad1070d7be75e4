"""nsqd's side of nsqlookupd's TCP protocol: commands, responses, and peer addresses.

Handles bytes and values only, without sockets, a clock or topics.
"""

import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nsqcy import NSQ_VERSION
from nsqcy.errors import NsqError
from nsqcy.net.address_hints import LOOKUPD_TCP, connect_hint
from nsqcy.util import gojson

MAGIC = b"  V1"
PING = b"PING\n"
_HTTP = b"HTTP"  # exceeds every limit if read as a size
_NSQD = b"\x00\x00\x00\x01E_BAD_PROTOCOL"  # nsqd's error frame for our magic
REGISTER, UNREGISTER = "REGISTER", "UNREGISTER"

Where = tuple[Any, ...]  # in the form that the socket module expects


class PeerFailure(NsqError):
    """An nsqlookupd has sent invalid data, so the connection cannot continue."""


class WrongPort(PeerFailure):
    """The configured address belongs to another kind of server, so retrying alone cannot help."""

    def __init__(self, found: str) -> None:
        super().__init__(f"{found}: use nsqlookupd's TCP port ({LOOKUPD_TCP} by default)")


class Command(NamedTuple):
    """The creation or deletion of a topic or channel."""

    verb: str
    topic: str
    channel: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.topic} {self.channel}".rstrip()

    @property
    def branch(self) -> str:
        return "channel" if self.channel else "topic"

    @property
    def wire(self) -> bytes:
        return f"{self}\n".encode()


def identify(identity: Mapping[str, Any]) -> bytes:
    body = gojson.encode(dict(sorted(identity.items())))
    return b"IDENTIFY\n" + struct.pack(">i", len(body)) + body


def auth(token: str) -> bytes:
    return f"AUTH {token}\n".encode()


def identity(settings: Any) -> dict[str, Any]:
    """An nsqd's report about itself. `settings`: its options."""
    return {
        "broadcast_address": settings.broadcast_address,
        "hostname": socket.gethostname(),
        "http_port": settings.broadcast_http_port,
        "tcp_port": settings.broadcast_tcp_port,
        "topology_region": settings.topology_region,
        "topology_zone": settings.topology_zone,
        "version": NSQ_VERSION,
    }


class Answers:
    """Splits an nsqlookupd's byte stream into responses."""

    def __init__(self, maximum: int) -> None:
        """maximum: the size limit per response, in bytes"""
        self._maximum = maximum
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def next(self) -> bytes | None:
        """Return the next response; None if it is not complete yet. Raises PeerFailure."""
        if len(self._data) < 4:
            return None
        if self._data.startswith(_HTTP):
            raise WrongPort("the address answers HTTP")
        (size,) = struct.unpack_from(">i", self._data)
        if not 0 <= size <= self._maximum:
            raise PeerFailure(f"a response of {size} bytes")
        if len(self._data) < 4 + size:
            return None
        answer = bytes(self._data[4 : 4 + size])
        del self._data[: 4 + size]
        if answer == _NSQD:
            raise WrongPort("the address belongs to an nsqd")
        return answer

    def __bool__(self) -> bool:
        """Return whether any bytes are left."""
        return bool(self._data)


class Info(NamedTuple):
    """An nsqlookupd's report about itself."""

    tcp_port: int
    http_port: int
    version: str
    broadcast_address: str
    auth: bool = False  # whether it supports AUTH; NSQ's does not

    def __str__(self) -> str:
        return (
            f"{{TCPPort:{self.tcp_port} HTTPPort:{self.http_port} "
            f"Version:{self.version} BroadcastAddress:{self.broadcast_address}}}"
        )


_INFO: gojson.Fields = {
    "tcp_port": (gojson.int64, 0),
    "http_port": (gojson.int64, 0),
    "version": (gojson.text, ""),
    "broadcast_address": (gojson.text, ""),
    "auth": (gojson.flag, False),
}


def parse_info(answer: bytes) -> Info:
    """Raises ValueError."""
    return Info(**gojson.decode(answer, _INFO))


# -- addresses


def split(address: str) -> tuple[str, int]:
    """Split `host:port`. Raises ValueError with Go's text."""
    host, colon, port = address.strip().rpartition(":")
    if not colon:
        raise ValueError(f"missing port in address{connect_hint(address.strip(), LOOKUPD_TCP)}")
    bracketed = host.startswith("[") and host.endswith("]")
    if ":" in host and not bracketed:
        hint = connect_hint(address.strip(), LOOKUPD_TCP)
        raise ValueError(f"too many colons in address{hint}")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError("invalid port")
    return host.strip("[]") or "127.0.0.1", int(port)


def literal(host: str, port: int) -> Where | None:
    """Return the socket address if `host` is an IP address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)
        except OSError:
            continue
        return (host, port) if family == socket.AF_INET else (host, port, 0, 0)
    return None


def places(found: Iterable[Where]) -> Iterator[tuple[Where, ...]]:
    """Return the nsqlookupds that a name with these addresses refers to, each with its alternative
    addresses.

    Each IPv4 address is an nsqlookupd. If there is only one, the IPv6 addresses are its other
    addresses. If there is none, each IPv6 address is an nsqlookupd.
    """
    four = sorted({where for where in found if len(where) == 2})
    six = sorted({where for where in found if len(where) == 4})
    if len(four) == 1:
        yield (four[0], *six)
    else:
        yield from ((where,) for where in four or six)
