# State that a worker's channels share: the turn's clocks, dirty objects, timers; and what they have
# dropped.
cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.base.core cimport Heap, HeapNode
from nsqcy.base.core cimport Percentiles
from nsqcy.channels.events cimport Events
from nsqcy.storage.block_pool cimport BlockPool
from nsqcy.storage.entry cimport Entry, Pages
from nsqcy.storage.record_window cimport RecordWindow


# A heap node that knows its owner; `owner` is borrowed.
ctypedef struct Timer:
    HeapNode node
    void *owner


cdef class SchedulerState:
    """Work of a turn (dirty objects), and wake-ups (timers)."""
    cdef public int64_t now                 # monotonic, ns; read once per turn
    cdef public int64_t wall                # wall clock, ns
    cdef int64_t arrival                    # of the latest deferral, see due_after()
    cdef list dirty_channels
    cdef list discarded                     # to be freed, see Discarded
    cdef Heap channel_timers
    cdef BlockPool pool
    cdef public uint64_t mem_queue_size     # messages
    cdef public int64_t max_msg_timeout     # ns
    cdef public bint topology_aware
    cdef readonly Percentiles percentiles   # quantiles of the time from publish to finish
    cdef readonly Events events             # receives message events; None: off
    cdef public object publish_once         # for transfers: see nsqcy.broker.dead_letter_transfer
    cdef uint32_t random_state

    cdef inline int64_t due_after(self, int64_t delay) noexcept:
        """Return when a message that is deferred now is due. In a turn, each arrives a nanosecond
        after the one before, so that equal delays end in order of arrival."""
        self.arrival = max(self.now, self.arrival + 1)
        return self.arrival + delay

    cdef uint32_t random_percent(self) noexcept


@cython.final
cdef class Discarded:
    """Messages of an emptied or deleted channel, to be freed in pieces."""
    cdef RecordWindow window
    cdef Entry *entries         # linked by `next`
    cdef Pages pages

    cdef int free_some(self, int budget) noexcept
