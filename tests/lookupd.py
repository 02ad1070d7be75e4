"""One nsqlookupd under test, and connections that speak to it as nsqd does."""

import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from typing import Any

from daemon import LISTENING, START_BUDGET, environment, flags
from talk import Hangup
from web import Web

MAGIC = b"  V1"
ANNOUNCED = {"tcp_port": 1, "http_port": 11, "hostname": "h", "version": "1.3.0"}


def command() -> list[str]:
    """`NSQLOOKUPD_BINARY` names another command to test instead (a Go nsqlookupd, say)."""
    foreign = os.environ.get("NSQLOOKUPD_BINARY", "")
    return shlex.split(foreign) or [sys.executable, "-m", "nsqcy.nsqlookupd.main"]


class LookupConn:
    """A connection to the TCP side. Answers have no frame type: they are bytes."""

    def __init__(self, port: int, *, magic: bytes = MAGIC, timeout: float = 10.0) -> None:
        self._input = b""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(magic)

    @property
    def name(self) -> str:
        """This end as the daemon shows it."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self.socket.close()

    def answer(self) -> bytes:
        """The next answer; raises Hangup at the end of the stream."""
        (size,) = struct.unpack(">i", self._take(4))
        return self._take(size)

    def expect_close(self) -> None:
        """Nothing more comes, and the end is orderly: a reset could overtake the last answer."""
        rest = self._input or self.socket.recv(100)
        assert rest == b"", rest

    def command(self, line: str | bytes) -> bytes:
        """A line, and its answer."""
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


class Lookupd:
    """A daemon on ports of its own, which it keeps when it is started again.

    Options are flags with underscores; `args` come before them.
    """

    def __init__(self, *, args: tuple[str, ...] = (), **options: Any) -> None:
        self.args = args
        self.options = {
            "tcp_address": "127.0.0.1:0",
            "http_address": "127.0.0.1:0",
            "broadcast_address": "127.0.0.1",  # where nsqd asks for channels
        } | options
        self.addresses: dict[str, str] = {}
        self._log: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._conns: list[LookupConn] = []

    # life

    def __enter__(self) -> "Lookupd":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.destroy()

    def start(self) -> "Lookupd":
        self.launch()
        self.await_ready()
        return self

    def launch(self) -> None:
        """Start the process and return at once."""
        self.addresses = {}
        self._process = subprocess.Popen(
            [*command(), *self.args, *flags(self.options)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, args=(self._process,), daemon=True)
        self._reader.start()

    def await_ready(self) -> None:
        """Wait for the listening lines."""
        deadline = time.monotonic() + START_BUDGET
        while not self.addresses.keys() >= {"TCP", "HTTP"}:
            if not self.alive() or time.monotonic() > deadline:
                self.destroy()
                raise AssertionError(f"nsqlookupd is not ready; its log:\n{self.log_text()}")
            time.sleep(0.01)
        self.options |= {"tcp_address": self.tcp_address, "http_address": self.http_address}

    def stop(self, timeout: float = 20.0) -> None:
        """SIGTERM; the exit must be clean."""
        self.process.send_signal(signal.SIGTERM)
        code = self.wait(timeout)
        assert code == 0, f"nsqlookupd exited with {code}; its log:\n{self.log_text()}"

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def wait(self, timeout: float = 20.0) -> int:
        """The exit code. The log is complete once this returns."""
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def destroy(self) -> None:
        """Whatever happened: nothing of it is left."""
        self.hang_up()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._reader.join(5)

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._process is not None, "not started"
        return self._process

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    # log

    def _read_log(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._log.append(line)
            if found := LISTENING.search(line):
                self.addresses[found[1]] = found[2]

    def log_text(self) -> str:
        return "".join(self._log)

    # clients

    @property
    def tcp_address(self) -> str:
        """What nsqd is told: `--lookupd-tcp-address`."""
        return self.addresses["TCP"]

    @property
    def http_address(self) -> str:
        """What consumers are told."""
        return self.addresses["HTTP"]

    @property
    def tcp_port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    @property
    def web(self) -> Web:
        return Web(self.http_port)

    def connect(self, **options: Any) -> LookupConn:
        """A connection that `hang_up` closes."""
        conn = LookupConn(self.tcp_port, **options)
        self._conns.append(conn)
        return conn

    def hang_up(self) -> None:
        while self._conns:
            self._conns.pop().close()

    # what it knows

    def lookup(self, topic: str) -> dict[str, Any] | None:
        """/lookup, or None if there is no such topic."""
        answer = self.web.get("/lookup", topic=topic)
        found: dict[str, Any] | None = answer.json() if answer.status == 200 else None
        return found

    def producers(self, topic: str) -> list[str]:
        """Broadcast addresses of those that /lookup shows, sorted."""
        found = self.lookup(topic) or {"producers": []}
        return sorted(each["broadcast_address"] for each in found["producers"])

    def channels(self, topic: str) -> list[str]:
        """/channels, sorted."""
        return sorted(self.web.get("/channels", topic=topic).json()["channels"])

    def nodes(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.web.get("/nodes").json()["producers"]
        return nodes
