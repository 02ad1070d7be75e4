"""Messages out of a stream of bytes.

Owns the bytes of the piece that has not ended yet. Reads nothing by itself.
"""

MAX_SIZE = 64 << 20  # far more than any nsqd takes


class TooLong(ValueError):
    """A piece has no end in sight."""


class Pieces:
    """Splits what it is fed at a delimiter of one byte; empty pieces are no messages."""

    def __init__(self, delimiter: bytes, longest: int = MAX_SIZE) -> None:
        assert len(delimiter) == 1
        self._delimiter = delimiter
        self._maximum = longest
        self._open: list[bytes] = []
        self._length = 0  # of what is open

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces that end in `data`."""
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
        """The piece that nothing ended, if there is one.

        A line feed at its end was put there by whoever wrote a line of pieces; with line feeds for
        delimiters there cannot be one.
        """
        piece = self._close().removesuffix(b"\n")
        return [piece] if piece else []

    def _extend(self, part: bytes) -> None:
        self._check(self._length + len(part))
        self._open.append(part)
        self._length += len(part)

    def _check(self, length: int) -> None:
        if length > self._maximum:
            text = f"{self._maximum} bytes of input without a delimiter: too long for a message"
            raise TooLong(text)

    def _close(self) -> bytes:
        piece = b"".join(self._open)
        self._open = []
        self._length = 0
        return piece
