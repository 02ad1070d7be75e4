# Quantiles of a stream of numbers over a rolling window.
#
# A sketch keeps a sorted selection of the values that it received, with bounds on their ranks:
#
#     value      3    17    25        88        the minimum and the maximum are always kept
#     width      1     4     9         2        a rank is at least the sum of the widths up to it,
#     delta      0     2     0         0        and at most `delta` more
#
#     fresh   [ 19  4  77  5 ... ]              values that are not merged into the samples yet
#
# A window consists of two sketches, each covering half its length; the older one is complete.

from libc.stdint cimport int64_t, uint32_t, uint64_t


ctypedef struct Sample:
    int64_t value
    uint64_t width
    uint64_t delta


ctypedef struct Sketch:
    Sample *samples
    uint32_t size
    uint32_t room
    uint64_t count              # number of values that the samples represent
    int64_t *fresh
    uint32_t fresh_count
    uint32_t fresh_room


cdef class Percentiles:
    """The configured quantiles, and the length of the window."""
    cdef readonly tuple quantiles
    cdef readonly int64_t window        # ns


cdef class Latency:
    """The values of one channel within the window."""
    cdef Sketch halves[2]
    cdef int current
    cdef int64_t length                 # length of a half, ns
    cdef int64_t ends                   # end of the current half

    cpdef void add(self, int64_t value, int64_t now) noexcept nogil
    cpdef void rotate(self, int64_t now) noexcept nogil
