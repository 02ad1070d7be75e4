# Durations, counted by powers of four; see histogram.h.
from libc.stdint cimport int64_t, uint64_t


cdef extern from "histogram.h" nogil:
    enum:
        HISTOGRAM_BOUNDS

    ctypedef struct Histogram:
        uint64_t counts[13]
        double sum

    void histogram_add(Histogram *h, int first, int64_t ns, uint64_t count)
    void histogram_merge(Histogram *into, const Histogram *other)


# The exponent of the first bound (2^n ns) for each kind of duration.
cdef enum:
    FIRST_OF_AGES = 18          # age of messages when they are finished: 0.26 ms to 18 minutes
    FIRST_OF_SYNCS = 16         # 66 us to 4.6 minutes
    FIRST_OF_TURNS = 14         # event-loop iterations: 16 us to 69 s


cdef inline tuple histogram_facts(const Histogram *h):
    """Return the counts, and the sum in seconds."""
    cdef int i
    return [h.counts[i] for i in range(HISTOGRAM_BOUNDS + 1)], h.sum / 1e9
