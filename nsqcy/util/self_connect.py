"""Detection of TCP self-connections, which count as refused.

A client that keeps connecting to an ephemeral port on its own host may receive that port as its
local port. TCP then connects the socket to itself: it reads what it writes, and the expected daemon
cannot listen on the port.
"""

import errno
import os
from typing import Protocol


class Connected(Protocol):
    def getsockname(self) -> object: ...
    def getpeername(self) -> object: ...


class Closable(Connected, Protocol):
    def close(self) -> object: ...


def reaches_itself(sock: Connected) -> bool:
    """Return whether both ends of a connection are the same."""
    try:
        here, there = sock.getsockname(), sock.getpeername()
    except OSError:
        return False  # already reset: the next read reports the reset
    return bool(here) and here == there  # both ends of a unix socket may be unnamed


def refuse_itself(sock: Closable) -> None:
    """Close a connection to itself, and raise ConnectionRefusedError."""
    if reaches_itself(sock):
        sock.close()
        raise refusal()


def refusal() -> ConnectionRefusedError:
    """Return the error for a refused connection."""
    return ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
