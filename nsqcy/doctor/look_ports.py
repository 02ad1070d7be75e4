"""Finds the addresses in a daemon's options that are free, and the processes that use the rest.

Each address is bound as the daemon would bind it, and released immediately. It is not listened on,
so clients cannot connect to it.
"""

import errno
import os
import re
import socket
import stat
from collections.abc import Iterator

from nsqcy.config.loader import Settings
from nsqcy.doctor.facts import Port, Process
from nsqcy.net import listeners
from nsqcy.util import procfs

FLAGS = ("tcp-address", "http-address", "https-address")
LISTENING = "0A"  # state in /proc/net/tcp
COMMAND_SHOWN = 100


def ports(settings: Settings, root: str = "/") -> list[Port]:
    """Return the addresses that the daemon would listen on."""
    found = []
    for flag in FLAGS:
        text = str(settings.values.get(flag.replace("-", "_"), ""))
        unused = flag == "https-address" and not settings.values.get("tls_cert")
        if text and not unused:
            found.append(look_at(flag, text, root))
    return found


def look_at(flag: str, text: str, root: str = "/") -> Port:
    address = listeners.parse(text)
    if address.path is not None:
        return _unix(flag, text, address.path)
    try:
        number = int(address.port)
        if not 0 <= number < 65536:  # getaddrinfo would wrap it around to another port
            raise ValueError
        host = address.host or "0.0.0.0"
        where = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
        _bind(where[0], where[4])
    except (ValueError, OverflowError, UnicodeError):
        return Port(flag, text, "invalid address")
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return Port(flag, text, busy=True, process=listener(number, root))
        return Port(flag, text, (error.strerror or str(error)).lower())
    return Port(flag, text)


def _bind(family: int, where: object) -> None:
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)  # type: ignore[arg-type]


def _unix(flag: str, text: str, path: str) -> Port:
    if not os.path.lexists(path):
        folder = os.path.dirname(path) or "."
        return Port(flag, text, "" if os.path.isdir(folder) else f"{folder} does not exist")
    try:
        if listeners.is_abandoned(path):  # the daemon replaces it at startup
            return Port(flag, text)
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return Port(flag, text, "the file is not a socket: move it or choose another path")
    except OSError as error:
        return Port(flag, text, (error.strerror or str(error)).lower())
    return Port(flag, text, busy=True)


def listener(port: int, root: str = "/") -> Process | None:
    """Return the process that is listening on a port, if this user may see it."""
    sockets = {f"socket:[{inode}]" for inode in _inodes(port, root)}
    if not sockets:
        return None
    for pid in filter(str.isdecimal, _names(f"{root}/proc")):
        folder = f"{root}/proc/{pid}"
        files = _names(f"{folder}/fd")
        if any(_link(f"{folder}/fd/{each}") in sockets for each in files):
            return Process(int(pid), _command(folder), _max_files(folder), len(files))
    return None


def _inodes(port: int, root: str) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        for line in procfs.read(f"{root}/proc/net/{name}").splitlines()[1:]:
            fields = line.split()
            if len(fields) < 10 or fields[3] != LISTENING:
                continue
            if fields[1].rpartition(":")[2] == f"{port:04X}":
                yield fields[9]


def _command(folder: str) -> str:
    words = procfs.read(f"{folder}/cmdline").rstrip("\0").split("\0")
    return " ".join(words)[:COMMAND_SHOWN]


def _max_files(folder: str) -> int:
    found = re.search(r"^Max open files\s+([0-9]+)", procfs.read(f"{folder}/limits"), re.MULTILINE)
    return int(found[1]) if found else 0


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
