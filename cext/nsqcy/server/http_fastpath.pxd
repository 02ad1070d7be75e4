# Declarations of nsqcy.server.http_fastpath for other modules.

from libc.stdint cimport uint8_t


cdef class Sink:
    """Destination for the bodies of requests that share a template."""
    cdef bint take(self, const uint8_t *body, Py_ssize_t length) except -1
