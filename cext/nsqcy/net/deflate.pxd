# Raw deflate, flushed after every write.

from libc.stdint cimport uint8_t

from nsqcy.net.byte_layer cimport ByteLayer, ByteQueue


cdef class DeflateLayer(ByteLayer):
    cdef int level
    cdef object inflater
    cdef object deflater        # None while not needed
    cdef bint used              # used since the last call to rest()
    cdef ByteQueue input
    cdef bytes piece            # the last decoded piece
