# Unfinished input of a session.

from libc.stdint cimport int64_t, uint8_t, uint32_t

from nsqcy.protocol.connection cimport RAISED, Parsed
from nsqcy.protocol.tickets cimport AnswerQueue


cdef class InputBuffer(AnswerQueue):
    """Input of a session: bytes of an incomplete command and of blocked commands."""
    cdef uint8_t *kept              # unfinished input
    cdef size_t kept_start
    cdef size_t kept_end
    cdef size_t kept_capacity
    cdef int64_t heard_at           # time of the latest unfinished input, or when reading resumed
    cdef bytes unread_error         # error if the input ends within a body; None: between commands
    cdef size_t missing             # missing bytes of the kept command, approximately; 0: unknown
    cdef size_t scanned             # bytes already checked of an incomplete MPUB body
    cdef uint32_t scanned_count

    cdef size_t complete_kept(self, const uint8_t *data, size_t n) except? 0
    cdef int finish_input(self) except -1
    cdef int parse_kept(self) except -1
    cdef int keep(self, const uint8_t *data, size_t n) except -1
    cdef int drop_kept(self) except -1
    cdef int count_unauthenticated(self) except -1
    cdef Parsed body_missing(self, size_t missing, bytes error) except RAISED
    cdef size_t parse(self, const uint8_t *data, size_t n) except? 0
