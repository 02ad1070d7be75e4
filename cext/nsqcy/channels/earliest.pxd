# The first few of many messages, ordered by time, then by sequence number.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.base.core cimport HeapSlot


cdef class Listing:
    cdef HeapSlot *slots        # a heap; its first node is its last message
    cdef int count
    cdef int limit
    cdef uint32_t left_out      # bits of the tag of a node that is not a message
    cdef HeapSlot border        # the last message before the wanted ones ...
    cdef uint64_t border_seq    # ... and its seq

    cdef inline bint is_later(self, const HeapSlot *one, const HeapSlot *other) noexcept
    cdef inline bint is_wanted(self, const HeapSlot *slot) noexcept
    cdef void offer(self, const HeapSlot *slot) noexcept
    # Return whether later messages are not needed, if messages are offered in order of time.
    cdef bint is_beyond(self, int64_t due) noexcept
    cdef void sift_up(self, int hole, const HeapSlot *slot) noexcept
    cdef void sift_down(self, const HeapSlot *slot) noexcept
