"""Hints about the address that was probably intended, for errors and warnings.

Handles only text: resolves no names and opens no sockets.
"""

import socket
from contextlib import suppress

# The daemons' default ports.
NSQD_TCP, NSQD_HTTP = 4150, 4151
LOOKUPD_TCP, LOOKUPD_HTTP = 4160, 4161


def is_no_path(text: str) -> bool:
    """Return whether an address is only a port or only a host.

    nsqd would interpret such an address as the path of a unix socket.
    """
    return text.isdecimal() or text == "localhost" or _is_ip(text)


def listen_hint(text: str) -> str:
    """Return the suffix of an error about an address to listen on, or an empty string."""
    if "://" in text:
        return _without_scheme(text)
    if text.isdecimal():
        return f"; did you mean :{text}?"
    return "; write HOST:PORT" if text and (":" not in text or _is_ip(text)) else ""


def connect_hint(text: str, port: int) -> str:
    """Return the suffix of an error about another daemon's address, whose default port is `port`,
    or an empty string."""
    if "://" in text:
        return _without_scheme(text)
    if text.isdecimal():
        return f"; did you mean 127.0.0.1:{text}?"
    return f"; did you mean {text}:{port}?" if text and ":" not in text else ""


def _without_scheme(text: str) -> str:
    bare = text.partition("://")[2].partition("/")[0]
    return f"; did you mean {bare}?" if bare else ""


def _is_ip(text: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        with suppress(OSError, ValueError):
            socket.inet_pton(family, text)
            return True
    return False
