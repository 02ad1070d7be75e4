"""One nsqlookupd under test, and connections that speak to it as nsqd does."""

import json
import socket
import struct
from typing import Any

from nsqcy.testing.wire_client import Hangup
from support.daemon_process import Service

MAGIC = b"  V1"
ANNOUNCED = {"tcp_port": 1, "http_port": 11, "hostname": "h", "version": "1.3.0"}


class LookupConn:
    """A connection to the TCP side. Answers are bytes without a frame type."""

    def __init__(self, port: int, *, magic: bytes = MAGIC, timeout: float = 10.0) -> None:
        self._input = b""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(magic)

    @property
    def name(self) -> str:
        """This end of the connection, as the daemon shows it."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def answer(self) -> bytes:
        """Return the next answer; raise Hangup at the end of the stream."""
        (size,) = struct.unpack(">i", self._take(4))
        return self._take(size)

    def expect_close(self) -> None:
        """Check that no more data arrives, and that the end is orderly: a reset could overtake the
        last answer."""
        rest = self._input or self.socket.recv(100)
        assert rest == b"", rest

    def command(self, line: str | bytes) -> bytes:
        """Send a line and return its answer."""
        self.send((line if isinstance(line, bytes) else line.encode()) + b"\n")
        return self.answer()

    def identify_raw(self, body: bytes) -> bytes:
        self.send(b"IDENTIFY\n" + struct.pack(">i", len(body)) + body)
        return self.answer()

    def identify(self, address: str = "A", **fields: Any) -> dict[str, Any]:
        body = {"broadcast_address": address} | ANNOUNCED | fields
        answer: dict[str, Any] = json.loads(self.identify_raw(json.dumps(body).encode()))
        return answer

    def register(self, *names: str) -> None:
        answer = self.command(" ".join(("REGISTER", *names)))
        assert answer == b"OK", answer

    def unregister(self, *names: str) -> None:
        answer = self.command(" ".join(("UNREGISTER", *names)))
        assert answer == b"OK", answer

    def ping(self) -> None:
        answer = self.command("PING")
        assert answer == b"OK", answer

    def _take(self, count: int) -> bytes:
        while len(self._input) < count:
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                raise Hangup(True, self._input) from None
            if not data:
                raise Hangup(False, self._input)
            self._input += data
        data, self._input = self._input[:count], self._input[count:]
        return data


class Lookupd(Service):
    """One nsqlookupd."""

    name = "nsqlookupd"
    wanted = frozenset({"TCP", "HTTP"})

    def __init__(self, *, args: tuple[str, ...] = (), **options: Any) -> None:
        where = {"broadcast_address": "127.0.0.1"}  # where nsqd queries channels
        super().__init__(args=args, **(where | options))
        self._conns: list[LookupConn] = []

    def destroy(self) -> None:
        self.hang_up()
        super().destroy()

    # clients

    @property
    def tcp_address(self) -> str:
        """Return the value for nsqd's `--lookupd-tcp-address`."""
        return self.addresses["TCP"]

    @property
    def tcp_port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    def connect(self, **options: Any) -> LookupConn:
        """Return a connection that `hang_up` closes."""
        conn = LookupConn(self.tcp_port, **options)
        self._conns.append(conn)
        return conn

    def hang_up(self) -> None:
        while self._conns:
            self._conns.pop().close()

    # registrations

    def lookup(self, topic: str) -> dict[str, Any] | None:
        """Return the answer to /lookup, or None if there is no such topic."""
        answer = self.web.get("/lookup", topic=topic)
        found: dict[str, Any] | None = answer.json() if answer.status == 200 else None
        return found

    def producers(self, topic: str) -> list[str]:
        """Return the broadcast addresses in the answer to /lookup, sorted."""
        found = self.lookup(topic) or {"producers": []}
        return sorted(each["broadcast_address"] for each in found["producers"])

    def channels(self, topic: str) -> list[str]:
        """/channels, sorted."""
        return sorted(self.web.get("/channels", topic=topic).json()["channels"])

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.web.get("/nodes").json()["producers"]
        return nodes
