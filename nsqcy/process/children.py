"""Daemons as children of a process that is not a daemon itself: `nsqcy up`, or a test.

Owns such a child's start and readiness. The child receives SIGTERM when this process ends, for
any reason. Callers handle the child's exit.
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
    """A running daemon, in its own process group, so that ^C in a terminal does not reach it.

    This process is its service manager. `fileno` is readable when the daemon has sent a
    notification; `hear` reads it. The child starts with blocked signals, which it unblocks once it
    has handlers.
    """

    _blocked: tuple[int, ...] = spawn.BLOCKED

    def __init__(
        self, name: str, module: str, flags: Sequence[str], *, stderr: int | None = None
    ) -> None:
        self.name = name
        self.ready = False
        # addresses for TCP, HTTP and HTTPS, with the actual ports
        self.addresses: dict[str, str] = {}
        self._sock = socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        )
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._sock.bind("")  # the kernel chooses a free abstract name
        address = "@" + self._sock.getsockname()[1:].decode()
        theirs, self._tether = os.pipe2(os.O_CLOEXEC)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        try:
            self.process = subprocess.Popen(
                self._command(module, flags),
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

    def _command(self, module: str, flags: Sequence[str]) -> list[str]:
        return spawn.python(module, *flags)

    def fileno(self) -> int:
        return self._sock.fileno()

    def hear(self, timeout: float = 0.0) -> None:
        """Read the daemon's notifications; wait up to `timeout` seconds for the first one."""
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
        """Free the child's resources. If the child is still running, it receives SIGTERM."""
        self._sock.close()
        if self._tether >= 0:
            os.close(self._tether)
            self._tether = -1


class Program(Child):
    """A program that is not part of nsqcy: it cannot handle blocked signals, and need not notify
    this process when it is ready. The object is created with a path instead of a module."""

    _blocked = ()

    def _command(self, module: str, flags: Sequence[str]) -> list[str]:
        return [module, *flags]


def _tie(fd: int, pid: int) -> None:
    """Make the kernel send SIGTERM to a process when the other end of this pipe closes.

    Unlike PR_SET_PDEATHSIG, this needs no code in the child, which only has to keep the descriptor
    open. Nor does it depend on the thread that started the child.
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
    """Describe a subprocess return code."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
