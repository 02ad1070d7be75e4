# Metrics of topics and channels, by number: first counters, whose totals outlive their owner, then
# gauges.
from libc.stdint cimport uint64_t

from nsqcy.base.core cimport Histogram


cdef enum:
    TOPIC_MESSAGES = 0
    TOPIC_BYTES = 1
    TOPIC_DROPPED = 2
    TOPIC_COUNTERS = 3
    TOPIC_DEPTH = 3
    TOPIC_DISK_BYTES = 4
    TOPIC_PAUSED = 5
    TOPIC_FIGURES = 6

    CHANNEL_MESSAGES = 0
    CHANNEL_DELIVERIES = 1
    CHANNEL_FINISHES = 2
    CHANNEL_REQUEUES = 3
    CHANNEL_TIMEOUTS = 4
    CHANNEL_DEAD_LETTERS = 5
    CHANNEL_DROPPED = 6
    CHANNEL_COUNTERS = 7
    CHANNEL_DEPTH = 7
    CHANNEL_IN_FLIGHT = 8
    CHANNEL_DEFERRED = 9
    CHANNEL_CONSUMERS = 10
    CHANNEL_PAUSED = 11
    CHANNEL_FIGURES = 12


# The series in which a topic or channel is shown.
cdef enum Series:
    UNDECIDED = 0               # not yet decided
    OWN = 1                     # by themselves
    OTHERS = 2                  # summed with the other series beyond the maximum
    EPHEMERALS = 3              # the series of all ephemeral ones
    SERIES = 4


# The combined values of one series.
ctypedef struct Sums:
    uint64_t topic[TOPIC_FIGURES]
    uint64_t channel[CHANNEL_FIGURES]
    Histogram ages


cdef inline void add_counters(uint64_t *into, const uint64_t *figures, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        into[i] += figures[i]
