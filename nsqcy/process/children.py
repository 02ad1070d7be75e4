"""Daemons as children of a process that is none: `nsqcy up`, and tests.

Owns how such a child is started, how it says that it is ready, and that it does not stay behind:
it hears SIGTERM when we die, however we die. What to do about a child that ends is not known here.
"""

import fcntl
import os
import re
import signal
import socket
import struct
import subprocess
from collections.abc import Iterable, Sequence

from nsqcy.process import spawn

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SIZE = 4096
_ADDRESS = re.compile(r"\b(TCP|HTTPS?) ([^\s,]+)")


class Child:
    """One daemon, started, in a process group of its own: a terminal's ^C is not for it.

    It is a service whose manager we are. `fileno` is readable when it has something to say, which
    `hear` takes in. Until it has handlers it holds back signals that would end it.
    """

    def __init__(
        self, name: str, module: str, flags: Sequence[str], *, stderr: int | None = None
    ) -> None:
        self.name = name
        self.ready = False
        self.addresses: dict[str, str] = {}  # by TCP, HTTP and HTTPS, with the real ports
        self._sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.bind("")  # an abstract name that is free
        address = "@" + self._sock.getsockname()[1:].decode()
        theirs, self._tether = os.pipe2(os.O_CLOEXEC)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, spawn.BLOCKED)
        try:
            self.process = subprocess.Popen(
                spawn.python(module, *flags),
                env=spawn.environment() | {"NOTIFY_SOCKET": address},
                pass_fds=[theirs],
                stdin=subprocess.DEVNULL,
                stdout=2 if stderr is None else stderr,
                stderr=stderr,
                process_group=0,
            )
            _tie(theirs, self.process.pid)
        except BaseException:
            self.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(theirs)

    def fileno(self) -> int:
        return self._sock.fileno()

    def hear(self, timeout: float = 0.0) -> None:
        """Take in what it has said, waiting so long for the first of it."""
        self._sock.settimeout(timeout)
        try:
            while True:
                data, extra, _, _ = self._sock.recvmsg(_SIZE, socket.CMSG_SPACE(_CREDENTIALS.size))
                self._sock.settimeout(0.0)
                if _sender(extra) == self.process.pid:
                    self._take(data.decode(errors="replace").split("\n"))
        except (BlockingIOError, TimeoutError):
            pass

    def _take(self, lines: list[str]) -> None:
        if "READY=1" in lines:
            self.ready = True
            for line in lines:
                if line.startswith("STATUS="):
                    self.addresses = dict(_ADDRESS.findall(line))

    def close(self) -> None:
        """Let go of what we hold for it; a child that still runs hears SIGTERM."""
        self._sock.close()
        if self._tether >= 0:
            os.close(self._tether)
            self._tether = -1


def _tie(fd: int, pid: int) -> None:
    """Have the kernel send SIGTERM to a process when the other end of this pipe is gone.

    Unlike PR_SET_PDEATHSIG this asks nothing of the child, which only has to have the descriptor,
    and it does not depend on which of our threads started it.
    """
    fcntl.fcntl(fd, fcntl.F_SETOWN, pid)
    fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGTERM)
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)


def _sender(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            pid: int = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[0]
            return pid
    return 0


def how_it_ended(code: int) -> str:
    """A return code of subprocess in words."""
    if code >= 0:
        return f"exited with {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
