# Declarations of nsqcy.net for other packages.

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

# -- byte_layer --


cdef enum:
    PIECE_SIZE = 65536               # maximum bytes of one decoded piece


cdef class ByteQueue:
    """Queue of pending bytes. The buffer exists only while bytes are pending."""
    cdef uint8_t *buffer
    cdef size_t start           # offset of the first pending byte
    cdef size_t end
    cdef size_t capacity

    cdef inline size_t pending(self) noexcept:
        return self.end - self.start

    cdef inline const uint8_t *first(self) noexcept:
        """Return the pending bytes, which are valid until the next change."""
        return self.buffer + self.start

    cdef uint8_t *room(self, size_t n) except NULL
    cdef int put(self, const uint8_t *data, size_t n) except -1
    cdef void remove(self, size_t n) noexcept
    cdef bytes take(self)


cdef class ByteLayer:
    """One step of a connection's encoding, in both directions."""
    cdef ByteQueue output       # output of write(), until take()

    cdef int receive(self, const uint8_t *data, size_t n) except -1
    cdef ssize_t decode(self, const uint8_t **piece) except -1
    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1
    cdef int rest_now(self) except -1
