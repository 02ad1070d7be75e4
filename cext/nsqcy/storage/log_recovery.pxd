# The log on disk, as found at startup.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from nsqcy.storage.log cimport Log
from nsqcy.storage.segment cimport Extent, Segment, SegmentRun


cdef struct RecoveredRun:
    uint64_t first_seq
    uint64_t last_seq
    uint32_t count
    uint32_t flags
    int64_t first_time
    int64_t last_time
    Extent extent


cdef class Recovered:
    cdef readonly Log log
    cdef readonly list journal
    cdef readonly list damages
    cdef readonly bytes log_id
    cdef readonly uint64_t next_seq
    cdef readonly uint64_t max_id
    cdef readonly bint clean          # every segment had its footer
    cdef readonly list segments       # (number, bytes of the file, log_id or None, footer or None)
    # Dense runs that overlap a newer segment, as found on disk: (segment number, offset, bytes,
    # first_seq, last_seq)
    cdef readonly list overlaps
    cdef readonly bint open_end       # the newest segment had no footer: it was still being written
    cdef RecoveredRun *run_array      # the caller copies and releases the extents
    cdef size_t run_count
    cdef size_t run_capacity
    cdef list _covered                # (first, last) of the dense runs: ascending, disjoint
    cdef int add(self, const SegmentRun *run, Segment *segment, int fd) except -1
    cdef int _add_whole(self, const SegmentRun *run, Segment *segment) except -1
    cdef int _add_rest(self, const SegmentRun *run, Segment *segment, int fd,
                       list wanted) except -1
    cdef int _grow(self) except -1
    cdef list _uncovered(self, uint64_t first, uint64_t last)
    cdef int _cover(self, uint64_t first, uint64_t last) except -1


cpdef Recovered recover_log(Log log)
