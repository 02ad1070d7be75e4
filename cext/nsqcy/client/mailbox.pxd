# How the threads of a program hand work to the loop of the blocking client, and wait for it.


cdef class Mailbox:
    """Requests to a loop, in order."""
    cdef object requests            # deque of (function, arguments, size)
    cdef list dirty                 # drivers with pending output
    cdef list gates                 # of callers that wait until the loop has done their request
    cdef int fd                     # a byte here wakes the loop; -1 before its start
    cdef bint asleep
    cdef bint calls_back            # the loop runs callbacks
    cdef readonly bint is_closed
    cdef readonly Py_ssize_t size   # of the requests that the loop has not taken

    cdef bint put(self, function, tuple arguments, Py_ssize_t size) except -1
    cdef int rouse(self) except -1


cdef class Bell:
    cdef Mailbox mailbox
    cdef object driver
    cdef public bint is_rung


cdef class Waiters:
    cdef object make_gate
    cdef object gates               # deque, one per waiter

    cdef int wait_at(self, is_there, timeout) except -1


cdef class Event(Waiters):
    cdef bint happened


cdef class Deliveries:
    cdef Waiters waiters
    cdef object current             # identity of the caller's thread or greenlet
    cdef object check_end           # raises what has ended the consumer
    cdef object messages            # deque
    cdef readonly bint is_closed
    cdef readonly list callers      # threads or greenlets that iterate or wait

    cdef object next(self, timeout)
    cdef int wait(self, left) except -1
    cdef int put_back(self, list messages) except -1


cdef class Iteration:
    cdef Deliveries deliveries
    cdef object caller

    cdef int begin(self) except -1
    cdef int end(self) except -1


cdef class Batches(Iteration):
    cdef Py_ssize_t maximum
    cdef double within
    cdef object timeout
    cdef object flow


cdef class Condition(Waiters):
    cdef object lock                # reentrant
