# A channel's deferred messages, its timers, and its entry in the scheduler.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.base.heap cimport Heap
from nsqcy.channels.channel_cursor cimport ChannelCursor
from nsqcy.channels.checkpoint_entries cimport Packing
from nsqcy.channels.scheduler_state cimport SchedulerState, Timer
from nsqcy.storage.entry cimport Deferred, Entry, Pages


# The lowest bit of a timer's tag.
cdef enum TimerKind:
    ENTRY_TIMER = 0
    IN_FLIGHT_TIMER = 1


cdef class Deferral(ChannelCursor):
    cdef SchedulerState scheduler
    cdef bint dirty
    cdef Pages pages                        # deferred messages
    cdef Heap timers                        # timers of deferred messages and of in-flight lists
    cdef Timer alarm                        # this channel in the scheduler's timers
    cdef readonly uint64_t deferred_count
    cdef set cancelled                      # seqs of records that fan-out skips after a restart
    cdef readonly uint64_t cancelled_count
    cdef Packing packing                    # entries of the checkpoint in progress

    cdef inline void touch_dirty(self) noexcept:
        """Schedule a call to dispatch in this turn."""
        if not self.dirty:
            self.become_dirty()

    cdef void become_dirty(self) noexcept
    cdef void set_alarm(self) noexcept
    cdef void drop_alarm(self) noexcept
    cdef int defer_record(self, const Entry *delayed, int64_t due) except -1
    cdef bint was_cancelled(self, uint64_t seq) except -1
    cdef Deferred *defer(self, const Deferred *message, int64_t due) except NULL
    cdef int defer_entry(self, Entry *entry, int64_t due) except -1
    cdef Deferred *find_deferred(self, uint64_t id) noexcept
    cdef uint64_t cancel(self, uint64_t id) noexcept
    cdef void pack(self, Deferred *entry) noexcept
