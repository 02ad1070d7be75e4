"""Stream of changes to keys in etcd."""

from types import TracebackType
from typing import Self

from nsqcy.cluster.web_client import ResponseStream
from nsqcy.errors import RequestError
from nsqcy.etcd import messages
from nsqcy.etcd.messages import Change, EtcdError

MAX_LINE = 16 << 20  # bytes


class Watch:
    """Changes from an endpoint, in order. Not thread-safe, except for `close`."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream
        self._input = bytearray()
        self._lines: list[bytes] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def read(self) -> list[Change]:
        """Return the next changes; waits until there are any.

        Raises EtcdError if the watch has ended: Compacted if a new watch must begin by reading all
        keys.
        """
        while not self._lines:
            try:
                data = self._stream.read()
            except RequestError as error:
                raise EtcdError(f"watch ended: {error}") from None
            if not data:
                raise EtcdError("watch ended")
            self._input += data
            if len(self._input) > MAX_LINE:
                raise EtcdError(f"watch sent a line of more than {MAX_LINE} bytes")
            *lines, rest = bytes(self._input).split(b"\n")
            self._lines += filter(None, lines)
            self._input[:] = rest
        return messages.changes(self._lines.pop(0))

    def close(self) -> None:
        """End the watch. A read waiting in another thread raises EtcdError."""
        self._stream.close()
