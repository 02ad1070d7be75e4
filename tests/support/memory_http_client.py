"""Raw connections to the HTTP server of memory_http_server.py, and that server as a process."""

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from support.nsqd_process import environment

TESTS = Path(__file__).parents[1]
NSQ = "nsq; version=1.0"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> str:
        """Return the code of an error answer, after checking all of its parts."""
        assert self.headers["content-type"] == "application/json; charset=utf-8"
        assert self.headers["x-nsq-content-type"] == NSQ
        (code,) = json.loads(self.body).values()
        assert self.body == b'{"message":"%b"}' % code.encode()
        return str(code)


class Connection:
    """Raw client that sends any bytes and parses the answers strictly."""

    def __init__(
        self, address: str, receive_buffer: int = 0, tls: ssl.SSLContext | None = None
    ) -> None:
        is_port = address.isdigit()
        self.sock = socket.socket(socket.AF_INET if is_port else socket.AF_UNIX)
        self.sock.settimeout(30)
        if receive_buffer:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.sock.connect(("127.0.0.1", int(address)) if is_port else address)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, suppress_ragged_eofs=False)
        self.buffer = b""

    def send(self, data: bytes) -> "Connection":
        self.sock.sendall(data)
        return self

    def half_close(self) -> None:
        socket.socket.shutdown(self.sock, socket.SHUT_WR)  # SSLSocket.shutdown would also end TLS

    def _more(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError(self.buffer)
        self.buffer += data

    def _until(self, end: bytes) -> bytes:
        while end not in self.buffer:
            self._more()
        data, _, self.buffer = self.buffer.partition(end)
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            self._more()
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def answer(self, has_body: bool = True) -> Answer:
        status_line, *lines = self._until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            assert name.lower() not in headers
            headers[name.lower()] = value
        status = int(status_line.split(" ")[1])
        body = b""
        if status == 100 or not has_body:
            pass
        elif "transfer-encoding" in headers:
            assert "content-length" not in headers
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        return Answer(status, headers, body)

    def rest(self) -> bytes:
        """Return everything that arrives until the server closes."""
        try:
            while True:
                self._more()
        except EOFError:
            data, self.buffer = self.buffer, b""
            return data

    def request(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        self.send(request(method, target, body, **headers))
        return self.answer(has_body=method != "HEAD")


def request(method: str, target: str, body: bytes = b"", **headers: str) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: test"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if "Transfer_Encoding" in headers:
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    elif body or method in ("POST", "PUT"):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


CHUNKED = {"Transfer_Encoding": "chunked"}


class Server:
    def __init__(self, *args: str) -> None:
        self.args = args
        self.log: list[str] = []
        self._logged = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.memory_http_server", *args],
            cwd=TESTS,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.address = self.process.stdout.readline().strip()
        assert self.address, self.log

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._logged:
                self.log.append(line)
                self._logged.notify_all()

    def wait_for_log(self, found: Callable[[str], object]) -> str:
        with self._logged:
            assert self._logged.wait_for(lambda: any(map(found, self.log)), 30), self.log
            return next(line for line in self.log if found(line))

    def connect(self) -> Connection:
        return Connection(self.address, tls=trusting() if "--tls" in self.args else None)

    def topics(self) -> dict[str, dict[str, Any]]:
        answer = self.connect().request("GET", "/stats?format=json")
        return {t["topic_name"]: t for t in json.loads(answer.body)["topics"]}

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(30) == 0
        self._reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def trusting() -> ssl.SSLContext:
    """A client that accepts every certificate. It does not load the system's authorities, which
    takes longer than a handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
