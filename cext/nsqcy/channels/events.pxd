# Message events in channels, for consumers of the events topic.
#
#   channel ──add──► ring ──flush, at most one batch under way──► publish(lines, done)
#                     │
#                     └ full: counted as dropped

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum EventKind:
    FINISH = 0
    REQUEUE = 1
    TIMEOUT = 2
    DEAD_LETTER = 3
    EXPIRED = 4


ctypedef struct Event:
    int64_t time            # wall clock, ns
    uint64_t id
    int64_t in_flight       # ns
    int64_t age             # ns since the publish
    void *names             # owned bytes: topic and channel, as in the line
    void *client            # owned str
    uint16_t attempts
    uint8_t kind


cdef class Events:
    """Events of a worker's channels that have not been published yet."""
    cdef Event *ring
    cdef uint32_t first
    cdef readonly uint32_t waiting
    cdef uint64_t below                 # messages with a smaller hash produce events ...
    cdef bint all_of_them               # ... or all messages produce events
    cdef uint32_t under_way             # lines passed to `publish` but not yet accepted
    cdef readonly uint64_t published
    cdef readonly uint64_t dropped
    cdef public object publish          # publish(lines, done); done(None) or done(reason) follows
    cdef str client                     # time of the latest line, as text
    cdef bytes client_json

    cdef void add(self, EventKind kind, uint64_t id, uint16_t attempts, int64_t time,
                  int64_t in_flight, int64_t age, bytes names, str client) noexcept
    cdef int flush(self) except -1
    cdef list take(self)
    cdef void forget_first(self) noexcept
