# The interface of TLS and of codecs.

from libc.stdint cimport uint8_t

from nsqcy.base.byte_queue cimport ByteQueue


cdef enum:
    PIECE_SIZE = 65536               # maximum bytes of one decoded piece


cdef class ByteLayer:
    """One step of a connection's encoding, in both directions."""
    cdef ByteQueue output       # output of write(), until take()

    cdef int receive(self, const uint8_t *data, size_t n) except -1
    cdef ssize_t decode(self, const uint8_t **piece) except -1
    cdef int encode(self, const uint8_t *data, size_t n, ByteQueue into) except -1
    cdef int rest_now(self) except -1
