"""The demonstration cluster of `nsqcy up --nodes=N`: several nsqds whose topics have copies, and
a separate etcd.

Owns the differences between the nsqds, and the files and flags that they share. Does not start
anything.
"""

import os
import secrets
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from urllib3.util import Url

from nsqcy.cluster.web_client import Terms, WebClient
from nsqcy.config.loader import Settings
from nsqcy.errors import RequestError, StartError, UsageError
from nsqcy.net import listeners

FLAG = "nodes"
MAX_NODES = 9
COPIES = 3
PORT_STEP = 100  # distance between nodes' ports; 10 would collide with nsqlookupd's and nsqadmin's
NODE_IDS = 1024
ADDRESSES = ("tcp_address", "http_address", "https_address")
HERE = "127.0.0.1"
INSTALL = "install it (https://etcd.io/docs/latest/install/; Debian and Ubuntu: etcd-server)"
MAX_ANSWER = 10_000  # bytes


def taken(argv: Sequence[str]) -> tuple[int, list[str]]:
    """Return the number of nsqds, and the remaining arguments of a command line. Raises
    UsageError."""
    count = 1
    rest = []
    words = list(reversed(argv))
    while words:
        word = words.pop()
        name, equals, text = word.lstrip("-").partition("=")
        if name != FLAG or not word.startswith("-"):
            rest.append(word)
            continue
        if not equals:
            text = words.pop() if words else ""
        if not text.isdecimal() or not 1 <= int(text) <= MAX_NODES:
            raise UsageError(f"--{FLAG} must be a number from 1 to {MAX_NODES}")
        count = int(text)
    return count, rest


def overrides(settings: Settings, values: dict[str, str], index: int) -> dict[str, str]:
    """Return the options of one node that differ from the other nodes' options. Raises UsageError.

    values: the options of all nodes whose defaults differ from nsqd's
    """

    def value(name: str) -> str:
        return values.get(name) or str(settings[name])

    found = {name: _shifted(name, value(name), index) for name in ADDRESSES}
    found["data_path"] = os.path.join(value("data_path"), f"node{index}")
    node_id = settings["node_id"]
    assert isinstance(node_id, int)
    found["node_id"] = str((node_id + index) % NODE_IDS)
    if "log_prefix" not in settings.given:
        found["log_prefix"] = f"[node{index}] "
    return found


def _shifted(name: str, text: str, index: int) -> str:
    """Return a node's address. Port 0, which means any free port, is unchanged."""
    if not text:
        return text
    address = listeners.parse(text)
    flag = f"--{name.replace('_', '-')}"
    if address.path is not None or not address.port.isdecimal():
        raise UsageError(f"{flag} must be HOST:PORT with --{FLAG}")
    port = int(address.port)
    if not port:
        return text
    if port + PORT_STEP * index > 65535:
        raise UsageError(f"{flag}: node{index} would need port {port + PORT_STEP * index}")
    return f"{text.rpartition(':')[0]}:{port + PORT_STEP * index}"


class Shared:
    """Files and flags that all nsqds of the cluster share. The files are in the data path."""

    def __init__(self, settings: Settings, data_path: str, count: int) -> None:
        """Raises StartError if etcd is not installed, or the options file sets no copies."""
        self.copies = min(count, COPIES)
        self.directory = Path(data_path or ".")
        self.etcd: Etcd | None = None
        self.settings = settings
        if "etcd_endpoints" not in settings.given:
            self.etcd = Etcd(self.directory)
        has_copies = any("copies" in section.values for section in settings.patterns)
        if "config" in settings.given and not has_copies:
            raise StartError(
                f"{settings['config']} has no topics with copies: add a section [topic *] with"
                f" copies = {self.copies}"
            )

    def flags(self) -> dict[str, str]:
        """Return the values, the same for all nodes, of options that the user has not set."""
        found = {"workers": "1", "copies_address": f"{HERE}:0"}
        if self.etcd is not None:
            found["etcd_endpoints"] = self.etcd.url
        if not self.settings["copies_tls_cert"]:
            found["copies_secret_file"] = str(self.directory / "copies.secret")
        found["config"] = str(self.directory / "cluster.ini")
        return {name: text for name, text in found.items() if name not in self.settings.given}

    def write(self) -> None:
        """Write the files that `flags` names. Raises OSError."""
        flags = self.flags()
        if "config" in flags:
            Path(flags["config"]).write_text(f"[nsqd]\n\n[topic *]\ncopies = {self.copies}\n")
        if "copies_secret_file" in flags and not os.path.exists(flags["copies_secret_file"]):
            fd = os.open(flags["copies_secret_file"], os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(fd, "w") as file:
                file.write(f"{secrets.token_hex(16)}\n")
        if self.etcd is not None:
            self.etcd.data.mkdir(mode=0o700, exist_ok=True)


class Etcd:
    """An etcd on free ports on this machine."""

    def __init__(self, directory: Path) -> None:
        """Raises StartError if it is not installed."""
        program = shutil.which("etcd")
        if program is None:
            raise StartError(f"--{FLAG} needs etcd, which is not in the PATH: {INSTALL}")
        self.program = program
        self.data = directory / "etcd"
        self.log = directory / "etcd.log"
        self._port, self._peer_port = _free_ports(2)
        self._web = WebClient(Terms(connect_timeout=0.5, request_timeout=0.5))

    @property
    def url(self) -> str:
        return f"http://{HERE}:{self._port}"

    def flags(self) -> list[str]:
        peer = f"http://{HERE}:{self._peer_port}"
        return [
            "--name=nsqcy",
            f"--data-dir={self.data}",
            f"--listen-client-urls={self.url}",
            f"--advertise-client-urls={self.url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=nsqcy={peer}",
        ]

    def is_ready(self) -> bool:
        """Query etcd's health, waiting at most half a second."""
        url = Url("http", host=HERE, port=self._port, path="/health")
        try:
            return b'"true"' in self._web.ask(url, maximum=MAX_ANSWER).body
        except RequestError:
            return False


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server((HERE, 0)) for _ in range(count)]
    try:
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
