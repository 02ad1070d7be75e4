# TLS for one connection, through the functions of cryptography's OpenSSL.

from libc.stdint cimport uint8_t

from nsqcy.net.byte_layer cimport ByteLayer, ByteQueue


cdef class TlsStream(ByteLayer):
    cdef object connection      # pyOpenSSL's object, which owns the pointers
    cdef void *ssl
    cdef void *incoming         # memory BIOs
    cdef void *outgoing
    cdef ByteQueue input        # input not yet passed to OpenSSL
    cdef public size_t passed   # maximum bytes to pass to OpenSSL at once, which keeps that much
    cdef public size_t enough   # decode() begins no other record once it has that many bytes
    cdef bint dry               # OpenSSL needs input to continue
    cdef object failure         # raised again by every later call to decode

    cdef int pass_on(self) except -1
    cdef int collect(self, ByteQueue into) except -1
    cdef int read_failed(self, int result) except -1
    cdef int say_end(self, ByteQueue into) except -1
