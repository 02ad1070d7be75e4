"""Small blocking client for NSQ's TCP protocol with the log commands (docs/PROTOCOL.md).

Owns one socket. Never reveals the secret with which it authenticates.
"""

import errno
import json
import os
import re
import socket
import ssl
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from nsqcy.options.other_servers import recognized
from nsqcy.spark.errors import (
    CorruptBlock,
    LogGone,
    LogRange,
    LogUnknown,
    NoTopic,
    NsqError,
    Refused,
    Silent,
    Unreachable,
)

RESPONSE, ERROR = 0, 1
HEARTBEAT = b"_heartbeat_"
SEQ = re.compile("[0-9]{1,20}")
ANSWER_SECONDS = 30.0
LARGEST_FRAME = 1 << 31
MAX_TEXT = 1000  # maximum characters of another program's text


@dataclass(frozen=True)
class Access:
    """How to connect to nsqds."""

    connect_timeout: float = 1.0
    auth_secret: str = field(default="", repr=False)
    trust_lookupd: bool = False
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_verify: bool = True

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.tls_ca_file or None)
        context.hostname_checks_common_name = False  # only subject alternative names count
        if not self.tls_verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.tls_cert_file:
            context.load_cert_chain(self.tls_cert_file, self.tls_key_file or None)
        return context


def split_address(address: str) -> tuple[str, int]:
    """Parse `host:port`; an IPv6 host is in brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


class Connection:
    """A connection that has negotiated `topic_log`; for publishing, nsqd need not support it.

    With `headers`, each body is published after its headers. `patience` is the time that a response
    may take in addition to the wait that was requested from nsqd.
    """

    def __init__(
        self,
        address: str,
        access: Access,
        *,
        publisher: bool = False,
        headers: bool = False,
        patience: float = ANSWER_SECONDS,
    ) -> None:
        self.address = address
        self.patience = patience
        self.has_log = True
        self.version = "unknown"
        self.instance = ""  # the run of nsqd; empty for earlier versions
        self._is_nsqd = False  # whether it has sent a valid nsqd response
        self._access = access
        self._publisher = publisher
        self._headers = headers
        host, port = split_address(address)
        try:
            self._socket = _dial(host, port, access.connect_timeout)
        except OSError as error:
            raise Unreachable(f"nsqd {address} cannot be reached: {reason(error)}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._deadline = 0.0
            self.expect_soon()
            self._introduce(host)
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Connection({self.address!r})"

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    # the beginning

    def _introduce(self, host: str) -> None:
        name = socket.gethostname()
        self._send(b"  V2")
        answer = self._identify(
            {
                "client_id": name,
                "hostname": name,
                "user_agent": "nsqcy-spark",
                "feature_negotiation": True,
                "heartbeat_interval": -1,  # heartbeats between two requests would go unanswered
                "tls_v1": self._access.tls,
                "topic_log": True,
            }
            | ({"headers": True} if self._headers else {})
        )
        self.has_log = "topic_log" in answer
        self.version = str(answer.get("version", "unknown"))
        self.instance = str(answer.get("instance", ""))
        if not self.has_log and not self._publisher:
            raise Refused(
                f"{self.address} does not support topic_log (version nsqd/{self.version}); use "
                "nsq_to_nsq to copy its messages to an nsqcy nsqd"
            )
        if self._headers and not answer.get("headers"):
            raise Refused(
                f"{self.address} does not support message headers (version nsqd/{self.version}); "
                "leave the column out"
            )
        if self._access.tls:
            if not answer.get("tls_v1"):
                raise Refused(f"{self.address} does not support TLS")
            self._upgrade(host)
        if answer.get("auth_required"):
            self._authenticate()

    def _identify(self, facts: dict[str, Any]) -> dict[str, Any]:
        body = json.dumps(facts).encode()
        self._send(b"IDENTIFY\n" + struct.pack(">I", len(body)) + body)
        answer = bytes(self.answer())
        self._is_nsqd = True
        return self._read(answer) if answer.startswith(b"{") else {}

    def _upgrade(self, host: str) -> None:
        try:
            context = self._access.context()
        except (OSError, ValueError) as error:
            raise Refused(f"TLS files cannot be used: {reason(error)}") from None
        try:
            self._socket = context.wrap_socket(self._socket, server_hostname=host)
        except ssl.SSLError as error:
            raise Refused(f"TLS with {self.address} failed: {reason(error)}") from None
        except OSError as error:
            raise self._lost(error) from None
        self.answer()

    def _authenticate(self) -> None:
        secret = self._access.auth_secret
        if not secret:
            raise Refused(f"{self.address} requires authSecret")
        body = secret.encode()
        self._send(b"AUTH\n" + struct.pack(">I", len(body)) + body)
        self.answer()

    # commands

    def meta(self, topic: str) -> dict[str, Any]:
        self.ask("LOG_META", topic)
        return self.answer_json()

    def ask_meta(self, topic: str, wait_ms: int, after_seq: int) -> None:
        """Request the state; the response, `answer_json`, arrives once there are more records, or
        after `wait_ms`."""
        self.ask("LOG_META", topic, wait_ms, after_seq)
        self._expect_within(wait_ms / 1000 + self.patience)

    def epochs(self, topic: str, producer: str) -> list[int]:
        """Return the epochs of a producer that nsqd remembers for this topic."""
        self.ask("LOG_EPOCHS", topic, producer)
        found = self.answer_json().get("epochs")
        if not isinstance(found, list) or not all(isinstance(each, int) for each in found):
            raise CorruptBlock(f"{self.address} answered LOG_EPOCHS without epochs")
        return found

    def seek(self, topic: str, log_id: str, timestamp_ns: int) -> int:
        self.ask("LOG_SEEK", topic, log_id, timestamp_ns)
        found = self.answer_json().get("seq")
        if not isinstance(found, int):
            raise CorruptBlock(f"{self.address} answered LOG_SEEK without a seq")
        return found

    def set_cursor(self, topic: str, log_id: str, name: str, seq: int) -> None:
        self.ask("LOG_CURSOR", topic, log_id, name, seq)
        self.answer_json()

    def ask_block(
        self, topic: str, log_id: str, start: int, end: int, maximum: int, columns: str
    ) -> None:
        self.ask("LOG_FETCH", topic, log_id, start, end, maximum, columns)

    def publish(self, command: str, size: int, parts: Iterable[bytes | pa.Buffer]) -> None:
        """Send a command and its body. `expect_ok` waits for the response."""
        self.expect_soon()
        self._send(b"".join([command.encode(), b"\n", struct.pack(">I", size), *parts]))

    def expect_ok(self) -> None:
        self.expect_soon()
        self.answer()

    # frames

    def ask(self, *words: object) -> None:
        self.expect_soon()
        self._send(" ".join(map(str, words)).encode() + b"\n")

    def answer_json(self) -> dict[str, Any]:
        return self._read(bytes(self.answer()))

    def _read(self, answer: bytes) -> dict[str, Any]:
        try:
            return dict(json.loads(answer))
        except (RecursionError, TypeError, ValueError):
            raise CorruptBlock(f"{self.address} answered with invalid JSON") from None

    def answer(self) -> pa.Buffer:
        """Return the data of the next response."""
        while True:
            head = self._receive(8)
            size, kind = struct.unpack(">II", head)
            if not 4 <= size < LARGEST_FRAME or kind not in (RESPONSE, ERROR):
                self._refuse_stranger(bytes(head))
                raise CorruptBlock(f"{self.address} sent an invalid frame")
            data = self._receive(size - 4)
            if kind == ERROR:
                raise self._error(bytes(data).decode(errors="replace"))
            if data.size != len(HEARTBEAT) or bytes(data) != HEARTBEAT:
                return data
            self._send(b"NOP\n")

    def _send(self, data: bytes) -> None:
        try:
            self._set_timeout()
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from None

    def _receive(self, size: int) -> pa.Buffer:
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer)
        try:
            while len(view):
                self._set_timeout()
                count = self._socket.recv_into(view)
                if not count:
                    self._refuse_stranger(bytes(buffer)[: size - len(view)])
                    raise Unreachable(f"nsqd {self.address} closed the connection")
                view = view[count:]
        except OSError as error:
            raise self._lost(error) from None
        return buffer

    def _refuse_stranger(self, received: bytes) -> None:
        """Raise Refused if another kind of server has answered."""
        if not self._is_nsqd and (text := recognized(received, self.address)) is not None:
            raise Refused(text)

    def expect_soon(self) -> None:
        """Start the time limit for the next response."""
        self._expect_within(self.patience)

    def _expect_within(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def _set_timeout(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)

    def _lost(self, error: OSError) -> Unreachable:
        if isinstance(error, TimeoutError):
            return Silent(f"nsqd {self.address} did not answer within {self.patience:g} s")
        return Unreachable(f"connection to nsqd {self.address} was lost: {reason(error)}")

    def _error(self, text: str) -> NsqError:
        if self._access.auth_secret:
            text = text.replace(self._access.auth_secret, "***")
        code, _, rest = _line(text).partition(" ")
        match code:
            case "E_LOG_NO_TOPIC":
                return NoTopic(f"{self.address} does not have this topic")
            case "E_LOG_ID":
                return LogUnknown(
                    f"{self.address} does not have this log (current log: {rest or 'none'})"
                )
            case "E_LOG_GONE" if SEQ.fullmatch(rest):
                return LogGone(f"{self.address} has the log from seq {rest}", int(rest))
            case "E_LOG_RANGE" if SEQ.fullmatch(rest):
                text = f"{self.address} has the log up to seq {rest}, exclusive"
                return LogRange(text, int(rest))
            case "E_LOG_FAILED":
                return Unreachable(f"{self.address} failed to read its disk: {rest}")
            case "E_LOG_PUB_FAILED" | "E_MPUB_FAILED" | "E_DPUB_FAILED":
                return Unreachable(f"{self.address} failed to publish: {rest}")
        return Refused(f"{self.address} refused: {code} {rest}".rstrip())


def _dial(host: str, port: int, timeout: float) -> socket.socket:
    """Connect; a connection to itself counts as refused (see `nsqcy.util.self_connect`, which
    executors may lack)."""
    sock = socket.create_connection((host, port), timeout)
    try:
        itself = sock.getsockname() == sock.getpeername()
    except OSError:
        itself = False  # the connection was already reset: the next read reports the reset
    if itself:
        sock.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return sock


def reason(error: Exception) -> str:
    """Return the error as one line, without its number."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return _line(text) or type(error).__name__


def _line(text: str) -> str:
    """Return another program's text as one short, printable line."""
    return "".join(filter(str.isprintable, " ".join(text[:MAX_TEXT].split())))
