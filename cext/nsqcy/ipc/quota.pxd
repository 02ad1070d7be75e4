# Quota usage per user, in memory that all workers of one nsqd share.
#
#       0  one Used per user       assigned in turn, and never released
#
# A rate is one word: the time until which the published bytes are paid for. Paying means adding to
# that word, so workers need neither a lock nor fixed shares, and together stay within the rate.
# Connections are counted in one word per worker, which is reset when that worker restarts. The
# counters for /metrics are never reset.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef enum:
    MAX_WORKERS = 64

cdef struct Used:
    uint64_t key                  # key of the user; 0: unused row
    uint64_t messages_until       # monotonic clock, ns
    uint64_t bytes_until
    uint64_t messages             # messages published while a rate was set
    uint64_t size                 # bytes published while a rate was set
    uint64_t waited               # ns, summed over all connections
    uint64_t publishes_refused
    uint64_t connections_refused
    uint32_t connections[MAX_WORKERS]


cdef class QuotaTable:
    cdef Py_buffer _view
    cdef size_t _rows
    cdef readonly int worker

    cdef Used *row(self, uint64_t key) noexcept


cdef class Quota:
    cdef QuotaTable table
    cdef Used *used
    cdef Used alone               # shared by users that appeared when all rows were in use
    cdef readonly str user
    cdef readonly uint32_t max_connections
    cdef readonly double rate     # messages per second; 0: no limit
    cdef readonly double bytes_rate
    cdef uint32_t waiting         # this worker's sessions that are waiting for it
    cdef int64_t waited_until     # their waiting time is counted up to this time
    cdef int64_t told_until

    cpdef bint limits_publishes(self) noexcept
    cpdef int64_t wait(self, int64_t now) noexcept
    cpdef void begin_wait(self, int64_t now) noexcept
    cpdef void end_wait(self, int64_t now) noexcept
    cdef void count_waits(self, int64_t now) noexcept
    cpdef int64_t turn(self, int64_t now) noexcept
    cpdef void pay(self, int64_t now, uint64_t messages, uint64_t size) noexcept
    cpdef uint32_t connections(self) noexcept
    cpdef bint enter(self) noexcept
    cpdef void join(self) noexcept
    cpdef void leave(self) noexcept
    cpdef void refuse_publish(self) noexcept
    cpdef bint is_news(self, int64_t now) noexcept
