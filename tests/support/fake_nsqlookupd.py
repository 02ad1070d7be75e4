"""Scripted nsqlookupd in threads of the test: TCP and HTTP, and a record of its commands.

Knows nothing about nsqd. `answers` decides the answer to a command; by default, it is what a
correct nsqlookupd would answer.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support.nsqd_process import free_port

OK = b"OK"
HANG_UP = None  # used as an answer, closes the connection
SILENCE = b"\0silence"  # used as an answer, keeps the connection open and sends nothing
RAW = b"\0raw"  # prefix of an answer that is sent unchanged

Answer = bytes | None


class Link:
    """One connection and the data it received."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.magic = b""
        self.identity: dict[str, Any] = {}
        self.identity_text = b""
        self.commands: list[str] = []
        self.ended = threading.Event()

    def close(self) -> None:
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the connection has already ended


class FakeLookupd:
    """A server that listens from its creation until `close`. Its port stays reserved until the test
    ends."""

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.links: list[Link] = []
        self.channels: dict[str, list[str]] = {}
        self.asked: list[str] = []
        self.accepts: list[str] = []
        self.http_reply: Callable[[str], bytes | None] | None = None  # None: it does not answer
        self.http_status = 200
        self.answers: Callable[[str], Answer] | None = None
        self.info: dict[str, Any] | None = None
        self._closing = threading.Event()
        self._listener = socket.create_server((host, port or free_port()))
        self.port = int(self._listener.getsockname()[1])
        self.address = f"{host}:{self.port}"
        self._web = ThreadingHTTPServer((host, 0), self._handler())
        self._web.daemon_threads = True
        self.http_port = int(self._web.server_address[1])
        self._threads = [
            threading.Thread(target=self._accept),
            threading.Thread(target=self._web.serve_forever, args=(0.02,)),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._web.shutdown()
        for thread in self._threads:
            thread.join()
        self._listener.close()
        self._web.server_close()
        for link in self.links:
            link.close()
            link.ended.wait(10)

    @property
    def link(self) -> Link:
        """The latest connection."""
        return self.links[-1]

    def told(self) -> list[str]:
        """Return the commands of the latest connection, except PING."""
        if not self.links:
            return []
        return [command for command in self.link.commands if command != "PING"]

    # -- TCP

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            link = Link(sock)
            self.links.append(link)
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: Link) -> None:
        try:
            with link.sock, link.sock.makefile("rb") as stream:
                self._converse(link, stream)
        except OSError:
            pass  # nsqd has disconnected
        finally:
            link.ended.set()

    def _converse(self, link: Link, stream: Any) -> None:
        link.magic = stream.read(4)
        for line in stream:
            command = line.decode().rstrip("\n")
            if command == "IDENTIFY":
                link.identity_text = stream.read(*struct.unpack(">i", stream.read(4)))
                link.identity = json.loads(link.identity_text)
            else:
                link.commands.append(command)
            answer = self._answer(command)
            if answer is HANG_UP:
                return
            if answer.startswith(RAW):
                link.sock.sendall(answer.removeprefix(RAW))
            elif answer != SILENCE:
                link.sock.sendall(struct.pack(">i", len(answer)) + answer)

    def _answer(self, command: str) -> Answer:
        scripted = self.answers(command) if self.answers else OK
        if scripted != OK or command != "IDENTIFY":
            return scripted
        info = {
            "broadcast_address": "127.0.0.1",
            "hostname": "h",
            "http_port": self.http_port,
            "tcp_port": self.port,
            "version": "1.3.0",
        }
        return json.dumps(info if self.info is None else self.info).encode()

    # -- HTTP

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        lookupd = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                lookupd.asked.append(self.path)
                lookupd.accepts.append(self.headers.get("Accept", ""))
                (topic,) = parse_qs(urlsplit(self.path).query)["topic"]
                reply = lookupd.http_reply or lookupd._channels
                body = reply(topic)
                if body is None:
                    lookupd._closing.wait(60)
                    return
                self.send_response(lookupd.http_status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        return Handler

    def _channels(self, topic: str) -> bytes:
        return json.dumps({"channels": self.channels.get(topic, [])}).encode()
