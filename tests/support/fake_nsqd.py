"""Scripted nsqd that records the commands of clients and sends the frames that a test requests.

`Peer` is one connection without a socket; `MockNsqd` listens, in threads of the test. Both answer
as a correct nsqd does unless `script` decides otherwise. They store no messages.
"""

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, Self

from nsqcy.testing.encoded_connection import Deflate, Snappy
from nsqcy.testing.http_requests import eventually
from nsqcy.testing.wire_client import ERROR, HEARTBEAT, MAGIC, MESSAGE, RESPONSE
from support.nsqd_process import free_port

OK = b"OK"
BODIES = {"IDENTIFY", "AUTH", "PUB", "MPUB", "DPUB", "LOG_PUB"}
SETTINGS: dict[str, Any] = {"max_rdy_count": 2500, "version": "1.3.0", "max_msg_timeout": 900000}
ID = b"0123456789abcdef"


class Coder(Protocol):
    def encode(self, data: bytes) -> bytes: ...
    def decode(self, data: bytes) -> bytes: ...


class Tls:
    """The server's side, in memory."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.shaken = False

    def encode(self, data: bytes) -> bytes:
        if data and self.shaken:
            self._tls.write(data)
        return self._out.read()

    def decode(self, data: bytes) -> bytes:
        self._in.write(data)
        pieces = []
        try:
            if not self.shaken:
                self._tls.do_handshake()
                self.shaken = True
            while piece := self._tls.read(65536):
                pieces.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(pieces)


def frame(kind: int, data: bytes) -> bytes:
    return struct.pack(">iI", len(data) + 4, kind) + data


def delivery(
    body: bytes = b"hello", ident: bytes = ID, attempts: int = 1, stamp: int = 42
) -> bytes:
    return frame(MESSAGE, struct.pack(">qH16s", stamp, attempts, ident) + body)


Script = Callable[["Peer", str, bytes], object]


class Peer:
    """One connection, sans I/O. `script(peer, line, body)` receives each command first. A true
    result means that it has handled the command."""

    def __init__(
        self,
        *,
        settings: dict[str, Any] | bytes = b"",
        tls: ssl.SSLContext | None = None,
        script: Script | None = None,
    ) -> None:
        self.settings = SETTINGS | settings if isinstance(settings, dict) else settings or SETTINGS
        self.limits: dict[str, int] = {}  # for all topics; if empty, `settings` applies
        self.script = script
        self.lines: list[str] = []  # every command, without its body
        self.bodies: list[bytes] = []  # bodies of the commands that have one
        self.identity: dict[str, Any] = {}
        self.hung_up = False  # nothing more is sent
        self._tls = tls
        self._coders: list[Coder] = []  # the layer next to the socket first
        self._upgrades: list[Coder] = []
        self._owed = False  # the OK of the last layer is pending
        self._input = b""
        self._output = b""
        self._magic = False

    # For tests

    def send(self, data: bytes) -> None:
        """Pass bytes through the layers."""
        for coder in reversed(self._coders):
            if data or isinstance(coder, Tls):
                data = coder.encode(data)
        self._output += data

    def answer(self, data: bytes = OK) -> None:
        self.send(frame(RESPONSE, data))

    def error(self, text: str, *, close: bool = True) -> None:
        self.send(frame(ERROR, text.encode()))
        self.hung_up = self.hung_up or close

    def beat(self) -> None:
        self.answer(HEARTBEAT)

    def deliver(self, *bodies: bytes, attempts: int = 1) -> None:
        for number, body in enumerate(bodies):
            self.send(delivery(body, b"%016x" % number, attempts))

    def said(self, verb: str) -> list[str]:
        """Return the commands of this name."""
        return [line for line in self.lines if line.partition(" ")[0] == verb]

    # For its socket

    def take(self) -> bytes:
        data, self._output = self._output, b""
        return data

    def feed(self, data: bytes) -> None:
        for coder in self._coders:
            data = coder.decode(data)
        self.send(b"")  # of TLS
        self._begin_layers()
        self._input += data
        while not self.hung_up and self._command():
            pass

    def _command(self) -> bool:
        if not self._magic:
            if len(self._input) < len(MAGIC):
                return False
            assert self._input.startswith(MAGIC), self._input
            self._input = self._input[len(MAGIC) :]
            self._magic = True
        line, end, rest = self._input.partition(b"\n")
        if not end:
            return False
        body = b""
        verb = line.decode().partition(" ")[0]
        if verb in BODIES:
            if len(rest) < 4 or len(rest) < 4 + int.from_bytes(rest[:4], "big"):
                return False
            length = int.from_bytes(rest[:4], "big")
            body, rest = rest[4 : 4 + length], rest[4 + length :]
            self.bodies.append(body)
        self._input = rest
        self.lines.append(line.decode())
        if verb == "IDENTIFY":
            self.identity = json.loads(body)
        if self.script is None or not self.script(self, line.decode(), body):
            self.obey(verb)
        return True

    def obey(self, verb: str) -> None:
        """Answer as a correct nsqd does."""
        if verb == "IDENTIFY":
            self._identify()
        elif verb == "AUTH":
            self.answer(b'{"identity":"","identity_url":"","permission_count":1}')
        elif verb == "LIMITS":
            usual = self.settings["limits"] if isinstance(self.settings, dict) else {}
            self.answer(json.dumps(self.limits or usual).encode())
        elif verb == "CLS":
            self.answer(b"CLOSE_WAIT")
        elif verb in ("SUB", "PUB", "MPUB", "DPUB"):
            self.answer()

    def _identify(self) -> None:
        if isinstance(self.settings, bytes):
            self.answer(self.settings)
            return
        asked = {name: bool(self.identity.get(name)) for name in ("tls_v1", "snappy", "deflate")}
        asked["tls_v1"] = asked["tls_v1"] and self._tls is not None
        said = asked | self.settings
        self.answer(json.dumps(said).encode())
        agreed = {name for name in asked if asked[name] and said[name]}
        if "tls_v1" in agreed:
            assert self._tls is not None
            self._upgrades.append(Tls(self._tls))
        if "snappy" in agreed:
            self._upgrades.append(Snappy())
        if "deflate" in agreed:
            self._upgrades.append(Deflate())
        self._begin_layers()

    def _begin_layers(self) -> None:
        """Add layers. Each begins with an OK inside the layer; TLS after its handshake."""
        while True:
            if self._owed and all(getattr(each, "shaken", True) for each in self._coders):
                self._owed = False
                self.answer()
            if self._owed or not self._upgrades:
                return
            self._coders.append(self._upgrades.pop(0))
            self._owed = True


class Link(Peer):
    """A Peer behind a socket; may be used from the test's thread."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(**options)
        self.ended = threading.Event()  # the client or we have closed the connection
        self._sock = sock
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        """Buffer the output until the end of the block."""
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.flush()
        self._lock.release()

    def flush(self) -> None:
        with suppress(OSError):
            self._sock.sendall(self.take())
            if self.hung_up:
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def expect(self, *lines: str) -> None:
        """Wait until exactly these commands have been received."""
        eventually(lambda: len(self.lines) >= len(lines))
        assert self.lines == list(lines)

    def wait_for(self, line: str, count: int = 1) -> None:
        eventually(lambda: self.lines.count(line) >= count)

    def wait_for_one_of(self, *verbs: str) -> None:
        eventually(lambda: any(map(self.said, verbs)))

    def serve(self) -> None:
        with suppress(OSError):
            while data := self._sock.recv(65536):
                with self:
                    self.feed(data)
        self.ended.set()
        self._sock.close()


class MockNsqd:
    """A server that listens on its own port until it is closed; another server may then use the
    port. `options` are a Peer's options."""

    def __init__(self, port: int = 0, **options: Any) -> None:
        self.options = options
        self.links: list[Link] = []
        self._listener = socket.create_server(("127.0.0.1", port or free_port()))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def link(self, number: int = 0) -> Link:
        """Return the connection with this number, once it exists."""
        eventually(lambda: len(self.links) > number)
        return self.links[number]

    def subscriber(self, number: int = 0) -> Link:
        """Return the connection with this number, once it requests messages."""
        link = self.link(number)
        eventually(lambda: any(line.startswith("RDY ") for line in link.lines))
        return link

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                link = Link(sock, **self.options)
                self.links.append(link)
                threading.Thread(target=link.serve, daemon=True).start()

    def stop_listening(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        """Accept no more connections, and close all of them."""
        self.stop_listening()
        for link in self.links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
