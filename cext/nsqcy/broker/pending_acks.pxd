# Pending acknowledgements: publishes that are waiting for the log.

from libc.stdint cimport uint32_t, uint64_t

from nsqcy.channels.consumer cimport Waiter


ctypedef struct PendingAck:
    uint64_t seq                # acknowledged when records up to this one are visible
    uint64_t ticket
    void *waiter                # owned reference


cdef class PendingAcks:
    cdef PendingAck *ring       # ordered by seq
    cdef uint32_t first
    cdef uint32_t count
    cdef uint32_t room

    cdef int add(self, uint64_t seq, Waiter waiter, uint64_t ticket) except -1
    cdef int answer(self, uint64_t seq, str error) except -1
    cdef uint64_t oldest(self) noexcept
    cdef bint publish_goes_on(self, uint64_t seq) noexcept
