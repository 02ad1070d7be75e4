"""pynsq's blocking connection, for tests and small tools."""

import socket

from nsqcy.compat.pynsq.protocol import MAGIC_V2


class SyncConn:
    """Blocking connection that sends commands and reads one frame at a time."""

    def __init__(self, timeout: float = 1.0) -> None:
        self.timeout = timeout
        self.buffer = b""
        self.s: socket.socket | None = None

    def connect(self, host: str, port: int) -> None:
        self.s = socket.create_connection((host, port), self.timeout)
        self.s.sendall(MAGIC_V2)

    def send(self, data: bytes) -> None:
        assert self.s is not None, "not connected"
        self.s.sendall(data)

    def read_response(self) -> bytes:
        """Return the next frame, for unpack_response()."""
        return self._read(int.from_bytes(self._read(4), "big"))

    def _read(self, size: int) -> bytes:
        assert self.s is not None, "not connected"
        while len(self.buffer) < size:
            data = self.s.recv(65536)
            if not data:
                raise ConnectionError(f"failed to read {size}")
            self.buffer += data
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data
