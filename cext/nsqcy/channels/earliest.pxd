# The first few of many messages that have a time: by that time, and then by sequence number.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.base.heap cimport HeapSlot


cdef class Listing:
    cdef HeapSlot *slots        # a heap whose first is the last one that it has
    cdef int count
    cdef int limit
    cdef uint32_t left_out      # bits of the tag of a node that is no message
    cdef HeapSlot border        # the last one that is not wanted ...
    cdef uint64_t border_seq    # ... and its seq

    cdef inline bint is_later(self, const HeapSlot *one, const HeapSlot *other) noexcept
    cdef inline bint is_wanted(self, const HeapSlot *slot) noexcept
    cdef void offer(self, const HeapSlot *slot) noexcept
    # Of what is offered in the order of times: whether what comes next is of no use.
    cdef bint is_beyond(self, int64_t due) noexcept
    cdef void sift_up(self, int hole, const HeapSlot *slot) noexcept
    cdef void sift_down(self, const HeapSlot *slot) noexcept
