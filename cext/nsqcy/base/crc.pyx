"""CRC-32C for Python code. (Compiled modules include crc32c.h themselves.)"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t


cdef extern from "crc32c.h" nogil:
    uint32_t _crc32c "crc32c" (uint32_t crc, const void *data, size_t n)


def crc32c(const unsigned char[::1] data not None):
    """Return the checksum of these bytes."""
    return _crc32c(0, &data[0], data.shape[0]) if data.shape[0] else 0
