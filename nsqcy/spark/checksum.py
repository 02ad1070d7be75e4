"""CRC-32C for executors whose only compiled library is pyarrow.

If nsqcy is installed, its compiled implementation is used. Otherwise the data is *folded*: it is
treated as rows of K 32-bit words. Each row is carried over the next K words and added there, for
all K columns together. The final K words have the same CRC remainder as all the data. Carrying a
word over n bytes is linear, so it takes two lookups, one for each half of the word.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

POLYNOMIAL = 0x82F63B78  # reflected
WIDTHS = (16384, 512)  # words per row; the first is used for most of a block

Checksum = Callable[[pa.Buffer], int]


def checksum() -> Checksum:
    """Return the fastest available implementation. Creating it may take milliseconds; reuse it for
    many blocks."""
    try:
        from nsqcy.base.core import crc32c
    except ImportError:
        return Folding()
    return lambda data: crc32c(memoryview(data).cast("B"))


class Folding:
    """CRC-32C using only pyarrow's kernels."""

    def __init__(self) -> None:
        self._byte = [byte_step(value) for value in range(256)]
        self._carries = {width: Carry(width * 4, self._byte) for width in WIDTHS}

    def __call__(self, data: pa.Buffer) -> int:
        whole = data.size // 4 * 4
        words = pa.Array.from_buffers(pa.uint32(), whole // 4, [None, data.slice(0, whole)])
        crc = 0xFFFFFFFF
        for width in WIDTHS:
            rows = len(words) // width
            if rows < 2:
                continue
            row = inject(words.slice(0, width), crc)
            crc = 0
            carry = self._carries[width]
            for number in range(1, rows):
                row = pc.bit_wise_xor(carry(row), words.slice(number * width, width))
            words = pa.concat_arrays([row, words.slice(rows * width)])
        tail = bytes(words.buffers()[1])[words.offset * 4 : (words.offset + len(words)) * 4]
        return self._bytewise(crc, tail + bytes(data.slice(whole))) ^ 0xFFFFFFFF

    def _bytewise(self, crc: int, data: bytes) -> int:
        table = self._byte
        for value in data:
            crc = crc >> 8 ^ table[(crc ^ value) & 0xFF]
        return crc


class Carry:
    """Return the words carried over `size` zero bytes."""

    def __init__(self, size: int, byte: list[int]) -> None:
        images = [over_zeros(1 << bit, size, byte) for bit in range(32)]
        self._low, self._high = spanned(images[:16]), spanned(images[16:])

    def __call__(self, words: pa.Array) -> pa.Array:
        low = pc.bit_wise_and(words, pa.scalar(0xFFFF, pa.uint32()))
        high = pc.shift_right(words, pa.scalar(16, pa.uint32()))
        return pc.bit_wise_xor(
            pc.take(self._low, low, boundscheck=False), pc.take(self._high, high, boundscheck=False)
        )


def byte_step(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (POLYNOMIAL if value & 1 else 0)
    return value


def over_zeros(crc: int, size: int, byte: list[int]) -> int:
    """Return `crc` carried over `size` zero bytes."""
    step = [byte[1 << bit] if bit < 8 else 1 << bit - 8 for bit in range(32)]
    while size:
        if size & 1:
            crc = times(step, crc)
        step = [times(step, column) for column in step]
        size >>= 1
    return crc


def times(matrix: list[int], vector: int) -> int:
    total = 0
    while vector:
        lowest = vector & -vector
        total ^= matrix[lowest.bit_length() - 1]
        vector ^= lowest
    return total


def spanned(images: list[int]) -> pa.Array:
    """Return the image of every number, given the images of its bits."""
    table = pa.array([0], pa.uint32())
    for image in images:
        table = pa.concat_arrays([table, pc.bit_wise_xor(table, pa.scalar(image, pa.uint32()))])
    return table


def inject(row: pa.Array, crc: int) -> pa.Array:
    """Add the previous state to the first word."""
    if not crc:
        return row
    first = pa.array([row[0].as_py() ^ crc], pa.uint32())
    return pa.concat_arrays([first, row.slice(1)])
