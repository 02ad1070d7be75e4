# Reports about a channel's messages: events, latencies, ages.

from libc.stdint cimport int64_t, uint64_t

from nsqcy.base.histogram cimport FIRST_OF_AGES, Histogram, histogram_add
from nsqcy.base.quantile cimport Latency
from nsqcy.channels.events cimport EventKind, Events
from nsqcy.channels.inflight cimport InFlight
from nsqcy.storage.entry cimport Entry


cdef class MessageEvents(InFlight):
    cdef readonly Latency latency           # latency from publish to finish; None: not kept
    cdef Events events                      # None: no events
    cdef bytes event_names
    cdef bint watched                       # there is a latency to record, or events to report
    cdef Histogram *ages                    # ages of finished messages of its topic; NULL: not kept

    cdef void report_to(self, Events events, bytes names) noexcept
    cdef void report(self, EventKind kind, const Entry *entry) noexcept
    cdef void report_finish(self, const Entry *entry) noexcept

    cdef inline void record_ages(self, int64_t age, uint64_t count) noexcept:
        """Record the finish of `count` messages; the first has this age."""
        if self.ages != NULL:
            histogram_add(self.ages, FIRST_OF_AGES, age, count)
