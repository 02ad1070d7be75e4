# Session manager: runs the sessions of a worker.

from libc.stdint cimport int64_t

from nsqcy.protocol.connection cimport ManagerState


cdef class SessionManager(ManagerState):
    """Runs the sessions of a worker; ManagerState is what they know of it."""
    cdef int64_t compare_at                 # time of the next comparison of loads

    cdef int64_t turn(self) except? -1
    cdef int tell_events(self) except -1
    cdef int decode(self) except -1
    cdef int detach_closed(self) except -1
    cdef int resume_postponed(self) except -1
    cdef int compare_loads(self) except -1
