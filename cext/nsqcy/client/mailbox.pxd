# Declarations of nsqcy.client.mailbox for other modules.


cdef class Mailbox:
    """Requests to a loop, in order."""
    cdef object requests            # deque of (function, arguments, size)
    cdef list dirty                 # drivers with pending output
    cdef list gates                 # gates of callers whose request the loop has not handled
    cdef int fd                     # a byte written here wakes the loop; -1 before its start
    cdef bint asleep
    cdef bint calls_back            # whether the loop is running callbacks
    cdef readonly bint is_closed
    cdef readonly Py_ssize_t size   # total size of the requests that the loop has not taken

    cdef bint put(self, function, tuple arguments, Py_ssize_t size) except -1
    cdef int rouse(self) except -1
