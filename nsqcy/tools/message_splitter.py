"""Splits a byte stream into messages. Buffers the last, incomplete message. Performs no I/O."""

MAX_SIZE = 64 << 20  # far more than any nsqd accepts


class TooLong(ValueError):
    """A message exceeds the maximum size."""


class Pieces:
    """Splits its input at a one-byte delimiter, and skips empty messages."""

    def __init__(self, delimiter: bytes, longest: int = MAX_SIZE) -> None:
        assert len(delimiter) == 1
        self._delimiter = delimiter
        self._maximum = longest
        self._open: list[bytes] = []
        self._length = 0  # bytes of the incomplete message

    def feed(self, data: bytes) -> list[bytes]:
        """Return the messages that end in `data`."""
        first, *rest = data.split(self._delimiter)
        self._extend(first)
        if not rest:
            return []
        *whole, last = rest
        self._check(max(map(len, whole), default=0))
        pieces = [self._close(), *whole]
        self._extend(last)
        return [piece for piece in pieces if piece]

    def end(self) -> list[bytes]:
        """Return the last message if it lacks a delimiter. A trailing line feed is removed, because
        it ends the line and is not part of the message. If the delimiter is a line feed, nothing is
        removed.
        """
        piece = self._close().removesuffix(b"\n")
        return [piece] if piece else []

    def _extend(self, part: bytes) -> None:
        self._check(self._length + len(part))
        self._open.append(part)
        self._length += len(part)

    def _check(self, length: int) -> None:
        if length > self._maximum:
            text = f"no delimiter in {self._maximum} bytes of input: the message would be too long"
            raise TooLong(text)

    def _close(self) -> bytes:
        piece = b"".join(self._open)
        self._open = []
        self._length = 0
        return piece
