# The fan-out position of a topic: records before it belong to its channels.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.channels.scheduler_state cimport SchedulerState
from nsqcy.channels.channel cimport Channel
from nsqcy.broker.topic_host cimport TopicHost
from nsqcy.storage.record_window cimport Cursor, RecordWindow
from nsqcy.storage.entry cimport Entry


cdef class FanOut(RecordWindow):
    cdef readonly str name
    cdef readonly bytes key
    cdef readonly bint ephemeral
    cdef readonly bint paused
    cdef readonly bint gone
    cdef readonly bint started
    cdef int64_t held_until             # fan-out is held until end_hold() or this time; 0: not held
    cdef bint unannounced               # publishes are answered by announced()
    cdef bint dirty
    cdef TopicHost host
    cdef SchedulerState scheduler
    cdef readonly dict channels
    cdef Entry *delayed_first           # delayed records at or after the fan-out position
    cdef Entry *delayed_last
    cdef readonly uint64_t delayed_count

    cdef uint64_t depth(self) noexcept
    cdef void wake_channels(self) noexcept
    cdef void place_cursor(self, Cursor *cursor, uint64_t seq) noexcept
    cdef bint fan_out_delayed(self) except -1
    cdef void add_delayed(self, Entry *entry) noexcept
    cdef int drop_delayed(self, uint64_t seq) except -1
    cdef int drop_front(self, uint64_t seq) except -1

    cdef inline void touch_dirty(self) noexcept:
        """Schedule settle_turn for the end of the turn."""
        if not self.dirty:
            self.become_dirty()

    cdef void become_dirty(self) noexcept

    cdef inline bint flowing(self) noexcept:
        if not self.channels:
            return False
        return self.started and not self.paused and self.held_until == 0

    cdef inline int fan_out(self) except -1:
        """Fan out all visible records; return whether some are left for the next turn.

        Each delayed record costs an entry per channel, so the number of delayed records per turn is
        limited.
        """
        if not self.flowing():
            return 0
        if self.delayed_first != NULL and self.fan_out_delayed():
            return 1
        self.move_cursor(&self.fanout, &self.visible)
        self.touch_dirty()
        return 0
