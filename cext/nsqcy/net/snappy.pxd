# The snappy framing format.

from libc.stddef cimport size_t
from libc.stdint cimport uint8_t

from nsqcy.net.byte_layer cimport ByteLayer, ByteQueue


cdef class SnappyLayer(ByteLayer):
    cdef ByteQueue input
    cdef size_t skipping        # bytes of a skippable chunk that have not arrived
    cdef bint begun             # the peer's identifier has arrived
    cdef bint identified        # our identifier has been sent

    cdef int check(self, uint8_t kind, size_t length) except -1
    cdef int skip(self, size_t length) except -1
