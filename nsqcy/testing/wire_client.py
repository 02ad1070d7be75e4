"""Low-level V2 client for tests: sends bytes, expects frames.

Owns one client socket and the client side of the framing. Hides only the heartbeats that it
answers, and retries nothing, so that a test reads like a transcript. Knows nothing about the
daemon's processes or its HTTP API.
"""

import json
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

MAGIC = b"  V2"
RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
UNKNOWN_ID = b"0123456789abcdef"
# number of publishes that makes a producer migrate to its topic's owner
WORTH_A_MOVE = [bytes(100_000)] * 12

Address = tuple[str, int] | str


class Silence(Exception):
    """No complete frame arrived within the timeout."""


class Hangup(Exception):
    """The daemon closed the connection. reset: with RST instead of an orderly close."""

    def __init__(self, reset: bool, rest: bytes) -> None:
        super().__init__(f"connection {'reset' if reset else 'closed'}, unread bytes {rest!r}")
        self.reset = reset
        self.rest = rest


class Frame(NamedTuple):
    kind: int
    data: bytes


@dataclass(frozen=True)
class Message:
    timestamp: int
    attempts: int
    id: bytes
    body: bytes

    @classmethod
    def parse(cls, data: bytes) -> "Message":
        timestamp, attempts, ident = struct.unpack_from(">qH16s", data)
        return cls(timestamp, attempts, ident, data[26:])


def octets(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


def sized(body: bytes) -> bytes:
    """Return a body with a 32-bit length prefix."""
    return struct.pack(">i", len(body)) + body


def batch(bodies: list[bytes]) -> bytes:
    """Return an MPUB body, including its length prefix."""
    return sized(struct.pack(">i", len(bodies)) + b"".join(sized(body) for body in bodies))


def split_frames(data: bytes) -> tuple[list[Frame], bytes]:
    """Return the complete frames at the start of `data`, and the rest."""
    frames = []
    while len(data) >= 8:
        size, kind = struct.unpack_from(">ii", data)
        if len(data) < 4 + size:
            break
        frames.append(Frame(kind, data[8 : 4 + size]))
        data = data[4 + size :]
    return frames, data


class Conn:
    """One connection. With `pong` (the default), heartbeats are answered and hidden."""

    def __init__(
        self,
        address: Address,
        *,
        magic: bytes = MAGIC,
        pong: bool = True,
        timeout: float = 10.0,
        receive_buffer: int | None = None,
    ) -> None:
        self.pong = pong
        self.timeout = timeout
        self._input = b""
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if magic:
            self.send(magic)

    def __enter__(self) -> "Conn":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    # sending

    def send(self, *parts: bytes) -> None:
        self.socket.settimeout(self.timeout)
        self.socket.sendall(b"".join(parts))

    def command(self, *words: str | bytes | int, body: bytes | None = None) -> None:
        """Send a command line and, if given, a body with its length."""
        line = b" ".join(str(w).encode() if isinstance(w, int) else octets(w) for w in words)
        self.send(line, b"\n", b"" if body is None else sized(body))

    def identify(self, **fields: Any) -> dict[str, Any] | None:
        """Send IDENTIFY. Return the JSON response if features were negotiated, None for OK."""
        self.command("IDENTIFY", body=json.dumps(fields).encode())
        if not fields.get("feature_negotiation"):
            self.expect_ok()
            return None
        return self.expect_json()

    def negotiate(self, **fields: Any) -> dict[str, Any]:
        answer = self.identify(feature_negotiation=True, **fields)
        assert answer is not None
        return answer

    def auth(self, secret: str | bytes) -> "Conn":
        self.command("AUTH", body=octets(secret))
        self.expect_json()
        return self

    def sub(self, topic: str | bytes, channel: str | bytes, rdy: int | None = None) -> "Conn":
        self.command("SUB", topic, channel)
        self.expect_ok()
        if rdy is not None:
            self.rdy(rdy)
        return self

    def pub(self, topic: str | bytes, *bodies: bytes) -> None:
        """Publish each body and wait for its OK. Must not be used on a subscribed connection with
        RDY."""
        for body in bodies:
            self.command("PUB", topic, body=body)
            self.expect_ok()

    def mpub(self, topic: str | bytes, bodies: list[bytes]) -> None:
        self.send(b"MPUB ", octets(topic), b"\n", batch(bodies))
        self.expect_ok()

    def dpub(self, topic: str | bytes, delay_ms: int, body: bytes) -> None:
        self.command("DPUB", topic, delay_ms, body=body)
        self.expect_ok()

    def rdy(self, count: int) -> None:
        self.command("RDY", count)

    def fin(self, message: "Message | bytes") -> None:
        self.command("FIN", message.id if isinstance(message, Message) else message)

    def req(self, message: "Message | bytes", delay_ms: int | str = 0) -> None:
        ident = message.id if isinstance(message, Message) else message
        self.command("REQ", ident, delay_ms)

    def touch(self, message: "Message | bytes") -> None:
        self.command("TOUCH", message.id if isinstance(message, Message) else message)

    def cls(self) -> None:
        self.command("CLS")

    def nop(self) -> None:
        self.command("NOP")

    # receiving

    def frame(self, timeout: float | None = None) -> Frame:
        """Return the next frame. Raises Silence after `timeout`, and Hangup at the end of the
        stream."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        while True:
            frame = Frame(*self._frame(deadline))
            if not (self.pong and frame == (RESPONSE, HEARTBEAT)):
                return frame
            self.nop()

    def _frame(self, deadline: float) -> tuple[int, bytes]:
        self._fill(8, deadline)
        size, kind = struct.unpack_from(">ii", self._input)
        assert size >= 4, f"frame size {size}, input {self._input[:64]!r}"
        self._fill(4 + size, deadline)
        data, self._input = self._input[8 : 4 + size], self._input[4 + size :]
        return kind, data

    def _fill(self, need: int, deadline: float) -> None:
        chunks, have = [self._input], len(self._input)
        try:
            while have < need:
                self.socket.settimeout(max(deadline - time.monotonic(), 0.000001))
                chunk = self.socket.recv(262144)
                if not chunk:
                    raise Hangup(False, b"".join(chunks))
                chunks.append(chunk)
                have += len(chunk)
        except (TimeoutError, BlockingIOError):
            raise Silence(f"nothing complete; have {b''.join(chunks)[:64]!r}") from None
        except (ConnectionResetError, BrokenPipeError):
            raise Hangup(True, b"".join(chunks)) from None
        finally:
            self._input = b"".join(chunks)

    def expect_ok(self) -> None:
        self.expect_response(b"OK")

    def expect_response(self, data: bytes) -> None:
        assert self.frame() == (RESPONSE, data)

    def expect_json(self) -> dict[str, Any]:
        frame = self.frame()
        assert frame.kind == RESPONSE and frame.data[:1] == b"{", frame
        answer: dict[str, Any] = json.loads(frame.data)
        return answer

    def expect_error(
        self, text: str | bytes, fatal: bool = True, *, prefix: bool = False, reset: bool = False
    ) -> bytes:
        """Expect an error frame with exactly this text (or starting with it), then EOF if the error
        is fatal.

        reset: the daemon leaves input unread, so the kernel may send RST, which may discard the
        frame.
        """
        try:
            frame = self.frame()
        except Hangup as end:
            if reset and end.reset:
                return b""
            raise
        assert frame.kind == ERROR, frame
        want = octets(text)
        got = frame.data[: len(want)] if prefix else frame.data
        assert got == want, (frame.data, want)
        if fatal:
            self.eof(reset=reset)
        return frame.data

    def message(self, timeout: float | None = None) -> Message:
        frame = self.frame(timeout)
        assert frame.kind == MESSAGE, frame
        return Message.parse(frame.data)

    def messages(self, count: int) -> list[Message]:
        return [self.message() for _ in range(count)]

    def take(self, count: int) -> list[Message]:
        """Receive and finish `count` messages one by one."""
        taken = []
        for _ in range(count):
            taken.append(self.message())
            self.fin(taken[-1])
        return taken

    def drain(self, quiet: float = 0.4) -> Iterator[Message]:
        """Receive and finish messages until none arrives for `quiet` seconds."""
        while True:
            try:
                message = self.message(quiet)
            except Silence:
                return
            self.fin(message)
            yield message

    def nothing(self, seconds: float = 0.4) -> None:
        try:
            frame = self.frame(seconds)
        except Silence:
            return
        raise AssertionError(f"unexpected {frame}")

    def eof(self, *, timeout: float = 5.0, reset: bool = False) -> None:
        """Expect the end of the stream, with no further frames."""
        try:
            frame = self.frame(timeout)
        except Hangup as end:
            assert not end.rest or end.reset, end
            assert reset or not end.reset, "the connection was reset instead of closed"
            return
        raise AssertionError(f"unexpected {frame} before the end")

    def barrier(self) -> None:
        """Wait until the daemon has executed all commands sent so far. Needs a subscription."""
        self.fin(UNKNOWN_ID)
        self.expect_error(
            b"E_FIN_FAILED FIN " + UNKNOWN_ID + b" failed ID not in flight", fatal=False
        )

    def clock(self) -> float:
        """Return a time that precedes the daemon's time for the next command: the daemon reads its
        clock once per event-loop iteration, and the next command runs in a later one. Needs a
        subscription."""
        now = time.monotonic()
        self.barrier()
        return now

    def usable(self) -> None:
        """Check that the connection still executes commands, with a publish."""
        self.command("PUB", "usable", body=b"x")
        self.expect_ok()
